"""The tournament of ``fleet pairs``: who meets whom in which round."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.pairs.rounds import default_rounds, in_batches, round_count, round_of

NODES = st.integers(2, 70)


@given(NODES)
def test_each_meets_each_exactly_once(nodes: int) -> None:
    met = [
        tuple(sorted(pair))
        for number in range(round_count(nodes))
        for pair in round_of(nodes, number)
    ]
    assert sorted(met) == list(combinations(range(nodes), 2))


@given(NODES, st.data())
def test_a_node_has_one_partner_at_a_time(nodes: int, data: st.DataObject) -> None:
    """In each round everybody has one, but for one node where they are odd in number."""
    number = data.draw(st.integers(0, round_count(nodes) - 1))
    busy = [node for pair in round_of(nodes, number) for node in pair]
    assert len(busy) == len(set(busy)) == nodes - nodes % 2
    assert set(busy) <= set(range(nodes))


@given(NODES.filter(lambda nodes: nodes % 2 == 1))
def test_of_an_odd_number_each_stays_out_once(nodes: int) -> None:
    out = [
        set(range(nodes)) - {node for pair in round_of(nodes, number) for node in pair}
        for number in range(round_count(nodes))
    ]
    assert sorted(node for one in out for node in one) == list(range(nodes))


@given(st.integers(3, 70))
def test_each_end_is_tried_by_each_node(nodes: int) -> None:
    """Who always listened would never have been seen to connect."""
    pairs = [pair for number in range(round_count(nodes)) for pair in round_of(nodes, number)]
    assert {pair.here for pair in pairs} == {pair.there for pair in pairs} == set(range(nodes))


@given(NODES, st.integers(1, 40), st.data())
def test_batches_are_the_round(nodes: int, at_once: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, round_count(nodes) - 1))
    parts = list(in_batches(round_of(nodes, number), at_once))
    assert [pair for part in parts for pair in part] == round_of(nodes, number)
    assert all(0 < len(part) <= at_once for part in parts)


@pytest.mark.parametrize(
    ("nodes", "whole", "unasked"),
    [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 3, 3), (32, 31, 31), (33, 33, 31), (1000, 999, 31)],
)
def test_how_many_rounds(nodes: int, whole: int, unasked: int) -> None:
    """A whole tournament up to 32 nodes; beyond, as many rounds as those take."""
    assert (round_count(nodes), default_rounds(nodes)) == (whole, unasked)
