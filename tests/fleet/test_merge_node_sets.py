"""Node sets are ClusterShell's; what is said to it is bounded, and what it refuses is told."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.base.usage_error import UsageError
from preflight.fleet.base.node_sets import expand, fold, in_order, is_name, named_nodes
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
