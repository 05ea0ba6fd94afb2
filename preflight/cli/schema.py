"""``mooncake-preflight schema``: what ``--json`` prints, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from preflight.base.envelope import (
    ABOUT,
    AMOUNTS,
    HOSTS,
    KINDS,
    RAW,
    REASONS,
    SOURCES,
    STATUSES,
    words_of,
)
from preflight.base.output import JSON_VERSIONS
from preflight.cli.commands import command

Json = dict[str, Any]

FOLDER = Path(__file__).parents[1] / "schemas"
# One message of one program of this project to another: it keeps its first version.
MESSAGES = ("node", "pair")
# What a schema of the first version says of null where it stands for what is not known.
NOT_KNOWN = "null: not known"


def _record(**properties: Any) -> Json:
    required = list(properties)
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def _list(of: str) -> Json:
    return {"type": "array", "items": {"$ref": f"#/$defs/{of}"}}


_TEXT, _TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}
_NULL = {"type": "null"}
_SHARED = {
    "unknown": _record(unknown=_TEXT),
    "quantity": {
        **_record(value={"type": ["number", "null"]}, unit=_TEXT_OR_NULL, text=_TEXT),
        "description": "value: null where the text is no number of something",
    },
    "subject": _record(
        kind={"enum": KINDS},
        name=_TEXT,
        ranks={"type": "array", "items": {"type": "integer", "minimum": 0}},
    ),
    "action": {
        **_record(
            kind={"enum": ["run", "write", "append", "shell", "by hand"]},
            text={"type": "string", "description": "the line, for a shell here or for a person"},
            argv={"oneOf": [_NULL, {"type": "array", "items": _TEXT}]},
            file=_TEXT_OR_NULL,
            content=_TEXT_OR_NULL,
            needs_root={"type": "boolean"},
            restarts={
                **_TEXT_OR_NULL,
                "description": "what has to be started anew: launch, container, pod, host, a unit",
            },
            mends={"type": "array", "items": _TEXT, "description": "checks"},
        ),
        "description": "run argv; write content to file, or append it; shell: type text into it",
    },
}


@command(
    "schema",
    "mooncake-preflight schema",
    "mooncake-preflight schema check > check-v2.schema.json",
    "mooncake-preflight schema --json-schema v1 sizing",
)
@click.option(
    "--json-schema",
    type=click.Choice(JSON_VERSIONS),
    default="v2",
    show_default=True,
    help="The version.",
)
@click.argument("name", required=False)
def schema(name: str | None, json_schema: str) -> int:
    """Print the JSON Schema of what a command prints with --json; without NAME, all names."""
    from preflight.base.output import say, say_plain_json
    from preflight.base.usage_error import UsageError

    names = schema_names()
    if name is None:
        say("\n".join(names))
        return 0
    if name not in names:
        raise UsageError(f"{name}: no schema has this name: one of {', '.join(names)}")
    say_plain_json(schema_of(name, json_schema))
    return 0


def schema_names() -> list[str]:
    """Return the names of all schemas."""
    return sorted(file.name.partition("-v1.")[0] for file in FOLDER.glob("*-v1.schema.json"))


def schema_of(name: str, version: str) -> Json:
    """Return a schema by its name. version: v1 or v2."""
    import json

    first: Json = json.loads((FOLDER / f"{name}-v1.schema.json").read_text(encoding="utf-8"))
    return first if version == "v1" or name in MESSAGES else second_schema(first)


def second_schema(first: Json) -> Json:
    """Return a schema of the first version in the words of the second."""
    name = first["$id"].split("/")[1]
    defs = first.get("$defs", {})
    tops = [each["$ref"].rpartition("/")[2] for each in first.get("oneOf", [])]
    alone = {key: first[key] for key in ("type", "properties", "required") if key in first}
    answers = [defs[top] for top in tops] or [alone]
    inner = {key: _schema(each, key, name) for key, each in defs.items() if key not in tops}
    bodies, findings = [], []
    for answer in answers:
        body, found = _body(answer, defs, name)
        bodies += [body] if body["properties"] else []
        findings += [] if found is None else [found]
    return {
        "$schema": first["$schema"],
        "$id": f"{first['$id'].rpartition('/')[0]}/v2",
        "title": first["title"],
        "$defs": {**inner, **_SHARED},
        **_record(
            schema={"const": f"{first['$id'].rpartition('/')[0]}/v2"},
            version={"type": "string", "description": "of this program"},
            command={"type": "string", "minLength": 1},
            status={"enum": list(STATUSES), "description": "error: there is no answer"},
            exit_code={"type": "integer", "minimum": 0, "maximum": 255},
            reason={**_TEXT_OR_NULL, "description": "of the status, one sentence"},
            launch={"oneOf": [_NULL, _record(source=_TEXT_OR_NULL, summary=_TEXT_OR_NULL)]},
            host={**_TEXT_OR_NULL, "description": "/ for the machine itself, a folder, a file"},
            findings={"anyOf": findings} if findings else {"type": "array", "maxItems": 0},
            answer={"anyOf": [_NULL, *bodies]},
        ),
    }


def _body(answer: Json, defs: Mapping[str, Json], name: str) -> tuple[Json, Json | None]:
    """Return what is a command's own, and its findings: see ``envelope.second``."""
    given, required = dict(answer["properties"]), list(answer.get("required", ()))
    launch = given.pop("launch", {})
    alternatives = [launch, *launch.get("oneOf", ())]
    for reference in [each["$ref"] for each in alternatives if "$ref" in each]:
        more = defs[reference.rpartition("/")[2]]["properties"]
        given |= {key: value for key, value in more.items() if key != "source"}
    for key in (*SOURCES, *HOSTS, "summary"):
        kind = given.get(key, {}).get("type")
        if kind == "string" or kind == ["string", "null"]:
            del given[key]
    outcome = given.pop("status", None)
    for key in ABOUT:
        given.pop(key, None)
    required = [key for key in required if key in given]
    body = _schema({**answer, "properties": given, "required": required}, "", name)
    body["additionalProperties"] = False
    if outcome is not None and outcome != {"const": "error"}:
        body["properties"] |= {"outcome": _schema(outcome, "status", name)}
    found = body["properties"].pop("findings", None)
    body["required"] = [key for key in body["required"] if key != "findings"]
    return body, found


def _schema(node: Any, within: str, name: str) -> Any:
    """Return a part of a schema in the words of the second version; see ``envelope._object``."""
    if not isinstance(node, dict):
        return node
    found: Json = {}
    for key, value in node.items():
        if key in ("items", "additionalProperties"):
            found[key] = _schema(value, within, name)
        elif key in ("oneOf", "anyOf", "prefixItems"):
            found[key] = [_schema(each, within, name) for each in value]
        elif key not in ("properties", "required", "$comment"):
            found[key] = value
    if node.get("$comment") == NOT_KNOWN:
        found = {"anyOf": [found, {"$ref": "#/$defs/unknown"}]}
    if "properties" in node:
        words = words_of(within, name)
        properties: Json = {}
        for key, value in node["properties"].items():
            said, part = _property(key, value, node["properties"], name)
            if part is not None:
                properties[words.get(said, said)] = part
        found["properties"] = properties
        wanted = (words.get(key, key) for key in node.get("required", ()))
        found["required"] = [key for key in dict.fromkeys(wanted) if key in properties]
        if set(properties) == {"unknown"} and set(node["properties"]) == {"unknown"}:
            return dict(node)
    return found


def _property(key: str, value: Json, beside: Json, name: str) -> tuple[str, Any]:
    if key in REASONS.values() or key == "subjects":
        return key, None if key != "subjects" or "subject" in beside else _list("subject")
    if key in RAW.get(name, ()):
        return key, value
    if key in AMOUNTS and value.get("type") == "string":
        return key, {"oneOf": [_NULL, {"$ref": "#/$defs/quantity"}]}
    if key == "subject":
        return "subjects", {**_list("subject"), "minItems": 1}
    if key in ("commands", "host_commands"):
        return "actions", _list("action")
    part = _schema(value, key, name)
    return key, _or_unknown(part) if REASONS.get(key) in beside else part


def _or_unknown(part: Json) -> Json:
    """Return the schema of a value that may be unknown, where it was null."""
    kinds = part.get("type")
    if isinstance(kinds, list):
        rest = [kind for kind in kinds if kind != "null"]
        part = {**part, "type": rest[0] if len(rest) == 1 else rest}
    return {"anyOf": [part, {"$ref": "#/$defs/unknown"}]}
