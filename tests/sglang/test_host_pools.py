"""The host pools of one rank: worked examples to the byte, versions, sharding, bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.unknown import Unknown
from checks.releases.sglang import RELEASES, SglangRelease, sglang_release
from preflight.sglang import pools as server_pools
from preflight.sglang.host_pool_records import HostBytes, HostPools, PoolRequest, Refusal
from preflight.sglang.host_pools import MOST_TOKEN_BYTES, host_pools
from preflight.sglang.model import WellKnownModel, well_known_model
from preflight.sglang.model_geometry import (
    AttentionKind,
    Heads,
    LayerKind,
    LinearState,
    ModelGeometry,
)
from preflight.sglang.pool_request import Purpose
from preflight.sglang.pools import ServerMemory
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


# Full-size runs of SGLang 0.5.23's own classes: model, tp, --hicache-size, page, bytes per element,
# then tokens, pages, and the bytes of each allocation.
WORKED = [
    ("Qwen3-14B", 2, 30, 64, 2, 366_272, 5_723, (30_005_002_240,)),
    ("Qwen3-14B", 2, 30, 1, 2, 366_211, 366_211, (30_000_005_120,)),
    ("Qwen3-235B-A22B", 8, 30, 64, 2, 623_360, 9_740, (30_001_070_080,)),
    ("Qwen3-235B-A22B", 8, 30, 1, 2, 623_338, 623_338, (30_000_011_264,)),
    ("DeepSeek-R1", 8, 100, 64, 2, 1_423_104, 22_236, (100_004_364_288,)),
    ("DeepSeek-R1", 8, 100, 1, 2, 1_423_042, 1_423_042, (100_000_007_424,)),
    ("Qwen3-14B", 2, 30, 64, 1, 732_480, 11_445, (30_002_380_800,)),
    ("DeepSeek-V3.2", 8, 100, 64, 2, 1_423_104, 22_236, (100_004_364_288, 11_459_348_736)),
    ("DeepSeek-V3.2", 8, 100, 64, 1, 2_499_008, 39_047, (100_000_304_128, 20_122_527_744)),
]


@each_row(("name", "tp", "size", "page", "item", "tokens", "pages", "allocations"), WORKED)
@each_row("layout", ["layer_first", "page_first", "page_first_direct"])
def test_worked_examples(
    name: str,
    tp: int,
    size: int,
    page: int,
    item: int,
    tokens: int,
    pages: int,
    allocations: tuple[int, ...],
    layout: str,
) -> None:
    found = exact(
        ask(name, tp=tp, size_gb=size, page_tokens=page, kv_item_bytes=item, layout=layout)
    )
    assert (found.pools[0].tokens, found.pools[0].pages) == (tokens, pages)
    assert found.allocations_bytes == allocations
    assert found.bytes == sum(allocations)


@pytest.mark.parametrize(
    ("page", "device", "tokens", "size"),
    [(64, 99_968, 200_000, 29_491_200_000), (1, 100_000, 200_001, 29_491_347_456)],
)
def test_ratio_of_a_bound_device_pool(page: int, device: int, tokens: int, size: int) -> None:
    found = exact(ask("Qwen3-8B", ratio=2.0, device_tokens=device, page_tokens=page))
    assert (found.pools[0].tokens, found.bytes) == (tokens, size)


@pytest.mark.parametrize("version", ["0.5.2", "0.5.4", "0.5.4.post1"])
def test_old_releases_round_down_and_pin_powers_of_two(version: str) -> None:
    release = sglang_release(version)
    (pool,) = exact(ask("Qwen3-14B", release, tp=2, size_gb=30, layout="layer_first")).pools
    assert (pool.tokens, pool.bytes) == (366_208, 29_999_759_360)
    assert pool.allocations_bytes == (2**35,)
    (latent,) = exact(ask("DeepSeek-R1", release, tp=8, size_gb=100)).pools
    assert latent.allocations_bytes == (137_438_953_472,)


@pytest.mark.parametrize("version", ["0.5.4.post2", "0.5.5.post2"])
def test_then_they_stop_pinning_so(version: str) -> None:
    (pool,) = exact(ask("Qwen3-14B", sglang_release(version), tp=2, size_gb=30)).pools
    assert pool.allocations_bytes == (29_999_759_360,)


# tp: one rank's key/value heads, of the model's four.
@pytest.mark.parametrize(("tp", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1), (16, 1)])
def test_heads_are_replicated_when_ranks_exceed_them(tp: int, heads: int) -> None:
    pools = exact(ask("Qwen3-235B-A22B", tp=tp, size_gb=30))
    assert pools.bytes // pools.pools[0].tokens == 2 * 128 * heads * 94 * 2


def test_latent_rows_are_whole_on_every_rank() -> None:
    assert exact(ask("DeepSeek-R1", tp=1, size_gb=100)) == exact(
        ask("DeepSeek-R1", tp=16, size_gb=100)
    )


def test_attention_data_parallelism_leaves_fewer_ranks_to_shard_the_heads() -> None:
    sharded = exact(ask("Qwen3-235B-A22B", tp=8, size_gb=30))
    apart = exact(ask("Qwen3-235B-A22B", tp=8, dp=8, attention_dp=True, size_gb=30))
    assert apart == exact(ask("Qwen3-235B-A22B", tp=1, size_gb=30)) != sharded
    # Plain data parallelism is whole replicas.
    assert exact(ask("Qwen3-235B-A22B", tp=8, dp=8, size_gb=30)) == sharded


def test_stages_agree_on_the_fewest_tokens() -> None:
    # 94 layers over 4 stages: 23, 23, 24, 24; the wider stages hold fewer tokens.
    stages = [exact(ask("Qwen3-235B-A22B", pp=4, stage=n, size_gb=30)).pools[0] for n in range(4)]
    assert len({pool.tokens for pool in stages}) == 1
    assert stages[0].bytes < stages[3].bytes
    old = sglang_release("0.5.5")
    # All the rest to the last stage: 23, 23, 23, 25, and every stage fills its own size.
    before = [
        exact(ask("Qwen3-235B-A22B", old, pp=4, stage=n, size_gb=30)).pools[0] for n in range(4)
    ]
    assert before[2].tokens > before[3].tokens
    assert before[3].bytes // before[3].tokens == 2 * 128 * 4 * 25 * 2


def test_index_keys_inside_the_size_and_on_top_of_it() -> None:
    inside = exact(ask("DeepSeek-V3.2", sglang_release("0.5.9"), tp=8, size_gb=100))
    assert inside.bytes < 100.01e9
    assert len(inside.allocations_bytes) == 1 + 61
    on_top = exact(ask("DeepSeek-V3.2", sglang_release("0.5.11"), tp=8, size_gb=100))
    assert on_top.bytes == 111_463_713_024
    none = exact(ask("DeepSeek-V3.2", sglang_release("0.5.8"), tp=8, size_gb=100))
    assert len(none.pools) == 1


def test_the_gate_sees_one_page_of_index_keys_less_than_is_allocated() -> None:
    indexer = exact(ask("DeepSeek-V3.2", tp=8, size_gb=100)).pools[1]
    assert indexer.requested_bytes == indexer.bytes - 64 * 132 * 61


def test_packed_drafts_cost_tokens_and_not_bytes() -> None:
    plain = exact(ask("DeepSeek-V3.2", tp=8, size_gb=100))
    packed = exact(ask("DeepSeek-V3.2", tp=8, size_gb=100, packed_drafts=1))
    assert packed.pools[0].tokens < plain.pools[0].tokens
    assert abs(packed.pools[0].bytes - plain.pools[0].bytes) < 64 * 2 * 576 * 62


def test_a_draft_of_its_own_comes_on_top() -> None:
    draft = model("Qwen3-8B")._replace(layers=(LayerKind.FULL,))
    plain = exact(ask("Qwen3-8B", size_gb=30))
    pools = exact(ask("Qwen3-8B", size_gb=30, draft=draft))
    assert pools.pools[0] == plain.pools[0]
    assert pools.pools[1].tokens == plain.pools[0].tokens
    assert pools.pools[1].bytes == plain.pools[0].bytes // 36
    # Before 0.5.23 it was rounded as a pool of its own, and before 0.5.11 there was none.
    before = exact(ask("Qwen3-8B", sglang_release("0.5.22"), size_gb=30, draft=draft))
    assert before.pools[1].pages == plain.pools[0].pages + 1
    assert len(exact(ask("Qwen3-8B", sglang_release("0.5.10"), size_gb=30, draft=draft)).pools) == 1


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
    assert bounds.least_bytes == 30 * 10**9
    assert isinstance(bounds.most_bytes, int)
    assert bounds.most_bytes < 30.2e9
    assert isinstance(host_pools(ask(name, tp=2, ratio=2.0)), Unknown)


def test_the_bounds_hold_the_exact_pools() -> None:
    bounds = host_pools(ask("gpt-oss-120b", tp=8, size_gb=30))
    assert isinstance(bounds, HostBytes)
    assert isinstance(bounds.most_bytes, int)
    for device_tokens in (64, 6_400, 1_000_064, 64_000_000):
        pools = exact(ask("gpt-oss-120b", tp=8, size_gb=30, device_tokens=device_tokens))
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
        ({"ratio": None, "size_gb": 0}, "--hicache-ratio"),
        ({"ratio": 2.0, "size_gb": 0}, "GPU's tokens"),
        ({"pp": 40, "size_gb": 30}, "pipeline stages"),
        ({"dcp": 2, "size_gb": 30}, "latent attention alone"),
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


def test_latent_rows_have_no_page_head_layout() -> None:
    found = host_pools(ask("DeepSeek-R1", size_gb=30, layout="page_head"))
    assert isinstance(found, Unknown)
    assert found.reason == "ValueError: Unsupported layout: page_head"


@pytest.mark.parametrize("change", [{"tp": 0}, {"page_tokens": 0}, {"stage": 1}, {"dcp": 3}])
def test_numbers_that_no_launch_has(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="dcp"):
        host_pools(ask("DeepSeek-R1", size_gb=30, **change))


def test_a_size_below_zero_is_unset() -> None:
    assert exact(ask("Qwen3-8B", size_gb=-5, ratio=2.0, device_tokens=6400)) == exact(
        ask("Qwen3-8B", ratio=2.0, device_tokens=6400)
    )


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
    monkeypatch.setattr(server_pools, "_pool", lambda sized: next(parts))
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


def test_stages_share_the_tokens_of_both_pools_of_a_sliding_model() -> None:
    """Each host pool of a stage takes the MIN over the stages (sync_fixed_hicache_size)."""
    asked = windowed("0.5.23", "fsffss", size_gb=10, device_tokens=64_000, pp=2)
    stages = [exact(asked._replace(stage=stage)).pools for stage in (0, 1)]
    assert [pool.tokens for pool in stages[0]] == [pool.tokens for pool in stages[1]]


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
