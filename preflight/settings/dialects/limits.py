"""The limits of a plan: for logins (limits.d), for a unit of systemd, and for containerd's."""

from __future__ import annotations

from checks.base.finding import Kind
from checks.limits.runtimes import RUNTIME_UNITS
from preflight.settings.commands import (
    CONTAINERD,
    LIMITS_FILE,
    NOT_OF_A_CONTAINER,
    drop_in,
    header,
    limit_line,
)
from preflight.settings.dialects import DEFAULT_SERVICE, ArtefactNames, Rendering
from preflight.settings.records import Plan

# limits.conf(5): sizes are in KiB, the others as the kernel counts them.
_KIB_LIMITS = ("memlock", "as", "data", "fsize", "stack")
_NOTHING = "the plan has no limit to set"


def ulimits(plan: Plan) -> dict[str, str]:
    """Return the limits of the launch's own processes by name: bytes, a count, or ``unlimited``."""
    return {limit.name: limit.wanted for limit in plan.of(Kind.ULIMIT) if not limit.unit}


def host_limits(plan: Plan) -> dict[str, str]:
    """Return the limits of logins and units; no number if a container's limit is unknown."""
    limits = (limit for limit in plan.of(Kind.ULIMIT) if not limit.unit)
    return {
        limit.name: limit.wanted
        for limit in limits
        if limit.now or not limit.described_by or limit.wanted == "unlimited"
    }


def container_limits(plan: Plan) -> tuple[dict[str, str], list[str]]:
    """Return the limits that an engine takes with --ulimit, and a note on each other limit."""
    limits = ulimits(plan)
    notes = [
        f"no container engine knows --ulimit {name}: a container inherits it from its "
        "daemon (plan --format systemd writes it for the daemon's unit)"
        for name in NOT_OF_A_CONTAINER
        if name in limits
    ]
    return {n: value for n, value in limits.items() if n not in NOT_OF_A_CONTAINER}, notes


def unit_limits(plan: Plan) -> dict[str, dict[str, str]]:
    """Return the limits of units: ``{"docker.service": {"memlock": "unlimited"}}``."""
    by_unit: dict[str, dict[str, str]] = {}
    for setting in plan.of(Kind.ULIMIT):
        if setting.unit:
            by_unit.setdefault(setting.unit, {})[setting.name] = setting.wanted
    return by_unit


def limits(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return rows for every user; ``*`` does not mean root (limits.conf(5))."""
    rows = [f"{domain:<4} - {name:<7} {value}" for domain, name, value in pam_rows(plan)]
    if not rows:
        return Rendering("", (_NOTHING,))
    note = f"write it to {LIMITS_FILE}; it counts from the next login on, and not in services"
    return Rendering("\n".join([header(plan.source, LIMITS_FILE), *rows]), (note,))


def pam_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return ``(domain, limit, value)`` of each row, in the units of limits.conf(5)."""
    limits = host_limits(plan).items()
    return [(who, name, _pam(name, value)) for name, value in limits for who in ("*", "root")]


def _pam(name: str, value: str) -> str:
    if name not in _KIB_LIMITS or not value.isdecimal():
        return value
    return str(-(-int(value) // 1024))


def systemd(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a drop-in for the unit that starts the server, whatever that is called."""
    limits = host_limits(plan)
    for unit in unit_limits(plan).values():
        limits = {**unit, **limits}
    units = list(unit_limits(plan))
    own_units = [unit for unit in units if unit.removesuffix(".service") not in RUNTIME_UNITS]
    target = f"{(names.service or DEFAULT_SERVICE).removesuffix('.service')}.service"
    if not names.service and own_units:  # the launch is a unit itself
        target = own_units[0]
    path = drop_in(target)
    others = ", ".join(unit for unit in units if unit != target)
    which = f" (and for {others})" if others else ""
    note = f"write it to {path}{which}, then: sudo systemctl daemon-reload, and restart the unit"
    return _unit(plan, path, limits, note)


def containerd(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a drop-in for the daemon that starts pods: they have the limits that it has."""
    limits = {**unit_limits(plan).get(CONTAINERD, {}), **host_limits(plan)}
    note = (
        f"write it to {drop_in(CONTAINERD)}, then: sudo systemctl daemon-reload; "
        "sudo systemctl restart containerd; pods that run keep their old limits"
    )
    return _unit(plan, drop_in(CONTAINERD), limits, note)


def of_unit(plan: Plan, unit: str) -> Rendering:
    """Return the drop-in of one unit that hands limits on."""
    path = drop_in(unit)
    return _unit(plan, path, unit_limits(plan)[unit], f"restart {unit} to put it in force")


def _unit(plan: Plan, path: str, limits: dict[str, str], note: str) -> Rendering:
    if not limits:
        return Rendering("", (_NOTHING,))
    rows = [limit_line(name, value) for name, value in sorted(limits.items())]
    return Rendering("\n".join([header(plan.source, path), "[Service]", *rows]), (note,))
