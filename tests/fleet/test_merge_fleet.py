"""A fleet of reports: its pool, who is there, which report counts, what only many show; drift.

Node sets are ClusterShell's; what is said to it is bounded, and what it refuses is told.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.base.usage_error import UsageError
from preflight.fleet.base.node_sets import expand, fold, in_order, is_name, named_nodes
from preflight.fleet.merge.answer import fleet_object, verdict_text
from preflight.fleet.merge.fleet import Fleet, drift, merge_reports, nodes_by_value
from preflight.fleet.reports.reading import Reports
from preflight.fleet.reports.rows import Fact, NodeRow, absent
from tests.fleet.merge_fleets import (
    MADE,
    Change,
    Report,
    Told,
    altered,
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
from tests.tables import each_row


@each_row(
    ("names", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["gpu003", "gpu001", "gpu001"], "gpu[001,003]"),
        (["gpu8", "gpu9", "gpu10", "gpu11"], "gpu[8-11]"),
        (["b2", "a1", "b1"], "a1,b[1-2]"),
        (["gpu1.rack7.example", "gpu2.rack7.example"], "gpu[1-2].rack7.example"),
        (["10.0.0.8", "10.0.0.9"], "10.0.0.[8-9]"),
    ],
)
def test_names_fold_as_schedulers_write_them(names: list[str], folded: str) -> None:
    assert fold(names) == folded
    assert expand(folded) == in_order(names)


def test_slurm_is_given_nothing_behind_a_bracket() -> None:
    """It takes gpu[1-2].example for an invalid host list; single names it reads."""
    names = ["a1", "a2", "gpu1.example", "gpu2.example", "r1-n1", "r1-n2", "r2-n1", "r2-n2"]
    folded = fold(names, slurm=True)
    assert folded == "a[1-2],r1-n[1-2],r2-n[1-2],gpu1.example,gpu2.example"
    assert expand(folded) == in_order(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("gpu[098-101/2]", ["gpu098", "gpu100"]),
        ("a1, b[1-2]  c", ["a1", "b1", "b2", "c"]),
        ("a\nb\n", ["a", "b"]),
    ],
)
def test_a_node_set_is_read_as_it_is_meant(text: str, names: list[str]) -> None:
    assert expand(text) == names


@each_row(
    ("text", "rule"),
    [
        ("gpu[1-", "not a set of nodes"),
        ("gpu[3-1]", "not a set of nodes"),
        ("gpu[1-1000000000]", "at most 100000"),
        ("gpu[1-1000]x[1-1000]", "at most 100000"),
        ("@rack1", "group"),
        ("gpu\x1b[1-2]", "not the name of a node"),
        ("-gpu1", "not the name of a node"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        expand(text)


def test_a_group_that_the_site_has_not_is_named() -> None:
    with pytest.raises(UsageError, match="group"):
        named_nodes(["@nosuch:thing"], [])
    assert named_nodes(["gpu[1-3],x"], ["gpu2"]) == ["gpu1", "gpu3", "x"]


@given(st.text(max_size=40))
def test_any_text_is_a_node_set_or_is_refused(text: str) -> None:
    """No input ends in anything but names or a UsageError."""
    with contextlib.suppress(UsageError):
        assert all(is_name(name) for name in expand(text))


GIB = 1 << 30
DAY_SECONDS = 24 * 3600


def test_who_gave_no_report_and_who_is_not_expected_are_named() -> None:
    fleet = merged_reports(fleet_reports("gpu[01-03],login"), "gpu[01-05]")
    assert told(fleet, "fleet.report") == [("unknown", "gpu[04-05]", "no report")]
    assert told(fleet, "fleet.unexpected") == [("warn", "login", "a report")]
    assert fleet.exit_code == 3
    assert fold(fleet.of("unknown")) == "gpu[04-05]"


@pytest.mark.parametrize(("expect", "status"), [("gpu[1-3]", "warn"), ("gpu[1-4]", "unknown")])
def test_a_stray_text_matters_while_a_node_is_missing(
    expect: str, status: str, tmp_path: Path
) -> None:
    """A text of nobody could be the report of a node that is missing, where one is."""
    (tmp_path / "notes.txt").write_text("to do\n")
    write_lines(tmp_path / "reports.jsonl", fleet_reports("gpu[1-3]"))
    fleet = merge([str(tmp_path)], expand(expect))
    assert [found[0] for found in told(fleet, "fleet.unusable")] == [status]
    assert [node.name for node in fleet.nodes] == expand(expect)


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
    made: tuple[int, int], fail_at: int | None, status: str | None, verdict: str
) -> None:
    reports = [report_of("gpu1", 0), report_of("gpu1", 0)]
    for report, seconds in zip(reports, made, strict=True):
        report["made_unix_seconds"] = seconds
    if fail_at is not None:
        fails(reports[fail_at])
    for order in (reports, reports[::-1]):
        fleet = merged_reports(order)
        said = [found[0] for found in told(fleet, "fleet.several-reports")]
        assert said == ([] if status is None else [status])
        assert dict(fleet.repeats) == ({"gpu1": 1} if status is None else {})
        assert fleet.verdict == verdict


SMALL_CHANGES: list[Change] = [
    fails,
    altered(kernel="5.15.0"),
    altered(**{"wheel.mooncake": "mooncake-transfer-engine 0.3.13"}),
    launch(masters=["127.0.0.1:50051"]),
    launch(segment_bytes=GIB),
    rails(mtu_bytes=1024),
    lambda report: report.update(findings=[], status="pass"),
    lambda report: report.update(launch=None),
]


@pytest.mark.slow
@given(st.lists(st.sampled_from(SMALL_CHANGES), min_size=1, max_size=6), st.randoms())
def test_the_order_of_the_reports_changes_nothing(changes: list[Change], random: Any) -> None:
    """Law: merging is of a set of reports."""
    reports = [report_of(f"gpu{at}", at, change) for at, change in enumerate(changes)]
    first = merged_reports(reports)
    random.shuffle(reports)
    second = merged_reports(reports)
    for name in ("verdict", "segments", "passed", "waived"):
        assert getattr(first, name) == getattr(second, name)
    assert first.drift == second.drift
    assert [one.status for one in first.nodes] == [one.status for one in second.nodes]
    assert [one.finding for one in first.findings] == [one.finding for one in second.findings]


def test_nodes_that_were_not_reached_are_no_reports_read() -> None:
    """They have an entry each, which stands in place of a report."""
    reports = [
        absent("n1", "fleet.ssh", "Connection refused"),
        absent("n2", "fleet.timeout", "no answer"),
        absent("n3", "fleet.report", "no JSON"),
    ]
    fleet = merge_reports(Reports(reports, ()), None)
    text = verdict_text(fleet)
    assert "(0 reports read, 2 nodes not reached, 1 node without a report)" in text
    found = fleet_object(fleet)["reports"]
    assert (found["read"], found["not_reached"]) == (0, 2)


def wheel(text: str) -> Change:
    return altered(**{"wheel.mooncake": f"mooncake-transfer-engine{text}"})


def each(change: Change, **odd: Change) -> dict[str, Change]:
    """That change on gpu1 to gpu5, but for the ``odd`` ones."""
    return dict.fromkeys(expand("gpu[1-5]"), change) | odd


def mastered(change: Change) -> Change:
    """The same where gpu1 runs the master."""

    def both(report: Report) -> None:
        launch(masters=["gpu1:50051"])(report)
        change(report)

    return both


VERSION, NEW = "fleet.mooncake-version", wheel(" 0.3.14")


@each_row(
    ("changes", "check", "expected", "verdict"),
    [
        (each(NEW, gpu3=wheel(" 0.3.12")), VERSION, [("fail", "gpu3", "Mooncake 0.3.12")], "fail"),
        # A client 0.3.13 worked with a master 0.3.14.
        (each(NEW, gpu3=wheel(" 0.3.13")), VERSION, [("warn", "gpu3", "Mooncake 0.3.13")], "warn"),
        (
            each(NEW, gpu3=wheel(" 0.3.15")),
            *(VERSION, [("unknown", "gpu3", "Mooncake 0.3.15")], "unknown"),
        ),
        # The master's is right, however few have it.
        (
            each(mastered(NEW), gpu1=mastered(wheel(" 0.3.12"))),
            *(VERSION, [("fail", "gpu[2-5]", "Mooncake 0.3.14")], "fail"),
        ),
        # Flavours of one version are one version.
        (each(NEW, gpu3=wheel("-cuda13 0.3.14")), VERSION, [], "warn"),
        ({"gpu3": launch(protocol="tcp")}, "fleet.protocol", [("warn", "gpu3", "tcp")], "warn"),
        (
            {"gpu2": lambda report: report.update(made_unix_seconds=MADE - 3 * DAY_SECONDS)},
            *("fleet.old-report", [("warn", "gpu2", "made up to 3.0 days before the newest")]),
            "warn",
        ),
        (
            each(launch(services=[["advertised", "10.1.1.1", True]])),
            *("fleet.advertised", [("fail", "gpu[1-5]", "10.1.1.1")], "fail"),
        ),
        (
            each(launch(services=[["metadata-http", "localhost:8080", False]])),
            *("fleet.metadata", [("fail", "gpu[1-5]", "localhost:8080")], "fail"),
        ),
        (
            each(lambda report: report.update(boot="one-machine")),
            *("fleet.same-machine", [("warn", "gpu[1-5]", "boot one-machine")], "warn"),
        ),
        # A finding that is ignored does not count.
        (
            each(
                lambda report: report.update(
                    status="pass", findings=[finding("rdma.port", "fail", ignored="spare")]
                )
            ),
            *("rdma.port", [], "pass"),
        ),
    ],
)
def test_what_only_many_show(
    changes: dict[str, Change], check: str, expected: Told, verdict: str
) -> None:
    fleet = merged_reports(fleet_reports("gpu[1-5]", changes))
    assert (told(fleet, check), fleet.verdict) == (expected, verdict)
    if check == VERSION:  # of what a finding is about already, no drift is told
        assert ("wheel.mooncake" in {one.fact for one in fleet.drift}) is (not expected)


@each_row(
    ("masters", "expected"),
    [
        (["10.9.0.1:50051"] * 4, []),
        (["10.9.0.1"] + ["10.9.0.1:50051"] * 3, []),
        (["10.9.0.1:50051"] * 3 + ["10.9.0.1:50052"], [("fail", "gpu4", "10.9.0.1:50052")]),
        (["gpu1:50051"] * 3 + ["gpu2:50051"], [("fail", "gpu4", "gpu2:50051")]),
        (["gpu1:50051"] * 3 + ["10.10.0.1:50051"], []),  # an address of gpu1
        (["10.9.0.1:50051"] * 3 + ["10.9.0.2:50051"], [("unknown", "gpu4", "10.9.0.2:50051")]),
        (["127.0.0.1:50051"] + ["gpu1:50051"] * 3, []),
        (["127.0.0.1:50051"] + ["gpu2:50051"] * 3, [("fail", "gpu1", "127.0.0.1:50051")]),
        (["127.0.0.1:50051"] * 2 + ["gpu3:50051"] * 2, [("fail", "gpu[1-2]", "127.0.0.1:50051")]),
        (["a:1"] * 2 + ["b:2"] * 2, [("fail", "gpu[1-4]", "b:2")]),
        (["127.0.0.1:50051"], []),  # a lone node may be its own master
    ],
)
def test_one_master_for_all(masters: list[str], expected: Told) -> None:
    """An alias cannot be told from another machine: that is unknown. Two ports are two masters."""
    reports = fleet_reports(f"gpu[1-{len(masters)}]")
    for report, master in zip(reports, masters, strict=True):
        report["launch"]["masters"] = [master]
    fleet = merged_reports(reports)
    assert told(fleet, "fleet.master") == expected


@each_row(
    ("change", "limit", "expected"),
    [
        (rails(mtu_bytes=1024), 4096, [("fail", "gpu3", "path MTU 1024 B")]),
        (rails(mtu_bytes=1024), None, [("unknown", "gpu3", "path MTU 1024 B")]),
        (rails(mtu_bytes=1024), 1024, []),  # MC_MTU=1024 everywhere: all paths are equal
        (rails(mtu_bytes=1024, used=False), 4096, []),
        (launch(protocol="tcp"), 4096, []),
    ],
)
def test_the_ends_of_a_path_have_one_mtu(change: Change, limit: int | None, expected: Told) -> None:
    reports = fleet_reports("gpu[1-5]", {"gpu3": change})
    for report in reports:
        report["launch"]["mtu_limit_bytes"] = limit
    assert told(merged_reports(reports), "fleet.path-mtu") == expected


def test_an_address_that_two_machines_have_fails() -> None:
    """Link-local and loopback addresses are each machine's own; a text is no address."""
    reports = fleet_reports("gpu[1-5]")
    reports[3]["rails"][2] = reports[1]["rails"][2]
    expected = [("fail", "gpu[2,4]", "10.12.0.2 on mlx5_2 of each")]
    assert told(merged_reports(reports), "fleet.address") == expected
    for report in reports:
        report["rails"][0]["addresses"] = ["169.254.0.1/16", "127.0.0.1/8", "fe80::1/64", "x/1"]
    assert told(merged_reports(reports), "fleet.address") == expected


def drifts(fleet: Fleet) -> dict[str, tuple[str | None, dict[str, str]]]:
    """fact -> (the most common value, value -> nodes of the others)."""
    return {
        one.fact: (
            None if one.most is None else one.most.value,
            {other.value: fold(other.nodes) for other in one.others},
        )
        for one in fleet.drift
    }


def gone(name: str) -> Change:
    return lambda report: report["facts"].pop(name)


def unread(name: str) -> Change:
    def change(report: Report) -> None:
        report["facts"].pop(name, None)
        report["unknown_facts"][name] = "permission denied"

    return change


def without_a_device(report: Report) -> None:
    """That it is not there is one fact; a dozen others of it go with it."""
    facts = {n: value for n, value in report["facts"].items() if not n.startswith("mlx5_7")}
    report["facts"] = facts | {"rdma.devices": SEVEN}
    del report["rails"][7]


def with_topics_unread(report: Report) -> None:
    """What was not read is not taken for absent."""
    report["facts"] = {"kernel": report["facts"]["kernel"]}
    report["unknown_facts"] = dict.fromkeys(("gpus", "rdma"), "took too long")


SEVEN = " ".join(f"mlx5_{at}" for at in range(7))


@each_row(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"gpu2": without_a_device}, {"rdma.devices": (f"{SEVEN} mlx5_7", {SEVEN: "gpu2"})}),
        ({"gpu2": with_topics_unread}, {}),
        (
            {"gpu3": altered(kernel="5.15.0"), "gpu4": altered(kernel="5.4.0")},
            {"kernel": ("6.8.0-60-generic", {"5.15.0": "gpu3", "5.4.0": "gpu4"})},
        ),
        ({"gpu2": gone("gpu.cuda")}, {"gpu.cuda": ("12.8", {"absent": "gpu2"})}),
        ({"gpu2": unread("gpu.cuda")}, {}),
        (
            {"gpu2": altered(**{f"mlx5_{at}.firmware": "28.38.1900" for at in range(8)})},
            {"mlx5_0-7.firmware": ("28.39.1002", {"28.38.1900": "gpu2"})},
        ),
        ({"gpu2": altered(ipc_lock=False)}, {"ipc_lock": ("yes", {"no": "gpu2"})}),
        (
            {"gpu2": altered(**{"limit.memlock": 8388608})},
            {"limit.memlock": ("unlimited", {"8.00 MiB": "gpu2"})},
        ),
        (
            {"gpu2": altered(**{"gpu.memory_bytes": 85899345921})},
            {"gpu.memory_bytes": ("80.00 GiB", {"85899345921 B": "gpu2"})},
        ),
        ({"gpu2": altered(**{"memory.total_bytes": 2199023255552 - 4096})}, {}),
        (
            {
                "gpu2": altered(**{"limit.nproc": 6189822}),
                "gpu3": altered(**{"limit.nproc": 6189001}),
            },
            {"limit.nproc": ("unlimited", {"about 6190000": "gpu[2-3]"})},
        ),
        (
            {"gpu2": lambda report: report.update(version="0.0.9")},
            {"mooncake-preflight": ("0.1.0", {"0.0.9": "gpu2"})},
        ),
    ],
)
def test_drift_is_held_against_the_most_common_value(
    changes: dict[str, Change], expected: dict[str, Any]
) -> None:
    fleet = merged_reports(fleet_reports("gpu[1-9]", changes))
    assert drifts(fleet) == expected
    differing = {name for _, others in expected.values() for name in others.values()}
    assert fleet.verdict == "warn"  # the launch's own warning is on every node
    assert (len(fleet.drift) > 0) is (len(differing) > 0)


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.sampled_from(["x", "y", "z"])),
        min_size=1,
        max_size=9,
    )
)
def test_every_node_is_in_each_drift_once(nodes: list[dict[str, str]]) -> None:
    """Law: majority, others and unread are disjoint, and are all nodes; a majority leads."""
    rows = {
        f"n{at}": NodeRow(f"n{at}", "", 0, "pass", facts=tuple(Fact(*one, one[1]) for one in facts))
        for at, facts in enumerate(node.items() for node in nodes)
    }
    for one in drift(nodes_by_value(rows), rows):
        variants = [*([one.most] if one.most else []), *one.others]
        names = [name for variant in variants for name in variant.nodes]
        assert sorted([*names, *one.unread]) == sorted(rows)
        sizes = sorted((len(variant.nodes) for variant in variants), reverse=True)
        assert (one.most is None) is (sizes[0] == sizes[1])
        assert len(variants) == len({node.get(one.fact) for node in nodes})
