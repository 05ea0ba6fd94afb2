"""The probe's answer, for a person and as JSON (``schemas/probe-registration-v1.schema.json``)."""

from __future__ import annotations

from typing import Any, NamedTuple

from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from preflight.base import exit_codes
from preflight.base.one_line import clean
from preflight.probes.limits import LimitMet, ProbeNeed, RegistrationCeiling, Users
from preflight.probes.measure import Measurement, Order
from preflight.render.plain_data import fields, plain

_WIDTH = 11


class ProbeAnswer(NamedTuple):
    """status: measured (no launch was given), fits, too little, unknown, refused."""

    status: str
    reason: str
    devices: tuple[str, ...] = ()
    order: Order | None = None
    predicted: tuple[RegistrationCeiling, ...] = ()
    measured: Measurement | None = None
    met: LimitMet | None = None
    need: ProbeNeed | Unknown | None = None
    users: tuple[Users, ...] = ()
    saved: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        codes = {
            "measured": exit_codes.PASS,
            "fits": exit_codes.PASS,
            "too little": exit_codes.FAIL,
        }
        return codes.get(self.status, exit_codes.UNKNOWN)


def answer_text(answer: ProbeAnswer) -> str:
    """Write line by line the answer, then what it rests on."""
    lines = [f"{answer.status}: {answer.reason}"]
    order, measured = answer.order, answer.measured
    if order is not None and measured is not None:
        each = "each of " if len(answer.devices) > 1 else ""
        held = f"{format_bytes(measured.held_bytes)} on {each}{', '.join(answer.devices)}"
        page = format_page_size(order.page_bytes)
        left = f"{measured.left} regions are left"
        if measured.left is None:
            left = "what is left registered is not known"
        rows = [
            ("measured", f"{held}, on {page} pages, to {format_bytes(measured.region_bytes)}"),
            ("", f"{measured.held_regions} regions of up to {format_bytes(measured.range_bytes)}"),
            ("took", f"{measured.registrations} registrations, {format_bytes(measured.spent_bytes)}"
             f" of memory at most; {left}"),
        ]  # fmt: skip
    else:
        rows = []
    if answer.met is not None:
        sure = "" if answer.met.sure else " (by its error alone)"
        rows.append(("met", f"{answer.met.kind}{sure}: {answer.met.text}"))
    for ceiling in answer.predicted:
        most = f"{ceiling.regions} regions"
        if ceiling.bytes is not None:
            most = f"{format_bytes(ceiling.bytes)} on each device"
        rows.append(("predicted", f"{ceiling.kind}: {most} ({ceiling.source})"))
    if isinstance(answer.need, ProbeNeed):
        need = answer.need
        rows.append(
            (
                "launch",
                f"{format_bytes(need.process_bytes)} of one process, "
                f"{format_bytes(need.nic_bytes)} and {need.nic_regions} regions with one NIC",
            )
        )
    for path in answer.saved:
        rows.append(("saved", f"{path} (later checks of this device use it)"))
    lines += [f"  {name:<{_WIDTH}}{clean(text)}" for name, text in rows]
    return "\n".join(lines)


def answer_object(answer: ProbeAnswer) -> dict[str, Any]:
    """Return the answer of ``schemas/probe-registration-v1.schema.json``."""
    order = ("region_bytes", "up_to_bytes", "spend_bytes")
    unknown = Unknown(answer.reason)
    need = ("process_bytes", "nic_bytes", "nic_regions", "nic_objects")
    return {
        **fields(answer, "devices"),
        "page_size_bytes": unknown if answer.order is None else answer.order.page_bytes,
        **(dict.fromkeys(order, unknown) if answer.order is None else fields(answer.order, *order)),
        "measured": None if answer.measured is None else _measured_object(answer.measured),
        "met": None if answer.met is None else _met_object(answer, answer.met),
        "predicted": [
            {"kind": one.kind, "size_bytes": one.bytes, **fields(one, "regions", "source")}
            for one in answer.predicted
        ],
        "need": fields(answer.need, *need)
        if isinstance(answer.need, ProbeNeed)
        else plain(answer.need),
        "users": [
            {
                **fields(one, "device", "processes"),
                "contexts": _counted(one.contexts, one.text),
                "regions": _counted(one.regions, one.text),
            }
            for one in answer.users
        ],
        **fields(answer, "saved"),
    }


def _measured_object(measured: Measurement) -> dict[str, Any]:
    return {
        **fields(measured, "held_bytes", "held_regions", "region_bytes"),
        "longest_bytes": measured.range_bytes,
        **fields(measured, "registrations", "spent_bytes", "stopped"),
        "memory_drop_bytes": _counted(measured.memory_drop_bytes, "MemAvailable was not read"),
        "left_regions": _counted(measured.left, "the measuring process ended before it counted"),
    }


def _counted(number: int | None, why: str) -> int | Unknown:
    return Unknown(why) if number is None else number


def _met_object(answer: ProbeAnswer, met: LimitMet) -> dict[str, Any]:
    refusal = None if answer.measured is None else answer.measured.refusal
    return {
        **met._asdict(),
        "device": None if refusal is None else refusal.device,
        "errno": None if refusal is None else refusal.number,
    }
