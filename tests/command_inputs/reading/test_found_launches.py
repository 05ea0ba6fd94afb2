"""Launches of others, which are not kept here, hold against what a reader sees in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.command_inputs.reading.found_launches import FOUND, UNCOUNTED, differences
from tests.paths import ROOT

pytestmark = pytest.mark.slow

# The folder in which they lie.
FOLDER = os.environ.get("MOONCAKE_PREFLIGHT_LAUNCHES", str(ROOT.parent / "shared/launches/found"))


found = pytest.mark.skipif(
    not Path(FOLDER).is_dir(), reason="MOONCAKE_PREFLIGHT_LAUNCHES names no folder of launches"
)


@found
@pytest.mark.parametrize("name", FOUND)
def test_a_launch_of_others(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth, unread = FOUND[name]
    (tmp_path / "host" / "proc").mkdir(parents=True)
    code = run(["read", "--json", "-vv", "--root", str(tmp_path / "host"), str(Path(FOLDER, name))])
    answer = json.loads(capsys.readouterr().out)
    if code == 64:
        assert not truth
        return
    found = []
    for each in answer["answer"]["processes"]:
        count = UNCOUNTED if isinstance(each["count"], dict) else each["count"]
        settings = {key: setting["value"] for key, setting in each["settings"].items()}
        found.append((each["program"], count, settings))
    assert differences(found, truth) == []
    assert (code == 3) is unread


# Launches of vLLM, LMCache, Dynamo, vLLM on Ascend: what of each fails, and rightly, on a host with
# eight H800. Nothing else of them may fail.
ENGINES: dict[str, set[str]] = {
    "b13-kthena-helm.yaml": set(),
    "b19-dynamo-dgd-v1beta1-kimik3.yaml": set(),
    "c-infx-dsv4_fp4_b200_vllm_mtp.sh": set(),
    "c-infx-minimaxm3_fp8_h200_mtp.sh": set(),
    "d-mc-iso-L62.sh": set(),
    "d-mc-lmcache.sh": set(),
    "d-mc-vllmstore-L50.sh": set(),
    "d-vllmascend-colocated.sh": set(),
    "e-srtslurm-vllm-mooncake.yaml": set(),
    # SGLang, in a launch that picks its engine: argparse knows two flags of that beginning
    "c-infx-glm5.2_fp4_b300_sglang_mtp.sh": {"arguments-refused"},
    # MODEL_DIR and MODEL_NAME are empty, where the caller sets neither: --model-path /
    "c-infx-amd-server_sglang.sh": {"values-refused"},
    "c-infx-qwen3.5_fp8_h200_mtp.sh": set(),
}


@found
@pytest.mark.parametrize("name", ENGINES)
def test_no_launch_of_an_engine_fails_for_what_is_not_so(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["check", "--json", "--root", "demo:h800", str(Path(FOLDER, name))])
    answer = json.loads(capsys.readouterr().out)
    if name == "b13-kthena-helm.yaml":
        assert code == 64
        assert "is a template that is not filled in" in answer["reason"]
        return
    failed = {one["check"] for one in answer["findings"] if one["status"] == "fail"}
    assert failed == ENGINES[name]
    assert code == (2 if failed else 3)
