"""One engine: ``capacity``, ``fit`` and ``capacity --trace`` keep the same part of a workload."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from checks.host_snapshot.described import Description
from preflight.cache_sizing.capacity.answer import CapacityAnswer, CapacityRequest
from preflight.cache_sizing.capacity.deployment import Cluster
from preflight.cache_sizing.capacity.rounds import (
    block_of,
    capacity_of,
    fewer_clients,
    kept_part,
    replay_rounds,
    rounds_requests,
    workload_trace,
)
from preflight.cache_sizing.capacity.trace_answer import (
    ReplayPlan,
    TraceRequest,
    page_of,
    replay_plans,
    trace_answers,
)
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload, WorkloadOptions
from preflight.cache_sizing.fit.fit_launch import FitResult, fit_launch
from preflight.cache_sizing.fit.judged_values import CompareBy
from preflight.cache_sizing.traces.describe import mooncake_lines
from preflight.cache_sizing.traces.formats import Request, open_trace
from preflight.cache_sizing.traces.tiers import Replay, Rules, StoreRules, TierSizes
from preflight.cli.main import run
from preflight.command_inputs.host_source import open_host
from preflight.command_inputs.launch_words import LaunchWords
from tests.builders.capacity_launches import STORED, answer_to
from tests.builders.examples import fewer, some
from tests.builders.synthetic import PATIENCE_SECONDS

# The three commands agree within this, of what is kept.
WITHIN = 0.001
PAGE = 16

workloads = st.builds(
    MultiTurnWorkload,
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(PAGE, 300),
    st.integers(0, 300),
    st.integers(1, 40),
    st.just("test"),
    random_order=st.booleans(),
)
sizes = st.builds(
    TierSizes,
    st.integers(0, 8_000),
    st.none() | st.integers(0, 16_000),
    st.none() | st.integers(0, 16_000),
    prefetch=st.none() | st.integers(0, 4_000),
)
policies = st.sampled_from(["write_through", "write_back", "write_through_selective"])


@fewer(2)
@given(workloads, st.lists(sizes, min_size=1, max_size=2), policies, st.integers(1, 2))
def test_rounds_are_kept_as_the_trace_that_is_written_of_them(
    tmp_path_factory: pytest.TempPathFactory,
    workload: MultiTurnWorkload,
    ends: list[TierSizes],
    policy: str,
    caches: int,
) -> None:
    rules = Rules(policy, caches, store=StoreRules(lease_seconds=10.0))
    plan = ReplayPlan(tuple(ends), rules, PAGE, False, ())
    replayed = replay_rounds(plan, workload, PAGE)
    path = tmp_path_factory.mktemp("trace") / "rounds.jsonl"
    path.write_text("\n".join(mooncake_lines(workload_trace(workload, PAGE), b"")))
    block = block_of(workload, PAGE)
    for turns, replay in zip(replayed, plan.replays(block), strict=True):
        for request in open_trace(str(path), PAGE).requests:
            replay.take(request)
        hits = sum(replay.flows.hits.values())
        assert hits == sum(sum(turn.hits.values()) for turn in turns)
        assert turns[-1].full == replay.flows.full
        assert all(a.full <= b.full for a, b in pairwise(turns))
        assert all(sum(turn.hits.values()) <= turn.seen for turn in turns)


def test_more_clients_than_are_replayed_keep_about_the_same() -> None:
    workload = MultiTurnWorkload(4_000, 10, 2048, 2048, 1, "test")
    assert fewer_clients(workload).clients == 2_000
    plan = ReplayPlan((TierSizes(4_000_000, 40_000_000),), Rules(), 64, False, ())
    few, all_of_them = (
        kept_part(replay_rounds(plan, workload, 64, clients)) for clients in (None, 4_000)
    )
    assert few == pytest.approx(all_of_them, abs=0.01)
    assert 0.2 < few[0] < 0.8


QWEN, LARGE, LLAMA = "Qwen/Qwen3-32B", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-8B"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
# Model and ranks, memory and GPUs of the host, SGLang, clients, rounds, tokens of a question and of
# an answer, hosts, and flags beside.
SETUPS: list[tuple[str, int, str, str, str, tuple[int, int, int, int], int, str]] = [
    (QWEN, 8, "2tb", "8xH800", "0.5.23", (386, 10, 2048, 1), 1, ""),
    (DEEPSEEK, 8, "2tb", "8xH200", "0.5.23", (300, 10, 2048, 1), 1, ""),
    (LLAMA, 1, "256gb", "1xA10", "0.5.23", (40, 8, 1024, 1), 1, ""),
    (QWEN, 8, "1tb", "8xH100", "0.5.23", (200, 5, 4096, 1), 2, ""),
    (QWEN, 8, "1tb", "8xH100", "0.5.14", (60, 10, 2048, 1), 1, ""),
    (LARGE, 8, "1500gb", "8xH20", "0.5.22", (150, 6, 3000, 1), 1, ""),
    (LLAMA, 2, "512gb", "2xA40", "0.5.23", (120, 7, 1500, 1), 1, "--max-total-tokens 100000"),
    (QWEN, 8, "1tb", "8xH100", "0.5.23", (200, 8, 2048, 1), 1, "--hicache-write-policy write_back"),
    (LLAMA, 1, "256gb", "1xH100", "0.5.18", (200, 10, 1024, 1), 1, ""),
    (DEEPSEEK, 8, "1tb", "8xB200", "0.5.20", (200, 4, 4096, 1), 1, ""),
    (QWEN, 4, "1tb", "4xH100", "0.5.23", (1_000, 3, 2048, 1), 1, ""),
    (LLAMA, 1, "128gb", "1xL40S", "0.5.23", (30, 20, 512, 1), 1, ""),
    (QWEN, 8, "2tb", "8xH200", "0.5.23", (250, 10, 4096, 1), 4, ""),
    (
        LLAMA, 1, "256gb", "1xH100", "0.5.23", (100, 10, 2048, 1), 1,
        "--hicache-write-policy write_through_selective",
    ),
    (LARGE, 8, "2tb", "8xH100", "0.5.10", (100, 10, 2048, 1), 1, ""),
    (QWEN, 8, "1tb", "8xA100-80G", "0.5.23", (300, 2, 8192, 1), 1, ""),
    (LLAMA, 8, "1tb", "8xH100", "0.5.23", (400, 10, 1024, 1), 1, "--dp-size 2"),
    (QWEN, 8, "4tb", "8xB200", "0.5.23", (600, 10, 2048, 1), 1, ""),
    (
        LLAMA, 1, "256gb", "1xH100", "0.5.23", (100, 10, 2048, 1), 1,
        "--hicache-host-memory-mode buffer_only",
    ),
    (LLAMA, 1, "384gb", "1xH20", "0.5.15", (77, 9, 1777, 1), 1, ""),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "ranks", "memory", "gpus", "sglang", "asked", "hosts", "flags"), some(SETUPS, 3)
)
def test_three_commands_keep_the_same_part(
    model: str,
    ranks: int,
    memory: str,
    gpus: str,
    sglang: str,
    asked: tuple[int, int, int, int],
    hosts: int,
    flags: str,
    tmp_path: Path,
) -> None:
    """Twenty hosts, and of each the division that fit chooses, those of its goals and the present
    one: each as a launch of its own, and as the trace of its workload."""
    root = Description(memory, gpus, f"{gpus[0]}xmlx5", "2").root
    wanted = WorkloadOptions(*asked, None)
    script = tmp_path / "launch.sh"

    def launch(l2_bytes: int, segment_bytes: int) -> LaunchWords:
        script.write_text(
            f"MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE={segment_bytes}"
            f" MOONCAKE_PROTOCOL=tcp python3 -m sglang.launch_server --model-path {model}"
            f" --tp {ranks} --page-size 64 --hicache-size {l2_bytes // 10**9}"
            f" --enable-hierarchical-cache --hicache-storage-backend mooncake {flags}\n"
        )
        words = LaunchWords((str(script),), mooncake_version="0.3.13.post1")
        return words._replace(sglang_version=sglang)

    host, basis = open_host(root, PATIENCE_SECONDS), CompareBy(wanted, hosts=hosts)
    present = launch(10 * 10**9, 8 * GIB)
    found = fit_launch(present, host, None, 10 * GIB, False, PATIENCE_SECONDS, basis=basis)
    assert isinstance(found, FitResult), found
    assert found.choice is not None
    compared = 0
    for division in found.choice.tried:
        if division.about == "staging":  # another mode of the server
            continue
        l2, segment, _ = division.values
        assert l2 is not None
        assert segment is not None
        request = CapacityRequest(Cluster(hosts), wanted)
        capacity = capacity_of(launch(l2, segment), root, PATIENCE_SECONDS, request)
        assert not isinstance(capacity, Unknown)
        kept = capacity.servers[0].capacity.kept
        assert kept is not None
        ((least, most),) = division.rates
        assert least == pytest.approx(kept[0], abs=WITHIN), division.about
        assert most == pytest.approx(kept[1], abs=WITHIN), division.about
        assert traced(capacity, tmp_path) == pytest.approx(kept, abs=WITHIN)
        compared += 1
    assert compared >= 2


def traced(capacity: CapacityAnswer, folder: Path) -> tuple[float, float]:
    """What ``capacity --trace`` keeps of the workload that ``--write-trace`` wrote."""
    assert isinstance(capacity.workload, MultiTurnWorkload)
    path, page = folder / "rounds.jsonl", page_of(capacity)
    path.write_text("\n".join(mooncake_lines(workload_trace(capacity.workload, page), b"")))
    opened = open_trace(str(path), page)
    (answer,) = trace_answers([capacity], opened, TraceRequest(), lambda _: None)
    (server,) = answer.replayed
    parts = [(1 - flows.missed) / answer.curve.ceiling for flows in (server.least, server.most)]
    return min(parts), max(parts)


def test_the_issue_s_example_by_its_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A segment of which L2, smaller than L1, hands over a part alone: 26 to 27% and not all."""
    text = Path("docs/examples/launch.sh").read_text().replace("=32gb", "=1501gb")
    (tmp_path / "pool.sh").write_text(text)

    def told(*words: str) -> Any:
        run(["capacity", "--json", "--root", "demo:h800", *words, str(tmp_path / "pool.sh")])
        return json.loads(capsys.readouterr().out)["answer"]

    trace = str(tmp_path / "t.jsonl")
    shape = ("--clients", "386", "--rounds", "10", "--request-length", "2048")
    (server,) = told(*shape, "--write-trace", trace)["servers"]
    assert 0.24 < server["kept"]["least"] < server["kept"]["most"] < 0.30
    sums = [
        sum(each["reusable_tokens"] * each["hits"][-1][end] for each in server["rounds"])
        / sum(each["reusable_tokens"] for each in server["rounds"])
        for end in ("least", "most")
    ]
    assert sums[0] == pytest.approx(server["kept"]["least"], abs=0.01)
    assert sums[1] == pytest.approx(server["kept"]["most"], abs=0.01)
    of_trace = told("--trace", trace)["trace"]
    for end in ("least", "most"):
        hits = 1 - of_trace["servers"][0][end]["missed"]
        assert hits / of_trace["ceiling"] == pytest.approx(server["kept"][end], abs=WITHIN)


def test_a_workload_is_needed_to_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capacity", "--root", "demo:h800", "--write-trace", "t.jsonl"]
    assert run([*words, "docs/examples/launch.sh"]) == 64
    assert "--write-trace is about a workload" in capsys.readouterr().err
    shape = ["--clients", "1000000", "--rounds", "2", "--request-length", "64"]
    assert run([*words, *shape, "docs/examples/launch.sh"]) == 64
    assert "2,000,000 requests: at most 1,000,000" in capsys.readouterr().err


def test_a_request_that_lacks_more_than_may_be_prefetched_gets_nothing_from_the_store() -> None:
    """Ten blocks are in the store alone: L1 and L2 have been filled by others since."""
    first, *others = (list(range(at, at + 10)) for at in (0, 100, 200, 300))
    for budget, hits in ((10 * PAGE, 10), (9 * PAGE, 0), (0, 0)):
        tokens = TierSizes(12 * PAGE, 24 * PAGE, 100 * PAGE, prefetch=budget)
        replay = Replay(tokens, Rules(prefetch_threshold=PAGE), PAGE, PAGE)
        for blocks in (first, *others, first):
            replay.take(Request(blocks, len(blocks) * PAGE, 1, None))
        assert replay.flows.hits["L3"] == hits


def test_fifo_keeps_the_order_and_random_draws_it_anew() -> None:
    fifo = MultiTurnWorkload(5, 2, 64, 64, 1, "test", random_order=False)
    sessions = [each.session or 0 for each in rounds_requests(fifo, PAGE)]
    assert sessions == [1, 2, 3, 4, 5] * 2
    anew = rounds_requests(fifo._replace(random_order=True), PAGE)
    drawn = [each.session or 0 for each in anew]
    assert drawn[:5] != drawn[5:]
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == sessions[:5]


@pytest.mark.parametrize(("hosts", "how"), [(1, "round-robin"), (2, "cache-aware")])
def test_several_hosts_without_a_router_are_taken_to_have_one(
    hosts: int, how: str, tmp_path: Path
) -> None:
    script = f"{STORED.format(model=LLAMA, tp=2, size=60, segment='80gb')} --dp-size 2"
    answer = answer_to(tmp_path, script, gpu_bytes=80 * GIB, nodes_in_cluster=hosts)
    (plan,) = replay_plans(answer, TraceRequest())
    assert isinstance(plan, ReplayPlan)
    assert (plan.rules.caches, plan.rules.routing.how) == (2 * hosts, how)


def test_a_thousand_rounds_are_replayed_by_a_few_blocks() -> None:
    for rounds in (1, 2, 10, 11, 49, 51, 1_000):
        workload = MultiTurnWorkload(2, rounds, 2048, 2048, 1, "test")
        blocks = workload.context_tokens(rounds) // block_of(workload, 64)
        assert 10 <= blocks <= 51
