"""The published runs, predicted from their flags alone, with the arithmetic in words.

The flags are those of Mooncake's own benchmark pages; nothing here was fitted to their figures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from preflight.cache_sizing.capacity.deployment import Bounds
from preflight.cache_sizing.capacity.report import first_evicting, first_may_evict
from tests.builders.capacity_launches import server_of, tier_of, tokens_of
from tests.paths import ROOT

# The releases whose masters have had each of the two defaults, 0.95 and 0.90.
RELEASES = ("0.3.10", "0.3.14")

LAUNCHES = ROOT / "tests/data/launches"
BENCH_H800 = """
python3 benchmark/hicache/bench_multiturn.py --model-path $MODEL_PATH \\
    --dataset-path $DATASET_PATH --disable-random-sample --output-length 1 \\
    --request-length 2048 --num-clients 80 --num-rounds 10 --max-parallel 4 --request-rate 16 \\
    --ready-queue-policy random --disable-auto-run --enable-round-barrier
"""
BENCH_DGX = """
python3 benchmark/hicache/bench_multiturn.py --model-path $MODEL_PATH --host 127.0.0.1 \\
    --port 8189 --disable-random-sample --output-length 1 --request-length 4096 \\
    --num-clients 20 --num-rounds 10 --max-parallel 4 --request-rate 16 \\
    --ready-queue-policy random --disable-auto-run --enable-round-barrier
"""
BENCH_A10 = """
python3 benchmark/hicache/bench_multiturn.py --model-path $MODEL_PATH --disable-random-sample \\
    --output-length 16 --request-length 2048 --num-clients 20 --num-rounds 10 --max-parallel 4 \\
    --request-rate 20 --ready-queue-policy random --disable-auto-run --seed 42
"""


def published(name: str, model: str, bench: str) -> str:
    """A launch as it was published, its model by name, and the benchmark that ran against it."""
    return f"MODEL_PATH={model}\n{(LAUNCHES / name).read_text()}\n{bench}"


H800_L2 = published("h800-l1-l2.sh", "Qwen/Qwen3-235B-A22B-Instruct-2507", BENCH_H800)
H800_POOL = published("h800-l1-l2-mooncake.sh", "Qwen/Qwen3-235B-A22B-Instruct-2507", BENCH_H800)
DGX = published("dgx-l1-l2-mooncake.sh", "Qwen/Qwen3-8B", BENCH_DGX)
DGX_SSD = published("dgx-l1-l2-mooncake-ssd.sh", "Qwen/Qwen3-8B", BENCH_DGX)
A10 = published("a10-l1-l2-mooncake.sh", "Qwen/Qwen3-14B", BENCH_A10)


def test_h800_l2_holds_three_rounds_and_starts_to_lose_in_the_fourth(tmp_path: Path) -> None:
    """A token of Qwen3-235B-A22B is a K and a V of 128 elements of 2 bytes, in 94 layers: 48 128
    bytes for a head. There are 4 heads and 8 ranks, so each rank keeps one, twice over. 30 x 10^9
    bytes on each rank hold 623 338 tokens, in whole pages of 64 and with the extra one 623 360. All
    ranks hold parts of the same tokens, so that is all.

    After round N each of 80 clients has N questions of 2048 tokens and N answers of 1, the last of
    which has no keys and values yet: 2049 N - 1, or 2048 N in whole pages while N is at most 10. So
    80 x 2048 x 3 = 491 520 tokens fit, and 80 x 2048 x 4 = 655 360 do not."""
    server = server_of(tmp_path, H800_L2, gpu_bytes=80 * GIB)
    assert tokens_of(server, "L2") == Bounds(623_360, 623_360)
    rounds = server.capacity.rounds
    assert [each.held_tokens for each in rounds[2:4]] == [491_520, 655_360]
    assert first_evicting(rounds, "L2") == first_may_evict(rounds, "L2") == 4
    # Reuse is whole before, and for certain no longer whole in the fourth round.
    parts = {
        each.number: {name: (low, high) for name, low, high in each.hits}["L2"] for each in rounds
    }
    assert [parts[number] for number in (2, 3)] == [(1.0, 1.0)] * 2
    assert parts[4][1] < 1
    # 64 clients take their turn before it is full: (623 360 - 491 520) / 2048.
    assert parts[4][0] >= 64 / 80


def test_h800_answers_the_same_without_the_size_of_the_gpu(tmp_path: Path) -> None:
    """The flags alone decide L2: the write policy puts all of L1 into it."""
    rounds = server_of(tmp_path, H800_L2).capacity.rounds
    assert first_evicting(rounds, "L2") == 4
    assert rounds[2].hits[-1] == ("L2", 1.0, 1.0)
    assert rounds[3].hits[-1][2] < 1


@pytest.mark.parametrize(
    ("mooncake", "tokens"), [(RELEASES[0], 2_013_440), (RELEASES[1], 1_907_456)]
)
def test_h800_the_pool_of_760_gib_holds_all_ten_rounds(
    mooncake: str, tokens: int, tmp_path: Path
) -> None:
    """760 GiB, for each rank an eighth, 95 GiB. A token takes 8 x 48 128 = 385 024 bytes, for every
    rank writes its own K and V. A page is 16 objects of 64 x 48 128 / 2 = 1 540 096 bytes; in a
    segment of 95 GiB they are counted in units of 32 bytes, and take 1.5 MiB (98% used). That is
    more than the watermark leaves: 0.95 x 760 GiB / 385 024 are 2 013 488 tokens, 31 460 pages of
    64; with 0.90 it is 29 804 pages. The workload comes to 80 x 20 480 = 1 638 400 tokens."""
    server = server_of(tmp_path, H800_POOL, gpu_bytes=80 * GIB, mooncake=mooncake)
    assert server.capacity.bytes_per_token == 385_024
    assert tokens_of(server, "L3") == Bounds(tokens, tokens)
    rounds = server.capacity.rounds
    assert rounds[-1].held_tokens == 1_638_400
    assert first_may_evict(rounds, "L3") is None
    assert all(each.hits[-1] == ("L3", 1.0, 1.0) for each in rounds)
    # L2 with a ratio of 2 alone would have lost long before.
    assert first_evicting(rounds, "L2") == 3


@pytest.mark.parametrize(("mooncake", "tokens"), [(RELEASES[0], 553_408), (RELEASES[1], 524_288)])
def test_dgx_the_pool_of_80_gb_holds_six_rounds_and_loses_from_the_seventh(
    mooncake: str, tokens: int, tmp_path: Path
) -> None:
    """A token of Qwen3-8B is 2 x 128 x 8 heads x 36 layers x 2 = 147 456 bytes, and mooncake_client
    reads 80GB as 80 x 2^30. Two objects of 4.5 MiB a page, which is a bin of its own: nothing is
    rounded. 0.95 of it holds 8647 pages of 64, 0.90 holds 8192.

    20 clients have 4096 N tokens in whole pages: 491 520 after six rounds, 573 440 after seven.
    Without the watermark 582 542 tokens would have fit, and round seven too."""
    server = server_of(tmp_path, DGX, gpu_bytes=40 * GIB, mooncake=mooncake)
    assert server.capacity.bytes_per_token == 147_456
    assert tokens_of(server, "L3") == Bounds(tokens, tokens)
    rounds = server.capacity.rounds
    assert [each.held_tokens for each in rounds[5:7]] == [491_520, 573_440]
    assert first_evicting(rounds, "L3") == first_may_evict(rounds, "L3") == 7
    assert all(each.hits[-1] == ("L3", 1.0, 1.0) for each in rounds[:6])
    assert rounds[6].hits[-1][1] < 1


def test_dgx_the_published_hit_rates_up_to_where_the_pool_evicts(tmp_path: Path) -> None:
    """Published: above 80% at the sixth round, 36% at the seventh, of all prompt tokens.

    The replay has more in the seventh: masters of that time evicted from each of 1024 shards, which
    takes pages out of many conversations. The replay evicts what was used least recently."""
    rounds = server_of(tmp_path, DGX, gpu_bytes=40 * GIB).capacity.rounds
    prompts = {number: 20 * (4097 * number - 1) for number in (6, 7)}
    sixth, seventh = (
        each.reusable_tokens * each.hits[-1][1] / prompts[each.number] for each in rounds[5:7]
    )
    assert sixth > 0.80
    assert 0.36 < seventh < 0.70


def test_dgx_with_ssd_offload_it_holds_on(tmp_path: Path) -> None:
    """In the page's releases offload may fill 2 TiB by default: 14.9 million tokens, for a workload
    of 819 200. From 0.3.12 on no limit binds: what the disk has decides, which was not read here.
    """
    server = server_of(tmp_path, DGX_SSD, gpu_bytes=40 * GIB, mooncake=RELEASES[0])
    assert tokens_of(server, "SSD") == Bounds(14_913_024, 14_913_024)
    rounds = server.capacity.rounds
    assert first_evicting(rounds, "L3") == 7
    assert first_may_evict(rounds, "SSD") is None
    assert all(each.hits[-1] == ("SSD", 1.0, 1.0) for each in rounds)
    newer = server_of(tmp_path, DGX_SSD, gpu_bytes=40 * GIB, mooncake=RELEASES[1])
    assert isinstance(tier_of(newer, "SSD").tokens, Unknown)
    assert newer.capacity.rounds[-1].hits[-1][2] == 1.0
