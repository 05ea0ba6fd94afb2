"""A fleet of reports: its pool, who is there, which report counts, and what comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.fleet.base.node_sets import expand, fold
from preflight.fleet.merge.answer import fleet_object, verdict_text
from preflight.fleet.merge.fleet import merged
from preflight.fleet.reports.reading import Reports
from preflight.fleet.reports.rows import absent
from tests.fleet.merge_fleets import (
    MADE,
    Change,
    Report,
    altered,
    every,
    fails,
    finding,
    fleet_reports,
    launch,
    merge,
    merged_reports,
    rails,
    report_of,
    told,
    write_lines,
)

GIB = 1 << 30
DAY_SECONDS = 24 * 3600
OLD = "mooncake-transfer-engine 0.3.13"


def test_the_pool_is_the_sum_of_the_segments(tmp_path: Path) -> None:
    changes = {
        "gpu2": launch(segment_bytes=32 * GIB),
        "gpu3": launch(segment_bytes={"unknown": "from a file that is not here"}),
        "gpu4": launch(segment_bytes=60 * GIB),
    }
    fleet = merged_reports(tmp_path, fleet_reports("gpu[1-6]", changes))
    pool = fleet.pool
    assert pool is not None
    assert pool.total_bytes == (3 * 64 + 32 + 60) * GIB
    assert fold(pool.unread) == "gpu3"


def test_without_a_launch_there_is_no_pool(tmp_path: Path) -> None:
    fleet = merged_reports(tmp_path, every(lambda report: report.update(launch=None)))
    assert fleet.pool is None


def test_who_gave_no_report_and_who_is_not_expected_are_named(tmp_path: Path) -> None:
    fleet = merged_reports(tmp_path, fleet_reports("gpu[01-03],login"), "gpu[01-05]")
    assert told(fleet, "fleet.report") == [("unknown", "gpu[04-05]", "no report")]
    assert told(fleet, "fleet.unexpected") == [("warn", "login", "a report")]
    assert fleet.exit_code == 3
    assert fold(fleet.of("unknown")) == "gpu[04-05]"


def test_a_truncated_report_of_a_node_makes_that_node_unknown(tmp_path: Path) -> None:
    reports = fleet_reports("gpu[1-3]")
    place = write_lines(tmp_path / "two.jsonl", reports[:2])
    broken = tmp_path / "gpu3.json"
    broken.write_text('{"schema":"mooncake-preflight/check/v2","version":"1","ho')
    fleet = merge([place, str(broken)], None)
    have = "no report but one that is truncated"
    assert told(fleet, "fleet.report") == [("unknown", "gpu3", have)]
    assert [node.name for node in fleet.nodes] == ["gpu1", "gpu2", "gpu3"]


@pytest.mark.parametrize(("expect", "status"), [("gpu[1-3]", "warn"), ("gpu[1-4]", "unknown")])
def test_a_stray_text_matters_while_a_node_is_missing(
    expect: str, status: str, tmp_path: Path
) -> None:
    """A text of nobody could be the report of a node that is missing, where one is."""
    (tmp_path / "notes.txt").write_text("to do\n")
    merged_reports(tmp_path, fleet_reports("gpu[1-3]"))
    fleet = merge([str(tmp_path)], expand(expect))
    assert [found[0] for found in told(fleet, "fleet.unusable")] == [status]
    assert [node.name for node in fleet.nodes] == expand(expect)


def test_no_report_at_all_is_unknown(tmp_path: Path) -> None:
    fleet = merge([str(tmp_path)], None)
    assert (fleet.verdict, fleet.nodes) == ("unknown", ())
    assert merge([str(tmp_path)], ["gpu1"]).verdict == "unknown"


@pytest.mark.parametrize(
    ("made", "fail_at", "status", "verdict"),
    [
        ((MADE, MADE), None, None, "warn"),  # the same twice
        ((MADE, MADE + 60), None, None, "warn"),  # the same, a minute later
        ((MADE, MADE + 60), 0, "warn", "warn"),  # it failed, and was mended
        ((MADE, MADE + 60), 1, "warn", "fail"),
        ((MADE, MADE), 0, "unknown", "fail"),  # no telling which is newer: the worse
        ((0, MADE), 0, "unknown", "fail"),
    ],
)
def test_of_two_reports_of_one_node_the_newest_counts_and_it_is_said(
    made: tuple[int, int], fail_at: int | None, status: str | None, verdict: str, tmp_path: Path
) -> None:
    reports = [report_of("gpu1", 0), report_of("gpu1", 0)]
    for report, seconds in zip(reports, made, strict=True):
        report["made_unix_seconds"] = seconds
    if fail_at is not None:
        fails(reports[fail_at])
    for order in (reports, reports[::-1]):
        fleet = merged_reports(tmp_path, order)
        said = [found[0] for found in told(fleet, "fleet.several-reports")]
        assert said == ([] if status is None else [status])
        assert dict(fleet.repeats) == ({"gpu1": 1} if status is None else {})
        assert fleet.verdict == verdict


def test_old_reports_are_named(tmp_path: Path) -> None:
    reports = fleet_reports("gpu[1-3]")
    reports[1]["made_unix_seconds"] -= 3 * DAY_SECONDS
    found = told(merged_reports(tmp_path, reports), "fleet.old-report")
    assert found == [("warn", "gpu2", "made up to 3.0 days before the newest")]


def test_what_few_nodes_say_comes_first(tmp_path: Path) -> None:
    def common(report: Report) -> None:
        report["findings"].append(finding("hugetlb.shortage", "fail"))

    reports = every(common, "gpu[1-9]")
    reports[4]["findings"].append(finding("rdma.port", "warn", subjects=["mlx5_3 port 1"]))
    fleet = merged_reports(tmp_path, reports)
    assert [one.finding.check for one in fleet.findings][:2] == ["rdma.port", "hugetlb.shortage"]


def test_ignored_findings_do_not_count(tmp_path: Path) -> None:
    def change(report: Report) -> None:
        report["findings"] = [finding("rdma.port", "fail", ignored="spare port")]
        report["status"] = "pass"

    fleet = merged_reports(tmp_path, every(change))
    assert (fleet.verdict, len(fleet.findings), len(fleet.waived)) == ("pass", 0, 1)


SMALL_CHANGES: list[Change] = [
    fails,
    altered(kernel="5.15.0"),
    altered(**{"wheel.mooncake": OLD}),
    launch(masters=["127.0.0.1:50051"]),
    launch(segment_bytes=GIB),
    rails(mtu_bytes=1024),
    lambda report: report.update(findings=[], status="pass"),
    lambda report: report.update(launch=None),
]


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(SMALL_CHANGES), min_size=1, max_size=6), st.randoms())
def test_the_order_of_the_reports_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Change], random: Any
) -> None:
    """Law: merging is of a set of reports."""
    folder = tmp_path_factory.mktemp("order")
    reports = [report_of(f"gpu{at}", at, change) for at, change in enumerate(changes)]
    first = merged_reports(folder, reports)
    random.shuffle(reports)
    second = merged_reports(folder, reports)
    for name in ("verdict", "pool", "passed", "waived"):
        assert getattr(first, name) == getattr(second, name)
    assert first.drift == second.drift
    assert [one.status for one in first.nodes] == [one.status for one in second.nodes]
    assert [one.finding for one in first.findings] == [one.finding for one in second.findings]


def test_nodes_that_were_not_reached_are_no_reports_read(tmp_path: Path) -> None:
    """They have an entry each, which stands in place of a report."""
    reports = [
        absent("n1", "fleet.ssh", "Connection refused"),
        absent("n2", "fleet.timeout", "no answer"),
        absent("n3", "fleet.report", "no JSON"),
    ]
    fleet = merged(Reports(reports, ()), None)
    text = verdict_text(fleet)
    assert "(0 reports read, 2 nodes not reached, 1 node without a report)" in text
    found = fleet_object(fleet)["reports"]
    assert (found["read"], found["not_reached"]) == (0, 2)
