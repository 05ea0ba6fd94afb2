"""The answer of ``topology`` as one JSON object, ``schemas/topology-v1.schema.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from checks.base.finding import Finding
from checks.base.unknown import Unknown
from checks.placement.mooncake_topology import Location
from preflight.base.program_version import program_version
from preflight.topology.records import Device

if TYPE_CHECKING:
    from preflight.topology.to_text import Answer
    from preflight.topology.views import MooncakeView

SCHEMA = "mooncake-preflight/topology/v1"

Json = dict[str, Any]


def answer_object(answer: Answer, exit_code: int) -> Json:
    """Everything, passes and skips of the checks included."""
    topology, engine = answer.topology, answer.engine
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": answer.status.value,
        "exit_code": exit_code,
        "root": answer.root,
        "source": answer.source,
        "nodes": [
            {**node._asdict(), "memory_bytes": _known(node.memory_bytes)} for node in topology.nodes
        ],
        "gpus": [_device(gpu) for gpu in topology.gpus],
        "nics": [_device(nic) for nic in topology.nics],
        "paths": [
            {"gpu": gpu, "nic": nic, "path": _known(path)}
            for (gpu, nic), path in topology.paths.items()
        ],
        "installed": _known(engine) if isinstance(engine, Unknown) else engine._asdict(),
        "mooncake": [_view(seen) for seen in answer.views],
        "findings": [_finding(finding) for finding in answer.findings],
        "notes": list(answer.notes),
    }


def _known(value: Any) -> Any:
    return {"unknown": value.reason} if isinstance(value, Unknown) else value


def _device(device: Device) -> Json:
    fields = device._asdict()
    fields.pop("kind")
    return {**fields, "used_by": list(device.used_by)}


def _view(seen: MooncakeView) -> Json:
    names = seen.devices.names
    return {
        "processes": list(seen.processes),
        "release": seen.release,
        "devices": _known(names) if isinstance(names, Unknown) else list(names),
        "chosen_by": seen.devices.how,
        "lost": [
            {"name": lost.name, "cause": lost.cause.value, "why": lost.why}
            for lost in seen.devices.lost
        ],
        "predicted": _known(seen.view)
        if isinstance(seen.view, Unknown)
        else _places(seen.view.locations),
        "measured": _known(seen.found)
        if isinstance(seen.found, Unknown)
        else None
        if seen.found is None
        else _places(seen.found),
        "differs": [
            {"location": name, "predicted": foretold, "measured": found}
            for name, foretold, found in seen.differs
        ],
    }


def _places(places: Sequence[Location]) -> list[Json]:
    return [
        {
            "location": place.name,
            "preferred": _known(place.preferred)
            if isinstance(place.preferred, Unknown)
            else list(place.preferred),
            "others": list(place.others),
        }
        for place in places
    ]


def _finding(finding: Finding) -> Json:
    return {
        "id": finding.check,
        "status": finding.status.value,
        "subject": finding.subject,
        "have": finding.have,
        "need": finding.need,
        "text": finding.text,
        "advice": finding.advice,
    }
