"""What each tier holds, for kinds of models and of launches, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from checks.storage.folders import Folder
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.deployment import Bounds, Keys
from preflight.cache_sizing.capacity.report import capacity_text
from preflight.cache_sizing.capacity.tiers import (
    MASTER_KEY_BYTES,
    Eviction,
    PageObjects,
    Segments,
    objects_that_fit,
    occupied_bytes,
    offload_tier,
    pages_held,
)
from preflight.cache_sizing.capacity.workload import WorkloadOptions
from tests.builders.capacity_launches import (
    HICACHE,
    SERVER,
    STORED,
    answer_to,
    server_of,
    tier_of,
    tokens_of,
)
from tests.builders.launch_text import understood
from tests.tables import each_row

QWEN = {"model": "Qwen/Qwen3-14B", "tp": 2}
STORE = STORED.format(**QWEN, segment="80gb", size=30)
WORKLOAD = WorkloadOptions(clients=20, rounds=4, request_length=2048)


# Of a segment of 256 MiB, counted with a real mooncake_master 0.3.13.post1 until it refused.
@each_row(
    ("object_bytes", "fit"),
    [
        (4_718_592, 56),
        (1_540_096, 170),
        (1_500_000, 170),
        (1_100_000, 227),
        (1_048_577, 227),
        (524_289, 455),
        (2_097_152, 128),
    ],
)
def test_objects_fit_as_in_a_real_store(object_bytes: int, fit: int) -> None:
    assert objects_that_fit(object_bytes, 256 * MIB) == fit


@each_row(
    ("object_bytes", "segment_bytes", "taken"),
    [
        (7, GIB, 7),  # below eight bytes every size is a bin
        (16, GIB, 16),
        (17, GIB, 18),
        (1_540_096, 95 * GIB, 1_572_864),
        # A segment above 3.75 GiB is counted in pairs of bytes, one of 8 GiB in fours.
        (17, 4026531840, 18),
        (17, 4026531841, 18),
        (17, 8 * GIB, 20),
        (4026531841, 2 * GIB, None),  # larger than any bin
    ],
)
def test_an_object_takes_a_bin(object_bytes: int, segment_bytes: int, taken: int | None) -> None:
    assert occupied_bytes(object_bytes, segment_bytes) == taken
    assert (objects_that_fit(object_bytes, segment_bytes) == 0) is (taken is None)


@given(
    st.lists(st.integers(10_000, 5 * MIB), min_size=1, max_size=3),
    st.integers(64 * MIB, 200 * GIB),
    st.integers(0, 50 * GIB),
    st.integers(1, 16),
    st.floats(0.1, 1),
)
def test_more_bytes_never_hold_fewer_pages(
    sizes: list[int], segment: int, more: int, number: int, watermark: float
) -> None:
    objects = PageObjects(64, tuple(sizes))
    rule = Eviction(watermark, "test")

    def held(segment_bytes: int, count: int) -> int:
        return pages_held(objects, (Segments("test", segment_bytes, count),), rule)

    assert held(segment + more, number) >= held(segment, number)
    assert held(segment, number + 1) >= held(segment, number)
    # And never more than the bytes themselves.
    assert held(segment, number) * sum(sizes) <= segment * number


@pytest.mark.parametrize(
    ("size", "words", "tp", "tokens"),
    # 81 920 bytes a token on each of two ranks (4 of 8 heads), 163 840 on one; whole pages of 64
    # and one more. Of two stages of one rank each has 20 layers: 81 920 bytes on either.
    [
        (30, "", 2, 366_272),
        (30, "", 1, 183_168),
        (60, "", 1, 366_272),
        (30, "--pp-size 2", 1, 366_272),
    ],
)
def test_ranks_hold_shards_and_stages_layers_of_the_same_tokens(
    size: int, words: str, tp: int, tokens: int, tmp_path: Path
) -> None:
    script = HICACHE.format(model="Qwen/Qwen3-14B", tp=tp) + f" {words} --hicache-size {size}"
    server = server_of(tmp_path, script)
    assert tokens_of(server, "L2") == Bounds(tokens, tokens)
    assert tier_of(server, "L2").bytes == Bounds(tokens * 163_840, tokens * 163_840)
    assert server.capacity.bytes_per_token == 163_840


def test_ranks_of_latent_attention_hold_a_copy_each_and_the_first_alone_stores(
    tmp_path: Path,
) -> None:
    """DeepSeek-R1: 576 x 61 x 2 = 70 272 bytes a token, on each of eight ranks, once in the pool.

    A page of 64 is one object of 4 497 408 bytes in a bin of 4.5 MiB: 1820 fit a segment of 8 GiB,
    14 560 the pool of 64. The watermark of 0.90 comes first: 13 751; without one the bins bind."""
    script = STORED.format(model="deepseek-ai/DeepSeek-R1", tp=8, segment="64gb", size=100)
    server = server_of(tmp_path, script)
    assert server.capacity.bytes_per_token == 70_272
    assert tokens_of(server, "L2") == Bounds(1_423_104, 1_423_104)
    assert tier_of(server, "L2").bytes == Bounds(*[8 * 1_423_104 * 70_272] * 2)
    assert tokens_of(server, "L3") == Bounds(13_751 * 64, 13_751 * 64)
    assert server.capacity.keys == Keys(13_751, 13_751 * MASTER_KEY_BYTES)
    server = server_of(tmp_path, script, watermark=1.0)
    assert tokens_of(server, "L3") == Bounds(14_560 * 64, 14_560 * 64)


def test_replicas_hold_tokens_of_their_own(tmp_path: Path) -> None:
    """Two replicas of two ranks: twice the tokens, and a segment of 80 GiB for each replica."""
    one = server_of(tmp_path, STORE)
    two = server_of(tmp_path, f"{STORE} --dp-size 2")
    for name in ("L2", "L3"):
        assert tokens_of(two, name).most == pytest.approx(2 * tokens_of(one, name).most, abs=64)
    assert tier_of(two, "L3").formula.startswith("4 x 40.00 GiB (ranks)")


def test_data_parallel_attention_has_a_cache_for_each_group(tmp_path: Path) -> None:
    """Qwen3-14B on four ranks in two groups: half of the heads on each rank, so as with tp 2. Both
    groups store under the same names, so a page is no more objects than with tp 2."""
    script = STORED.format(model="Qwen/Qwen3-14B", tp=4, segment="80gb", size=30)
    server = server_of(tmp_path, f"{script} --dp-size 2 --enable-dp-attention", wanted=WORKLOAD)
    assert tokens_of(server, "L2") == Bounds(2 * 366_272, 2 * 366_272)
    assert server.capacity.bytes_per_token == 163_840
    assert "4 objects" in tier_of(server, "L3").formula
    # A conversation may come to the other group, which then finds it in the store.
    hits = {name: least for name, least, _ in server.capacity.rounds[-1].hits}
    assert hits["L1"] == 0.0  # which is not known
    assert 0.3 < hits["L2"] < 0.9
    assert hits["L3"] == 1.0
    assert any("2 caches side by side" in note for note in server.notes)


def test_sliding_windows_are_an_interval(tmp_path: Path) -> None:
    """Half of gpt-oss's layers keep a window: of the pages some have their keys, some not."""
    script = STORED.format(model="openai/gpt-oss-120b", tp=8, segment="64gb", size=100)
    server = server_of(tmp_path, script, gpu_bytes=141 * GIB)
    for name in ("L2", "L3"):
        tokens = tokens_of(server, name)
        assert 0 < tokens.least < tokens.most <= 2 * tokens.least
    loose = server_of(tmp_path, script)
    assert tokens_of(loose, "L2").least <= tokens_of(server, "L2").least
    assert tokens_of(loose, "L2").most >= tokens_of(server, "L2").most


def test_linear_attention_is_unknown_and_says_why(tmp_path: Path) -> None:
    script = STORED.format(model="Qwen/Qwen3-Next-80B-A3B", tp=2, segment="64gb", size=30)
    server = server_of(tmp_path, script, gpu_bytes=80 * GIB)
    tokens = tier_of(server, "L3").tokens
    assert isinstance(tokens, Unknown)
    assert "linear-attention layers" in tokens.reason
    assert any(note.startswith("L3 is not known") for note in server.notes)


def test_a_model_that_is_not_known_can_be_given(tmp_path: Path) -> None:
    script = STORED.format(model="/nowhere/mine", tp=2, segment="80gb", size=30)
    server = server_of(tmp_path, script)
    for tier in server.capacity.tiers:
        assert isinstance(tier.tokens, Unknown)
        assert "--model-config" in tier.tokens.reason
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 5120,
        "torch_dtype": "bfloat16",
    }
    config |= {"num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8}
    config |= {"head_dim": 128}
    known = server_of(tmp_path, script, model_config=json.dumps(config))
    assert tokens_of(known, "L2") == tokens_of(server_of(tmp_path, STORE), "L2")


def test_a_ratio_follows_the_gpu(tmp_path: Path) -> None:
    """Known between two bounds with the GPU's size, and exactly where --max-total-tokens binds."""
    script = HICACHE.format(**QWEN) + " --hicache-ratio 2"
    without = tier_of(server_of(tmp_path, script), "L2").tokens
    assert isinstance(without, Unknown)
    assert "--gpu-memory" in without.reason
    server = server_of(tmp_path, script, gpu_bytes=80 * GIB)
    gpu, host = tokens_of(server, "L1"), tokens_of(server, "L2")
    assert gpu.least < gpu.most
    # Twice the tokens, in whole pages and with the extra one.
    assert host == Bounds(2 * gpu.least + 64, 2 * gpu.most + 64)
    bound = server_of(tmp_path, f"{script} --max-total-tokens 100000", gpu_bytes=80 * GIB)
    assert tokens_of(bound, "L1") == Bounds(99_968, 99_968)
    assert tokens_of(bound, "L2") == Bounds(200_000, 200_000)


@each_row(
    ("words", "hits", "said"),
    [
        ("", ["L1"], "no L2: --enable-hierarchical-cache is not given"),
        ("--disaggregation-mode decode", [], "a decode server: no request finds"),
    ],
)
def test_a_server_without_hicache_has_its_gpu_alone(
    words: str, hits: list[str], said: str, tmp_path: Path
) -> None:
    script = f"{SERVER.format(**QWEN)} {words}"
    server = server_of(tmp_path, script, gpu_bytes=80 * GIB, wanted=WORKLOAD)
    assert [tier.name for tier in server.capacity.tiers] == ["L1"]
    assert [name for each in server.capacity.rounds[:1] for name, _, _ in each.hits] == hits
    assert any(note.startswith(said) for note in server.notes)
    assert server.capacity.keys is None


def test_without_a_backend_there_is_no_pool_and_another_one_is_named(tmp_path: Path) -> None:
    script = HICACHE.format(**QWEN) + " --hicache-size 30"
    assert [tier.name for tier in server_of(tmp_path, script).capacity.tiers] == ["L1", "L2"]
    server = server_of(tmp_path, f"{script} --hicache-storage-backend hf3fs")
    assert [tier.name for tier in server.capacity.tiers] == ["L1", "L2"]
    assert "storage backend hf3fs: what it holds is not computed here" in server.notes


def test_every_server_of_a_launch_is_answered_for(tmp_path: Path) -> None:
    """Prefill and decode: one with a cache, one without, and the pool of both."""
    prefill = f"{STORE} --disaggregation-mode prefill &"
    decode = SERVER.format(**QWEN) + " --disaggregation-mode decode"
    found = answer_to(tmp_path, f"{prefill}\n{decode}", gpu_bytes=80 * GIB)
    names = [[tier.name for tier in server.capacity.tiers] for server in found.servers]
    assert names == [["L1", "L2", "L3"], ["L1"]]


def test_all_that_contribute_count(tmp_path: Path) -> None:
    """Two ranks share 80 GiB, a store service has 3.125 GiB, a client 30, others 120."""
    service = (
        "MOONCAKE_MASTER=a:1 MOONCAKE_TE_META_DATA_SERVER=P2PHANDSHAKE MOONCAKE_PROTOCOL=tcp "
        "MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb python3 -m mooncake.mooncake_store_service &"
    )
    client = "mooncake_client --global_segment_size=30GB --master_server_address=a:1 &"
    script = f"{service}\n{client}\n{STORE}"
    server = server_of(tmp_path, script, other_bytes=120 * GIB)
    assert tier_of(server, "L3").formula.startswith(
        "4.00 GiB (Mooncake store service) + 30.00 GiB (mooncake_client) + 2 x 40.00 GiB (ranks) + "
        "120.00 GiB (--other-segments), evicts above 0.9"
    )
    # 0.9 x 234 GiB / (64 x 163 840 bytes): 21 565 pages; each object fills its bin of 2.5 MiB.
    assert tokens_of(server, "L3") == Bounds(21_565 * 64, 21_565 * 64)


def test_hosts_that_run_the_same_launch_add_their_segments(tmp_path: Path) -> None:
    one = server_of(tmp_path, STORE)
    four = server_of(tmp_path, STORE, nodes_in_cluster=4)
    assert tier_of(four, "L3").formula.startswith("8 x 40.00 GiB (ranks)")
    assert tokens_of(four, "L2") == Bounds(4 * 366_272, 4 * 366_272)
    assert tokens_of(four, "L3").most == pytest.approx(4 * tokens_of(one, "L3").most, abs=256)


def test_a_server_that_spans_hosts_counts_all_of_its_ranks(tmp_path: Path) -> None:
    """Two hosts of four ranks each, one server: its segment is divided among eight."""
    words = "--nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000"
    script = STORED.format(model="Qwen/Qwen3-14B", tp=8, segment="80gb", size=30) + f" {words}"
    server = server_of(tmp_path, script)
    assert tier_of(server, "L3").formula.startswith("8 x 10.00 GiB (ranks)")
    assert tier_of(server, "L2").formula.endswith("8 ranks hold shards of the same tokens")
    with pytest.raises(UsageError, match=r"spans 2 hosts .* a multiple of 2"):
        server_of(tmp_path, script, nodes_in_cluster=3)


@pytest.mark.parametrize(
    ("flags", "mooncake", "origin"),
    [
        ("", "0.3.14", "0.9 (default of Mooncake 0.3.14)"),
        ("", "0.3.11.post1", "0.95 (default of Mooncake 0.3.11.post1)"),
        ("", "0.3.6", "1 (default of Mooncake 0.3.6)"),
        ("--eviction_high_watermark_ratio=0.8", "0.3.14", "0.8 (--eviction_high_watermark_ratio"),
        ("-eviction_high_watermark_ratio 0.7", "0.3.14", "0.7 (--eviction_high_watermark_ratio"),
    ],
)
def test_the_watermark_is_the_masters(
    flags: str, mooncake: str, origin: str, tmp_path: Path
) -> None:
    server = server_of(tmp_path, f"mooncake_master {flags} &\n{STORE}", mooncake=mooncake)
    assert f"evicts above {origin}" in tier_of(server, "L3").formula


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (STORE.replace("80gb", "0"), "--other-segments"),
        (STORE.replace("80gb", "$SIZE"), "SIZE"),
        (f"mooncake_master --eviction_high_watermark_ratio=$MARK &\n{STORE}", "MARK"),
        (f"mooncake_master --memory_allocator=cachelib &\n{STORE}", "cachelib"),
    ],
)
def test_a_pool_that_is_not_known_says_what_is_missing(
    script: str, reason: str, tmp_path: Path
) -> None:
    tokens = tier_of(server_of(tmp_path, script), "L3").tokens
    assert isinstance(tokens, Unknown)
    assert reason in tokens.reason


LIMIT, QUOTA = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"


@pytest.mark.parametrize(
    ("mooncake", "name", "bound"),
    [
        ("0.3.11.post1", LIMIT, True),
        ("0.3.12", LIMIT, False),
        ("0.3.12", QUOTA, True),
        ("0.3.14", f"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=other {LIMIT}", True),
    ],
)
def test_offload_of_the_ranks_counts_each_of_them(
    mooncake: str, name: str, bound: bool, tmp_path: Path
) -> None:
    """1 TiB for each of two ranks; a page of 64 tokens is 10 485 760 bytes."""
    script = f"MOONCAKE_ENABLE_SSD_OFFLOAD=true {name}=1099511627776 {STORE}"
    tier = tier_of(server_of(tmp_path, script, mooncake=mooncake), "SSD")
    if not bound:
        assert isinstance(tier.tokens, Unknown)
        assert QUOTA in tier.tokens.reason
        return
    assert tier.bytes == Bounds(2 << 40, 2 << 40)
    assert tier.tokens == Bounds(*[(2 << 40) // 10_485_760 * 64] * 2)


def test_what_fills_no_bucket_does_not_reach_the_ssd(tmp_path: Path) -> None:
    """A page of 64 tokens is 4 objects of 2.5 MiB, of two ranks: 102 are a bucket of 256 MiB. So
    204 objects in 10 seconds, 326 tokens: half of 51 MiB a second is 89.5 GiB in an hour."""
    script = f"MOONCAKE_ENABLE_SSD_OFFLOAD=true {STORE}"

    def lost(script: str, mooncake: str = "0.3.13.post1") -> list[str]:
        notes = server_of(tmp_path, script, mooncake=mooncake).notes
        return [note for note in notes if "ssd-bucket-lost" in note]

    (note,) = lost(script)
    assert "at 326 new tokens a second (89.54 GiB an hour)" in note
    assert "at 32 new tokens a second" in lost(f"MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT=10 {script}")[0]
    assert lost(f"MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT=1 {script}") == lost(script, "0.3.14") == []


def test_eight_ranks_leave_most_of_their_ssd_empty(tmp_path: Path) -> None:
    """A page of 64 tokens of Qwen3-8B is 16 objects of 576 KiB: 466 are a bucket of 256 MiB. 500
    tokens a second are 125 objects, over eight ranks 156 in ten seconds each: 17% of 70.3 MiB."""
    script = STORED.format(model="Qwen/Qwen3-8B", tp=8, size=60, segment="80gb")
    script = f"MOONCAKE_ENABLE_SSD_OFFLOAD=1 {QUOTA}=150000000000 {script}"
    found = answer_to(tmp_path, script, new_tokens_per_second=500.0, mooncake="0.3.13.post1")
    written = {tier.name: tier.written for tier in found.servers[0].capacity.tiers}
    assert written["L2"] == written["L3"] == Bounds(500 * 147_456, 500 * 147_456)
    assert written["SSD"] is not None
    assert written["SSD"].most == pytest.approx(500 * 147_456 * 156.25 / 455 / 2, rel=0.01)
    said = capacity_text(found, 100, lambda text, _: text, True)
    assert "of 1.09 TiB at most 42.44 GiB fill in an hour" in said


@pytest.mark.parametrize(
    ("policy", "sglang", "least", "most"),
    [
        ("write_back", "0.5.8", 0, 0),
        ("write_back", "0.5.9", 0, 1),
        ("write_through_selective", "0.5.23", 0, 1),
    ],
)
def test_what_a_write_policy_writes_to_l3(
    policy: str, sglang: str, least: int, most: int, tmp_path: Path
) -> None:
    script = STORED.format(model="Qwen/Qwen3-8B", tp=1, size=60, segment="80gb")
    script = f"{script} --hicache-write-policy {policy}"
    wanted = WorkloadOptions(clients=20, rounds=10, request_length=4096)
    named: Any = {"sglang": sglang, "new_tokens_per_second": 1.0, "gpu_bytes": 80 * GIB}
    tier = tier_of(server_of(tmp_path, script, wanted=wanted, **named), "L3")
    assert tier.written == Bounds(least * 147_456, most * 147_456)
    assert tier.read is not None


@pytest.mark.parametrize(
    ("mooncake", "free_bytes", "limit_bytes", "said"),
    [
        ("0.3.11.post1", 1 << 40, 1 << 40, "free in /disk"),
        ("0.3.11.post1", 1 << 50, 2 << 40, "default of Mooncake"),
        ("0.3.12", 1 << 40, 1 << 40, "free in /disk"),
        ("0.3.12", 1 << 50, (1 << 50) * 9 // 10, "90% of the disk of /disk"),
    ],
)
def test_a_disk_that_has_less_free_than_the_limit_decides(
    mooncake: str, free_bytes: int, limit_bytes: int, said: str
) -> None:
    """Without a limit Mooncake fills 2 TiB, from 0.3.12 on 90% of the disk."""
    environment = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/disk"}
    processes = understood(("mooncake_client --enable_offload=true", environment))
    folder = Folder("/disk", False, False, True, True, False, 1 << 50, free_bytes, True)
    objects, release = PageObjects(64, (1 << 20, 1 << 20)), mooncake_release(mooncake)
    tier = offload_tier(processes, {}, objects, {"/disk": folder}, release)
    assert tier is not None
    assert tier.bytes == Bounds(limit_bytes, limit_bytes)
    assert tier.tokens == Bounds(*[limit_bytes // (2 << 20) * 64] * 2)
    assert said in tier.formula


def test_a_policy_that_writes_later_is_said_and_fills_later(tmp_path: Path) -> None:
    """What write_back puts into L2 has left L1, so both together hold it."""
    asked = WorkloadOptions(clients=200, rounds=4, request_length=2048)
    through = server_of(tmp_path, STORE, gpu_bytes=80 * GIB, wanted=asked)
    assert "L2" in through.capacity.rounds[1].evicting
    script = f"{STORE} --hicache-write-policy write_back"
    back = server_of(tmp_path, script, gpu_bytes=80 * GIB, wanted=asked)
    assert "L2" not in back.capacity.rounds[1].may_evict
    assert "L2" in back.capacity.rounds[3].evicting
    assert any(note.startswith("write policy write_back") for note in back.notes)


@pytest.mark.parametrize(
    ("model", "objects"),
    [
        ("Qwen/Qwen3-14B", "2 objects of 5.00 MiB"),  # K and V of a rank are one
        ("deepseek-ai/DeepSeek-V3", "1 object of 4.29 MiB"),
    ],
)
def test_the_segments_of_a_linker_are_the_pool(model: str, objects: str, tmp_path: Path) -> None:
    server = SERVER.format(model=model, tp=2)
    variables = "MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb"
    script = f"{variables} {server} --enable-unified-cache-external-linker"
    tier = tier_of(server_of(tmp_path, script), "L3")
    assert isinstance(tier.bytes, Bounds)
    assert 0.85 * 8 * GIB < tier.bytes.most <= 0.9 * 8 * GIB
    assert "2 x 4.00 GiB (ranks)" in tier.formula
    assert objects in tier.formula
