"""A verdict that is not about all of a launch says so, and one refusal is said once.

And the keys that a full store makes its master keep, worked out by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.finding import Finding, Status
from checks.framework.root import Root
from checks.framework.units import GIB
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from preflight.launches.launch_files import read_source
from preflight.needs.launch_sizing import size_launch
from preflight.processes.processes import LaunchOptions
from preflight.verdict.launch_checks import key_findings
from tests.builders.hosts import Host

STORING = (
    "MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE={segment} python3 -m sglang.launch_server "
    "--model-path {model} --tp {tp} --page-size {page} --enable-hierarchical-cache "
    "--hicache-size 1 --hicache-storage-backend mooncake\n"
)


def _found(tmp_path: Path, sglang_version: str, **words: object) -> Finding:
    tmp_path.mkdir()
    path = tmp_path / "launch.sh"
    path.write_text(STORING.format(**words))
    host = Root(str(Host(memory_bytes=4096 * GIB).write(tmp_path / "host")))
    options = LaunchOptions(mooncake_version="0.3.14", sglang_version=sglang_version)
    sizing = size_launch(read_source(str(path), {}), "launch.sh", options, host, host.text)
    (found,) = key_findings(sizing)
    return found


@pytest.mark.parametrize(
    ("model", "tp", "page", "segment", "keys", "status"),
    [
        # A token of Qwen3-14B is 2 x 128 x 4 x 40 x 2 = 81 920 bytes on each of two ranks: an
        # object is half of 64 of them, 2 621 440 bytes; 800 x 2^30 bytes hold 327 680.
        ("Qwen/Qwen3-14B", 2, 64, "800gb", "327,680 keys", Status.PASS),
        # With pages of one token 64 times as many.
        ("Qwen/Qwen3-14B", 2, 1, "800gb", "20,971,520 keys", Status.WARN),
        # DeepSeek-R1: 576 x 61 x 2 = 70 272 bytes in one row, 4 497 408 for a page of 64.
        ("deepseek-ai/DeepSeek-R1", 8, 64, "800gb", "190,997 keys", Status.PASS),
        ("Qwen/Qwen3-14B", 2, 64, "0", "", Status.SKIP),
        ("$MODEL", 2, 64, "8gb", "", Status.UNKNOWN),
        ("Qwen/Qwen3-14B", 2, 64, "$SEGMENT", "", Status.UNKNOWN),
    ],
)
def test_keys(
    tmp_path: Path, model: str, tp: int, page: int, segment: str, keys: str, status: Status
) -> None:
    # 0.5.12 registers the pool whole: the keys of a page end in _k and _v all the same.
    for sglang in ("0.5.12", "0.5.23"):
        found = _found(tmp_path / sglang, sglang, model=model, tp=tp, page=page, segment=segment)
        assert (found.status, found.have) == (status, keys)
    assert "$" not in segment or "SEGMENT" in found.text


Patch = pytest.MonkeyPatch

Capture = pytest.CaptureFixture[str]
LIMITED = """\
services:
  s:
    image: lmsysorg/sglang:v0.5.9
    mem_limit: %s
    command: mooncake_client --global_segment_size=10GB --protocol=tcp
"""
SERVICES = """\
services:
  m:
    image: lmsysorg/sglang:v0.5.9
    network_mode: host
    command: mooncake_master --port 50051
  s:
    image: lmsysorg/sglang:v0.5.9
    profiles: [gpu]
    network_mode: host
    command: python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 16
"""


SERVER = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --hicache-size 10"
SERVER += " --enable-hierarchical-cache --port 31000"


def said(capsys: Capture, *words: str) -> str:
    run([*words])
    return " ".join(capsys.readouterr().out.split())


SERVED = f"{SERVICES}    shm_size: 8g\n".replace("mooncake_master --port 50051", SERVER)


VERBS = "check|fit|plan|plan --format sysctl|capacity|read".split("|")


@pytest.mark.parametrize(
    "words", ["check -q", "sizing", *(pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS)]
)
def test_each_verb_names_a_service_that_is_not_started(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, words: str
) -> None:
    monkeypatch.delenv("COMPOSE_PROFILES", raising=False)
    path = tmp_path / "compose.yaml"
    command, verb = (run_sizing, []) if words == "sizing" else (run, words.split())
    path.write_text(SERVED)
    command([*verb, "--root", "demo:h800", str(path)])
    out, err = capsys.readouterr()
    told = " ".join((err if "sysctl" in words else out).split())
    assert told.count("service s is not started: it belongs to profile gpu alone") == 1
    if words == "sizing":  # below the verdict
        assert out.split("\n\n")[1].startswith("Not started\n  service s is not started")
    path.write_text(SERVED.replace("    profiles: [gpu]\n", ""))
    command([*verb, "--root", "demo:h800", str(path)])
    assert "is not started" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(("limit", "word"), [("4g", "DIES LATER"), ("40g", "FITS")])
def test_sizing_knows_the_memory_limit_of_the_container(
    tmp_path: Path, capsys: Capture, limit: str, word: str
) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(LIMITED % limit)
    run_sizing(["--root", "demo:h800", str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(word)
    assert ("4.00 GiB allowed, 10.00 GiB on regular pages needed" in out) is (limit == "4g")
    # As check says it: the container starts, and the kernel ends it once it takes so much.
    said_by_check = said(capsys, "check", "--root", "demo:h800", "--only", "memory.*", str(path))
    assert ("dies later" in said_by_check) is (limit == "4g")


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: prefill}
spec:
  containers:
  - name: sglang
    image: lmsysorg/sglang:v0.5.23
    command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B]
    args: [--disaggregation-mode, prefill, --disaggregation-transfer-backend, mooncake]
    env:
    - {name: MC_GID_INDEX, value: "7"}
    - {name: MC_PKEY_INDEX, value: "%s"}
    resources: {limits: {nvidia.com/gpu: 1, rdma/hca: 1}}
"""


@pytest.mark.parametrize(("pkey", "status"), [("0", {"pass"}), ("9", {"unknown"})])
def test_a_gid_that_is_not_known_is_said_where_a_verdict_hangs_on_it(
    tmp_path: Path, capsys: Capture, pkey: str, status: set[str]
) -> None:
    """Whichever devices the pod's own GID leaves it: what all of them pass, it passes."""
    path = tmp_path / "pod.yaml"
    path.write_text(POD % pkey)
    only = ("--only", "rdma.*")
    out = said(capsys, "check", "--json", "--root", "demo:h800", *only, str(path))
    found: dict[str, set[str]] = {}
    for one in json.loads(out)["findings"]:
        found.setdefault(one["check"], set()).add(one["status"])
    assert found["rdma.no-device"] == {"unknown"}
    assert found["rdma.pkey"] == status
    for name in ("port-mtu", "node-type", "region-too-large", "resources", "table-capacity"):
        assert "unknown" not in found[f"rdma.{name}"], name


@pytest.mark.parametrize("place", ["image", "volume"])
def test_a_models_container_has_a_step_for_it(tmp_path: Path, capsys: Capture, place: str) -> None:
    """It was unknown for good, with nothing to do about it."""
    path, config = tmp_path / "compose.yaml", tmp_path / "config.json"
    volume = "volumes: [models:/models]" if place == "volume" else ""
    path.write_text(
        f"services:\n  s:\n    image: lmsysorg/sglang:v0.5.23\n    {volume}\n    command: "
        "python3 -m sglang.launch_server --model-path /models/Qwen3-8B\nvolumes: {models: {}}\n"
    )
    config.write_text("{}")
    options = ("--root", "demo:h800", "--only", "storage.files")
    out = " ".join(said(capsys, "check", *options, str(path)).split())
    assert out.startswith("UNKNOWN")
    assert "give the model's config.json with --model-config, or run this check inside" in out
    out = said(capsys, "check", *options, "--model-config", str(config), str(path))
    assert "/models/Qwen3-8B" not in out
