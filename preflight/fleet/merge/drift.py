"""What is not the same on all nodes: each fact's most common value, and who has another."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from checks.base.regex import regex
from preflight.fleet.base.text import grouped
from preflight.fleet.reports.rows import Rows

ABSENT = "absent"
DEVICES = "rdma.devices"
# Like machines differ by what their firmware keeps: equal when rounded is equal.
_ROUNDED = ("memory.", "limit.nproc")
# Of one device (mlx5_0.firmware) or of one of its ports (mlx5_0:1.rate).
_OF_DEVICE = regex(r"([^.:]+)(?::\d+)?\.")

# name -> value as it is shown -> the nodes that have it.
Facts = Mapping[str, Mapping[str, Sequence[str]]]
One = TypeVar("One")


class Variant(NamedTuple):
    """One value and the nodes that have it."""

    value: str
    nodes: Sequence[str]


class Drift(NamedTuple):
    """One fact, or several that differ alike, that is not the same everywhere.

    most: None if no value is on more nodes than each other: then ``others`` has all of them.
    unread: nodes that could not read it.
    """

    fact: str
    facts: tuple[str, ...]
    most: Variant | None
    others: tuple[Variant, ...]
    unread: Sequence[str]


def nodes_of_each(rows: Mapping[str, Collection[One]]) -> dict[One, list[str]]:
    """Return thing -> the nodes that hold it, in the order of the rows."""
    holders: dict[One, list[str]] = {}
    # Most nodes of a fleet hold the same: those are looked at once.
    for things, names in grouped((things, name) for name, things in rows.items()).items():
        for thing in things:
            holders.setdefault(thing, []).extend(names)
    places = {name: at for at, name in enumerate(rows)}
    return {thing: sorted(names, key=places.__getitem__) for thing, names in holders.items()}


def gathered(rows: Rows) -> dict[str, dict[str, Sequence[str]]]:
    """Return fact name -> value -> nodes."""
    facts: dict[str, dict[str, Sequence[str]]] = {}
    for fact, names in nodes_of_each({name: row.facts for name, row in rows.items()}).items():
        values, text = facts.setdefault(fact.name, {}), fact.shown
        if text in values and not fact.name.startswith(_ROUNDED):
            text = f"{fact.value} B"
        values[text] = [*values.get(text, ()), *names]
    return facts


def drift(facts: Facts, rows: Rows) -> tuple[Drift, ...]:
    """Return the facts that differ between nodes, those with the fewest deviating nodes first.

    Facts of several devices that differ alike are one entry.
    """
    unread = nodes_of_each({name: row.unread for name, row in rows.items()})

    def place(fact: Drift) -> tuple[int, str]:
        return sum(len(other.nodes) for other in fact.others), fact.fact

    return tuple(sorted(_folded(_each(facts, unread, rows)), key=place))


def _each(facts: Facts, unknown: Mapping[str, Sequence[str]], rows: Rows) -> Iterator[Drift]:
    """Yield each fact that differs, with its values, the most common first."""
    lacking = _lacking(facts.get(DEVICES, {}))
    # Where a whole topic was not read, a fact that is missing is not known to be.
    vague = {name for fact, names in unknown.items() if fact not in facts for name in names}
    for fact, values in facts.items():
        if len(values) == 1 and len(next(iter(values.values()))) == len(rows):
            continue
        missing = set(rows).difference(*values.values())
        unread = missing & (vague | set(unknown.get(fact, ())))
        device = _OF_DEVICE.match(fact)
        missing -= unread
        if device is not None:  # that the device is missing is said once
            missing -= lacking.get(device[1], set())
        variants = [Variant(*item) for item in values.items()]
        if missing:
            variants.append(Variant(ABSENT, [name for name in rows if name in missing]))
        variants.sort(key=lambda variant: (-len(variant.nodes), variant.value))
        if len(variants) < 2:
            continue
        tie = len(variants[0].nodes) == len(variants[1].nodes)
        most, others = (None, variants) if tie else (variants[0], variants[1:])
        yield Drift(fact, (fact,), most, tuple(others), [name for name in rows if name in unread])


def _lacking(devices: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return RDMA device -> the nodes that are known not to have it."""
    every = {device for device_list in devices for device in device_list.split()}
    lacking: dict[str, set[str]] = {device: set() for device in every}
    for device_list, names in devices.items():
        for device in every.difference(device_list.split()):
            lacking[device].update(names)
    return lacking


def _folded(drifts: Iterable[Drift]) -> Iterator[Drift]:
    """Yield facts of several devices that differ alike as one: ``mlx5_0-7.firmware``."""
    from preflight.check.report import fold

    signs = re.compile(r"\d+")
    alike = ((repr(x._replace(fact=signs.sub("0", x.fact), facts=())), x) for x in drifts)
    for group in grouped(alike).values():
        facts = tuple(drifting.fact for drifting in group)
        yield group[0]._replace(fact=fold(facts), facts=facts)
