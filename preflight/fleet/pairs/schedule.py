"""Who meets whom in which round: a tournament in which each node has one partner at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

# A whole tournament up to here: 31 rounds, of some seconds each.
MOST_NODES_WHOLE = 32
LARGEST_DEFAULT_ROUNDS = 31


class Pairing(NamedTuple):
    """Places in the list of nodes: ``here`` connects, ``there`` listens."""

    here: int
    there: int


def round_count(nodes: int) -> int:
    """Rounds until each has met each: one less than there are nodes; where they are odd, one stays
    out in each round, and it takes one more."""
    if nodes < 2:
        return 0
    return nodes - 1 if nodes % 2 == 0 else nodes


def default_rounds(nodes: int) -> int:
    """All of them, up to 32 nodes; else the first 31."""
    whole = round_count(nodes)
    return whole if nodes <= MOST_NODES_WHOLE else min(whole, LARGEST_DEFAULT_ROUNDS)


def round_of(nodes: int, number: int) -> list[Pairing]:
    """The pairs of round ``number`` of ``round_count``, from 0, by the circle method.

    All but the last node stand on a circle of an odd number of places. In round r, those whose
    places add up to 2r (modulo their number) meet; the one at place r meets the last node, which is
    nobody where the nodes are odd in number.
    """
    around = nodes - 1 if nodes % 2 == 0 else nodes
    # Of one step, each node of the circle is once the one and once the other: it does both.
    pairs = [
        Pairing((number + step) % around, (number - step) % around)
        for step in range(1, (around - 1) // 2 + 1)
    ]
    if nodes % 2 == 0:
        place, last = number % around, nodes - 1
        pairs.append(Pairing(place, last) if number % 2 == 0 else Pairing(last, place))
    return pairs


def in_batches(pairs: Sequence[Pairing], at_once: int) -> Iterator[Sequence[Pairing]]:
    """As many pairs of a round as may run at once: both ends of a pair have to be up together."""
    for start in range(0, len(pairs), at_once):
        yield pairs[start : start + at_once]
