"""What was read of a host, before anybody judges it: as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.base.fold import ranges
from checks.base.units import format_bytes
from checks.run.facts import READERS, Facts
from preflight.base.one_line import clean
from preflight.base.program_version import program_version
from preflight.render.plain_data import plain
from preflight.render.text import filled

SCHEMA = "mooncake-preflight/facts/v1"

Json = dict[str, Any]


def facts_object(facts: Facts, root: str) -> Json:
    """Return all topics as one JSON object, ``schemas/facts-v1.schema.json``."""
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "root": root,
        "status": "ok",
        "exit_code": 0,
        "topics": {topic: plain(facts.topic(topic)) for topic in READERS},
    }


def facts_text(facts: Facts, width: int) -> str:
    """Return all topics for a person, each fact on a line of its own."""
    blocks = []
    for topic in READERS:
        value = plain(facts.topic(topic))
        reason = _unknown(value)
        head = f"{topic}: {reason}" if reason else topic
        lines = [head, *([] if reason else _lines(value, "  ", width))]
        blocks.append("\n".join(filled(line, width) for line in lines))
    return "\n\n".join(blocks)


def _lines(value: Any, indent: str, width: int) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{indent}{_scalar('', value)}"]
    lines: list[str] = []
    for name, item in value.items():
        simple = _simple(name, item)
        if simple is not None:
            lines.append(f"{indent}{clean(name)}: {simple}")
        elif isinstance(item, Mapping):
            lines += [f"{indent}{clean(name)}:", *_lines(item, f"{indent}  ", width)]
        else:
            lines.append(f"{indent}{clean(name)}:")
            for entry in item:
                lines += _entry(entry, f"{indent}  ", width)
    return lines


def _entry(entry: Any, indent: str, width: int) -> list[str]:
    """Return the lines of an item of a list: one line where it fits there."""
    if not isinstance(entry, Mapping):
        return [f"{indent}- {_simple('', entry) or entry}"]
    parts = {name: _simple(name, item) for name, item in entry.items()}
    line = f"{indent}- " + ", ".join(f"{clean(name)}: {part}" for name, part in parts.items())
    if None not in parts.values() and len(line) <= width:
        return [line]
    first, *rest = _lines(entry, f"{indent}  ", width)
    return [f"{indent}- {first.lstrip()}", *rest]


def _simple(name: str, value: Any) -> str | None:
    """Return a value that needs no lines of its own; None for the others."""
    if isinstance(value, Mapping):
        return _unknown(value) or ("none" if not value else None)
    if isinstance(value, list):
        if value and "cpus" in name and all(isinstance(item, int) for item in value):
            return ranges(value)
        parts = [
            None if isinstance(item, Mapping | list) else _scalar(name, item) for item in value
        ]
        known = [part for part in parts if part is not None]
        return (", ".join(known) or "none") if len(known) == len(parts) else None
    return _scalar(name, value)


def _scalar(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_bytes") and value >= 1024:
        return f"{value} ({format_bytes(value)})"
    return clean(str(value)) or '""'


def _unknown(value: Any) -> str:
    if isinstance(value, Mapping) and value.keys() == {"unknown"}:
        return f"unknown ({clean(str(value['unknown']))})"
    return ""
