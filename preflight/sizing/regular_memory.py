"""A sizing held against the memory of its host: what is on regular pages has to be there too."""

from __future__ import annotations

from checks.base.finding import Status
from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.memory.judge import regular_bytes
from preflight.processes.processes import LaunchOptions
from preflight.sizing.launch_needs import launch_needs
from preflight.sizing.launch_sizing import LaunchSizing


def with_regular_memory(sizing: LaunchSizing, options: LaunchOptions, root: Root) -> LaunchSizing:
    """Return the sizing with its verdict by all of the launch's memory, that of each node too.

    For another host (``available_bytes``), or where memory is not known, as it is.
    """
    if sizing.status == "fails" or sizing.shown is None or options.available_bytes is not None:
        return sizing
    available = sizing.shown.host.memory_bytes("MemAvailable")
    lower = sizing._replace(inputs=sizing.inputs._replace(most=sizing.inputs.least))
    least_needs, most_needs = launch_needs(lower._replace(most=sizing.least)), launch_needs(sizing)
    least, most = regular_bytes(least_needs), regular_bytes(most_needs)
    if isinstance(available, Unknown) or isinstance(least, Unknown) or isinstance(most, Unknown):
        return sizing
    short = f"memory on regular pages: {format_bytes(available)} available, "
    if least > available:
        return sizing._replace(status="fails", reason=f"{short}{format_bytes(least)} needed")
    if most > available and sizing.status != "unknown":
        reason = f"{short}{format_bytes(least)} to {format_bytes(most)} needed"
        return sizing._replace(status="unknown", reason=reason)
    if isinstance(why := _of_nodes(least_needs, root), str):
        return sizing._replace(status="fails", reason=why)
    why = _of_nodes(most_needs, root)
    if why is not None and sizing.status != "unknown":
        why = why.reason if isinstance(why, Unknown) else why
        return sizing._replace(status="unknown", reason=why)
    return sizing


def _of_nodes(needs: LaunchNeeds, root: Root) -> str | Unknown | None:
    """Return why the memory of a node is too little, as ``check`` judges it; None where it is not.

    Unknown where that is not known.
    """
    taking = [p for p in needs.processes if p.regular_bytes != 0]
    if not any(p.bound_bytes or p.among or p.node is not None for p in taking):
        return None
    from checks.memory.facts import read_memory
    from checks.numa.facts import read_numa
    from checks.placement.node_checks import node_memory

    found = list(node_memory(needs, read_numa(root, needs), read_memory(root, needs)))
    for one in found:
        if one.status is Status.FAIL:
            return f"memory on regular pages, {one.subject}: {one.have}, {one.need} needed"
    unknown = [one for one in found if one.status is Status.UNKNOWN]
    return Unknown(f"memory of {unknown[0].subject}: {unknown[0].text}") if unknown else None
