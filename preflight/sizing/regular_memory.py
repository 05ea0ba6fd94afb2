"""A sizing held against the memory of its host: what is on regular pages has to be there too."""

from __future__ import annotations

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.memory.judge import regular_bytes
from preflight.processes.processes import LaunchOptions
from preflight.sizing.launch_needs import launch_needs
from preflight.sizing.launch_sizing import LaunchSizing


def with_regular_memory(sizing: LaunchSizing, options: LaunchOptions) -> LaunchSizing:
    """Return the sizing with its verdict by all of the launch's memory.

    For another host (``available_bytes``), or where memory is not known, as it is.
    """
    if sizing.status == "fails" or sizing.shown is None or options.available_bytes is not None:
        return sizing
    available = sizing.shown.host.memory_bytes("MemAvailable")
    lower = sizing._replace(inputs=sizing.inputs._replace(most=sizing.inputs.least))
    least = regular_bytes(launch_needs(lower._replace(most=sizing.least)))
    most = regular_bytes(launch_needs(sizing))
    if isinstance(available, Unknown) or isinstance(least, Unknown) or isinstance(most, Unknown):
        return sizing
    short = f"memory on regular pages: {format_bytes(available)} available, "
    if least > available:
        return sizing._replace(status="fails", reason=f"{short}{format_bytes(least)} needed")
    if most > available and sizing.status != "unknown":
        reason = f"{short}{format_bytes(least)} to {format_bytes(most)} needed"
        return sizing._replace(status="unknown", reason=reason)
    return sizing
