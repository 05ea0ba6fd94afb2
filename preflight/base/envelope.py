"""The second version of every JSON answer: one envelope, and one word for one thing.

A command writes its answer once, as ``schemas/NAME-v1.schema.json`` has it, of texts that know
their numbers (Quantity), what they are about (Subject) and what they do (Line). ``second`` says
the answer in the words of this table, ``second_schema`` its schema, by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.base.finding import Subject
from checks.base.units import Quantity
from checks.base.unknown import Unknown
from preflight.base.program_version import program_version
from preflight.base.shell import Line

Json = dict[str, Any]

# Of the envelope, whatever the command. An own word of a status ("fits") is the answer's outcome.
STATUSES = ("pass", "warn", "fail", "unknown", "error")
ABOUT = ("schema", "version", "status", "exit_code", "reason", "error")
# What names the launch and the host in the first version, beside an object.
SOURCES, HOSTS = ("source", "launch"), ("root", "host")
# A word of the first version, and the one that is used for the same thing everywhere.
WORDS = {
    "bytes": "size_bytes",
    "commands": "actions",
    "default_page_bytes": "default_page_size_bytes",
    "host_commands": "actions",
    "id": "check",
    "message": "text",
    "page_bytes": "page_size_bytes",
    "remedy": "advice",
    "said": "text",
    "subject": "subjects",
    "where": "origin",
    "why": "reason",
}
# The same within one object or list, by its name: a word there is of another thing.
_WITHIN = {
    "advisories": {"id": "advisory"},
    "explanation": {"id": "pattern"},
    "keys": {"number": "count"},
    "note": {"id": "note"},
    "processes": {"kind": "program", "nics": "devices", "where": "place"},
    "recommendation": {"id": "recommendation"},
    "setting": {"why": "reasons"},
    "trace": {"error": "sampling_error"},
}
_SINGULARS = {
    "explanations": "explanation",
    "notes": "note",
    "reading": "note",
    "recommendations": "recommendation",
    "settings": "setting",
}
# The same in answers that are about one host: a node is a NUMA node there, a machine in a fleet's.
_NUMA = {"node": "numa_node", "nodes": "numa_nodes"}
_OF_SCHEMA: Mapping[str, Mapping[str, str]] = {
    "check": _NUMA,
    "rehearse": {**_NUMA, "distribution": "wheel", "python": "interpreter"},
    "topology": {**_NUMA, "release": "mooncake_version"},
    **{key: {**_NUMA, "unknown": "unknowns"} for key in ("fit", "plan")},
    "sizing": {**_NUMA, "findings": "rules", "owner": "process"},
}
# Objects whose keys are the host's or the launch's own words; what nothing of is renamed.
MAPS = ("environment", "held", "inputs", "named", "release", "repeats", "store", "values")
RAW = {"check": ("machine",), "facts": ("topics",), "launch": ("value",), "pairs": ("answer",)}
# A number, and beside it why there is none.
REASONS = {"available_pages": "available_unknown", "count": "count_why"}
AMOUNTS = ("have", "need")
# What a check's subjects are where they do not say it themselves: the longest beginning counts.
SUBJECTS = {
    "advisory.": "process",
    "boot.": "kernel",
    "boot.upgrades": "software",
    "fleet.": "node",
    "gpu.": "gpu",
    "gpu.count": "launch",
    "gpu.driver": "software",
    "gpu.imex": "device",
    "hugetlb.": "page pool",
    "io-uring.": "process",
    "limits.": "process",
    "limits.threads": "kernel",
    "memlock.": "service",
    "memory.": "kernel",
    "memory.cgroup": "cgroup",
    "memory.host": "host",
    "network.": "port",
    "numa.": "numa node",
    "numa.unknown-nic-node": "device",
    "pci.": "device",
    "rdma.": "device",
    "rdma.cgroup-limit": "cgroup",
    "service.": "service",
    "sglang.": "process",
    "shm.": "path",
    "software.": "software",
    "storage.": "path",
    "store.": "process",
    "topology.": "process",
}
# Subjects that are what they are called.
_ITSELF = {
    "PCI": "host",
    "cgroup": "cgroup",
    "host": "host",
    "launch": "launch",
    "this container": "container",
}
KINDS = sorted({*SUBJECTS.values(), *_ITSELF.values(), "address", "user"})


def second(
    first: Json,
    command: str,
    launch: tuple[str, str] | None = None,
    host: str | None = None,
    reason: str | None = None,
) -> Json:
    """Return an answer of the first version in the second.

    command: as it is typed, without the program. launch: its source and its summary, where the
    command knows them beside its answer. host, reason: likewise.
    """
    name = first["schema"].split("/")[1]
    code, own = first["exit_code"], first.get("status")
    status = own if own in STATUSES else dict(enumerate(STATUSES)).get(code, "error")
    sources = [first[key] for key in SOURCES if isinstance(first.get(key), str) and first[key]]
    hosts = [first[key] for key in HOSTS if isinstance(first.get(key), str)]
    rest = _body(first, name)
    if own is not None and own != status:
        rest = {"outcome": own, **rest}
    if launch is None and sources:
        launch = sources[0], first.get("summary", "")
    if launch is None and isinstance(inner := first.get("launch"), dict) and "source" in inner:
        launch = inner["source"], ""
    findings = rest.pop("findings", [])
    said = first.get("error") or first.get("reason") or (first.get("exact") or {}).get("reason")
    return {
        "schema": f"{first['schema'].rpartition('/')[0]}/v2",
        "version": program_version(),
        "command": command,
        "status": status,
        "exit_code": code,
        "reason": said or reason or (_worst(findings) if code else None),
        "launch": launch and {"source": launch[0], "summary": launch[1] or None},
        "host": hosts[0] if hosts else host,
        "findings": findings,
        "answer": rest or None,
    }


def _worst(findings: list[Json]) -> str | None:
    """Return the first of the worst findings in one sentence."""
    for status in ("fail", "unknown", "warn"):
        for one in findings:
            if one["status"] == status:
                names = ", ".join(each["name"] for each in one["subjects"])
                return f"{one['check']}: {names}: {one['text']}"
    return None


def _body(first: Json, name: str) -> Json:
    """Return what is the command's own; a launch that is an object is part of it."""
    inner = first.get("launch")
    own = {
        key: value
        for key, value in first.items()
        if key not in ABOUT and not (key in SOURCES and not isinstance(value, dict | list))
        if not (key in HOSTS and isinstance(value, str)) and key not in ("launch", "summary")
    }
    if isinstance(inner, dict):
        own |= {key: value for key, value in inner.items() if key != "source"}
    return _object(own, "", name)


def words_of(within: str, name: str) -> Mapping[str, str]:
    """Return the words that differ in an object. within: what it stands under; name: the schema."""
    if within in MAPS:
        return {}
    part = _WITHIN.get(_SINGULARS.get(within, within), {})
    return {**WORDS, **_OF_SCHEMA.get(name, {}), **part}


def _object(given: Mapping[str, Any], within: str, name: str) -> Json:
    """Return an object in the words of the second version. within: the key that it stands under."""
    if set(given) == {"unknown"}:
        return dict(given)
    words = words_of(within, name)
    about = given.get("id") or given.get("check") or ""
    found: Json = {}
    for key, value in given.items():
        if key in REASONS.values():
            continue
        reason = given.get(REASONS.get(key, ""))
        if key in RAW.get(name, ()):
            found[key] = value
        elif reason is not None:
            found[words.get(key, key)] = {"unknown": reason}
        elif key in AMOUNTS and isinstance(value, str):
            found[key] = _amount(value)
        elif key in ("subject", "subjects"):
            each = given.get("subjects", [value])
            found["subjects"] = [_subject(one, about) for one in each]
        elif key in ("commands", "host_commands"):
            found["actions"] = [_action(one, about) for one in value]
        else:
            found[words.get(key, key)] = _value(value, key, name)
    return found


def _value(value: Any, within: str, name: str) -> Any:
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if isinstance(value, Mapping):
        return _object(value, within, name)
    if isinstance(value, list | tuple):
        return [_value(one, within, name) for one in value]
    return value


def _amount(text: str) -> Json | None:
    if not text:
        return None
    known = text if isinstance(text, Quantity) else Quantity(text)
    return {"value": known.value, "unit": known.unit or None, "text": text}


def _subject(text: str, check: str) -> Json:
    known = text if isinstance(text, Subject) else Subject(text)
    beginnings = [one for one in SUBJECTS if check.startswith(one)]
    # A rule's is a place in the launch; one without a check is a process.
    usual = SUBJECTS[max(beginnings, key=len)] if beginnings else "launch" if check else "process"
    kind = known.kind or _ITSELF.get(text, usual)
    return {"kind": kind, "name": text, "ranks": list(known.ranks)}


def _action(text: str, check: str) -> Json:
    known = text if isinstance(text, Line) else Line(text)
    return {
        "kind": known.does,
        "text": text,
        "argv": list(known.argv) or None,
        "file": known.file or None,
        "content": known.content or None,
        "needs_root": known.needs_root,
        "restarts": known.restarts or None,
        "mends": [check] if check else [],
    }
