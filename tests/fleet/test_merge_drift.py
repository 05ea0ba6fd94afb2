"""Drift: what is not the same on all nodes, against the most common value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.base.node_sets import fold
from preflight.fleet.merge.drift import drift, gathered
from preflight.fleet.merge.fleet import Fleet
from preflight.fleet.reports.rows import Fact, NodeRow
from tests.fleet.merge_fleets import Change, Report, altered, fleet_reports, merged_reports


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"gpu3": altered(kernel="5.15.0")}, {"kernel": ("6.8.0-60-generic", {"5.15.0": "gpu3"})}),
        (
            {"gpu3": altered(kernel="5.15.0"), "gpu4": altered(kernel="5.4.0")},
            {"kernel": ("6.8.0-60-generic", {"5.15.0": "gpu3", "5.4.0": "gpu4"})},
        ),
        (
            {
                "gpu1": altered(kernel="a"),
                "gpu2": altered(kernel="a"),
                "gpu3": altered(kernel="b"),
                "gpu4": altered(kernel="b"),
            },
            {"kernel": ("6.8.0-60-generic", {"a": "gpu[1-2]", "b": "gpu[3-4]"})},
        ),
        ({"gpu2": gone("gpu.cuda")}, {"gpu.cuda": ("12.8", {"absent": "gpu2"})}),
        ({"gpu2": unread("gpu.cuda")}, {}),
        (
            {"gpu2": altered(**{f"mlx5_{at}.firmware": "28.38.1900" for at in range(8)})},
            {"mlx5_0-7.firmware": ("28.39.1002", {"28.38.1900": "gpu2"})},
        ),
        (
            {"gpu2": altered(**{"mlx5_6.firmware": "28.38.1900"})},
            {"mlx5_6.firmware": ("28.39.1002", {"28.38.1900": "gpu2"})},
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
    changes: dict[str, Change], expected: dict[str, Any], tmp_path: Path
) -> None:
    fleet = merged_reports(tmp_path, fleet_reports("gpu[1-9]", changes))
    assert drifts(fleet) == expected
    differing = {name for _, others in expected.values() for name in others.values()}
    assert fleet.verdict == "warn"  # the launch's own warning is on every node
    assert (len(fleet.drift) > 0) is (len(differing) > 0)


def test_a_tie_has_no_majority(tmp_path: Path) -> None:
    fleet = merged_reports(tmp_path, fleet_reports("gpu[1-2]", {"gpu2": altered(kernel="5.15.0")}))
    assert drifts(fleet) == {"kernel": (None, {"6.8.0-60-generic": "gpu1", "5.15.0": "gpu2"})}


def test_a_missing_device_is_said_once(tmp_path: Path) -> None:
    """A node without mlx5_7 lacks a dozen facts of it; that the device is not there is one."""

    def change(report: Report) -> None:
        report["facts"] = {
            name: value for name, value in report["facts"].items() if not name.startswith("mlx5_7")
        }
        report["facts"]["rdma.devices"] = " ".join(f"mlx5_{at}" for at in range(7))
        del report["rails"][7]

    fleet = merged_reports(tmp_path, fleet_reports("gpu[1-5]", {"gpu4": change}))
    assert list(drifts(fleet)) == ["rdma.devices"]


def test_a_topic_that_was_not_read_is_not_taken_for_absent(tmp_path: Path) -> None:
    def change(report: Report) -> None:
        report["facts"] = {"kernel": report["facts"]["kernel"]}
        report["unknown_facts"] = dict.fromkeys(("gpus", "rdma"), "took too long")

    fleet = merged_reports(tmp_path, fleet_reports("gpu[1-5]", {"gpu4": change}))
    assert drifts(fleet) == {}


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
    for one in drift(gathered(rows), rows):
        variants = [*([one.most] if one.most else []), *one.others]
        names = [name for variant in variants for name in variant.nodes]
        assert sorted([*names, *one.unread]) == sorted(rows)
        sizes = sorted((len(variant.nodes) for variant in variants), reverse=True)
        assert (one.most is None) is (sizes[0] == sizes[1])
        assert len(variants) == len({node.get(one.fact) for node in nodes})
