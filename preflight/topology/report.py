"""The answer of ``topology``: drawing, matrix, Mooncake's choice, what is wrong; and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from checks.base.finding import Status
from checks.base.fold import fold
from checks.base.unknown import Unknown
from checks.placement.mooncake_topology import Location, View
from preflight.base.one_line import clean
from preflight.base.program_version import program_version
from preflight.render.names import folded, natural, without_source
from preflight.render.plain_data import fields, plain
from preflight.render.text import wrapped
from preflight.topology.answer import TopologyAnswer
from preflight.topology.build import Device, Topology
from preflight.topology.drawing import ASCII, LINES, Paint, boxes, matrix
from preflight.topology.views import Engine, MooncakeView

SCHEMA = "mooncake-preflight/topology/v1"
COLOURS = {Status.FAIL: "red", Status.UNKNOWN: "magenta", Status.WARN: "yellow"}
# Wide enough for the matrix of eight NICs, and what most terminals have.
MOST_COLUMNS = 80


def answer_text(answer: TopologyAnswer, paint: Paint, width: int, ascii_only: bool) -> str:
    """Without a final newline."""
    width = min(width, MOST_COLUMNS)
    strokes = ASCII if ascii_only else LINES
    processes = without_source(name for seen in answer.views for name in seen.processes)
    parts = [
        boxes(_renamed(answer.topology, processes), width, strokes),
        matrix(answer.topology, starred(answer), paint, width),
        _mooncake(answer, processes, paint, width),
        _judged(answer, processes, paint, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _renamed(topology: Topology, processes: Mapping[str, str]) -> Topology:
    def renamed(devices: tuple[Device, ...]) -> tuple[Device, ...]:
        return tuple(
            device._replace(used_by=tuple(processes.get(name, name) for name in device.used_by))
            for device in devices
        )

    return topology._replace(gpus=renamed(topology.gpus), nics=renamed(topology.nics))


def starred(answer: TopologyAnswer) -> dict[str, tuple[str, ...]]:
    """GPU -> NICs preferred for it; of the first process whose GPU it is."""
    names = {gpu.address: gpu.name for gpu in answer.topology.gpus}
    chosen: dict[str, tuple[str, ...]] = {}
    for seen in answer.views:
        if isinstance(seen.view, Unknown) or isinstance(seen.view.gpus, Unknown):
            continue
        for index, address in enumerate(seen.view.gpus):
            place = seen.view.at(f"cuda:{index}")
            if place is not None and not isinstance(place.preferred, Unknown):
                chosen.setdefault(names.get(address, ""), place.preferred)
    return chosen


def _mooncake(
    answer: TopologyAnswer, processes: Mapping[str, str], paint: Paint, width: int
) -> list[str]:
    if not answer.views:
        return wrapped("Mooncake: no process of the launch uses RDMA", width)
    lines: list[str] = []
    for seen in answer.views:
        rule = f"Mooncake {seen.release}" if seen.release else "the newest Mooncake known"
        who = clean(folded(processes[name] for name in seen.processes))
        title = f"{who}: the NICs that {rule} prefers, and those for another try"
        lines += wrapped(title, width)
        if isinstance(seen.view, Unknown):
            lines += wrapped(f"  not known: {clean(seen.view.reason)}", width)
        else:
            lines += _places(seen.view, width)
        lines += _measured(answer, seen, paint, width)
    return lines


def _places(view: View, width: int) -> list[str]:
    """Locations whose NICs are the same are one line."""
    groups: dict[Location, list[str]] = {}
    for place in view.locations:
        groups.setdefault(place._replace(name=""), []).append(place.name)
    rows = [(folded(names), place) for place, names in groups.items()]
    first = max((len(name) for name, _ in rows), default=0)
    lines = [line for name, place in rows for line in _place(name.ljust(first), place, width)]
    if isinstance(view.gpus, Unknown):
        lines += wrapped(f"  memory of GPUs: not known: {clean(view.gpus.reason)}", width)
    return lines or ["  none: it has no location for any memory"]


def _place(name: str, place: Location, width: int) -> list[str]:
    if isinstance(place.preferred, Unknown):
        return wrapped(f"  {name}  not known: {clean(place.preferred.reason)}", width)
    if not place.preferred and not place.others:
        return [f"  {name}  no NIC"]
    if not place.preferred:
        return wrapped(f"  {name}  none; any of {_nics(place.others)}", width)
    others = f"; then {_nics(place.others)}" if place.others else ""
    return wrapped(f"  {name}  {_nics(place.preferred)}{others}", width)


def _nics(names: Iterable[str]) -> str:
    return clean(folded(sorted(names, key=natural)))


def _measured(answer: TopologyAnswer, seen: MooncakeView, paint: Paint, width: int) -> list[str]:
    if not answer.asked:
        return []
    if isinstance(seen.found, Unknown):
        return wrapped(f"  {paint('not measured', 'magenta')}: {clean(seen.found.reason)}", width)
    who = "the installed Mooncake"
    if isinstance(answer.engine, Engine) and answer.engine.wheel:
        who = f"{answer.engine.wheel} {answer.engine.version}"
    if not seen.differs:
        told = "" if isinstance(seen.view, View) else ", which nothing was foretold of"
        return wrapped(f"  measured: {who} says the same{told}", width)
    lines = wrapped(f"  {paint('measured', 'yellow')}: {who} says otherwise", width)
    for name, foretold, found in seen.differs:
        lines += wrapped(f"  {clean(name)}: {clean(found)} (foretold: {clean(foretold)})", width)
    return lines


def _judged(
    answer: TopologyAnswer, processes: Mapping[str, str], paint: Paint, width: int
) -> list[str]:
    lines: list[str] = []
    sources = {name.removesuffix(short) for name, short in processes.items()} - {""}
    for status, colour in COLOURS.items():
        shown = [finding for finding in answer.findings if finding.status is status]
        # What was seen is in --json; alike but for that, they are one here.
        for finding in fold(finding._replace(evidence=(), settings=()) for finding in shown):
            amounts = (("have", finding.have), ("need", finding.need))
            said = ", ".join(f"{word} {clean(amount)}" for word, amount in amounts if amount)
            seen = f": {said}" if said else ""
            subject = finding.subject
            for source in sources:
                subject = subject.replace(source, "")
            head = f"{finding.check}, {clean(subject)}{seen}"
            lines += wrapped(f"{paint(status.value, colour)}: {head}", width)
            if finding.text:
                lines += wrapped(f"    {clean(finding.text)}", width)
            if finding.advice:
                lines += wrapped(f"    to do: {clean(finding.advice)}", width)
    for note in answer.notes:
        lines += wrapped(f"note: {clean(note)}", width)
    return lines


def answer_object(answer: TopologyAnswer, exit_code: int) -> dict[str, Any]:
    """Return all as ``schemas/topology-v1.schema.json``, the checks' passes and skips too."""
    topology = answer.topology
    device = ("name", "address", "node", "what", "used_by")
    finding = ("subject", "have", "need", "text", "advice")
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": answer.status.value,
        "exit_code": exit_code,
        **fields(answer, "root", "source"),
        "nodes": plain(topology.nodes),
        "gpus": [fields(gpu, *device) for gpu in topology.gpus],
        "nics": [fields(nic, *device) for nic in topology.nics],
        "paths": [
            {"gpu": gpu, "nic": nic, "path": plain(path)}
            for (gpu, nic), path in topology.paths.items()
        ],
        "installed": plain(answer.engine),
        "mooncake": [_view_object(seen) for seen in answer.views],
        "findings": [
            {"id": found.check, "status": found.status.value, **fields(found, *finding)}
            for found in answer.findings
        ],
        "notes": plain(answer.notes),
    }


def _view_object(seen: MooncakeView) -> dict[str, Any]:
    view = seen.view
    return {
        **fields(seen, "processes", "release"),
        "devices": plain(seen.devices.names),
        "chosen_by": seen.devices.how,
        "lost": [fields(lost, "name", "cause", "why") for lost in seen.devices.lost],
        "predicted": _locations(view if isinstance(view, Unknown) else view.locations),
        "measured": _locations(seen.found),
        "differs": [
            {"location": name, "predicted": foretold, "measured": found}
            for name, foretold, found in seen.differs
        ],
    }


def _locations(found: Iterable[Location] | Unknown | None) -> Any:
    if found is None or isinstance(found, Unknown):
        return plain(found)
    return [{"location": place.name, **fields(place, "preferred", "others")} for place in found]
