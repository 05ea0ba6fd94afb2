"""The L1 pool that a ratio follows: the default memory fraction, and honest bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.framework.units import MIB
from checks.framework.unknown import Unknown
from checks.releases.sglang import sglang_release
from preflight.engines.sglang.host_pool_records import HostPools, PoolRequest
from preflight.engines.sglang.host_pools import host_pools
from preflight.engines.sglang.model import WellKnownModel, checkpoint_bytes, well_known_model
from preflight.engines.sglang.pool_request import (
    DeviceRequest,
    Interval,
    decode_pool_ratio,
    default_mem_fraction,
    device_tokens,
)
from tests.tables import each_row

NEWEST = sglang_release("0.5.23")


def ask(name: str = "Qwen3-8B", gpu_mib: int = 81_559, tp: int = 1, **rest: Any) -> DeviceRequest:
    known = well_known_model(name)
    assert isinstance(known, WellKnownModel)
    pools = PoolRequest(known.geometry, NEWEST, 64, "page_first", ratio=2.0, tp=tp)
    return DeviceRequest(pools, gpu_mib * MIB)._replace(**rest)


def interval(request: DeviceRequest) -> Interval:
    found = device_tokens(request)
    assert isinstance(found, Interval), found
    return found


def host_bytes(request: DeviceRequest) -> list[int]:
    """The host pools of a rank under the ratio, at both ends of the device's tokens."""
    tokens, found = interval(request), []
    for count in (tokens.least, tokens.most):
        pools = host_pools(request.pools._replace(device_tokens=count))
        assert isinstance(pools, HostPools), pools
        found.append(pools.bytes)
    return found


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
]


@each_row(("name", "gpu_mib", "fractions"), FRACTIONS)
def test_default_fraction(name: str, gpu_mib: int, fractions: tuple[float, ...]) -> None:
    found = tuple(default_mem_fraction(ask(name, gpu_mib, tp)) for tp in (1, 2, 4, 8))
    assert found == fractions


def test_older_releases_have_other_defaults() -> None:
    request = ask()
    old = request._replace(pools=request.pools._replace(release=sglang_release("0.5.9")))
    assert isinstance(default_mem_fraction(old), Unknown)
    bounds = interval(old)
    assert bounds.least == 0
    assert bounds.most >= interval(request).most
    assert "at most the whole GPU" in bounds.reason


def test_a_bound_pool_is_exact() -> None:
    request = ask(max_total_tokens=100_000, weights_bytes=16 * 10**9)
    assert interval(request)[:2] == (99_968, 99_968)
    assert host_bytes(request) == [29_491_200_000] * 2


def test_more_tokens_asked_for_than_fit_is_an_upper_bound() -> None:
    request = ask(weights_bytes=16 * 10**9)
    assert interval(request._replace(max_total_tokens=10**9))[:2] == interval(request)[:2]


def test_without_a_gpu_the_tokens_asked_for_are_all_that_is_known() -> None:
    bounds = interval(ask(gpu_bytes=Unknown("no GPU"), max_total_tokens=100_000))
    assert (bounds.least, bounds.most) == (99_968, 99_968)
    assert "if as many fit" in bounds.reason
    assert isinstance(device_tokens(ask(gpu_bytes=Unknown("no GPU"))), Unknown)


def test_weights_narrow_the_bounds() -> None:
    loose = interval(ask())
    tight = interval(ask(weights_bytes=2 * 8_190_735_360))
    assert loose.least == 0
    assert loose.least < tight.least < tight.most < loose.most
    # Weights of a fifth of the GPU: a few per cent apart.
    assert tight.most / tight.least < 1.06


def test_weights_that_do_not_fit_leave_nothing() -> None:
    assert interval(ask("DeepSeek-R1", weights_bytes=700 * 10**9))[:2] == (0, 0)
    # A fraction that is given wins.
    assert interval(ask(mem_fraction=0.5)).most < interval(ask(mem_fraction=0.9)).most


def test_host_bytes_are_about_the_ratio_times_the_cache() -> None:
    least, most = host_bytes(ask(mem_fraction=0.8, weights_bytes=0))
    assert 0.94 < least / (2 * 0.8 * 81_559 * MIB) < 1
    assert least < most < 2 * 0.8 * 81_559 * MIB


def test_sparse_attention_pays_for_its_index_keys_on_the_device() -> None:
    plain = interval(ask("DeepSeek-R1", mem_fraction=0.9))
    sparse = interval(ask("DeepSeek-V3.2", mem_fraction=0.9))
    assert sparse.most / plain.most == pytest.approx(1152 / (1152 + 132), rel=1e-3)


def test_linear_states_are_not_computed() -> None:
    assert isinstance(device_tokens(ask("Qwen3-Next-80B-A3B-Instruct")), Unknown)


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
