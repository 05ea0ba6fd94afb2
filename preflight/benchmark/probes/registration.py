"""How much the devices let be registered, found by trying: the answer, as lines and as JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from checks.framework.archive import write_whole
from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.framework.units import GIB, MIB, format_bytes, format_page_size, round_up
from checks.framework.unknown import Unknown
from checks.limits.facts import IPC_LOCK_BIT
from checks.memlock.demand import grant
from checks.rdma.calls import saved, state_folders
from checks.rdma.device_table import MEMORY_KEYS, OF_DEVICE, RESULT_SCHEMA, identity_of
from checks.rdma.facts import Nic
from checks.rdma.registration import PROTECTION_DOMAINS
from checks.run_checks.facts import Facts, read_facts
from preflight.base.output import say
from preflight.base.plain_data import fields, plain
from preflight.base.usage_error import UsageError
from preflight.benchmark.probes.limits import (
    CGROUP,
    MEMLOCK,
    SPEND,
    LimitMet,
    ProbeNeed,
    RegistrationCeiling,
    Users,
    ceilings,
    launch_devices,
    need_of,
    users_of,
)
from preflight.benchmark.probes.measure import (
    Measurement,
    ProbeError,
    ProbeOrder,
    layout_of,
    measure,
)

# Mooncake's local buffer, the least that a client registers.
DEFAULT_REGION_BYTES = 16 * MIB
LEAST_REGION_BYTES = MIB
_PAGES = {"2m": 2 * MIB, "1g": GIB}


class ProbeOptions(NamedTuple):
    """The user's options for the probe.

    Attributes:
        page: 4k, 2m or 1g.
        region_bytes, up_to_bytes: None to take them from the launch, or defaults without one.
        spend_bytes: The most host memory that the probe may take.
        devices: Names; () for the launch's devices, or all without a launch.
        force: Measure although others use a device.
        save: Keep the result for later checks.
    """

    page: str = "4k"
    region_bytes: int | None = None
    up_to_bytes: int | None = None
    spend_bytes: int = 256 * MIB
    devices: tuple[str, ...] = ()
    force: bool = False
    save: bool = True


def registration_ceiling(
    root: Root,
    needs: LaunchNeeds | None,
    sizes: ProbeOptions,
    budget_seconds: float,
    tell: Callable[[str], None],
) -> CeilingAnswer:
    """Measure how much memory the devices let be registered, and compare that with a launch's need.

    Raises UsageError.

    Args:
        needs: None without a launch.
        budget_seconds: Limit for reading facts, and again for measuring.
        tell: Gets each line of progress. Saves the results if ``sizes.save`` is set and nobody else
            uses the devices. Returns an answer also if nothing could be measured.
    """
    facts = read_facts(root, needs, budget_seconds, topics=("system", "limits", "rdma"))
    rdma = facts.topic("rdma")
    if isinstance(rdma, Unknown) or isinstance(rdma.nics, Unknown):
        reason = rdma.reason if isinstance(rdma, Unknown) else rdma.nics.reason
        return CeilingAnswer("unknown", reason)
    launched = None if needs is None else launch_devices(facts, needs)
    nics = _choose_nics(sizes.devices, facts, launched)
    if isinstance(nics, Unknown):
        return CeilingAnswer("unknown", nics.reason)
    names = tuple(nic.name for nic in nics)
    need = None if needs is None else need_of(facts, needs, names)
    order = _make_order(sizes, facts, nics, need)._replace(budget_seconds=budget_seconds)
    base = CeilingAnswer("", "", names, order, need=need)
    busy = tuple(users_of(facts, nics))
    if busy and not sizes.force:
        reason = (
            f"{'; '.join(user.text for user in busy)}: a device's ceiling is shared by all of its "
            "users, so the result would be wrong and their next registration could fail "
            "(--force measures beside them)"
        )
        return base._replace(status="refused", reason=reason, users=busy)
    predicted = tuple(ceilings(facts, nics, order.region_bytes, order.page_bytes))
    base = base._replace(predicted=predicted, users=busy)

    def show_held(event: dict[str, Any]) -> None:
        if event["event"] == "held":
            size = format_bytes(event["held_bytes"])
            tell(f"registration: held {size}, {event['tries']} registrations")

    try:
        measured = measure(order, show_held)
    except ProbeError as error:
        certain = error.met is not None and error.met.sure and isinstance(need, ProbeNeed)
        status = "too little" if certain else "unknown"
        return base._replace(status=status, reason=str(error), met=error.met)
    status, reason = judge(measured, need, sizes.spend_bytes, order)
    files: list[str] = []
    # What is measured beside others is not the device's.
    if sizes.save and not busy and measured.held_bytes:
        try:
            files = save_results(nics, order.page_bytes, measured)
        except OSError as error:
            say(f"mooncake-preflight measure: not saved: {error}", err=True)
    base = base._replace(measured=measured, met=measured.met, saved=tuple(files))
    return base._replace(status=status, reason=reason)


def _choose_nics(
    devices: Sequence[str], facts: Facts, launched: tuple[str, ...] | Unknown | None
) -> tuple[Nic, ...] | Unknown:
    """Return the NICs to probe: those named in ``devices``, else the launch's, else all of the
    host.

    Args:
        devices: Names, also several with commas.
        launched: The launch's devices, None without a launch.

    Returns:
        Unknown if none is named and the launch's devices are not known, or are none.

    Raises:
        UsageError: For a name that the host does not have.
    """
    there = {nic.name: nic for nic in facts.rdma.present}
    names = [name.strip() for text in devices for name in text.split(",") if name.strip()]
    missing = [name for name in names if name not in there]
    if missing:
        others = ", ".join(there) or "none at all"
        raise UsageError(f"--device {missing[0]}: this host has no such RDMA device, but {others}")
    if not names and isinstance(launched, Unknown):
        return Unknown(f"which devices the launch uses is not known: {launched.reason}")
    if not names and launched == ():
        return Unknown("the launch comes to no RDMA device here (see the checks of rdma)")
    wanted = names or (there if isinstance(launched, Unknown | None) else launched)
    return tuple(there[name] for name in dict.fromkeys(wanted))


def _make_order(
    sizes: ProbeOptions, facts: Facts, nics: tuple[Nic, ...], need: ProbeNeed | Unknown | None
) -> ProbeOrder:
    """Make the order for ``measure``.

    Sizes that are not given come from the need, or are defaults.

    Args:
        need: Of the launch, None without one.

    Raises:
        UsageError: For a region of 0 bytes, or if ``spend_bytes`` is too little for one region on
            each device.
    """
    page = _PAGES.get(sizes.page, os.sysconf("SC_PAGE_SIZE"))
    known = need if isinstance(need, ProbeNeed) and need.lengths else None
    region = sizes.region_bytes
    if region is None:
        # A launch's smallest, where that is no finer than it is worth and small enough to count by.
        region = known.lengths[0] if known else DEFAULT_REGION_BYTES
        region = max(LEAST_REGION_BYTES, min(DEFAULT_REGION_BYTES, region))
    if not region:
        raise UsageError("--region 0: a region has at least one byte; write 16mb")
    region = round_up(region, page)
    up_to = sizes.up_to_bytes
    if up_to is None:
        # Beyond the need, so that a launch may grow a little on the same result.
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        up_to = known.nic_bytes * 5 // 4 if known else memory
    limit = grant(facts.system, facts.limits, None).limit
    lifted = facts.limits.effective(IPC_LOCK_BIT)
    bounds = (nic.verbs.limits for nic in nics)
    order = ProbeOrder(
        tuple(nic.name for nic in nics),
        tuple(nic.provider if isinstance(nic.provider, str) else nic.driven_by for nic in nics),
        tuple(0 if isinstance(bound, Unknown) else bound.max_mr for bound in bounds),
        any(nic.driver is None for nic in nics),
        page,
        region,
        max(known.lengths[-1] if known else 1 << 62, region),
        round_up(max(up_to, region), region),
        sizes.spend_bytes,
        None if isinstance(limit, Unknown) else limit.soft,
        None if isinstance(lifted, Unknown) else lifted,
    )
    layout = layout_of(order, order.longest_bytes)
    least = layout.spent_bytes(region * len(nics), order.soft)
    if layout.range_bytes < region or least > order.spend_bytes:
        least = max(least, 16 * (region // page) * 8, 8 * page)
        raise UsageError(
            f"--spend {format_bytes(order.spend_bytes)} is too little to register one region of "
            f"{format_bytes(region)} on {len(nics)} device{'s' if len(nics) > 1 else ''}: give at "
            f"least --spend {-(-least // MIB)}mb"
        )
    return order


def judge(
    measured: Measurement, need: ProbeNeed | Unknown | None, spend_bytes: int, order: ProbeOrder
) -> tuple[str, str]:
    """Return ``(status, reason)`` of a measurement; the reason is a sentence.

    Args:
        need: Of the launch. Without a launch (None) the status is ``measured``, or ``unknown`` if
            the search ended early. With one it is ``fits``, ``too little`` or ``unknown``.
    """
    limit = None if measured.met is None else measured.met.limit
    amount = f"{format_bytes(measured.held_bytes)} on each device"
    if limit is not None:
        if limit in (CGROUP, MEMORY_KEYS):  # they count, whatever the size
            amount = f"{measured.held_regions} regions on each device"
        text = f"{limit} lets {amount} be registered and no region more"
    else:
        text = f"no limit was met up to {amount}"
        if measured.stopped:
            text += f", where {measured.stopped} ended it"
        layout = layout_of(order, order.longest_bytes)
        more = layout.spent_bytes(order.up_to_bytes * len(order.devices), order.soft)
        if measured.stopped == SPEND and more > spend_bytes:
            text += f" (--spend {-(-more // MIB)}mb reaches {format_bytes(order.up_to_bytes)})"
    if need is None:
        return ("measured" if not measured.stopped else "unknown"), text
    if isinstance(need, Unknown):
        return "unknown", f"{text}; what the launch registers is not known: {need.reason}"
    # The limit of a process is held against one; what a device or a cgroup has, against all.
    asked = need.process_bytes if limit == MEMLOCK else need.nic_bytes
    fits, shown = asked <= measured.held_bytes, f"{format_bytes(asked)} with each device"
    if limit == CGROUP:
        # The probe's own protection domain was one of what the cgroup let be made.
        room = measured.held_regions + PROTECTION_DOMAINS
        fits = need.nic_objects <= room
        shown = f"{need.nic_objects} objects of at most {room} on a device"
    elif limit in OF_DEVICE and measured.held_regions < need.nic_regions:
        fits, shown = False, f"{need.nic_regions} regions with a device"
    text += f"; the launch needs {shown}"
    if fits:
        return "fits", text
    return ("unknown", text) if limit is None else ("too little", f"{text}, so registering fails")


def save_results(nics: tuple[Nic, ...], page_bytes: int, measured: Measurement) -> list[str]:
    """Save the result of each device, and return the paths of the files that were written.

    A result names a limit only if the limit is the device's own and is proven. A result without a
    limit is left out if a saved one holds at least as much. The folder is the system's for root,
    else this user's. Raises OSError.
    """
    folders = state_folders()
    folder = folders[0] if os.geteuid() == 0 else folders[-1]
    written = []
    refusal, met = measured.refusal, measured.met
    for nic in nics:
        identity = identity_of(Root(), nic.name, nic.driven_by)
        mine = refusal is not None and refusal.device == nic.name
        # A limit of this process says nothing of the device but that it holds at least so much;
        # one that the errno alone names is no proof.
        proven = mine and met is not None and met.sure and met.limit in OF_DEVICE
        limit = met.limit if proven and met is not None else ""
        measured_on = {**identity._asdict(), "page_bytes": page_bytes}
        if not limit and _is_saved(measured_on, measured.held_bytes):
            continue
        result = {
            "schema": RESULT_SCHEMA,
            **measured_on,
            "device": nic.name,
            "region_bytes": measured.region_bytes,
            "holds_bytes": measured.held_bytes,
            "holds_regions": measured.held_regions,
            "met": limit,
        }
        hardware, firmware, driver, version = identity
        parts = (driver, version, hardware, firmware, str(page_bytes))
        stem = re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(part for part in parts if part))
        path = os.path.join(folder, f"{stem}.json")
        os.makedirs(folder, 0o755, exist_ok=True)
        write_whole(path, f"{json.dumps(result, indent=2)}\n".encode(), 0o644)
        written.append(path)
    return written


def _is_saved(measured_on: dict[str, Any], held_bytes: int) -> bool:
    """Tell whether a saved result of the same device and page size holds at least as much."""
    same = (old for old in saved() if measured_on.items() <= old.items())
    holds = (old.get("holds_bytes") for old in same)
    return any(isinstance(size, int) and size >= held_bytes for size in holds)


class CeilingAnswer(NamedTuple):
    """The answer of ``registration_ceiling``.

    Attributes:
        status: Measured (no launch was given), fits, too little, unknown, refused.
        predicted: Limits that were known before.
        users: Others that use the devices.
        saved: Files that were written.
    """

    status: str
    reason: str
    devices: tuple[str, ...] = ()
    order: ProbeOrder | None = None
    predicted: tuple[RegistrationCeiling, ...] = ()
    measured: Measurement | None = None
    met: LimitMet | None = None
    need: ProbeNeed | Unknown | None = None
    users: tuple[Users, ...] = ()
    saved: tuple[str, ...] = ()


def ceiling_lines(answer: CeilingAnswer) -> Iterator[str]:
    """Yield the answer as lines: status and reason, then the measurement, the limit met, the
    predicted limits, the launch's need and the saved files.
    """
    yield f"{answer.status}: {answer.reason}"
    order, measured = answer.order, answer.measured
    if order is not None and measured is not None:
        each = "each of " if len(answer.devices) > 1 else ""
        amount = f"{format_bytes(measured.held_bytes)} on {each}{', '.join(answer.devices)}"
        page, size = format_page_size(order.page_bytes), format_bytes(measured.region_bytes)
        yield f"held {amount}, on {page} pages, to {size}"
        yield f"{measured.held_regions} regions of up to {format_bytes(measured.range_bytes)}"
        left = "what is left registered is not known"
        if measured.left is not None:
            left = f"{measured.left} regions are left"
        spent = format_bytes(measured.spent_bytes)
        yield f"took {measured.registrations} registrations, {spent} of memory at most; {left}"
    if answer.met is not None:
        sure = "" if answer.met.sure else " (by its error alone)"
        yield f"met {answer.met.limit}{sure}: {answer.met.text}"
    for ceiling in answer.predicted:
        most = f"{ceiling.regions} regions"
        if ceiling.bytes is not None:
            most = f"{format_bytes(ceiling.bytes)} on each device"
        yield f"predicted {ceiling.limit}: {most} ({ceiling.source})"
    if isinstance(answer.need, ProbeNeed):
        need = answer.need
        yield (
            f"the launch registers {format_bytes(need.process_bytes)} of one process, "
            f"{format_bytes(need.nic_bytes)} and {need.nic_regions} regions with one NIC"
        )
    for path in answer.saved:
        yield f"saved {path} (later checks of this device use it)"


def ceiling_object(answer: CeilingAnswer) -> dict[str, Any]:
    """Build the object ``ceiling`` of ``schemas/measure-v1.schema.json`` from an answer."""
    order = ("region_bytes", "up_to_bytes", "spend_bytes")
    unknown = Unknown(answer.reason)
    need = ("process_bytes", "nic_bytes", "nic_regions", "nic_objects")
    return {
        "outcome": answer.status,
        **fields(answer, "reason", "devices"),
        "page_size_bytes": unknown if answer.order is None else answer.order.page_bytes,
        **(dict.fromkeys(order, unknown) if answer.order is None else fields(answer.order, *order)),
        "measured": None if answer.measured is None else _measured_object(answer.measured),
        "met": None if answer.met is None else _met_object(answer, answer.met),
        "predicted": [
            {"kind": each.limit, "size_bytes": each.bytes, **fields(each, "regions", "source")}
            for each in answer.predicted
        ],
        "launch_needs": fields(answer.need, *need)
        if isinstance(answer.need, ProbeNeed)
        else plain(answer.need),
        "users": [
            {
                **fields(each, "device", "processes"),
                "contexts": _or_unknown(each.contexts, each.text),
                "regions": _or_unknown(each.regions, each.text),
            }
            for each in answer.users
        ],
        **fields(answer, "saved"),
    }


def _measured_object(measured: Measurement) -> dict[str, Any]:
    """Build the JSON of a measurement; a number that was not counted is Unknown."""
    return {
        **fields(measured, "held_bytes", "held_regions", "region_bytes"),
        "longest_bytes": measured.range_bytes,
        **fields(measured, "registrations", "spent_bytes", "stopped"),
        "memory_drop_bytes": _or_unknown(measured.memory_drop_bytes, "MemAvailable was not read"),
        "left_regions": _or_unknown(measured.left, "the measuring process ended before it counted"),
    }


def _or_unknown(number: int | None, why: str) -> int | Unknown:
    return Unknown(why) if number is None else number


def _met_object(answer: CeilingAnswer, met: LimitMet) -> dict[str, Any]:
    """Build the JSON of the limit that was met; device and errno are None without a refusal."""
    refusal = None if answer.measured is None else answer.measured.refusal
    device, code = (None, None) if refusal is None else (refusal.device, refusal.number)
    return {"kind": met.limit, **fields(met, "sure", "text"), "device": device, "errno": code}
