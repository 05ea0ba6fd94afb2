"""Fleets to merge: the report that a real node gives, as each of many nodes would give it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from preflight.cli.main import run
from preflight.fleet.base.node_sets import expand, fold
from preflight.fleet.merge.fleet import Fleet, merge_reports
from preflight.fleet.reports.reading import read_reports
from preflight.fleet.reports.sources import reports_in, reports_of
from tests.builders.synthetic import GIB, MIB, build_host, gpu_host

LAUNCH = """\
export MOONCAKE_MASTER=10.9.0.1:50051 MOONCAKE_PROTOCOL=rdma MC_STORE_USE_HUGEPAGE=1
export MOONCAKE_GLOBAL_SEGMENT_SIZE=64gb
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 8 --page-size 64 \\
  --enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake
"""
MADE = 1_790_000_000

Report = dict[str, Any]
Change = Callable[[Report], object]
Told = list[tuple[str, str, str]]


@lru_cache(maxsize=1)
def _base() -> str:
    """What ``check --json`` prints on the synthetic host with 8 GPUs and 8 NICs. Of its hundred
    passes, each tenth: a fleet of each test writes and reads them for each node."""
    host = replace(
        gpu_host(),
        pools={2 * MIB: 160_000, GIB: 0},
        services={("10.9.0.1", 50051): "master"},
        files={
            "/proc/sys/kernel/hostname": "base-node",
            "/etc/sysctl.d/90-mooncake.conf": "vm.nr_hugepages = 160000",
        },
    )
    with TemporaryDirectory() as folder:
        root = build_host(Path(folder) / "host", host)
        script = Path(folder) / "launch.sh"
        script.write_text(LAUNCH)
        words = ["check", "--json", "--timeout", "600", "--root", str(root), str(script)]
        with redirect_stdout(io.StringIO()) as printed:
            run(words)
    found = json.loads(printed.getvalue().replace(str(script), "launch.sh").replace(str(root), "/"))
    passes = [one for one in found["findings"] if one["status"] == "pass"]
    found["findings"] = [
        *(one for one in found["findings"] if one["status"] != "pass"),
        *passes[::10],
    ]
    return json.dumps(found)


def produced_document() -> Report:
    """As ``check --json`` prints it: a fresh copy."""
    found: Report = json.loads(_base())
    return found


def report_of(node: str, number: int, change: Change | None = None) -> Report:
    """As node ``number`` of a fleet gives it: its own names, addresses and time, and one warning.
    Flat, for a test to change: ``document`` makes what is printed of it."""
    printed = produced_document()
    machine = printed["answer"]["machine"]
    facts, text = machine["facts"], "no --page-size: two objects for each token and rank"
    report: Report = {
        "node": node,
        "host": node,
        "boot": f"{number:08x}-boot",
        "made_unix_seconds": MADE,
        "version": printed["version"],
        "status": "warn",
        "findings": [finding("page-size-one", "warn", subjects=["launch.sh:3"], text=text)],
        "passes": [
            [one["check"], one["subjects"][0]["name"], (one["have"] or {"text": ""})["text"]]
            for one in printed["findings"]
            if one["status"] == "pass"
        ],
        "facts": {name: one for name, one in facts.items() if not isinstance(one, dict)},
        "unknown_facts": {n: one["unknown"] for n, one in facts.items() if isinstance(one, dict)},
        "rails": machine["rails"],
        "launch": {"masters": ["10.9.0.1:50051"], "services": [], **machine["share"]},
    }
    for rail, one in enumerate(report["rails"]):
        address = f"10.{rail + 10}.{number // 250}.{number % 250 + 1}"
        one |= {"gid": address, "addresses": [f"{address}/16"]}
    if change is not None:
        change(report)
    return report


def document(report: Report) -> Report:
    """What ``check --json`` would print for a flat report."""
    report, found = deepcopy(report), produced_document()
    row = next(one for one in found["findings"] if one["status"] == "pass")
    rows = [
        *report["findings"],
        *(finding(id_, "pass", subjects=[who], have=have) for id_, who, have in report["passes"]),
    ]
    launch, machine = report["launch"], found["answer"]["machine"]
    unread = {name: {"unknown": why} for name, why in report["unknown_facts"].items()}
    share = launch and {name: launch[name] for name in machine["share"]}
    services = launch and [
        *(["master", one, False] for one in launch["masters"]),
        *launch["services"],
    ]
    found |= {
        "version": report["version"],
        "status": report["status"],
        "exit_code": ("pass", "warn", "fail", "unknown", "error").index(report["status"]),
        "reason": report.get("error", "as it is"),
        "findings": [{**row, "ignored": None, **_row_of(one)} for one in rows],
    }
    found["answer"]["services"] = [_service(*one) for one in services or ()]
    machine |= {
        "name": report["node"],
        "host": report["host"],
        "boot": report["boot"],
        "read_unix_seconds": report["made_unix_seconds"],
        "facts": report["facts"] | unread,
        "rails": report["rails"],
        "share": share,
    }
    return found


def _row_of(one: Report) -> Report:
    subjects = [{"kind": "host", "name": name, "ranks": []} for name in one["subjects"]]
    amounts = {
        name: {"value": None, "unit": None, "text": one[name]} if one[name] else None
        for name in ("have", "need")
    }
    return {**one, "subjects": subjects, **amounts}


def _service(kind: str, address: str, own: bool) -> Report:
    host, _, port = address.rpartition(":")
    number = int(port) if host and port.isdecimal() else None
    return {"kind": kind, "host": address if number is None else host, "port": number, "own": own}


def fleet_reports(nodes: str, changes: dict[str, Change] | None = None) -> list[Report]:
    """Like reports of all ``nodes`` (a node set), but those that ``changes`` names."""
    return [
        report_of(node, number, (changes or {}).get(node))
        for number, node in enumerate(expand(nodes))
    ]


def write_lines(path: Path, reports: Iterable[Report]) -> str:
    """As JSON lines; returns the path."""
    path.write_text("".join(f"{line(report)}\n" for report in reports))
    return str(path)


def line(report: Report) -> str:
    """As a node prints it, on one line."""
    return json.dumps(document(report), separators=(",", ":"))


def merge(paths: Sequence[str], expected: Sequence[str] | None) -> Fleet:
    """The fleet that the reports of ``paths`` tell of."""
    return merge_reports(read_reports(reports_of(paths)), expected)


def merged_reports(reports: Iterable[Report], expect: str | None = None) -> Fleet:
    """The fleet of ``reports``, as of a file with a line for each."""
    lines = "".join(f"{line(report)}\n" for report in reports)
    found = read_reports(reports_in("reports.jsonl", lines.encode()))
    return merge_reports(found, None if expect is None else expand(expect))


def altered(**changes: Any) -> Change:
    """Sets facts, by name: ``altered(kernel="5.15.0")``."""

    def change(report: Report) -> None:
        report["facts"].update(changes)

    return change


def finding(check: str, status: str, **more: Any) -> Report:
    """A finding of a node."""
    row = {"check": check, "status": status, "subjects": ["host"]}
    return {**row, "have": "", "need": "", "text": "", **more}


def fails(report: Report) -> None:
    """The node whose memlock is 8 MiB, as the check words it."""
    report["status"] = "fail"
    report["findings"].insert(
        0,
        finding(
            "memlock.limit",
            "fail",
            subjects=[f"launch.sh:3 rank {rank}" for rank in range(8)],
            have="8.00 MiB (this shell)",
            need="287.66 GiB",
            text="registering fails: will not start",
        ),
    )


def told(fleet: Fleet, check: str) -> Told:
    """(status, nodes, have) of each finding of the fleet with this id."""
    return [
        (one.finding.status, fold(one.nodes), one.finding.have)
        for one in fleet.findings
        if one.finding.check == check
    ]


def launch(**changes: Any) -> Change:
    """Sets what the launch does on a node."""
    return lambda report: report["launch"].update(changes)


def rails(**changes: Any) -> Change:
    """Sets a field of every rail."""

    def change(report: Report) -> None:
        for rail in report["rails"]:
            rail.update(changes)

    return change


def every(change: Change, nodes: str = "gpu[1-4]") -> list[Report]:
    """A fleet of which all nodes have the change."""
    reports = fleet_reports(nodes)
    for report in reports:
        change(report)
    return reports
