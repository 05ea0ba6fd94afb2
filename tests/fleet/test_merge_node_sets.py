"""Node sets: what is folded can be read back, here and by the programs that write them this way."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from preflight.base.usage_error import UsageError
from preflight.fleet.base.node_sets import expand, fold, in_order, is_name

WORDS = st.text("ab_-.", max_size=3)
DIGITS = st.integers(0, 120).flatmap(
    lambda number: st.integers(0, 3).map(lambda width: str(number).zfill(width))
)
NAMES = st.builds("".join, st.lists(st.one_of(WORDS, DIGITS), max_size=4)).filter(is_name)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["gpu001"], "gpu001"),
        (["gpu001", "gpu002", "gpu003"], "gpu[001-003]"),
        (["gpu003", "gpu001", "gpu001"], "gpu[001,003]"),
        (["gpu8", "gpu9", "gpu10", "gpu11"], "gpu[8-11]"),
        (["gpu08", "gpu09", "gpu10", "gpu11"], "gpu[08-11]"),
        (["gpu098", "gpu099", "gpu100"], "gpu[098-100]"),
        (["gpu99", "gpu100"], "gpu[99-100]"),
        (["gpu1", "gpu01", "gpu2", "gpu02"], "gpu[1-2,01-02]"),
        (["b2", "a1", "b1"], "a1,b[1-2]"),
        (["rack1-node01", "rack1-node02", "rack2-node01"], "rack1-node[01-02],rack2-node01"),
        (["gpu1.rack7.example", "gpu2.rack7.example"], "gpu[1-2].rack7.example"),
        (["10.0.0.8", "10.0.0.9"], "10.0.0.[8-9]"),
        (["ip-10-0-0-8", "ip-10-0-0-9"], "ip-10-0-0-[8-9]"),
        (["node", "node0", "node1"], "node,node[0-1]"),
        (["login.site2.example", "login.site3.example"], "login.site[2-3].example"),
    ],
)
def test_names_fold_as_clustershell_and_slurm_write_them(names: list[str], folded: str) -> None:
    assert fold(names) == folded


def test_slurm_is_given_nothing_behind_a_bracket() -> None:
    """It takes gpu[1-2].example for an invalid host list; single names it reads."""
    names = ["a1", "a2", "gpu1.example", "gpu2.example"]
    assert fold(names, slurm=True) == "a[1-2],gpu1.example,gpu2.example"
    assert expand(fold(names, slurm=True)) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("gpu[001-003]", ["gpu001", "gpu002", "gpu003"]),
        ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
        ("gpu[098-101/2]", ["gpu098", "gpu100"]),
        ("a1, b[1-2]  c", ["a1", "b1", "b2", "c"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("a,a,a", ["a"]),
    ],
)
def test_a_node_set_is_read_as_it_is_meant(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("gpu[1-", "brackets"),
        ("gpu]1[", "brackets"),
        ("gpu[[1-2]]", "brackets"),
        ("gpu[3-1]", "nothing in it"),
        ("gpu[1-9/0]", "nothing in it"),
        ("gpu[a-b]", "no range"),
        ("gpu[]", "no range"),
        ("gpu[1-1000000000]", "more than 100000"),
        ("gpu[1-1000]x[1-1000]", "more than 100000"),
        (f"gpu[{'9' * 5000}]", "no range"),
        ("gpu[1-2]!gpu1", "cannot be the name"),
        ("@rack1", "group"),
        ("gpu\x1b[1-2]", "cannot be the name"),
        ("-gpu1", "cannot be the name"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_rule_and_the_spelling(
    text: str, rule: str
) -> None:
    with pytest.raises(UsageError, match=rule) as told:
        expand(text)
    assert "gpu[001-064,070]" in str(told.value)


@given(st.lists(NAMES, max_size=30))
@example(["0", "00", "1", "01", "10", "010"])
def test_expanding_what_was_folded_gives_each_name_once(names: list[str]) -> None:
    """Law: expand(fold(x)) is x, sorted and without repeats."""
    folded = fold(names)
    assert expand(folded) == in_order(names)
    assert sorted(expand(folded)) == sorted(set(names))
    assert fold(expand(folded)) == folded


@given(st.lists(st.from_regex(r"[a-c]{0,2}[0-9]{1,3}", fullmatch=True), max_size=20))
def test_clustershell_reads_the_same_names(names: list[str]) -> None:
    """The real ClusterShell takes our text for the same nodes."""
    node_set = pytest.importorskip("ClusterShell.NodeSet")
    folded = fold(names)
    assert sorted(node_set.NodeSet(folded)) == sorted(set(names))


@given(st.text(max_size=40))
def test_any_text_is_a_node_set_or_is_refused(text: str) -> None:
    """No input ends in anything but names or a UsageError."""
    with contextlib.suppress(UsageError):
        assert all(is_name(name) for name in expand(text))
