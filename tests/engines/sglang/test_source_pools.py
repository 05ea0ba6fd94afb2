"""What a launch's own words and its host make of a rank's host pools, beside the plain L2 pool.

The byte counts marked "run" come from SGLang 0.5.23's own functions on CPU torch.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Status
from checks.framework.installed import Installed
from checks.framework.pages import Spot
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Fit, Stock, judge_fit
from checks.releases.mooncake import mooncake_release
from checks.releases.sglang import sglang_release
from preflight.engines.mooncake.allocations import (
    Allocation,
    Outcome,
    StockedPools,
)
from preflight.engines.mooncake.replay import hugetlb_usages, replay
from preflight.engines.programs.memory_records import (
    Launch,
    MappedProcess,
    OwnAllocator,
    Protocol,
    StoreClient,
    StoreSettings,
)
from preflight.engines.sglang.admission_gate import gate_booked
from preflight.engines.sglang.host_pool_records import HostPool as Pool
from preflight.engines.sglang.host_pool_records import PoolKind
from preflight.engines.sglang.pools import ServerMemory
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.processes import LaunchOptions
from preflight.verdict.launch_checks import launch_findings
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.builders.launch_text import MASTER
from tests.needs.test_source_sizing import HUGE, QWEN, STORE, pages, size
from tests.tables import each_row

# Qwen3-14B on two ranks keeps 2 x 128 x 4 heads x 40 layers x 2 = 81 920 bytes a token.
TOKEN = 81_920
MOONCAKE = "0.3.13.post1"
NEWEST = (MOONCAKE, "0.5.23")
OF_SGLANG = "SGLANG_HUGEPAGE_SIZE"
SETTINGS = StoreSettings(hugepages=False, hugepage_bytes=2 * MIB)
PD = "python3 -m sglang.launch_server --tp 2 --page-size 64 --model-path Qwen/Qwen3-14B"
DECODE = f"{PD} --disaggregation-mode decode"
LATENT = DECODE.replace("Qwen/Qwen3-14B", "deepseek-ai/DeepSeek-R1")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return Host({2 * MIB: HostPool(total=60000)}, memory_bytes=512 * GIB).write(tmp_path)


def memory(sizing: LaunchSizing) -> ServerMemory:
    return sizing.inputs.memory[0]


def bounds(sizing: LaunchSizing) -> tuple[int, int]:
    found = memory(sizing)
    assert not isinstance(found.most_pools_bytes, Unknown), found.why
    return sum(found.least_pools_bytes), sum(found.most_pools_bytes)


def ids(sizing: LaunchSizing) -> set[str]:
    return {finding.rule.id for finding in sizing.inputs.findings}


def mapped(sizing: LaunchSizing, rank: int = 0) -> tuple[Allocation, ...]:
    assert sizing.shown is not None
    return sizing.shown.asked[rank].allocations


# SGLANG_HUGEPAGE_SIZE ------------------------------------------------------------------------


OWN, ON_STORE = f"{QWEN} --hicache-size 30", f"{QWEN} {STORE} --hicache-size 30"


@each_row(
    ("words", "environment", "versions", "page", "count"),
    [
        # 30 005 002 240 bytes round up to whole pages of the size that is asked for, per rank.
        (OWN, {}, NEWEST, 2 * MIB, 0),
        (OWN, {OF_SGLANG: "2MB"}, NEWEST, 2 * MIB, 14308),
        (OWN, {OF_SGLANG: " 2mb "}, NEWEST, 2 * MIB, 14308),  # strip, upper
        (OWN, {OF_SGLANG: "1GB"}, NEWEST, GIB, 28),
        (OWN, {OF_SGLANG: "4MB"}, NEWEST, 2 * MIB, 0),
        (OWN, {OF_SGLANG: ""}, NEWEST, 2 * MIB, 0),
        # It reads the variable since 0.5.13.
        (OWN, {OF_SGLANG: "2MB"}, (MOONCAKE, "0.5.12"), 2 * MIB, 0),
        (OWN, {OF_SGLANG: "2MB"}, (MOONCAKE, "0.5.13"), 2 * MIB, 14308),
        # Every backend but Mooncake's takes SGLang's allocator; shared memory has no huge pages.
        (f"{OWN} --hicache-storage-backend file", {OF_SGLANG: "2MB"}, NEWEST, 2 * MIB, 14308),
        (f"{OWN} --hicache-storage-backend nixl", {OF_SGLANG: "2MB"}, NEWEST, 2 * MIB, 14308),
        (f"{OWN} --hicache-storage-backend shm", {OF_SGLANG: "2MB"}, NEWEST, 2 * MIB, 0),
        # Mooncake has one since 0.3.8.post1; before, SGLang falls back to its own.
        (ON_STORE, {**MASTER, OF_SGLANG: "2MB"}, NEWEST, 2 * MIB, 0),
        (ON_STORE, {**MASTER, OF_SGLANG: "2MB"}, ("0.3.7", "0.5.23"), 2 * MIB, 14308),
    ],
)
def test_sglangs_own_huge_pages_are_counted_per_tensor(
    host: Path,
    words: str,
    environment: dict[str, str],
    versions: tuple[str, str],
    page: int,
    count: int,
) -> None:
    options = LaunchOptions(mooncake_version=versions[0], sglang_version=versions[1])
    assert pages(size(host, (words, environment), options=options), page) == 2 * count


def own(pool_bytes: int) -> MappedProcess:
    allocator = OwnAllocator(2 * MIB)
    return MappedProcess("own", SETTINGS, (pool_bytes,), own_allocator=allocator)


MIXED = st.tuples(
    st.lists(st.integers(1, 12 * MIB), max_size=2),
    st.booleans(),
    st.integers(0, 12 * MIB),
    st.sampled_from([None, 4 * MIB, 20 * MIB]),
)


@given(st.lists(MIXED, min_size=1, max_size=3), st.integers(0, 40), st.lists(st.integers(0, 2)))
def test_no_order_breaks_what_is_judged_to_start(
    members: list[tuple[list[int], bool, int, int | None]], count: int, turns: list[int]
) -> None:
    """Whoever comes first, pools that fall back included, a verdict that passes keeps its word."""
    processes = tuple(
        MappedProcess(
            f"rank {number}",
            SETTINGS._replace(hugepages=True, arena_bytes=arena),
            tuple(pools),
            (StoreClient(segment, MIB, Protocol.TCP),),
            own_allocator=OwnAllocator(2 * MIB) if is_own else None,
        )
        for number, (pools, is_own, segment, arena) in enumerate(members)
    )
    launch, spot = Launch(processes, mooncake_release(MOONCAKE)), Spot(2 * MIB, None)
    fit = judge_fit(hugetlb_usages(launch), {spot: Stock(count, count)}).fit
    order = [turn for turn in turns if turn < len(processes)]
    got = replay(launch, StockedPools({spot: count}), order)
    if fit in (Fit.FITS, Fit.FALLS_BACK):
        assert all(process.failure is None for process in got)
    if fit is Fit.FITS:
        assert all(a.outcome is Outcome.TAKEN for process in got for a in process.allocations)


# Drafts --------------------------------------------------------------------------------------

# 30 x 10^9 // 81 920 tokens are 5 723 pages of 64, one of them on top.
SLOTS = 5_723 * 64
NEXTN = (
    "python3 -m sglang.launch_server --tp 8 --page-size 64 --enable-hierarchical-cache "
    "--model-path deepseek-ai/DeepSeek-R1 --hicache-size 20 --speculative-algorithm"
)


STANDALONE = "--speculative-algorithm STANDALONE --speculative-draft-model-path Qwen/Qwen3-8B"
HEAD = (
    '{"architectures": ["LlamaForCausalLMEagle3"], "torch_dtype": "bfloat16", "hidden_size": 5120, '
    '"num_hidden_layers": 1, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128}'
)


@each_row(
    ("words", "version", "allocations"),
    [
        # Qwen3-8B on 2 ranks: 2 x 128 x 4 x 36 x 2 = 73 728 bytes for each of the target's slots.
        (f"{QWEN} --hicache-size 30 {STANDALONE}", "0.5.23", (SLOTS * TOKEN, SLOTS * 73_728)),
        (
            f"{QWEN} --hicache-size 30 {STANDALONE} --speculative-draft-kv-cache-dtype fp8_e4m3",
            "0.5.23",
            (SLOTS * TOKEN, SLOTS * 73_728 // 2),
        ),
        # Of this host's folder: one layer, 8 heads of 128 on 2 ranks, 2 x 128 x 4 x 2 bytes a slot.
        (
            f"{QWEN} --hicache-size 30 --speculative-algorithm EAGLE3 "
            "--speculative-draft-model-path /models/head",
            "0.5.23",
            (SLOTS * TOKEN, SLOTS * 2_048),
        ),
        # A head of the checkpoint is packed: 62 layers of 576 x 2 bytes are 71 424 a token, 280 017
        # tokens, 4 376 pages of 64 with one on top. No flag names the draft.
        (f"{NEXTN} NEXTN", "0.5.23", (4_376 * 64 * 71_424,)),
        (f"{NEXTN} eagle", "0.5.23", (4_376 * 64 * 71_424,)),
        # Before 0.5.18, 61 layers: 284 608 tokens, 4 448 pages with one on top; the head: one more.
        (f"{NEXTN} NEXTN", "0.5.16", (4_448 * 64 * 70_272, 4_449 * 64 * 1_152)),
        (f"{QWEN} --hicache-size 30 --speculative-algorithm ngram", "0.5.23", (SLOTS * TOKEN,)),
    ],
)
def test_the_pools_of_drafts(
    host: Path, words: str, version: str, allocations: tuple[int, ...]
) -> None:
    (host / "models/head").mkdir(parents=True, exist_ok=True)
    (host / "models/head/config.json").write_text(HEAD)
    options = LaunchOptions(mooncake_version=MOONCAKE, sglang_version=version)
    found = memory(size(host, words, options=options))
    assert found.most_pools_bytes == allocations
    kinds = [PoolKind.KV, PoolKind.DRAFT][: len(allocations)]
    assert [pool.kind for pool in found.pools] == kinds


def test_drafts_lower_what_a_ratio_can_be_sure_of(host: Path) -> None:
    """The default --mem-fraction-static under speculative decoding is not computed: no floor."""
    options = LaunchOptions(mooncake_version=MOONCAKE, gpu_bytes=80 * GIB)
    launch = f"{QWEN} --hicache-ratio 2"
    plain = bounds(size(host, launch, options=options))
    drafted = bounds(size(host, f"{launch} {STANDALONE}", options=options))
    assert plain[0] > 0
    # One page of each pool, which even an empty GPU pool has.
    assert drafted[0] == 64 * (TOKEN + 73_728)


# The pools of prefill/decode servers ---------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "context", "tokens"),
    [
        # 20% of 100 032 tokens, 20 006: 312 whole pages and one more.
        ("0.5.23", "--context-length 8192", (313 * 64, 313 * 64)),
        # One request of 32 768 + 4 - 1 tokens in whole pages: 32 832; 513 and one more.
        ("0.5.23", "--context-length 32768", (514 * 64, 514 * 64)),
        # Not known: from 20% to all that the GPU holds.
        ("0.5.23", "", (313 * 64, 1_564 * 64)),
        ("0.5.20", "", (313 * 64, 313 * 64)),
        ("0.5.18", "", (1_564 * 64, 1_564 * 64)),
        ("0.5.17", "", (0, 0)),
    ],
)
def test_a_decode_server_backs_requests_up_without_a_flag(
    host: Path, version: str, context: str, tokens: tuple[int, int]
) -> None:
    options = LaunchOptions(mooncake_version=MOONCAKE, sglang_version=version)
    launch = f"{DECODE} --max-total-tokens 100032 {context}"
    assert bounds(size(host, launch, options=options)) == tuple(TOKEN * count for count in tokens)


@pytest.mark.parametrize(
    "flags",
    [
        "--disaggregation-decode-retraction-backup cpu_tensor",
        "--disaggregation-decode-enable-radix-cache",
        "--enable-priority-scheduling",
        "--dcp-size 2",
    ],
)
def test_what_keeps_retracted_requests_elsewhere(host: Path, flags: str) -> None:
    """A latent model does, too."""
    assert bounds(size(host, f"{DECODE} --max-total-tokens 100032 {flags}")) == (0, 0)
    assert bounds(size(host, LATENT)) == (0, 0)


OFFLOAD = "--disaggregation-decode-enable-offload-kvcache --hicache-storage-backend mooncake"


@each_row(
    ("gib", "words", "says"),
    [
        (
            512,
            f"{DECODE} {OFFLOAD} --hicache-size 10".replace("Qwen/Qwen3-14B", "openai/gpt-oss-20b"),
            "ValueError: Unsupported KV cache type for decode offload",
        ),
        (
            512,
            f"{LATENT} --disaggregation-decode-retraction-backup host_pool",
            "requires an MHA or hybrid-SWA HiCache host stack",
        ),
        (
            9,
            f"{QWEN} --max-total-tokens 100032",
            "ValueError: No host memory is left for HiCache after the 10 GiB reserve; set "
            "--hicache-ratio or --hicache-size explicitly.",
        ),
        (
            512,
            f"{QWEN} --max-total-tokens 100032 --hicache-host-memory-fraction 1.5",
            "--hicache-host-memory-fraction must be in (0, 1].",
        ),
    ],
)
def test_what_sglang_refuses_is_in_its_words(
    tmp_path: Path, gib: int, words: str, says: str
) -> None:
    root = Host(memory_bytes=gib * GIB).write(tmp_path / str(gib))
    sizing = size(root, (words, MASTER))
    assert (sizing.status, sizing.exit_code) == ("fails", 2)
    assert says in sizing.reason
    assert "host-pools-refused" in ids(sizing)


# A pool that SGLang sizes by the host --------------------------------------------------------


def test_another_host_leaves_the_size_between_nothing_and_the_default(host: Path) -> None:
    options = LaunchOptions(available_bytes=GIB, mooncake_version=MOONCAKE)
    sizing = size(host, f"{QWEN} --max-total-tokens 100032", options=options)
    assert bounds(sizing) == (0, 3_127 * 64 * TOKEN)
    assert "another host" in memory(sizing).why


def test_a_staging_cache_has_a_smaller_default(host: Path) -> None:
    """buffer_only: 1.2 times the GPU's tokens, 120 038: 1 875 whole pages and one more."""
    flags = "--hicache-host-memory-mode buffer_only --hicache-storage-backend file"
    sizing = size(host, f"{QWEN} --max-total-tokens 100032 {flags}")
    assert bounds(sizing) == (1_876 * 64 * TOKEN, 1_876 * 64 * TOKEN)


def test_pools_are_booked_against_the_budget_they_were_sized_by() -> None:
    newest = sglang_release("0.5.23")
    pool = Pool(PoolKind.KV, 64, 1, 60, (60,), 60)
    first, second = gate_booked((pool, pool), 100, newest)
    assert first.message is None
    assert second.free_bytes == 40
    assert second.message is not None
    unasked = pool._replace(requested_bytes=None)
    assert [answer.free_bytes for answer in gate_booked((unasked, pool), 60, newest)] == [60]


def test_the_host_bounds_what_the_gpu_leaves_unknown(tmp_path: Path) -> None:
    """0.8 of (30 - 10) GiB over 2 ranks, 95% of it, and a page of the widest token there is."""
    root = Host(memory_bytes=30 * GIB).write(tmp_path)
    assert bounds(size(root, QWEN)) == (0, int(8 * GIB * 0.95) + 64 * 4 * MIB)


# NICs ----------------------------------------------------------------------------------------

TWO_NODES = Host(
    {2 * MIB: HostPool(nodes={0: (60000, 60000), 1: (60000, 60000)})},
    nodes=(0, 1),
    memory_bytes=512 * GIB,
    nics={"mlx5_0": 0, "mlx5_1": 1},
)


def segment_nodes(sizing: LaunchSizing, process: int) -> set[int | None]:
    found = mapped(sizing, process)
    return {a.node for a in found if a.what == "global segment"}


def test_each_store_is_split_over_its_own_nics(tmp_path: Path) -> None:
    """A store on one NIC is not split, beside one on two NICs, in whatever order they stand."""
    root = TWO_NODES.write(tmp_path)
    both = ("mooncake_client --global_segment_size=8GB --protocol=rdma", HUGE)
    one = (f"{both[0]} --device_names=mlx5_1", HUGE)
    for order, expected in (((both, one), [{0, 1}, {None}]), ((one, both), [{None}, {0, 1}])):
        sizing = size(root, *order)
        assert [segment_nodes(sizing, process) for process in (0, 1)] == expected


@pytest.mark.parametrize(
    ("mooncake", "sglang", "ids"),
    [
        ("0.3.13.post1", "0.5.23", set()),
        ("0.3.13.post1", "0.5.23+cu130", set()),
        ("0.3.13.post1", "0.5.24", {"sglang-newer"}),
        ("0.4.0", "0.5.22.dev31+g0a1b2c3", {"mooncake-newer", "sglang-own-build"}),
        ("0.3.13+git1a2b3c", "0.5.23rc1", {"mooncake-own-build", "sglang-own-build"}),
    ],
)
def test_what_is_no_known_release_is_said(
    host: Path, mooncake: str, sglang: str, ids: set[str]
) -> None:
    options = LaunchOptions(mooncake_version=mooncake, sglang_version=sglang)
    sizing = size(host, (f"{QWEN} --hicache-size 30", {}), options=options)
    assert sizing.shown is not None
    assert {note.id for note in sizing.shown.inputs.notes} == ids
    said = [finding for finding in launch_findings(sizing) if finding.check == "launch.assumed"]
    assert {finding.subject for finding in said if finding.status is Status.WARN} == ids


@pytest.mark.parametrize(
    ("limit", "pages", "status", "says"),
    [
        # A refused arena is done without. One that is mapped is filled up to the limit, and what is
        # used of it, 48 pages here, has to lie below.
        ("hugetlb.2MB.rsvd.max", 100, "falls_back", ""),
        ("hugetlb.2MB.max", 100, "falls_back", ""),
        ("hugetlb.2MB.max", 40, "fails", "SIGBUS (exit code 135)"),
    ],
)
def test_an_arena_over_a_limit_ends_the_process_where_it_is_used_beyond(
    tmp_path: Path, limit: str, pages: int, status: str, says: str
) -> None:
    root = Host(
        {2 * MIB: HostPool(total=1000)},
        memory_bytes=512 * GIB,
        cgroup={limit: str(pages * 2 * MIB), limit.replace("max", "current"): "0"},
    ).write(tmp_path)
    client = "mooncake_client --global_segment_size=80MB --local_buffer_size=16MB --protocol=tcp"
    sizing = size(root, (client, {**HUGE, "MC_MMAP_ARENA_POOL_SIZE": "400mb"}))
    assert sizing.status == status
    assert sizing.shown is not None
    assert sizing.shown.taken is not None
    failure = sizing.shown.taken[0].failure
    assert (failure.error if failure else "").startswith(says)


def stages(tmp_path: Path, environment: dict[str, str], pp: int = 2) -> list[tuple[int, ...]]:
    """The pools of each rank of pipeline stages of 19 latent layers, pages of 32 tokens."""
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 19,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    launch = f"python3 -m sglang.launch_server --model-path x --tp 2 --pp-size {pp} --page-size 32"
    options = LaunchOptions(mooncake_version=MOONCAKE, sglang_version="0.5.23")
    options = options._replace(model_config=json.dumps(config))
    root = Host({2 * MIB: HostPool(total=60000)}, memory_bytes=512 * GIB).write(tmp_path)
    line = f"{launch} --enable-hierarchical-cache --hicache-size 3"
    inputs = size(root, (line, environment), options=options).inputs
    if isinstance(inputs.most, Unknown):
        return []
    assert inputs.most == inputs.least
    return [process.host_pools_bytes for process in inputs.most.launch.processes]


def test_each_pipeline_stage_has_its_own_bytes(tmp_path: Path) -> None:
    """9 and 10 layers of the same tokens; the real pools of both stages, run on 0.5.23."""
    first, last = (2_700_324_864,), (3_000_360_960,)
    assert stages(tmp_path, {}) == [first, first, last, last]
    # Not read: no number.
    split = {"SGLANG_PP_LAYER_PARTITION": "10,9"}
    assert stages(tmp_path, split) == []
    # Of one stage it says nothing.
    assert stages(tmp_path, split, 1) == stages(tmp_path, {}, 1) != []


@pytest.mark.parametrize("version", ["0.0.0.dev1+g0a1b2c3", "0.4.10", "main"])
def test_an_installed_sglang_that_nobody_knows_is_said(host: Path, version: str) -> None:
    """An editable install of a checkout has such a number: the newest is taken, with a finding."""
    installed = Installed((("mooncake-transfer-engine", MOONCAKE),), version)
    sizing = size(
        host, (f"{QWEN} --hicache-size 30", {}), options=LaunchOptions(installed=installed)
    )
    said = [one for one in launch_findings(sizing) if one.check == "launch.assumed"]
    assert [one.subject for one in said] == ["sglang-version-unread"]
    assert f"SGLang {version} is no release that is known here: taken as 0.5.23" in said[0].text
