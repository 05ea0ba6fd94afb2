"""The services of a Compose file: what each extends, and which ones a profile leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.launches.documents import Node
from preflight.launches.source import Origin, SourceNote, Word, brief

# What a service replaces rather than adds to (compose-go override/merge.go).
_REPLACED = ("command", "entrypoint")
_SEQUENCES = ("env_file", "environment", "tmpfs")
# Services that extend one another are followed down to here.
_DEEPEST_EXTENDS = 16


class Service(NamedTuple):
    """One service with all that it extends, and what there is to say of it."""

    name: str
    node: Node
    notes: tuple[SourceNote, ...] = ()


def services(document: Node, name: str, surroundings: Mapping[str, Word]) -> Iterator[Service]:
    """Those that are started, as far as is known, in the order of the file ``name``."""
    found = document.at("services").fields
    chosen = surroundings.get("COMPOSE_PROFILES")
    for called, node in found.items():
        notes: list[SourceNote] = []
        whole = _extended(called, node, found, name, notes, 0)
        profiles = [item.text for item in whole.at("profiles").items if item.text]
        if profiles:
            wanted = [] if chosen is None else [text.strip() for text in chosen.text.split(",")]
            if wanted and not {"*", *profiles} & set(wanted):
                continue
            if not wanted:
                said = f"service {called} starts with profile {' or '.join(profiles)} alone; it is "
                notes.append(
                    SourceNote(
                        "profile",
                        said + "read as started: give COMPOSE_PROFILES as the caller has it",
                        Origin(name, node.line),
                    )
                )
        yield Service(called, whole, tuple(notes))


def _extended(
    called: str,
    node: Node,
    found: Mapping[str, Node],
    name: str,
    notes: list[SourceNote],
    depth: int,
) -> Node:
    extends = node.at("extends")
    base = extends.text or extends.at("service").text
    if not base:
        return node
    file = extends.at("file").text
    if file or base not in found or depth >= _DEEPEST_EXTENDS:
        where = f" of {brief(file)}" if file else ""
        said = (
            f"service {called} extends {base}{where}, which is not read: its settings are unknown"
        )
        notes.append(SourceNote("extends-not-read", said, Origin(name, extends.line)))
        return node
    whole = _extended(base, found[base], found, name, notes, depth + 1)
    return _merged(whole, node)


def _merged(base: Node, own: Node, key: str = "", above: str = "") -> Node:
    if key in _SEQUENCES:
        return Node([*_sequence(base), *_sequence(own)], own.line)
    if base.fields and own.fields and above != "ulimits":
        fields = dict(base.fields)
        for name, node in own.fields.items():
            fields[name] = _merged(fields[name], node, name, key) if name in fields else node
        return Node(fields, own.line)
    if base.items and own.items and key not in _REPLACED:
        return Node([*base.items, *own.items], own.line)
    return base if own.value is None and key not in _REPLACED else own


def _sequence(node: Node) -> list[Node]:
    """A mapping as the list that it stands for."""
    if node.fields and "path" not in node.fields:
        return [
            Node(key if value.text is None else f"{key}={value.text}", value.line)
            for key, value in node.fields.items()
        ]
    return node.items or ([] if node.value is None else [node])
