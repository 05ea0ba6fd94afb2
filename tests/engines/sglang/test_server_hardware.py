"""The GPU's memory, where nobody gives it: what NVML says, or why that is no answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.unknown import Unknown
from checks.host_snapshot.capture import open_root
from preflight.needs.process_shares import gpu_memory
from tests.builders.synthetic import build_host, gpu_host


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight H800."""
    return build_host(tmp_path_factory.mktemp("host"), gpu_host())


@pytest.mark.parametrize(
    ("change", "why"), [({"memory_bytes": 40 << 30}, "GPUs differ"), ({"mig": 1}, "MIG divides it")]
)
def test_gpus_that_do_not_agree_are_not_guessed_from(
    tree: Path, change: dict[str, object], why: str
) -> None:
    """``change``: in the last one's answer of NVML."""
    calls = tree / "calls.json"
    text = calls.read_text()
    answers = json.loads(text)
    answers["gpus.nvml"]["devices"][-1].update(change)
    calls.write_text(json.dumps(answers))
    found = gpu_memory(None, open_root(str(tree)), ask_nvml=True, elsewhere=False)
    calls.write_text(text)
    assert isinstance(found, Unknown)
    assert why in found.reason
    assert "--gpu-memory" in found.reason
