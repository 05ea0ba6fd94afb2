"""YAML and JSON as trees that know their lines, with bounds on what a text can ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from checks.framework.regex import regex
from preflight.launches.source import SourceError, brief

# Limits on what is read as YAML or JSON. No manifest comes near them; some texts are made to.
LARGEST_TEXT = 2**20
MOST_NODES = 200_000  # aliases counted as often as they are used
DEEPEST = 64

# What YAML 1.1 resolves to something else than a text, as Go's YAML readers do.
_BOOLEANS = frozenset("true false yes no on off y n".split())
_LONGEST_NUMBER = 64
_NUMBER = regex(
    r"[+-]?(0[xX][0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|(\d[\d_]*)?\.?\d[\d_]*\.?([eE][+-]?\d+)?|\.inf)"
)


class Node(NamedTuple):
    """A value in a YAML or JSON document: a text, None, a list or a mapping; numbers are texts."""

    value: str | list[Node] | dict[str, Node] | None
    line: int | None = None
    weight: int = 1  # nodes in it
    plain: bool = False  # a text that stands there without quotes

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    @property
    def items(self) -> list[Node]:
        return self.value if isinstance(self.value, list) else []

    @property
    def fields(self) -> dict[str, Node]:
        return self.value if isinstance(self.value, dict) else {}

    @property
    def yaml_type(self) -> str | None:
        """Return ``number`` or ``bool`` for a plain scalar that YAML takes as one; else None."""
        if not self.plain or self.text is None or len(self.text) > _LONGEST_NUMBER:
            return None
        if self.text.lower() in _BOOLEANS:
            return "bool"
        return "number" if _NUMBER.fullmatch(self.text) else None

    def number(self, default: int = 1) -> int:
        """Return the count that stands here, of at most six digits; else ``default``."""
        text = self.text or ""
        return int(text) if text.isdecimal() and len(text) < 7 else default

    def at(self, *names: str) -> Node:
        """Return the value at a path of keys; an empty one if there is none."""
        tree = self
        for name in names:
            tree = tree.fields.get(name, _NOTHING)
        return tree


_NOTHING = Node(None)


def load_documents(text: str, name: str) -> list[Node]:
    """Return the documents of a YAML or JSON text.

    Args:
        name: Of the file.

    Raises:
        SourceError: If the text is neither, has a key twice in one mapping, or has more than 1 MiB,
            64 levels, or 200,000 nodes, in which each use of an alias counts.
    """
    if len(text) > LARGEST_TEXT:
        raise SourceError(f"{name} has more than 1 MiB: give the manifest of the launch alone")
    import yaml

    # Events and a stack of our own: PyYAML's own composer goes as deep as the text tells it to.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _documents(yaml.parse(text, loader), name)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it has a character that YAML forbids"
        language = "JSON" if text.lstrip().startswith(("{", "[")) else "YAML"
        raise SourceError(f"{name}{where} is not {language}: {problem}") from None


def _documents(events: Iterable[Any], name: str) -> list[Node]:
    """Return one tree for each document, from PyYAML's parser events.

    Args:
        name: Of the file.

    Raises:
        SourceError: For an alias that nothing defines, too many nodes or levels, and bad keys.
    """
    documents: list[Node] = []
    # Of everything so far: what is merged is copied into each of a chain before any of it ends.
    weight = 0
    anchors: dict[str, Node] = {}
    # Open collections: the event that began each, and the nodes in it so far.
    stack: list[tuple[Any, list[Node]]] = []
    for event in events:
        event_type = type(event).__name__
        if event_type == "DocumentStartEvent":
            anchors = {}
        if event_type in ("SequenceStartEvent", "MappingStartEvent"):
            if len(stack) >= DEEPEST:
                raise SourceError(f"{name} nests deeper than {DEEPEST} levels")
            stack.append((event, []))
            continue
        if event_type == "ScalarEvent":
            plain = event.style in (None, "") and event.tag is None
            text = str(event.value)
            null = plain and text in ("", "~", "null", "Null", "NULL")
            tree = Node(None if null else text, event.start_mark.line + 1, plain=plain)
            anchor = event.anchor
        elif event_type == "AliasEvent":
            if event.anchor not in anchors:
                line = event.start_mark.line + 1
                raise SourceError(f"{name}:{line} uses *{event.anchor}, which nothing defines")
            tree, anchor = anchors[event.anchor], None
        elif event_type in ("SequenceEndEvent", "MappingEndEvent"):
            start_event, children = stack.pop()
            tree, anchor = _collection(start_event, children, name), start_event.anchor
        else:
            continue
        # The children of a collection were counted when they ended.
        weight += 1 if event_type in ("SequenceEndEvent", "MappingEndEvent") else tree.weight
        if weight > MOST_NODES:
            raise SourceError(f"{name} has more than {MOST_NODES} nodes, its aliases written out")
        if anchor:
            anchors[anchor] = tree
        (stack[-1][1] if stack else documents).append(tree)
    return documents


def _collection(start_event: Any, children: list[Node], name: str) -> Node:
    """Return the tree of a list, or of a mapping with ``<<`` merged.

    Args:
        start_event: The event that began the collection.
        children: Items, or keys and values in turn.

    Raises:
        SourceError: For a key that is no text or comes twice.
    """
    weight = 1 + sum(child.weight for child in children)
    line = start_event.start_mark.line + 1
    if type(start_event).__name__ == "SequenceStartEvent":
        return Node(children, line, weight)
    fields: dict[str, Node] = {}
    sources: list[Node] = []
    for key, value in zip(children[::2], children[1::2], strict=True):
        if key.text == "<<":
            sources += value.items or [value]
        elif key.value is not None and not isinstance(key.value, str):
            raise SourceError(f"{name}:{line} has a key that is not text: write keys as words")
        elif (text := key.text or "") in fields:
            raise SourceError(f"{name}:{key.line} has the key {brief(text)!r} twice: keep one")
        else:
            fields[text] = value
    for source in sources:  # the first of them wins
        fields = {**source.fields, **fields}
    return Node(fields, line, weight)
