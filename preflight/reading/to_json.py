"""What was understood of a launch, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.base.unknown import Unknown
from preflight.base.program_version import program_version
from preflight.reading.records import LaunchReading, Understood, Value
from preflight.render.plain_data import plain

SCHEMA = "mooncake-preflight/launch/v1"


def reading_object(reading: LaunchReading, code: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": "unread" if reading.unread else "read",
        "exit_code": code,
        "source": reading.name,
        "summary": reading.sentence,
        "processes": [_process(process) for process in reading.processes],
        "unread": [
            {"what": each.what, "why": each.why, "where": str(each.origin)}
            for each in reading.unread
        ],
        "notes": [
            {"id": note.id, "text": note.text, "where": str(note.origin)} for note in reading.notes
        ],
    }


def _process(process: Understood) -> dict[str, Any]:
    unknown = isinstance(process.number, Unknown)
    return {
        "program": process.program,
        "count": None if unknown else process.number,
        "count_why": process.number.reason if isinstance(process.number, Unknown) else None,
        "group": process.group,
        "where": {"source": process.origin.source, "line": process.origin.line},
        "words": list(process.words),
        "settings": _values(process.settings),
        "environment": _values(process.environment),
        "image": process.image,
        "release": {
            name: {"version": plain(value.value), "origin": value.origin}
            for name, value in process.release.items()
        },
        "model": None
        if process.model is None
        else {"name": plain(process.model.value), "config_origin": process.model_config},
    }


def _values(values: Mapping[str, Value]) -> dict[str, Any]:
    return {
        name: {"value": plain(value.value), "origin": value.origin}
        for name, value in values.items()
    }
