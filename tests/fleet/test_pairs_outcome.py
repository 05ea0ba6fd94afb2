"""What ``fleet pairs`` makes of what both ends said: a pair's outcome, and the folded answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.base.envelope import envelope
from preflight.fleet.pairs.matrix import Matrix, groups, matrix_object, matrix_text
from preflight.fleet.pairs.outcome import (
    HERE,
    NO_PORT,
    WRITE,
    Failure,
    PairAnswer,
    PairOutcome,
    PairPort,
    TriedPair,
    Writes,
    outcome,
    pair_object,
)
from preflight.fleet.pairs.rounds import present
from preflight.fleet.remote.reply import NodeReply
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/schemas/pairs-v1.schema.json").read_text())
A, B = PairPort("mlx5_0", 1, "10.0.0.1", 4096), PairPort("mlx5_0", 1, "10.0.0.2", 4096)
FINE_WRITES = Writes(3e-6, 9e-6, None, 65536)
LOST = Writes(failure=Failure(HERE, WRITE, "write", 12, 64), arrived_bytes=0)
WORKS = TriedPair(A, B, FINE_WRITES, FINE_WRITES)
BROKEN = TriedPair(A, B, LOST, LOST)
ONE_WAY = TriedPair(A, B, LOST, LOST._replace(arrived_bytes=64))
START, END = b"@mooncake-preflight start", b"@mooncake-preflight end 0"
LISTENS = NodeReply("b", (START, b'{"protocol":"mooncake-preflight/pair/v1"}', END), code=0)
NOT_THERE = NodeReply(
    "b",
    (START, b"@mooncake-preflight end 64"),
    (b"mooncake-preflight: --port 1: cannot listen there", b"Try '--help'."),
    0,
)
STOPPED = NodeReply("a", (START,))


def connects(
    *tried: TriedPair,
    error: str = "",
    tcp: float | None = 0.001,
    closed: str = "",
    over: str = "rdma",
) -> NodeReply:
    told = pair_object(PairAnswer("10.0.0.2:17471", tcp, tried, error, closed, over))
    lines = json.dumps(told, indent=2).encode().splitlines()
    return NodeReply("a", (b"welcome", START, *lines, b"", END, b"bye"), code=0)


@pytest.mark.parametrize(
    ("here", "there", "status", "cause", "blamed"),
    [
        (connects(WORKS), LISTENS, "pass", "", ""),
        (connects(WORKS, BROKEN), LISTENS, "fail", "(12) on a write of 64 B; b mlx5_0", ""),
        (connects(WORKS, closed="refused"), LISTENS, "fail", "TCP from b to a: refused", ""),
        (connects(over="tcp"), LISTENS, "pass", "", ""),
        (connects(error="the other side: no such"), LISTENS, "unknown", "no such", "b"),
        (connects(error="this node: no such"), LISTENS, "unknown", "no such", "a"),
        (connects(error=f"this node {NO_PORT}"), LISTENS, "warn", "TCP connects, and noth", ""),
        (connects(WORKS, error="the 5 s are over"), LISTENS, "unknown", "the 5 s are over", ""),
        (connects(), LISTENS, "unknown", "no two ports of theirs have the same name", ""),
        (connects(error="timed out", tcp=None), LISTENS, "fail", "though b listens there", ""),
        (connects(error="refused", tcp=None), NOT_THERE, "unknown", "cannot listen there", "b"),
        (STOPPED, NOT_THERE, "unknown", "exit code 64: --port 1: cannot listen there", "b"),
        (STOPPED, LISTENS, "unknown", "a gave no answer before it was stopped", "a"),
        (NodeReply("a", (), timed_out=True), LISTENS, "unknown", "no answer within 60 s", "a"),
        (NodeReply("a", (START,), code=255), LISTENS, "unknown", "the connection ended", "a"),
    ],
)
def test_the_outcome_of_a_pair(
    here: NodeReply, there: NodeReply, status: str, cause: str, blamed: str
) -> None:
    """Broken is what was tried and did not work; whoever stood in the way of a try is named."""
    found = outcome("a", "b", 1, {"a": here, "b": there}, 60.0)
    assert (found.status, found.blamed) == (status, blamed)
    assert cause in found.cause
    assert bool(found.cause) is (status != "pass")


def test_each_broken_direction_is_named_with_both_ends() -> None:
    """One that loses packets is broken, and the one whose acknowledgements it loses is not."""

    def cause_of(tried: TriedPair) -> str:
        return outcome("a", "b", 1, {"a": connects(tried), "b": LISTENS}, 60.0).cause

    why = "transport retry counter exceeded (12) on a write of 64 B"
    there, back = "a mlx5_0 10.0.0.1 to b mlx5_0 10.0.0.2", "b mlx5_0 10.0.0.2 to a mlx5_0 10.0.0.1"
    assert cause_of(BROKEN) == f"{there}: {why}; {back}: {why}"
    assert cause_of(ONE_WAY) == f"{there}: {why}"


PIECES = st.sampled_from(["error", "pairs", "closed", "connect_seconds", "failure", "here", "back"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PIECES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(PIECES, ANYTHING))
def test_whatever_a_node_says_has_an_outcome(said: dict[str, Any]) -> None:
    """And never passes for it: nothing of it is a pair of ports that works."""
    whole = {"schema": "mooncake-preflight/pair/v1", **said}
    lines = json.dumps(whole, indent=2).encode().splitlines()
    answer = NodeReply("a", (START, *lines, END), code=0)
    found = outcome("a", "b", 1, {"a": answer, "b": LISTENS}, 60.0)
    if found.status == "pass":
        assert found.tried > 0
        assert found.broken == 0


def hello(node: str, address: str) -> NodeReply:
    said = START + f" 10.0.0.9 4000 {address} 22".encode()
    return NodeReply(node, (said, b"help", END), code=0)


def test_an_address_at_which_others_find_somebody_else() -> None:
    """Loopback, one of a single link, or the same as another's: such a node takes no part."""
    said = {
        "a": hello("a", "10.0.0.1"),
        "b": hello("b", "127.0.0.1"),
        "c": hello("c", "10.0.0.1"),
        "d": hello("d", "fe80::1%eth0"),
        "e": hello("e", ""),
        "f": hello("f", "10.0.0.6"),
    }
    there = present([*said, "g"], said, ["f", "b"], 60.0)
    assert dict(there.addresses) == {"a": "10.0.0.1", "f": "10.0.0.6"}
    assert there.carried == {"f"}
    assert "no other node finds it" in there.absent["b"]
    assert "the same machine as a" in there.absent["c"]
    assert "of one link alone" in there.absent["d"]
    assert "does not report the address" in there.absent["e"]
    assert "before it answered" in there.absent["g"]


FINE = [
    PairOutcome(a, b, 1, "pass", "", "", 0.001, 4, 0, 2e-5) for a, b in (("g1", "g2"), ("g1", "g3"))
]


def text_of(*outcomes: PairOutcome, nodes: int = 3) -> list[str]:
    names = [f"g{number}" for number in range(1, nodes + 1)]
    matrix = Matrix(names, outcomes, 3, 3, 3, dict.fromkeys(names, "10.0.0.1"))
    code, said = matrix.exit_code, matrix_object(matrix)
    whole = envelope("pairs", code, said, word=matrix.status, command="fleet pairs")
    valid(json.loads(json.dumps(whole)), SCHEMA)
    return matrix_text(matrix, lambda text, _: text, 100).splitlines()


def test_all_fine_is_one_line() -> None:
    assert text_of(*FINE, PairOutcome("g2", "g3", 2, "pass", connect_seconds=0.002)) == [
        "PASS: 3 of 3 pairs of 3 nodes write to each other, the slowest in 20 us, "
        "TCP connects 3 in up to 2000 us; 3 of 3 rounds"
    ]


def test_broken_pairs_are_named_and_folded() -> None:
    """The worst first; pairs of one node's own trouble are one group."""
    told = text_of(
        PairOutcome("g1", "g2", 1, "unknown", "no answer", "g2"),
        PairOutcome("g2", "g3", 2, "unknown", "no answer", "g2"),
        PairOutcome("g3", "g1", 3, "fail", "nothing comes back"),
    )
    assert told[0].startswith("FAIL: 0 of 3 pairs of 3 nodes")
    assert told[1:] == [
        "fail: g3 to g1",
        "    nothing comes back",
        "unknown: g2 with g[1,3]",
        "    no answer",
    ]


def test_pairs_of_one_cause_keep_both_their_ends() -> None:
    """Where something is broken; a like trouble of all is counted."""
    ends = [("g1", "g2"), ("g1", "g3"), ("g2", "g3")]
    broken = [PairOutcome(a, b, 1, "fail", "TCP port 1: refused") for a, b in ends]
    assert text_of(*broken)[1] == "fail: g1 to g[2-3], g2 to g3"
    assert text_of(*(one._replace(status="warn") for one in broken))[1] == "warn: 3 pairs of g[1-3]"


def test_pairs_that_were_not_tried_are_counted() -> None:
    assert text_of(*FINE)[0].endswith("3 of 3 rounds, 1 pair not tried")
    assert text_of()[0].startswith("UNKNOWN: 0 of 3 pairs")


NAMES = st.sampled_from(["g1", "g2", "g3", "g4"])
OUTCOMES = st.lists(
    st.builds(
        PairOutcome,
        NAMES,
        NAMES,
        st.just(1),
        st.sampled_from(["pass", "warn", "fail", "unknown"]),
        st.sampled_from(["x", "y"]),
        st.just(""),
        st.none(),
        st.just(0),
        st.just(0),
        st.none(),
        st.none(),
    ),
    max_size=12,
)


@given(OUTCOMES)
def test_no_pair_that_does_not_pass_is_left_out(outcomes: list[PairOutcome]) -> None:
    found = [one for group in groups(outcomes) for one in group.pairs]
    assert sorted(found) == sorted(one for one in outcomes if one.status != "pass")
