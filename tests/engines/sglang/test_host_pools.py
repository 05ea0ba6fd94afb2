"""The host pools of one rank: worked examples to the byte, versions, sharding, bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.unknown import Unknown
from checks.releases.sglang import RELEASES, SglangRelease, sglang_release
from preflight.engines.sglang import pools as server_pools
from preflight.engines.sglang.host_pool_records import HostBytes, HostPools, PoolRequest, Refusal
from preflight.engines.sglang.host_pools import MOST_TOKEN_BYTES, host_pools
from preflight.engines.sglang.model import WellKnownModel, well_known_model
from preflight.engines.sglang.model_geometry import (
    AttentionKind,
    Heads,
    LayerKind,
    LinearState,
    ModelGeometry,
)
from preflight.engines.sglang.pool_request import Purpose
from preflight.engines.sglang.pools import ServerMemory
from tests.tables import each_row

NEWEST = sglang_release("0.5.23")


def model(name: str) -> ModelGeometry:
    known = well_known_model(name)
    assert isinstance(known, WellKnownModel)
    return known.geometry


def ask(name: str, release: SglangRelease = NEWEST, **rest: Any) -> PoolRequest:
    request = PoolRequest(model(name), release, 64, "page_first")
    return request._replace(**rest)


def exact(request: PoolRequest) -> HostPools:
    pools = host_pools(request)
    assert isinstance(pools, HostPools), pools
    return pools


@each_row(
    ("version", "mapped"),
    [("0.5.2", 2**35), ("0.5.4.post1", 2**35), ("0.5.4.post2", 29_999_759_360)],
)
def test_old_releases_pin_powers_of_two(version: str, mapped: int) -> None:
    """CPU torch, on which the recorded pools were run, pins none."""
    (pool,) = exact(ask("Qwen3-14B", sglang_release(version), tp=2, size_gb=30)).pools
    assert (pool.tokens, pool.bytes, pool.allocations_bytes) == (366_208, 29_999_759_360, (mapped,))


# tp: one rank's key/value heads, of the model's four.
@pytest.mark.parametrize(("tp", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1), (16, 1)])
def test_heads_are_replicated_when_ranks_exceed_them(tp: int, heads: int) -> None:
    pools = exact(ask("Qwen3-235B-A22B", tp=tp, size_gb=30))
    assert pools.bytes // pools.pools[0].tokens == 2 * 128 * heads * 94 * 2


def test_before_0_5_11_a_draft_of_its_own_has_no_pool() -> None:
    draft = model("Qwen3-8B")._replace(layers=(LayerKind.FULL,))
    asked = ask("Qwen3-8B", size_gb=30, draft=draft)
    assert len(exact(asked).pools) == 2
    assert len(exact(asked._replace(release=sglang_release("0.5.10"))).pools) == 1


def test_sliding_windows_share_the_size_by_the_bytes_on_the_device() -> None:
    pools = exact(ask("gpt-oss-120b", tp=8, size_gb=30, device_tokens=1_000_064))
    full, sliding = pools.pools
    # As many layers of each kind, and 0.8 of the tokens in the sliding ones.
    assert abs(sliding.bytes / full.bytes - 0.8) < 1e-3
    assert 30e9 < pools.bytes <= 30e9 + 2 * 64 * 2 * 64 * 18 * 2
    each = exact(
        ask("gpt-oss-120b", sglang_release("0.5.16"), tp=8, size_gb=30, device_tokens=1_000_064)
    )
    assert each.bytes > 60e9
    old = host_pools(ask("gpt-oss-120b", sglang_release("0.5.11"), tp=8, size_gb=30))
    assert isinstance(old, Unknown)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "Qwen3-Next-80B-A3B-Instruct"])
def test_hybrids_have_bounds_where_the_split_is_not_known(name: str) -> None:
    bounds = host_pools(ask(name, tp=2, size_gb=30))
    assert isinstance(bounds, HostBytes)
    assert isinstance(bounds.most_bytes, int)
    assert (bounds.least_bytes, bounds.most_bytes < 30.2e9) == (30 * 10**9, True)
    assert isinstance(host_pools(ask(name, tp=2, ratio=2.0)), Unknown)
    for device_tokens in (64, 6_400, 1_000_064, 64_000_000) if "gpt" in name else ():
        pools = exact(ask(name, tp=2, size_gb=30, device_tokens=device_tokens))
        assert bounds.least_bytes <= pools.bytes <= bounds.most_bytes


def test_without_geometry() -> None:
    request = ask("Qwen3-8B", size_gb=30)._replace(geometry=Unknown("no config.json"))
    bounds = host_pools(request)
    assert isinstance(bounds, HostBytes)
    assert bounds.least_bytes == 30 * 10**9
    # One page of tokens that are larger than any known model's: above the real pool.
    assert bounds.most_bytes == 30 * 10**9 + request.page_tokens * MOST_TOKEN_BYTES
    real = host_pools(ask("Qwen3-8B", size_gb=30))
    assert isinstance(real, HostPools)
    assert bounds.least_bytes <= real.bytes <= bounds.most_bytes
    assert "upper bound" in bounds.reason
    old = host_pools(request._replace(release=sglang_release("0.5.5")))
    assert isinstance(old, HostBytes)
    assert old.most_bytes == 30 * 10**9
    assert "upper bound" in old.reason
    assert isinstance(host_pools(request._replace(size_gb=0, ratio=2.0)), Unknown)


@each_row(
    ("change", "word"),
    [
        ({"layout": "page_unified"}, "not one of layer_first"),
        ({"ratio": None, "size_gb": -5}, "--hicache-ratio"),
        ({"ratio": 2.0, "size_gb": 0}, "GPU's tokens"),
        ({"pp": 40, "size_gb": 30}, "pipeline stages"),
        ({"dcp": 2, "size_gb": 30}, "latent attention alone"),
        (
            {"geometry": model("DeepSeek-R1"), "size_gb": 30, "layout": "page_head"},
            "ValueError: Unsupported layout: page_head",
        ),
        ({"packed_drafts": 1, "release": sglang_release("0.5.17"), "size_gb": 1}, "does not pack"),
        (
            {"release": sglang_release("0.5.14"), "size_gb": 1, "device_tokens": 10**6},
            "AssertionError: The host memory should be larger than the device memory",
        ),
    ],
)
def test_what_is_not_known_or_stops_the_server(change: dict[str, Any], word: str) -> None:
    found = host_pools(ask("Qwen3-8B", **change))
    assert isinstance(found, Unknown)
    assert word in found.reason


@st.composite
def requests(draw: st.DrawFn) -> PoolRequest:
    latent = draw(st.booleans())
    layers = draw(st.integers(1, 100))
    geometry = ModelGeometry(
        "model",
        AttentionKind.MLA if latent else AttentionKind.MHA,
        (LayerKind.FULL,) * layers,
        2,
        Heads(draw(st.integers(1, 128)), 128, 128),
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        index_layers=tuple(range(layers)) if latent and draw(st.booleans()) else (),
        index_head_dim=128,
    )
    return PoolRequest(
        geometry,
        draw(st.sampled_from(RELEASES)),
        draw(st.sampled_from([1, 16, 64])),
        "page_first",
        size_gb=draw(st.integers(1, 2000)),
        tp=draw(st.sampled_from([1, 2, 4, 8, 16])),
        kv_item_bytes=draw(st.sampled_from([1, 2])),
    )


@given(requests(), st.integers(1, 100))
def test_a_larger_size_never_gives_less(request: PoolRequest, more: int) -> None:
    small = host_pools(request)
    large = host_pools(request._replace(size_gb=request.size_gb + more))
    if isinstance(small, HostPools):
        assert isinstance(large, HostPools)
        assert small.bytes <= large.bytes
        assert small.pools[0].tokens <= large.pools[0].tokens


@given(requests())
def test_a_pool_is_its_size_and_one_page_at_the_most(request: PoolRequest) -> None:
    pools = host_pools(request)
    if not isinstance(pools, HostPools):
        return
    pool = pools.pools[0]
    assert pool.requested_bytes is not None
    per_page = pool.requested_bytes // pool.pages
    asked = request.size_gb * 10**9
    if request.release.extra_page:
        assert asked < pool.requested_bytes <= asked + per_page
    else:
        assert asked - per_page < pool.requested_bytes <= asked
    assert pool.tokens % request.page_tokens == 0
    assert sum(pool.allocations_bytes) >= pool.bytes


@given(requests(), st.sampled_from([2, 4, 8]))
def test_more_ranks_never_make_a_token_larger(request: PoolRequest, times: int) -> None:
    one, other = host_pools(request), host_pools(request._replace(tp=request.tp * times))
    if isinstance(one, HostPools) and isinstance(other, HostPools):
        assert other.pools[0].tokens >= one.pools[0].tokens


def test_the_most_of_each_stage_is_kept_where_the_least_is_even(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged = ServerMemory((1,), (4,), "a", most_by_stage=((2,), (4,)))
    parts = iter([staged, ServerMemory((1,), (3,), "b")])
    monkeypatch.setattr(server_pools, "_purposes", lambda sized: list(Purpose)[:2])
    monkeypatch.setattr(server_pools, "_pools_for_purpose", lambda sized: next(parts))
    anything: Any = SimpleNamespace(pp=2)
    found = server_pools.server_memory(anything, anything, anything, anything)
    assert [found.of_stage(stage, most=True) for stage in range(2)] == [(2, 3), (4, 3)]
    assert found.of_stage(1, most=False) == (1, 1)


def windowed(release: str, layers: str, **rest: Any) -> PoolRequest:
    """Ask for a model of ``layers``: f keeps every token, s those of a window."""
    kinds = tuple(LayerKind.FULL if kind == "f" else LayerKind.SLIDING for kind in layers)
    heads = Heads(4, 128, 128)
    geometry = ModelGeometry("window", AttentionKind.MHA, kinds, 2, heads, sliding=heads)
    return PoolRequest(geometry, sglang_release(release), 64, "page_first", **rest)


def test_a_sliding_pool_below_the_gpus_stops_the_releases_that_compare_them() -> None:
    """Both classes of 0.5.13 assert it; those of 0.5.16 warn."""
    small: dict[str, Any] = {"ratio": 0.5, "device_tokens": 64_000}
    refused = host_pools(windowed("0.5.13", "fs", **small))
    assert isinstance(refused, Unknown)
    assert refused.reason.startswith("AssertionError: The host memory should be larger")
    exact(windowed("0.5.16", "fs", **small))


def test_a_stage_of_sliding_layers_alone_is_unknown() -> None:
    found = host_pools(windowed("0.5.16", "ffss", size_gb=10, device_tokens=64_000, pp=2))
    assert isinstance(found, Unknown)
    assert "a pipeline stage without full or without sliding-window layers" in found.reason


def test_linear_states_have_no_layer_first_layout_since_0_5_16() -> None:
    """As the real MambaPoolHost said on CPU torch: 0.5.13 takes it, 0.5.16 to 0.5.23 do not."""
    asked = windowed("0.5.23", "ff", size_gb=10)._replace(layout="layer_first")
    state = LinearState(8, 16, 128, 128, 4, 4)
    kinds = (LayerKind.FULL, LayerKind.LINEAR)
    assert isinstance(asked.geometry, ModelGeometry)
    geometry = asked.geometry._replace(layers=kinds, sliding=None, linear=state)
    asked = asked._replace(geometry=geometry)
    for version in ("0.5.16", "0.5.18", "0.5.23"):
        found = host_pools(asked._replace(release=sglang_release(version)))
        assert isinstance(found, Refusal)
        assert found.reason.startswith("AssertionError: Unsupported layout: layer_first")
    assert not isinstance(host_pools(asked._replace(release=sglang_release("0.5.13"))), Refusal)
    assert isinstance(host_pools(asked._replace(layout="page_first")), HostBytes)
