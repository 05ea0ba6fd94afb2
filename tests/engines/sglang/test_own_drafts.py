"""A draft that is the target's own head takes its layers' memory, not a second checkpoint's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.units import GIB
from preflight.base.program import data_file
from tests.builders.capacity_launches import server_of, tokens_of
from tests.builders.hosts import Host

# Of Step-3.5-Flash config.json names no
# num_nextn_predict_layers, though its checkpoint has such layers.
WEIGHTS = {"DeepSeek-V3-0324": 688_586_727_753, "Step-3.5-Flash": 392 * 10**9}
GPU_BYTES = 139 * GIB
# What the head's KV cache may cost of the target's tokens: one layer of each 61 or 45.
MARGIN = 0.9


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Checkpoints of the models, below the host's /models."""
    root = tmp_path / "host"
    Host(memory_bytes=4096 * GIB).write(root)
    table = json.loads(Path(data_file("models.json")).read_text())
    for name, size in WEIGHTS.items():
        folder = root / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(table[name]["config"]))
        index = {"metadata": {"total_size": size}, "weight_map": {}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("version", ["0.5.11", "0.5.16", "0.5.17", "0.5.18", "0.5.23"])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("spelt", [None, "{}", "{}/"])
def test_an_own_head_refuses_nothing_that_fits_without_it(
    models: Path, version: str, name: str, spelt: str | None
) -> None:
    path = f"/models/{name}"
    launch = (
        f"python3 -m sglang.launch_server --model-path {path} --tp 8 --mem-fraction-static 0.85"
    )
    launch += " --enable-hierarchical-cache --hicache-size 32"
    draft = f" --speculative-draft-model-path {spelt.format(path)}" if spelt else ""
    plain, drafted = (
        tokens_of(server_of(models, text, gpu_bytes=GPU_BYTES, sglang=version), "L1")
        for text in (launch, f"{launch} --speculative-algorithm EAGLE{draft}")
    )
    assert plain.least > 0
    assert MARGIN * plain.least <= drafted.least
    assert MARGIN * plain.most <= drafted.most <= plain.most
