"""Fleets to merge: the report that a real node gives, as each of many nodes would give it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from preflight.fleet.base.node_sets import expand, fold
from preflight.fleet.merge.command import merge
from preflight.fleet.merge.fleet import Fleet
from preflight.fleet.node.report import node_report
from preflight.inputs.launch_words import LaunchWords
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
    """What ``fleet node`` prints on the synthetic host with 8 GPUs and 8 NICs."""
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
        words = LaunchWords((str(script),))
        report = node_report(words, str(root), 600.0, "base-node")
        return json.dumps(report).replace(str(script), "launch.sh").replace(str(root), "/")


def produced_report() -> Report:
    """As ``fleet node`` makes it: a fresh copy."""
    found: Report = json.loads(_base())
    return found


def base_report() -> Report:
    """The same with one warning, whatever the checks have to say of the synthetic host."""
    text = "no --page-size: two objects for each token and rank"
    common = finding("page-size-one", "warn", subjects=["launch.sh:3"], text=text)
    return {**produced_report(), "status": "warn", "exit_code": 1, "findings": [common]}


def report_of(node: str, number: int, change: Change | None = None) -> Report:
    """As node ``number`` of a fleet gives it: its own names, addresses and time."""
    report = base_report()
    report |= {"node": node, "host": node, "boot": f"{number:08x}-boot", "made_unix_seconds": MADE}
    report |= {"routes": [["0.0.0.0/0", "10.0.0.254", "eth0"]]}
    for rail, one in enumerate(report["rails"]):
        address = f"10.{rail + 10}.{number // 250}.{number % 250 + 1}"
        one |= {"gid": address, "addresses": [f"{address}/16"]}
    if change is not None:
        change(report)
    return report


def fleet_reports(nodes: str, changes: dict[str, Change] | None = None) -> list[Report]:
    """Like reports of all ``nodes`` (a node set), but those that ``changes`` names."""
    return [
        report_of(node, number, (changes or {}).get(node))
        for number, node in enumerate(expand(nodes))
    ]


def main_table_alone(report: Report, routes: Any) -> None:
    """``routes`` as a report has them whose node was not asked for its rules: without ``exits``."""
    report["routes"] = routes
    for rail in report["rails"]:
        rail.pop("exits", None)


def write_lines(path: Path, reports: Iterable[Report]) -> str:
    """As JSON lines; returns the path."""
    path.write_text("".join(f"{line(report)}\n" for report in reports))
    return str(path)


def line(report: Report) -> str:
    """As a node prints it."""
    return json.dumps(report, separators=(",", ":"))


def merged_reports(folder: Path, reports: Iterable[Report], expect: str | None = None) -> Fleet:
    """The fleet of ``reports``, through a file."""
    path = write_lines(folder / "reports.jsonl", reports)
    return merge([path], None if expect is None else expand(expect))


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
    report["status"], report["exit_code"] = "fail", 2
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
