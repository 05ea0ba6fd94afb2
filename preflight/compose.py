"""Docker Compose files: the process of each service; and YAML or JSON as a tree with lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from preflight.container_run import ContainerSettings, docker_size, ulimit
from preflight.env_file import environment_words, read_env_file
from preflight.launch_source import Command, Origin, Reading, SourceNote, Word
from preflight.shell_script import read_words

# Limits on what is read as YAML or JSON. No manifest comes near them; some texts are made to.
LARGEST_TEXT = 2**20
MOST_NODES = 200_000  # aliases counted as often as they are used
DEEPEST = 64


class SourceError(Exception):
    """A source that cannot be read or meant: its message is a sentence for the user."""


class Node(NamedTuple):
    """A value in a YAML or JSON document: a text, None, a list or a mapping; numbers are texts."""

    value: str | list[Node] | dict[str, Node] | None
    line: int | None = None
    weight: int = 1  # nodes in it

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    @property
    def items(self) -> list[Node]:
        return self.value if isinstance(self.value, list) else []

    @property
    def fields(self) -> dict[str, Node]:
        return self.value if isinstance(self.value, dict) else {}

    def at(self, *names: str) -> Node:
        """The value behind some keys, one within the other; an empty one where there is none."""
        node = self
        for name in names:
            node = node.fields.get(name, _NOTHING)
        return node


_NOTHING = Node(None)


class Containers(NamedTuple):
    """A reading, and what the containers get, by the first wrapper of their commands."""

    reading: Reading
    settings: Mapping[tuple[str, ...], ContainerSettings]


def load_documents(text: str, name: str) -> list[Node]:
    """The documents of a YAML or JSON text.

    Raises SourceError with a sentence for what is neither, for a key written twice in one mapping,
    and for more than 1 MiB, 64 levels, or 200,000 nodes with aliases counted as often as used.
    """
    if len(text) > LARGEST_TEXT:
        raise SourceError(f"{name} has more than 1 MiB: give the manifest of the launch alone")
    if text.lstrip().startswith(("{", "[")):
        return [_json(text, name)]
    import yaml

    # Events and a stack of our own: PyYAML's own composer goes as deep as the text tells it to.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _documents(yaml.parse(text, loader), name)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it has a character that YAML forbids"
        raise SourceError(f"{name}{where} is not YAML: {problem}") from None
    except RecursionError:
        raise SourceError(f"{name} nests deeper than any manifest") from None


def _json(text: str, name: str) -> Node:
    import json

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise SourceError(f"{name} has the key {_brief(twice)} twice in one object: keep one")
        return found

    def node(value: Any, depth: int) -> Node:
        if depth > DEEPEST:
            raise SourceError(f"{name} nests deeper than {DEEPEST} levels")
        if isinstance(value, dict):
            return Node({key: node(inner, depth + 1) for key, inner in value.items()})
        if isinstance(value, list):
            return Node([node(inner, depth + 1) for inner in value])
        if isinstance(value, bool):
            return Node("true" if value else "false")
        return Node(value)

    try:
        # Numbers stay as they were written: 9007199254740993, 0.30, 1e999.
        value = json.loads(
            text, object_pairs_hook=mapping, parse_int=str, parse_float=str, parse_constant=str
        )
    except json.JSONDecodeError as error:
        raise SourceError(f"{name}:{error.lineno} is not JSON: {error.msg}") from None
    except RecursionError:
        raise SourceError(f"{name} nests deeper than {DEEPEST} levels") from None
    return node(value, 0)


def _documents(events: Iterable[Any], name: str) -> list[Node]:
    """The trees that parser events build, each node made once its last child is known."""
    found: list[Node] = []
    anchors: dict[str, Node] = {}
    # Open collections: the event that began each, and the nodes in it so far.
    stack: list[tuple[Any, list[Node]]] = []
    for event in events:
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            anchors = {}
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            if len(stack) >= DEEPEST:
                raise SourceError(f"{name} nests deeper than {DEEPEST} levels")
            stack.append((event, []))
            continue
        if kind == "ScalarEvent":
            node, anchor = Node(_scalar(event), event.start_mark.line + 1), event.anchor
        elif kind == "AliasEvent":
            if event.anchor not in anchors:
                line = event.start_mark.line + 1
                raise SourceError(f"{name}:{line} uses *{event.anchor}, which nothing defines")
            node, anchor = anchors[event.anchor], None
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            begun, children = stack.pop()
            node, anchor = _collection(begun, children, name), begun.anchor
        else:
            continue
        if node.weight > MOST_NODES:
            raise SourceError(f"{name} has more than {MOST_NODES} nodes, its aliases written out")
        if anchor:
            anchors[anchor] = node
        if stack:
            stack[-1][1].append(node)
        else:
            found.append(node)
    return found


def _scalar(event: Any) -> str | None:
    """A text; None for a plain null."""
    value = str(event.value)
    if (
        event.style in (None, "")
        and event.tag is None
        and value in ("", "~", "null", "Null", "NULL")
    ):
        return None
    return value


def _collection(begun: Any, children: list[Node], name: str) -> Node:
    weight = 1 + sum(child.weight for child in children)
    line = begun.start_mark.line + 1
    if type(begun).__name__ == "SequenceStartEvent":
        return Node(children, line, weight)
    fields: dict[str, Node] = {}
    merged: dict[str, Node] = {}
    for key, value in zip(children[::2], children[1::2], strict=True):
        if key.text == "<<":
            for source in value.items or [value]:
                merged = {**source.fields, **merged} if merged else source.fields
        elif key.value is not None and not isinstance(key.value, str):
            raise SourceError(f"{name}:{line} has a key that is no text: write keys as words")
        elif (text := key.text or "") in fields:
            raise SourceError(f"{name}:{key.line} has the key {_brief(text)} twice: keep one")
        else:
            fields[text] = value
    return Node({**merged, **fields}, line, weight)


def read_compose(
    text: str,
    name: str,
    environment: Mapping[str, str | Word],
    env_files: Mapping[str, str] | None = None,
) -> Containers:
    """The process of each service; ``environment`` is what ``${NAME}`` is filled in from.

    env_files: texts of files that ``env_file:`` names, by the path written there.
    Raises SourceError, as load_documents does.
    """
    documents = load_documents(text, name)
    surroundings = environment_words(environment)
    readings: list[Reading] = []
    settings: dict[tuple[str, ...], ContainerSettings] = {}
    for document in documents:
        for service, node in document.at("services").fields.items():
            reader = _Service(name, service, node, surroundings, env_files or {})
            settings[reader.wrapper] = reader.settings()
            readings.append(reader.reading())
    return Containers(joined(readings), settings)


def joined(readings: Iterable[Reading]) -> Reading:
    """Several readings as one."""
    together = list(readings)
    commands: list[Command] = [command for reading in together for command in reading.commands]
    notes = [note for reading in together for note in reading.notes]
    return Reading(tuple(commands), tuple(dict.fromkeys(notes)))


class _Service:
    def __init__(
        self,
        name: str,
        service: str,
        node: Node,
        surroundings: Mapping[str, Word],
        env_files: Mapping[str, str],
    ) -> None:
        self.name = name
        self.node = node
        self.wrapper = ("docker", "compose", "up", service)
        self.surroundings = surroundings
        self.env_files = env_files
        self.notes: list[SourceNote] = []

    def reading(self) -> Reading:
        origin = Origin(self.name, self.node.line)
        variables = self.environment()
        words = [*self.words("entrypoint"), *self.words("command")]
        if not words or words[0].text.startswith("-"):
            text = (
                f"service {self.wrapper[-1]} runs its image's own command, which the file does not "
                "show: name the program under command"
            )
            self.notes.append(SourceNote("image-command", text, origin))
            words = []
        inner = read_words(words, variables, inside=True)
        commands = tuple(
            command._replace(wrappers=(self.wrapper, *command.wrappers))
            for command in inner.commands
        )
        return Reading(commands, (*self.notes, *inner.notes))

    def word(self, node: Node) -> Word:
        return interpolate(node.text or "", self.surroundings, Origin(self.name, node.line))

    def words(self, key: str) -> list[Word]:
        node = self.node.at(key)
        if node.text is None:
            return [self.word(item) for item in node.items if item.text is not None]
        import shlex

        whole = self.word(node)
        try:
            texts = shlex.split(whole.text)
        except ValueError:
            text = f"{key} of service {self.wrapper[-1]} has a quote that never closes"
            self.notes.append(SourceNote("unterminated", text, whole.origin))
            return []
        return [
            Word(text, whole.origin, tuple(n for n in whole.unresolved if n in text))
            for text in texts
        ]

    def environment(self) -> dict[str, Word]:
        variables: dict[str, Word] = {}
        files = self.node.at("env_file")
        for item in files.items or ([files] if files.text else []):
            path = self.word(item if item.text else item.at("path"))
            if path.text in self.env_files:
                read, notes = read_env_file(self.env_files[path.text], path.text, self.surroundings)
                variables.update(read)
                self.notes.extend(notes)
            else:
                text = f"{_brief(path.text)} is not read: give it with --env-file"
                self.notes.append(SourceNote("env-file-not-read", text, path.origin))
        for key, value, line in _pairs(self.node.at("environment")):
            origin = Origin(self.name, line)
            if value is not None:
                variables[key] = interpolate(value, self.surroundings, origin)
            elif key in self.surroundings:
                variables[key] = self.surroundings[key]
        return variables

    def texts(self, *keys: str) -> tuple[str, ...]:
        found = []
        for item in self.node.at(*keys).items:
            if item.text is not None:
                found.append(self.word(item).text)
            elif item.at("target").text:
                kind = self.word(item.at("type")).text
                source, target = (
                    self.word(item.at("source")).text,
                    self.word(item.at("target")).text,
                )
                found.append(f"type={kind},source={source},target={target}")
        return tuple(found)

    def one(self, *keys: str) -> str | None:
        node = self.node.at(*keys)
        return None if node.text is None else self.word(node).text

    def settings(self) -> ContainerSettings:
        limits = {}
        for key, node in self.node.at("ulimits").fields.items():
            pair = (self.word(node.at("soft")).text, self.word(node.at("hard")).text)
            limits[key] = pair if node.fields else ulimit(f"{key}={self.word(node).text}")[1]
        memory = self.one("mem_limit") or self.one("deploy", "resources", "limits", "memory")
        return ContainerSettings(
            image=self.one("image") or "",
            ipc=self.one("ipc"),
            network=self.one("network_mode"),
            shm_size_bytes=docker_size(self.one("shm_size") or ""),
            ulimits=limits,
            devices=self.texts("devices"),
            privileged=(self.one("privileged") or "").lower() == "true",
            cap_add=self.texts("cap_add"),
            mounts=self.texts("volumes"),
            cpuset_mems=self.one("cpuset_mems"),
            memory_bytes=docker_size(memory or ""),
            user=self.one("user"),
            gpus=self.one("gpus"),
        )


def _pairs(node: Node) -> Iterator[tuple[str, str | None, int | None]]:
    """``environment:`` as a mapping or as a list of ``NAME=value``; None takes the caller's."""
    for key, value in node.fields.items():
        yield key, value.text, value.line
    for item in node.items:
        name, equals, value_text = (item.text or "").partition("=")
        if name:
            yield name, value_text if equals else None, item.line


_VARIABLE = re.compile(
    r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])|\}))"
)
_CLOSING = re.compile(r"\$\{|\}")


def interpolate(text: str, variables: Mapping[str, Word], origin: Origin, depth: int = 0) -> Word:
    """``${NAME:-default}`` as Compose fills it in; a name without a value stays as written."""
    pieces: list[str] = []
    unresolved: list[str] = []
    position = 0
    while match := _VARIABLE.search(text, position):
        pieces.append(text[position : match.start()])
        position = match.end()
        dollar, plain, braced, operator = match.groups()
        name = plain or braced
        default = ""
        if operator:
            end = _closing(text, position)
            if end is None or depth >= DEEPEST:
                pieces.append(text[match.start() :])
                unresolved.append(name)
                position = len(text)
                break
            default, position = text[position:end], end + 1
        word = variables.get(name) if name else None
        missing = word is None or ((operator or "").startswith(":") and not word.text)
        action = (operator or "")[-1:]
        if dollar:
            pieces.append("$")
        elif (missing and action == "-") or (action == "+" and not missing):
            inner = interpolate(default, variables, origin, depth + 1)
            pieces.append(inner.text)
            unresolved += inner.unresolved
        elif word is not None and action != "+":
            pieces.append(word.text)
            unresolved += word.unresolved
        elif action != "+":
            pieces.append(text[match.start() : position])
            unresolved.append(name)
    pieces.append(text[position:])
    return Word("".join(pieces), origin, tuple(dict.fromkeys(unresolved)))


def _closing(text: str, position: int) -> int | None:
    depth = 1
    for match in _CLOSING.finditer(text, position):
        depth += 1 if match.group() == "${" else -1
        if not depth:
            return match.start()
    return None


def _brief(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
