"""The probe's answer, for a person and as JSON (``schemas/probe-registration-v1.schema.json``)."""

from __future__ import annotations

from typing import Any

from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from preflight.base.one_line import clean
from preflight.base.program_version import program_version
from preflight.probes.answer import Answer
from preflight.probes.limits import Met
from preflight.probes.prediction import Ceiling, Need

SCHEMA = "mooncake-preflight/probe-registration/v1"
_WIDTH = 11

Json = dict[str, Any]


def answer_text(answer: Answer) -> str:
    """Line by line: the answer, then what it rests on."""
    lines = [f"{answer.status}: {answer.reason}"]
    order, measured = answer.order, answer.measured
    if order is not None and measured is not None:
        each = "each of " if len(answer.devices) > 1 else ""
        held = f"{format_bytes(measured.held_bytes)} on {each}{', '.join(answer.devices)}"
        page = format_page_size(order.page_bytes)
        rows = [
            ("measured", f"{held}, on {page} pages, to {format_bytes(measured.region_bytes)}"),
            ("", f"{measured.held_regions} regions of up to {format_bytes(measured.range_bytes)}"),
            ("took", f"{measured.registrations} registrations, {format_bytes(measured.spent_bytes)}"
             f" of memory at most; {_left(measured.left)}"),
        ]  # fmt: skip
    else:
        rows = []
    if answer.met is not None:
        sure = "" if answer.met.sure else " (by its error alone)"
        rows.append(("met", f"{answer.met.kind}{sure}: {answer.met.text}"))
    for ceiling in answer.predicted:
        rows.append(("predicted", f"{ceiling.kind}: {_ceiling(ceiling)} ({ceiling.source})"))
    if isinstance(answer.need, Need):
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


def _left(left: int | None) -> str:
    return "what is left registered is not known" if left is None else f"{left} regions are left"


def _ceiling(ceiling: Ceiling) -> str:
    if ceiling.bytes is not None:
        return f"{format_bytes(ceiling.bytes)} on each device"
    return f"{ceiling.regions} regions"


def answer_object(answer: Answer) -> Json:
    """One object, whatever the answer is."""
    order, measured = answer.order, answer.measured
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": answer.status,
        "reason": answer.reason,
        "exit_code": answer.exit_code,
        "devices": list(answer.devices),
        "page_bytes": None if order is None else order.page_bytes,
        "region_bytes": None if order is None else order.region_bytes,
        "up_to_bytes": None if order is None else order.up_to_bytes,
        "spend_bytes": None if order is None else order.spend_bytes,
        "measured": None
        if measured is None
        else {
            "held_bytes": measured.held_bytes,
            "held_regions": measured.held_regions,
            "region_bytes": measured.region_bytes,
            "longest_bytes": measured.range_bytes,
            "registrations": measured.registrations,
            "spent_bytes": measured.spent_bytes,
            "memory_drop_bytes": measured.memory_drop_bytes,
            "stopped": measured.stopped,
            "left_regions": measured.left,
        },
        "met": None if answer.met is None else _met(answer, answer.met),
        "predicted": [ceiling._asdict() for ceiling in answer.predicted],
        "need": _need(answer.need),
        "users": [{**one._asdict(), "processes": list(one.processes)} for one in answer.users],
        "saved": list(answer.saved),
    }


def _met(answer: Answer, met: Met) -> Json:
    refusal = None if answer.measured is None else answer.measured.refusal
    return {
        "kind": met.kind,
        "sure": met.sure,
        "text": met.text,
        "device": None if refusal is None else refusal.device,
        "errno": None if refusal is None else refusal.number,
    }


def _need(need: Need | Unknown | None) -> Json | None:
    if need is None:
        return None
    if isinstance(need, Unknown):
        return {"unknown": need.reason}
    return {
        "process_bytes": need.process_bytes,
        "nic_bytes": need.nic_bytes,
        "nic_regions": need.nic_regions,
        "nic_objects": need.nic_objects,
    }
