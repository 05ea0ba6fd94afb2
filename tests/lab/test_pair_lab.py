"""Two machines on two rails: what their reports foretell, and what packets do, rail by rail.

Each pair of ends is started by hand first; then one command asks both machines over ssh, with a
launch that says what is to be tried.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight.fleet.rails import RailAnswer, rail_answer
from preflight.fleet.reports.reading import read_reports
from preflight.fleet.reports.rows import NodeRow
from preflight.fleet.reports.sources import reports_in
from tests.lab.conftest import Guests
from tests.lab.core import recorded_and_live
from tests.lab.pairs import CASES, NODES, Case
from tests.lab.results import recorded
from tests.valid import valid

PAIRS_SCHEMA = json.loads(
    (Path(__file__).parents[2] / "preflight/schemas/pairs-v1.schema.json").read_text()
)


class Seen(NamedTuple):
    """Of one case: what the reports of both nodes come to, and what was measured."""

    rails: RailAnswer
    pair: Any

    def measured(self) -> dict[tuple[str, str], Any]:
        return {(one["here"]["device"], one["there"]["device"]): one for one in self.pair["pairs"]}


Live = tuple[dict[str, Any], str, str]


@pytest.fixture
def pair_live(guests: Guests) -> Live:
    """A row for each case; what ``fleet pairs`` answered; and how that ended."""
    found: Live = guests["pairs"]
    return found


@pytest.fixture
def seen(request: pytest.FixtureRequest, case: Case, live: bool) -> Seen:
    row = request.getfixturevalue("pair_live")[0][case.id] if live else recorded("cases")[case.id]
    return Seen(rail_answer([_row(row["reports"][node]) for node in NODES], ()), row["pair"])


def _row(report: str) -> NodeRow:
    (row,) = read_reports(reports_in("guest", report.encode())).rows
    return row


def checks(answer: RailAnswer) -> set[tuple[str, str]]:
    return {(finding.check, finding.status) for finding, _ in answer.findings}


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.id == name)


@recorded_and_live("case", [case_of("healthy")])
def test_a_rail_reaches_itself_and_no_other(seen: Seen) -> None:
    """Packets of two healthy nodes pass on each rail, and by the facts nothing is wrong there."""
    healthy = seen
    rails = {("rxe0", "rxe0"), ("rxe1", "rxe1")}
    crossed = {("rxe0", "rxe1"), ("rxe1", "rxe0")}
    measured = healthy.measured()
    assert {pair for pair, one in measured.items() if one["failure"] is None} == rails
    assert {pair for pair, one in measured.items() if one["failure"]} == crossed
    assert all(measured[pair]["large_seconds"] > 0 for pair in rails)
    assert checks(healthy.rails) == set()


# Case -> how the write fails.
BROKEN = {
    "mtu": "remote invalid request error (9) on a write of 65536 B",
    "astray": "transport retry counter exceeded (12) on a write of 64 B",
}


@recorded_and_live("case", [case_of(name) for name in BROKEN])
def test_the_broken_rail_is_found(seen: Seen, case: Case) -> None:
    """By measuring; by the addresses nothing is wrong. The other rail works."""
    measured = seen.measured()
    assert measured["rxe0", "rxe0"]["failure"] is None
    broken = measured["rxe1", "rxe1"]
    assert broken["failure"]["text"] == BROKEN[case.id]
    assert seen.pair["status"] == "fail"
    assert checks(seen.rails) == set()


@recorded_and_live("case", [case_of("subnet")])
def test_what_facts_leave_open_packets_settle(seen: Seen) -> None:
    """Two subnets on one link, without a route: unknown by the facts, and it works."""
    assert ("fleet.rail-same", "unknown") in checks(seen.rails)
    rail = seen.measured()["rxe1", "rxe1"]
    assert rail["failure"] is None
    assert seen.pair["status"] == "pass"


@pytest.mark.lab
def test_one_command_finds_the_rail_that_is_broken_one_way(pair_live: Live) -> None:
    """Over ssh, in both machines: what the launch takes is tried, both ways; the one rail is named
    by node, NIC and direction, and the other passes."""
    _, told, ends = pair_live
    answer = json.loads(told)
    valid(answer, PAIRS_SCHEMA)
    assert answer["status"] == "fail", told + ends
    (pair,) = answer["answer"]["pairs"]
    assert pair["cause"].startswith("b rxe1 10.")
    assert " to a rxe1 10." in pair["cause"]
    assert "a rxe0" not in pair["cause"]
    both = [one[end] for one in pair["answer"]["pairs"] for end in ("here", "there")]
    assert {(end["mtu_bytes"], end["gid"].startswith("10.")) for end in both} == {(512, True)}
