"""Two machines on two rails: what their reports foretell, and what packets do, rail by rail."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight.fleet.fleet_records import NodeRow
from preflight.fleet.merge_reading import Reading
from preflight.fleet.merge_sources import Text
from preflight.fleet.rails_answer import RailAnswer, rail_answer
from tests.lab.pair_guest import RAILS, run_pair

pytestmark = pytest.mark.lab

# Some 60 seconds on two processors that do nothing else.
LIMIT_SECONDS = 240
FIRST_PORT = 7471
PROGRAM = f"{sys.executable} -m preflight.preflight_command"
NODES = ("a", "b")


class Case(NamedTuple):
    """What is done to each guest before, and undone after. pairs: as of ``pair-connect``."""

    name: str
    pairs: str
    done: Mapping[str, str]
    undone: Mapping[str, str]


CASES = (
    Case("healthy", "any", {}, {}),
    # Linux takes an address without a route to be on the link that a RoCE port is bound to, and
    # here it is: what addresses and routes leave open, packets settle.
    Case(
        "subnet",
        "same",
        {"a": "ip addr flush dev eth1; ip addr add 10.9.0.1/24 dev eth1"},
        {"a": "ip addr flush dev eth1; ip addr add 10.1.0.1/24 dev eth1"},
    ),
    # 1024 B of path MTU here, 4096 B there.
    Case("mtu", "same", {"a": "ip link set eth1 mtu 1500"}, {"a": "ip link set eth1 mtu 4500"}),
    # What leaves b on this rail arrives nowhere, as on a wrong VLAN: nothing else tells of it.
    Case(
        "astray",
        "same",
        {"b": "ip neigh replace 10.1.0.1 lladdr 52:54:00:00:00:99 dev eth1 nud permanent"},
        {},
    ),
)


def script(node: str) -> str:
    """Each case in turn: broken, reported, tried, mended. The listener sets the pace."""
    lines = [
        "export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run",
        f"export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={Path(__file__).parents[2]}",
        "cd /; ip link set lo up",
    ]
    for rail in RAILS:
        address = f"10.{rail}.0.{NODES.index(node) + 1}/24"
        lines.append(f"ip link set eth{rail} mtu 4500 up; ip addr add {address} dev eth{rail}")
        lines.append(f"rdma link add rxe{rail} type rxe netdev eth{rail}")
    for number, case in enumerate(CASES):
        tried = f"--token t --seconds 90 --port {FIRST_PORT + number} --once --address 10.0.0.1"
        if node == "b":
            tried = f"--token t --seconds 90 --wait 90 --json --pairs {case.pairs}"
            tried += f" 10.0.0.1 {FIRST_PORT + number}"
        command = "pair-listen" if node == "a" else "pair-connect"
        lines += [
            case.done.get(node, ""),
            f"echo; echo '== report {case.name}'; {PROGRAM} fleet node --name {node} 2>&1",
            f"echo; echo '== pair {case.name}'; {PROGRAM} fleet {command} {tried} 2>&1",
            case.undone.get(node, ""),
        ]
    return "\n".join([*lines, "echo", "echo '== end'", "true", ""])


class Seen(NamedTuple):
    """Of one case: what the reports of both nodes come to, and what was measured."""

    rails: RailAnswer
    pair: Any

    def measured(self) -> dict[tuple[str, str], Any]:
        return {(one["here"]["device"], one["there"]["device"]): one for one in self.pair["pairs"]}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    folder = tmp_path_factory.mktemp("pair")
    said = run_pair({node: script(node) for node in NODES}, folder, LIMIT_SECONDS)
    parts = {node: _parts(lines) for node, lines in said.items()}
    return {
        case.name: Seen(
            rail_answer([_row(parts[node][f"report {case.name}"]) for node in NODES], ()),
            json.loads(parts["b"][f"pair {case.name}"]),
        )
        for case in CASES
    }


def _parts(lines: list[str]) -> dict[str, str]:
    parts: dict[str, list[str]] = {}
    here: list[str] = []
    for line in lines:
        if line.startswith("== "):
            here = parts.setdefault(line[3:], [])
        else:
            here.append(line)
    return {name: "\n".join(part) for name, part in parts.items()}


def _row(report: str) -> NodeRow:
    (row,) = Reading().read(Text("guest", 1, report.strip().encode()))
    assert isinstance(row, NodeRow), report[-2000:]
    return row


def checks(answer: RailAnswer) -> set[tuple[str, str]]:
    return {(finding.check, finding.status) for finding, _ in answer.findings}


def test_a_rail_reaches_itself_and_no_other(seen: dict[str, Seen]) -> None:
    """Facts and packets agree on every pair of ports of two healthy nodes."""
    healthy = seen["healthy"]
    (meeting,) = healthy.rails.matrix.meetings
    foretold = {(one.device, other.device): way.reach.value for one, other, way in meeting.pairs}
    rails = {("rxe0", "rxe0"): "direct", ("rxe1", "rxe1"): "direct"}
    crossed = {("rxe0", "rxe1"): "no route", ("rxe1", "rxe0"): "no route"}
    assert foretold == rails | crossed
    measured = healthy.measured()
    assert {pair for pair, one in measured.items() if one["failure"] is None} == set(rails)
    assert {pair for pair, one in measured.items() if one["failure"]} == set(crossed)
    assert all(measured[pair]["large_seconds"] > 0 for pair in rails)
    assert checks(healthy.rails) == {("fleet.rail-cross", "warn")}


@pytest.mark.parametrize(
    ("case", "findings", "failure", "cause"),
    [
        (
            "mtu",
            {("fleet.rail-mtu", "warn")},
            "remote invalid request error (9) on a write of 65536 B",
            "the path MTUs differ: 4096 B here, 1024 B there",
        ),
        (
            "astray",
            set(),
            "transport retry counter exceeded (12) on a write of 64 B",
            "nothing comes back, though the two are of one network",
        ),
    ],
)
def test_the_broken_rail_is_found(
    seen: dict[str, Seen], case: str, findings: set[tuple[str, str]], failure: str, cause: str
) -> None:
    """By measuring in every case, by facts where facts tell; the other rail works."""
    measured = seen[case].measured()
    assert measured["rxe0", "rxe0"]["failure"] is None
    broken = measured["rxe1", "rxe1"]
    assert broken["failure"]["text"] == failure
    assert cause in broken["cause"]
    assert seen[case].pair["status"] == "fail"
    assert checks(seen[case].rails) == {("fleet.rail-cross", "warn")} | findings


def test_what_facts_leave_open_packets_settle(seen: dict[str, Seen]) -> None:
    """Two subnets on one link, without a route: unknown by the facts, and it works."""
    assert ("fleet.rail-same", "unknown") in checks(seen["subnet"].rails)
    rail = seen["subnet"].measured()["rxe1", "rxe1"]
    assert rail["facts"]["reason"] == "no route between 10.1.0.0/24 and 10.9.0.0/24"
    assert rail["failure"] is None
    assert seen["subnet"].pair["status"] == "pass"
