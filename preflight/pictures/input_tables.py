"""What a page says of the launch and of the host: the inputs of everything above it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from preflight.render.html_page import Html, element, join, table

if TYPE_CHECKING:
    from checks.run.facts import Facts
    from preflight.sizing.launch_sizing import LaunchSizing


def launch_tables(needs: LaunchNeeds, sizing: LaunchSizing) -> Html:
    """Processes with their memory, and the settings with their origins; no environment."""
    processes = table(
        ["process", "node", "GPU", "huge pages", "regular memory", "registered per NIC"],
        [_process(process) for process in needs.processes],
        caption=f"Processes of {needs.source}",
        numeric_columns=(3, 4, 5),
    )
    shown = sizing.shown
    if shown is None:
        return processes
    inputs = table(
        ["setting", "value", "from"],
        [(name, _value(given.value), given.origin) for name, given in shown.inputs.shown.items()],
        caption="Settings",
    )
    return join([processes, element("details", element("summary", "Settings"), inputs)], "\n")


def _process(process: ProcessNeeds) -> tuple[str, ...]:
    return (
        process.name,
        "any" if process.node is None else str(process.node),
        "" if process.gpu is None else str(process.gpu),
        _size(process.hugetlb_bytes),
        _size(process.regular_bytes),
        _size(process.registered_bytes),
    )


def _size(size: int | Unknown) -> str:
    if isinstance(size, Unknown):
        return "unknown"
    return format_bytes(size) if size else ""


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return "not set" if value is None else str(value)


def host_table(facts: Facts) -> Html:
    """The host in a few lines; what was not read says so."""
    rows = [
        ("kernel", _fact(facts, "system", "kernel_release")),
        ("distribution", _distribution(facts)),
        ("container", _container(facts)),
        ("memory", _memory(facts)),
        *_pools(facts),
    ]
    inner = [
        part for name, text in rows if text for part in (element("dt", name), element("dd", text))
    ]
    return element("dl", *inner, class_="facts")


def _fact(facts: Facts, topic: str, name: str) -> str:
    record = facts.topic(topic)
    return _text(record if isinstance(record, Unknown) else getattr(record, name))


def _text(value: object) -> str:
    return f"unknown: {value.reason}" if isinstance(value, Unknown) else str(value)


def _distribution(facts: Facts) -> str:
    names = [_fact(facts, "system", name) for name in ("distribution", "distribution_version")]
    return names[0] if names[0].startswith("unknown") else " ".join(names)


def _container(facts: Facts) -> str:
    system = facts.topic("system")
    if isinstance(system, Unknown):
        return _text(system)
    kind: str = system.container.kind
    return f"{kind} ({system.container.source})" if system.container.source else kind


def _memory(facts: Facts) -> str:
    memory = facts.topic("memory")
    if isinstance(memory, Unknown):
        return _text(memory)
    sizes = [memory.value(key) for key in ("MemTotal", "MemAvailable")]
    total, available = (
        _text(size) if isinstance(size, Unknown) else format_bytes(size) for size in sizes
    )
    return f"{total}, {available} available"


def _pools(facts: Facts) -> Iterable[tuple[str, str]]:
    topic = facts.topic("hugetlb")
    pools = topic if isinstance(topic, Unknown) else topic.hugetlb.pools
    if isinstance(pools, Unknown):
        yield "huge pages", _text(pools)
        return
    for size, pool in pools.items():
        name = f"pages of {format_page_size(size)}"
        if isinstance(pool, Unknown):
            yield name, _text(pool)
        else:
            text = f"{pool.total_pages}, {pool.free_pages} free, {pool.reserved_pages} promised"
            yield name, text
