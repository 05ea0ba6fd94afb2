"""What fleet merge costs grows as the number of reports, whatever differs between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import ParsingEngine  # type: ignore[import-untyped]

from preflight.fleet.merge import fleet as merging
from preflight.fleet.merge.answer import fleet_object
from preflight.fleet.reports import reading, sources
from preflight.fleet.reports.sources import reports_in, reports_of
from tests.fleet.merge_fleets import Report, finding, fleet_reports, line, merged_reports
from tests.tables import each_row


def own_facts(report: Report, number: int) -> None:
    report["facts"][f"model /scratch/{number}/model"] = "Qwen3"


def own_devices(report: Report, number: int) -> None:
    names = {rail["device"]: f"rocex{number}{rail['device'][5:]}" for rail in report["rails"]}
    for rail in report["rails"]:
        rail["device"] = names[rail["device"]]
    for name in [name for name in report["facts"] if name.startswith("mlx5")]:
        report["facts"][name.replace("mlx5", f"rocex{number}")] = report["facts"].pop(name)
    report["facts"]["rdma.devices"] = " ".join(names.values())


def own_values(report: Report, number: int) -> None:
    report["facts"] = {name: f"{value} {number}" for name, value in report["facts"].items()}


def own_amounts(report: Report, number: int) -> None:
    report["passes"] = [[check, subject, f"{number} B"] for check, subject, _ in report["passes"]]
    report["findings"].append(finding("memory.free", "warn", have=f"{number} B"))


def own_networks(report: Report, number: int) -> None:
    for rail in report["rails"]:
        rail |= {"addresses": [f"{rail['gid']}/32"], "exits": []}


@each_row("change", [own_facts, own_devices, own_values, own_amounts, own_networks])
def test_no_difference_between_nodes_costs_the_square_of_them(
    change: Callable[[Report, int], None],
) -> None:
    """Node sets that are parsed, and bytes that are answered, for twice as many nodes."""

    def cost(count: int) -> tuple[int, int]:
        parsed = 0
        parse = ParsingEngine.parse_string

        def counted(*words: Any, **more: Any) -> Any:
            nonlocal parsed
            parsed += 1
            return parse(*words, **more)

        reports = fleet_reports(f"gpu[1-{count}]")
        for number, report in enumerate(reports):
            change(report, number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ParsingEngine, "parse_string", counted)
            patch.setattr(merging, "MOST_RARE", 9)
            patch.setattr(merging, "MOST_AMOUNTS", 9)
            patch.setattr(reading, "MOST_AMOUNTS", 9)
            answer = fleet_object(merged_reports(reports))
        return parsed, len(repr(answer))

    few, many = cost(20), cost(40)
    for less, more in zip(few, many, strict=True):
        assert more < 2.3 * less


def test_many_facts_of_single_nodes_are_one_difference_with_every_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = fleet_reports("gpu[1-9]")
    for number, report in enumerate(reports[:8]):
        own_facts(report, number)
    assert [drift.others[0].nodes for drift in merged_reports(reports).drift] == [
        [f"gpu{number}"] for number in range(1, 9)
    ]
    monkeypatch.setattr(merging, "MOST_RARE", 7)
    (drift,) = merged_reports(reports).drift
    assert len(drift.facts) == 8
    assert drift.others[0].nodes == [f"gpu{number}" for number in range(1, 9)]
    assert drift.most is not None
    assert drift.most.nodes == ["gpu9"]


def test_amounts_that_no_two_nodes_share_leave_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all nodes, those that were read before their number was known too."""
    reports = fleet_reports("gpu[1-9]")
    for number, report in enumerate(reports):
        own_amounts(report, number)
    passed = len(merged_reports(reports).passed)
    monkeypatch.setattr(merging, "MOST_AMOUNTS", 5)
    monkeypatch.setattr(reading, "MOST_AMOUNTS", 5)
    fleet = merged_reports(reports)
    assert 9 * len(fleet.passed) == passed
    for item in fleet.passed:
        assert item.nodes == [f"gpu{number}" for number in range(1, 10)]


def test_a_long_text_gives_the_reports_of_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines, pretty objects and other lines between, a broken report, and labels of srun."""
    lines = [line(report) for report in fleet_reports("gpu[1-6]")]
    plain = "\n".join(["a log", *lines[:3], lines[3][:500], "more", *lines[4:], ""])
    labelled = "".join(f"{at}: {each}\n" for at, each in enumerate(lines))
    for text in (plain, labelled, plain.replace(',"', ',\n"'), "no report\n" * 9999):
        path = tmp_path / "reports.jsonl"
        path.write_text(text)
        whole = list(reports_in(str(path), text.encode()))
        monkeypatch.setattr(sources, "PIECE_BYTES", 20_000)
        assert list(reports_of([str(path)])) == whole


def test_a_part_that_was_read_before_is_named_after_its_own_node() -> None:
    """A finding that names another node, and is the same in the reports of both."""
    reports = fleet_reports("gpu[1-2]")
    for report in reports:
        report["findings"] = [finding("memory.free", "warn", text="gpu1 has little")]
    told = {(each.finding.text, *each.nodes) for each in merged_reports(reports).findings}
    assert told == {("the node has little", "gpu1"), ("gpu1 has little", "gpu2")}
