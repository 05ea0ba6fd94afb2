"""Every id that a fleet command can find is declared, with the statuses that the code gives it.

The rooms of preflight/fleet import in the order in which its docstring has them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import preflight.fleet
from checks.framework.finding import Status
from preflight.cli.main import run
from preflight.fleet.over_ssh import MeasuredPair, slow_transfers
from preflight.fleet.reports.rows import NO_REPORT, NOT_REACHED, FleetFinding
from preflight.verdict.catalogue import catalogue, paged
from tests.fleet import test_rails
from tests.fleet.merge_fleets import (
    MADE,
    altered,
    every,
    fleet_reports,
    launch,
    merged_reports,
    rails,
)
from tests.house.test_layers import imports

# Found by tests of their own: a text that is no report.
LEFT = {"fleet.unusable"}
FOLDER = Path(preflight.fleet.__file__).parent
TREES = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(FOLDER.rglob("*.py"))
}
ID = re.compile(r"fleet\.[a-z]+(?:-[a-z]+)*")
DECLARED = {
    check.id: {status.value for status, _ in check.page.outcomes} for check in paged("fleet")
}


def _ids_written() -> set[str]:
    """Every text in the code that is an id as a whole."""
    return {
        node.value
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and ID.fullmatch(node.value)
    }


def test_every_id_in_the_code_is_declared_and_the_reverse() -> None:
    assert _ids_written() == set(DECLARED)


def test_what_stands_for_a_node_is_unknown() -> None:
    assert {id_: DECLARED[id_] - {"warn"} for id_ in (*NOT_REACHED, *NO_REPORT)} == {
        id_: {"unknown"} for id_ in (*NOT_REACHED, *NO_REPORT)
    }


def _faulty_findings() -> Iterator[FleetFinding]:
    """What ``merge`` and ``rails`` find in fleets with a fault each, and one that lacks a node."""
    old = "mooncake-transfer-engine 0.3.13"
    by_node = [
        altered(**{"wheel.mooncake": old}),
        launch(masters=["127.0.0.1:50051"]),
        launch(masters=["elsewhere:50051"]),
        launch(masters=["10.9.0.1:1"]),
        rails(mtu_bytes=1024),
        lambda report: report.update(made_unix_seconds=MADE - 10 * 86400),
        lambda report: report.update(status="error", error="no launch"),
        lambda report: report.update(boot="00000000-boot"),
        launch(protocol="tcp"),
        lambda report: report["rails"][0].update(addresses=["10.10.0.1/16"]),
    ]
    for change in by_node:
        fleet = merged_reports(fleet_reports("gpu[1-4]", {"gpu3": change}), "gpu[2-5]")
        yield from (one.finding for one in fleet.findings)
    of_all = [
        launch(services=[["metadata-http", "localhost:8080", False]]),
        launch(services=[["advertised", "10.1.1.1", True]]),
    ]
    for change in of_all:
        yield from (one.finding for one in merged_reports(every(change)).findings)
    twice = [*fleet_reports("gpu[1-2]"), *fleet_reports("gpu2", {"gpu2": rails(mtu_bytes=1024)})]
    yield from (one.finding for one in merged_reports(twice).findings)
    for change, _ in test_rails.BROKEN:
        seen = test_rails.answer("gpu[1-4]", {"gpu3": change})
        yield from (finding for finding, _ in seen.findings)
    yield from (finding for finding, _ in test_rails.answer("gpu[1-2]").findings)
    rates = {("a", "b"): 9.0, ("a", "c"): 1.0, ("b", "c"): 1.0}
    slow = [MeasuredPair(a, b, rate, rate) for (a, b), rate in rates.items()]
    yield from (finding for finding, _ in slow_transfers(slow))


@pytest.mark.slow
def test_what_fleets_with_faults_are_told_is_declared() -> None:
    """Run, not read: each finding of a fleet has a status that its page explains."""
    seen: dict[str, set[str]] = {}
    for finding in _faulty_findings():
        if finding.check.startswith("fleet."):
            seen.setdefault(finding.check, set()).add(finding.status)
    assert {id_: told - DECLARED[id_] for id_, told in seen.items() if told - DECLARED[id_]} == {}
    assert seen.keys() >= DECLARED.keys() - {*NOT_REACHED, "fleet.tool", "fleet.python"} - LEFT


def test_no_finding_of_a_fleet_is_a_pass() -> None:
    """What is not said was not found: a pass or a skip would promise that it was looked at."""
    told = {status for check in paged("fleet") for status, _ in check.page.outcomes}
    assert told == {Status.FAIL, Status.UNKNOWN, Status.WARN}


@pytest.mark.parametrize(
    ("option", "id_"),
    [("--only", "fleet.master"), ("--skip", "fleet.*"), ("--ignore", "fleet.rail-same")],
)
def test_check_of_one_host_takes_no_id_of_a_fleet(
    option: str, id_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A selection of what can never be found there would pass nothing; it says who finds it."""
    assert any(fnmatchcase(known, id_) for known in catalogue().ids)
    assert run(["check", option, id_ if option != "--ignore" else f"{id_}=known"]) == 64
    said = " ".join(capsys.readouterr().err.split())
    assert f"{option} {id_}: is found between nodes" in said
    assert "`mooncake-preflight fleet merge` judges it" in said


def test_a_room_imports_only_rooms_above_it() -> None:
    written = re.findall(r"^- (.+?):", preflight.fleet.__doc__ or "", re.MULTILINE)
    order = [re.findall(r"``(\w+)``", line) for line in written]
    place = {room: at for at, rooms in enumerate(order) for room in rooms}
    modules = [path for path in FOLDER.glob("*.py") if path.stem != "__init__"]
    packages = {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert set(place) == packages | {path.stem for path in modules}
    for path in (*modules, *FOLDER.glob("*/*.py")):
        room = path.stem if path in modules else path.parent.name
        used = {name.split(".")[2] for name in imports(path) if name.startswith("preflight.fleet.")}
        assert all(other == room or place[other] < place[room] for other in used), path
