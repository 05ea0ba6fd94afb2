"""The L1 pool that a ratio follows: the default memory fraction, and honest bounds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks.framework.units import MIB
from checks.framework.unknown import Unknown
from checks.releases.sglang import sglang_release
from preflight.engines.sglang.host_pool_records import PoolRequest
from preflight.engines.sglang.model import WellKnownModel, checkpoint_bytes, well_known_model
from preflight.engines.sglang.pool_request import (
    DeviceRequest,
    _retraction_ratio,
    decode_pool_ratio,
    default_mem_fraction,
)
from preflight.engines.sglang.pools import _keeps_retracted_requests
from tests.tables import each_row

NEWEST = sglang_release("0.5.23")


def ask(name: str = "Qwen3-8B", gpu_mib: int = 81_559, tp: int = 1, **rest: Any) -> DeviceRequest:
    known = well_known_model(name)
    assert isinstance(known, WellKnownModel)
    pools = PoolRequest(known.geometry, NEWEST, 64, "page_first", ratio=2.0, tp=tp)
    return DeviceRequest(pools, gpu_mib * MIB)._replace(**rest)


# GPU memory in MiB, then the default at tp 1, 2, 4, 8 as SGLang 0.5.23's own code computes it.
FRACTIONS = [
    ("Qwen3-8B", 40_960, (0.823, 0.820, 0.807, 0.795)),
    ("Qwen3-8B", 46_068, (0.843, 0.840, 0.829, 0.818)),
    ("Qwen3-8B", 81_559, (0.830, 0.828, 0.819, 0.812)),
    ("Qwen3-8B", 143_771, (0.903, 0.902, 0.897, 0.893)),
    ("Qwen3-8B", 183_359, (0.854, 0.853, 0.852, 0.849)),
    ("DeepSeek-R1", 40_960, (0.795, 0.792, 0.780, 0.767)),
    ("DeepSeek-R1", 46_068, (0.818, 0.815, 0.804, 0.793)),
    ("DeepSeek-R1", 81_559, (0.816, 0.815, 0.805, 0.799)),
    ("DeepSeek-R1", 143_771, (0.896, 0.895, 0.890, 0.886)),
    ("DeepSeek-R1", 183_359, (0.849, 0.848, 0.846, 0.844)),
    # On both sides of where one class of GPUs ends and the next begins.
    ("Qwen3-8B", 20_479, (0.802, 0.795, 0.783, 0.758)),
    ("Qwen3-8B", 20_480, (0.645, 0.638, 0.615, 0.59)),
    ("Qwen3-8B", 35_839, (0.797, 0.793, 0.78, 0.766)),
    ("Qwen3-8B", 35_840, (0.798, 0.794, 0.78, 0.766)),
    ("Qwen3-8B", 61_439, (0.882, 0.88, 0.872, 0.863)),
    ("Qwen3-8B", 61_440, (0.774, 0.772, 0.759, 0.751)),
    ("Qwen3-8B", 163_839, (0.915, 0.914, 0.91, 0.907)),
    ("Qwen3-8B", 163_840, (0.836, 0.835, 0.834, 0.831)),
]


@each_row(("name", "gpu_mib", "fractions"), FRACTIONS)
def test_default_fraction(name: str, gpu_mib: int, fractions: tuple[float, ...]) -> None:
    found = tuple(default_mem_fraction(ask(name, gpu_mib, tp)) for tp in (1, 2, 4, 8))
    assert found == fractions


@each_row(
    ("role", "most_running", "chunk", "dp", "pp", "fraction"),
    [
        ("", None, 4096, 1, 1, 0.807),
        ("", None, 4608, 1, 1, 0.788),  # and one graph more
        ("", None, 16384, 1, 1, 0.353),
        ("", None, None, 2, 1, 0.784),
        ("", None, None, 1, 4, 0.77),
        ("prefill", None, 2048, 1, 1, 0.892),
        ("prefill", None, 8192, 1, 1, 0.664),
        ("decode", None, None, 1, 1, 0.892),  # 2048 tokens, whatever is asked for below
        ("decode", 2048, None, 1, 1, 0.892),
        ("decode", 4096, None, 1, 1, 0.817),
    ],
)
def test_what_a_server_does_decides_its_default_fraction(
    role: str, most_running: int | None, chunk: int | None, dp: int, pp: int, fraction: float
) -> None:
    """On a GPU of 40 GiB at tp 4, by the formula of server_args.py of 0.5.23."""
    plain = ask("Qwen3-8B", 40_960, 4, role=role, max_running=most_running, chunked_prefill=chunk)
    pools = plain.pools._replace(attention_dp=dp > 1, dp=dp, pp=pp)
    assert default_mem_fraction(plain._replace(pools=pools)) == fraction


@pytest.mark.parametrize(
    ("version", "context", "ratio"),
    [
        ("0.5.17", 32_768, None),
        ("0.5.18", 32_768, 1.0),
        ("0.5.20", 131_072, 0.2),
        ("0.5.23", 8_192, 0.2),
        ("0.5.23", 50_001, 50_048 / 100_032),
        ("0.5.23", 10**6, 1.0),
    ],
)
def test_decode_servers_back_up_a_part(version: str, context: int, ratio: float | None) -> None:
    assert decode_pool_ratio(sglang_release(version), 100_032, 64, context) == ratio
    assert isinstance(decode_pool_ratio(NEWEST, 100_032, 64, Unknown("no config")), Unknown)


def test_checkpoint_bytes(tmp_path: Path) -> None:
    assert isinstance(checkpoint_bytes(str(tmp_path / "gone")), Unknown)
    assert isinstance(checkpoint_bytes(str(tmp_path)), Unknown)
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"x" * 100)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 1000)
    assert checkpoint_bytes(str(tmp_path)) == 100
    index = tmp_path / "model.safetensors.index.json"
    for broken in ("{", "[]", '{"metadata": {"total_size": "5"}}', '{"metadata": {}}'):
        index.write_text(broken)
        assert checkpoint_bytes(str(tmp_path)) == 100
    index.write_text(json.dumps({"metadata": {"total_size": 12_345}}))
    assert checkpoint_bytes(str(tmp_path)) == 12_345


@each_row(
    ("version", "context", "drafts", "bounds"),
    [
        ("0.5.17", 131_072, "", (0.0, 0.0)),
        ("0.5.18", 131_072, "", (1.0, 1.0)),
        ("0.5.20", 131_072, "", (0.2, 0.2)),
        ("0.5.23", 8_192, "", (0.2, 0.2)),
        ("0.5.23", 8_192, "EAGLE", (0.2, 1.0)),
        ("0.5.23", 10**6, "", (1.0, 1.0)),
        ("0.5.23", Unknown("no config"), "", (0.2, 1.0)),
    ],
)
def test_a_pool_of_retracted_requests_lies_between_bounds(
    version: str, context: int | Unknown, drafts: str, bounds: tuple[float, float]
) -> None:
    """Of 100 032 tokens of the GPU. Drafts lengthen a request by what is not computed."""
    hardware = SimpleNamespace(context_tokens=context, drafts=SimpleNamespace(algorithm=drafts))
    release = sglang_release(version)
    sized: Any = SimpleNamespace(release=release, hardware=hardware, value=lambda _: None)
    request = ask().pools
    assert _retraction_ratio(sized, request, 100_032) == bounds
    assert _retraction_ratio(sized, request, 0)[0] == (release.decode_ratio or 0)


@each_row(
    ("flags", "model", "kept"),
    [
        ({}, "Qwen3-8B", True),
        ({}, "DeepSeek-R1", False),
        ({}, "gpt-oss-20b", True),
        ({"enable_unified_memory": True}, "gpt-oss-20b", False),
        ({"enable_unified_memory": True}, "Qwen3-8B", True),
        ({"enable_unified_memory": True}, None, True),  # a bound
        ({"disaggregation_decode_retraction_backup": "none"}, "Qwen3-8B", False),
        ({"disaggregation_decode_retraction_backup": "cpu_tensor"}, "Qwen3-8B", False),
        ({"disaggregation_decode_retraction_backup": "host_pool"}, "DeepSeek-R1", True),
        ({"dcp_size": 1}, "Qwen3-8B", True),
        ({"dcp_size": 2}, "Qwen3-8B", False),
        ({"disaggregation_decode_enable_radix_cache": True}, "Qwen3-8B", False),
        ({"enable_priority_scheduling": True}, "Qwen3-8B", False),
        (
            {"enable_priority_scheduling": True, "disable_priority_preemption": True},
            "Qwen3-8B",
            True,
        ),
    ],
)
def test_which_decode_servers_keep_retracted_requests(
    flags: dict[str, Any], model: str | None, kept: bool
) -> None:
    """By kv_cache_builder.py of 0.5.23; no release before 0.5.18 keeps any."""
    known = Unknown("no model") if model is None else well_known_model(model)
    geometry = known if isinstance(known, Unknown) else known.geometry
    hardware = SimpleNamespace(geometry=geometry)
    sized: Any = SimpleNamespace(release=NEWEST, hardware=hardware, value=flags.get)
    assert _keeps_retracted_requests(sized) is kept
    sized.release = sglang_release("0.5.17")
    assert _keeps_retracted_requests(sized) is False
