"""Workloads as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.workload import (
    MultiTurnWorkload,
    WorkloadOptions,
    read_command,
    workload_of,
)
from tests.builders.launch_text import understood
from tests.tables import each_row


def workload(
    clients: int, rounds_: int, first: int, following: int | None = None, output: int = 1
) -> MultiTurnWorkload:
    return MultiTurnWorkload(
        clients, rounds_, first, first if following is None else following, output, "test"
    )


@pytest.mark.parametrize(
    ("rounds_", "page", "tokens"),
    [
        # Two questions of 10 and answers of 3: 26 tokens, the last of which is not computed.
        (2, 1, 25),
        (2, 8, 24),
        (2, 32, 0),
        (0, 1, 0),
        # The first question alone is longer.
        (1, 1, 12),
    ],
)
def test_what_a_client_leaves(rounds_: int, page: int, tokens: int) -> None:
    assert workload(1, 5, 10, 10, 3).cached_tokens(rounds_, page) == tokens


@each_row(
    ("text", "expected"),
    [
        # The benchmark's own defaults.
        ("python3 bench_multiturn.py", (256, 5, 512, 512, 64)),
        ("--num-clients 80", (80, 5, 512, 512, 64)),
        (
            "python3 benchmark/hicache/bench_multiturn.py --num-clients 80 --max-parallel 4 "
            "--request-length 2048 --output-length 1 --num-rounds 10",
            (80, 10, 2048, 2048, 1),
        ),
        ("--request-length=4096 --sub-question-input-length=512", (256, 5, 4096, 512, 64)),
        # The last of two counts.
        ("--num-clients 3 --num-clients=4 --num-rounds 2", (4, 2, 512, 512, 64)),
        # What decides nothing is left out.
        ("--num-clients 3 --unheard-of 9", (3, 5, 512, 512, 64)),
        ("--min-rounds 2 --max-rounds 7", (256, 7, 512, 512, 64)),
        ("--max-rounds 7 --num-rounds 9", (256, 7, 512, 512, 64)),
        ("bench_multiturn.py --model-path '/a b' --num-clients 2 # ten", (2, 5, 512, 512, 64)),
    ],
)
def test_a_command_line_is_read_as_the_benchmark_reads_it(
    text: str, expected: tuple[int, ...]
) -> None:
    assert read_command(text)[:5] == expected


def test_switches_and_orders_are_told_apart() -> None:
    plain = read_command("--num-clients 2")
    assert (plain.random_order, plain.barrier, plain.shorter) == (True, False, False)
    said = read_command("--ready-queue-policy fifo --enable-round-barrier --range-ratio 0.5")
    assert (said.random_order, said.barrier, said.shorter) == (False, True, True)
    assert read_command("--min-rounds 2 --max-rounds 7").shorter
    assert not read_command("--max-rounds 7").shorter


@each_row(
    ("text", "message"),
    [
        ("", "not the command line of bench_multiturn.py"),
        ("bench_serving.py --num-clients 3", "not the command line of bench_multiturn.py"),
        ("bench_multiturn.py --num-clients 'x", "not a command line"),
        ("--num-clients many", "--num-clients 'many': not a whole number"),
        ("--num-clients", "--num-clients has no value"),
        ("--num-clients 0", "clients 0: must be 1 to 1,000,000"),
        ("--num-clients -3", "clients -3: must be 1 to 1,000,000"),
        ("--num-rounds 0", "rounds 0: must be 1 to 1,000"),
        ("--output-length 0", "output length 0: must be 1"),
        ("--num-clients 1000000 --request-length 100000000 --num-rounds 1000", "tokens in all"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_right_spelling(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_command(text)


@pytest.mark.slow
@given(st.text(max_size=60) | st.text("-=abcdenumrlitsoh 0123456789'\\", max_size=60))
def test_no_text_is_more_than_a_usage_error(text: str) -> None:
    try:
        found = read_command(text)
    except UsageError:
        return
    assert found.clients >= 1


def test_numbers_alone_are_a_workload_and_a_part_of_them_is_none() -> None:
    found = workload_of(WorkloadOptions(80, 10, 2048), ())
    assert isinstance(found, MultiTurnWorkload)
    assert found[:5] == (80, 10, 2048, 2048, 1)
    # A length alone counts conversations.
    assert workload_of(WorkloadOptions(request_length=2048), ()) is None
    assert workload_of(WorkloadOptions(), ()) is None
    with pytest.raises(UsageError, match="one of the three is missing"):
        workload_of(WorkloadOptions(clients=80, rounds=10), ())


BENCH = "python3 benchmark/hicache/bench_multiturn.py --num-clients 20 --request-length 4096"


def test_the_launch_may_start_the_benchmark_itself() -> None:
    found = workload_of(WorkloadOptions(), understood(BENCH))
    assert isinstance(found, MultiTurnWorkload)
    assert found[:6] == (20, 5, 4096, 4096, 64, "launch.sh:1")


def test_numbers_go_over_a_command_and_that_over_the_launch() -> None:
    found = workload_of(WorkloadOptions(rounds=7, command="--num-clients 3"), understood(BENCH))
    assert isinstance(found, MultiTurnWorkload)
    assert found[:5] == (3, 7, 512, 512, 64)
    found = workload_of(WorkloadOptions(request_length=100, output_length=2), understood(BENCH))
    assert isinstance(found, MultiTurnWorkload)
    assert found[:5] == (20, 5, 100, 100, 2)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("--model-path $MODEL --dataset-path=$DATA", True),
        ("--num-rounds $ROUNDS", False),
        ("--num-rounds=$ROUNDS", False),
    ],
)
def test_a_variable_matters_where_it_decides(words: str, known: bool) -> None:
    found = workload_of(WorkloadOptions(), understood(f"{BENCH} {words}"))
    assert isinstance(found, MultiTurnWorkload if known else Unknown)
    if isinstance(found, Unknown):
        assert "ROUNDS" in found.reason
