"""What is not the same on all nodes: each fact's most common value, and who has another."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from preflight.fleet.base.grouping import grouped, holders
from preflight.fleet.merge.records import Drift, Variant
from preflight.fleet.reports.records import Value

ABSENT = "absent"
DEVICES = "rdma.devices"
# Like machines differ by what their firmware keeps: equal when rounded is equal.
_ROUNDED = ("memory.", "limit.nproc")
# Of one device (mlx5_0.firmware) or of one of its ports (mlx5_0:1.rate).
_OF_DEVICE = re.compile(r"([^.:]+)(?::\d+)?\.")

# name -> value as written -> the nodes that have it, ascending.
Facts = Mapping[str, Mapping[str, Sequence[int]]]


def gathered(
    table: Sequence[tuple[str, Value]], rows: Iterable[tuple[int, Sequence[int]]]
) -> dict[str, dict[str, Sequence[int]]]:
    """Facts by name. rows: (place of the node, numbers of its facts in ``table``)."""
    facts: dict[str, dict[str, Sequence[int]]] = {}
    for number, places in holders(rows).items():
        name, value = table[number]
        values, text = facts.setdefault(name, {}), written(name, value)
        if text in values and not name.startswith(_ROUNDED):
            text = f"{value} B"
        values[text] = array("I", sorted([*values.get(text, ()), *places]))
    return facts


def written(name: str, value: Value) -> str:
    """As a person reads it: sizes with their unit, switches as words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("mtu_bytes"):
        return f"{value} B"
    if isinstance(value, int) and (name.endswith("_bytes") or name == "limit.memlock"):
        from checks.base.units import format_bytes

        return format_bytes(value)
    if isinstance(value, int) and name == "limit.nproc":  # the kernel takes it from the memory
        return f"about {float(f'{value:.3g}'):.0f}"
    return str(value)


def drift(
    facts: Facts,
    unknown: Mapping[str, Sequence[int]],
    nodes: Sequence[int],
    vague: Iterable[int],
) -> tuple[Drift, ...]:
    """Each fact that differs, what the fewest nodes differ in first.

    unknown: fact -> the nodes that could not read it. nodes: all that have facts. vague: those of
    them on which a whole topic was not read, so that a fact which is missing is not known to be.
    """
    return tuple(sorted(_folded(_each(facts, unknown, nodes, set(vague))), key=_place))


def _place(found: Drift) -> tuple[int, str]:
    return sum(len(other.nodes) for other in found.others), found.fact


def _each(
    facts: Facts, unknown: Mapping[str, Sequence[int]], nodes: Sequence[int], vague: set[int]
) -> Iterator[Drift]:
    lacking = _lacking(facts.get(DEVICES, {}))
    everyone = set(nodes)
    for name, values in facts.items():
        if len(values) == 1 and len(next(iter(values.values()))) == len(nodes):
            continue
        missing = everyone.difference(*values.values())
        unread = missing & (vague | set(unknown.get(name, ())))
        device = _OF_DEVICE.match(name)
        missing -= unread
        if device is not None:  # that the device is missing is said once
            missing -= lacking.get(device[1], set())
        variants = [Variant(value, places) for value, places in values.items()]
        if missing:
            variants.append(Variant(ABSENT, array("I", sorted(missing))))
        variants.sort(key=lambda variant: (-len(variant.nodes), variant.value))
        if len(variants) < 2:
            continue
        tie = len(variants[0].nodes) == len(variants[1].nodes)
        most, others = (None, variants) if tie else (variants[0], variants[1:])
        yield Drift(name, (name,), most, tuple(others), array("I", sorted(unread)))


def _lacking(devices: Mapping[str, Sequence[int]]) -> dict[str, set[int]]:
    """RDMA device -> the nodes that are known not to have it."""
    every = {device for names in devices for device in names.split()}
    lacking: dict[str, set[int]] = {device: set() for device in every}
    for names, places in devices.items():
        for device in every.difference(names.split()):
            lacking[device].update(places)
    return lacking


def _folded(found: Iterable[Drift]) -> Iterator[Drift]:
    """Facts of several devices that differ alike are one: ``mlx5_0-7.firmware``."""
    from preflight.check.report import fold

    def likeness(one: Drift) -> object:
        values = (*one.others, *([] if one.most is None else [one.most]))
        held = tuple((other.value, bytes(array("I", other.nodes))) for other in values)
        return re.sub(r"\d+", "0", one.fact), one.most is None, held, bytes(array("I", one.unread))

    for group in grouped((likeness(one), one) for one in found).values():
        names = tuple(one.fact for one in group)
        yield group[0]._replace(fact=fold(names), facts=names)
