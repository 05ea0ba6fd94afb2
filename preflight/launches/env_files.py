"""Env files and ``${NAME}`` as Docker and Docker Compose read them, which differ.

Docker takes NAME=value as it stands, with no quotes and no expansion; Compose knows quotes,
comments and variables. Source: compose-spec/compose-go v2 ``dotenv/parser.go``.
"""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from checks.framework.regex import regex
from preflight.launches.documents import DEEPEST
from preflight.launches.source import Origin, SourceNote, Word, brief
from preflight.launches.variables import Layers, unknown_needed

# Larger than any file that holds settings; a device or a log is not read into memory.
LARGEST_FILE_BYTES = 4 * 2**20
# What people write to export the lines of an env file: export $(grep -v '^#' .env | xargs).
_WRITES = regex(
    r"(?:(?P<drops>e?grep -v ['\"]\^#['\"]) (?P<kept>[\w./-]+)|cat (?P<all>[\w./-]+))"
    r" ?\| ?xargs(?P<whole> -0| -d '\\n')?|xargs < ?(?P<given>[\w./-]+)"
)
# Standard input, and what a shell opens for ``<(...)``: read once, and kept.
STREAM = regex(r"-|/dev/fd/\d+")
_SETTING = regex(r"""([A-Za-z_]\w*)=(["']?)([^\s"'\\$`*?\[#]*)\2""")
_QUOTED = regex(r"""(["']).*\1""", re.DOTALL)
_VARIABLE = regex(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])|\}))")
_BRACES = regex(r"\$\{|\}")
# Characters of variables in one text; texts can be made whose variables double each other.
MOST_FILLED_IN = 2**17
_COMPOSE_VALUE = regex(r"""(?:'([^'\\]*)'|"([^"\\]*)")(?:\s+#.*)?|(?!['"])(.*?)(?:\s#.*)?""")


def read_env_file(
    text: str, name: str, environment: Mapping[str, str | Word]
) -> tuple[dict[str, Word], tuple[SourceNote, ...]]:
    """Read variables as ``docker run --env-file`` does: no quotes, no expansion, the last one wins.

    Also returns notes, on names that Docker refuses and quotes that it keeps. A line with a name
    alone takes the name's value in ``environment``, if that has one. Never raises.
    """
    variables: dict[str, Word] = {}
    notes: list[SourceNote] = []
    # Docker cuts lines at line feeds only, and drops the carriage return in front of one.
    for number, written in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = written.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        origin = Origin(name, number)
        key, equals, value = line.partition("=")
        if not key or key != "".join(key.split()):
            why = "has no name" if not key else f"has blanks in its name {key!r}"
            text = f"the variable {why}: Docker refuses the whole file; write NAME=value"
            notes.append(SourceNote("env-file-name", text, origin))
        elif equals:
            variables[key] = Word(value, origin)
            if _QUOTED.fullmatch(value.strip()):
                message = f"{key}={value}: Docker keeps the quotes as part of the value; write "
                message += f"{key}={value.strip()[1:-1]}"
                notes.append(SourceNote("env-file-quotes", message, origin))
        elif (value_here := environment.get(key)) is not None:
            variables[key] = Word(value_here, origin) if isinstance(value_here, str) else value_here
    return variables, tuple(notes)


def env_file_settings(command: str, near: Callable[[str], str | None]) -> str | None:
    """Work out the output of a command such as ``grep -v '^#' .env | xargs``: the file's settings,
    one a line.

    Args:
        near: Gives the text of a file by its path, None if that is not known. Return None for any
            other command, without the file's text, or if a line is not plain NAME=value.
    """
    match = _WRITES.fullmatch(command.strip()) if len(command) < 200 else None
    text = near(match["kept"] or match["all"] or match["given"]) if match is not None else None
    if match is None or text is None:
        return None
    lines = [line for line in text.splitlines() if line.strip()]
    if match["drops"]:
        lines = [line for line in lines if not line.startswith("#")]
    if match["whole"] and any('"' in line or "'" in line for line in lines):
        return None  # xargs without an option takes them away
    settings = [setting for line in lines if (setting := _SETTING.fullmatch(line))]
    whole = len(settings) == len(lines)
    return "\n".join(f"{each[1]}={each[3]}" for each in settings) if whole else None


def read_small_file(path: str) -> str | None:
    """Return the text of a regular file of at most 4 MiB, or of a stream that was read; else None.

    A stream is never opened here: what a script or another process names so is not ours to read.
    """
    if STREAM.fullmatch(path):
        return _streams.get(path)
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE_BYTES:
            return None
        return Path(path).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


# What ``read_stream`` read, by path: a stream has its text once.
_streams: dict[str, str | None] = {}


def read_stream(path: str) -> None:
    """Read a ``STREAM`` that the user named to its end, for ``read_small_file`` to return.

    It has no text if it is closed, or has more than 4 MiB.
    """
    if path not in _streams:
        _streams[path] = _text_of_stream(path)


def read_given_file(path: str) -> str | None:
    """Return the text of a file or ``STREAM`` that the user named; None if it is not read."""
    if STREAM.fullmatch(path):
        read_stream(path)
    return read_small_file(path)


def _text_of_stream(path: str) -> str | None:
    try:
        if path == "-":
            content = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        else:
            with open(path, "rb") as stream:
                content = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError, AttributeError):  # closed, or none
        return None
    return content.decode("utf-8", "replace") if len(content) <= LARGEST_FILE_BYTES else None


def interpolate(text: str, variables: Mapping[str, Word], origin: Origin, depth: int = 0) -> Word:
    """Fill in ``$NAME`` and ``${NAME:-default}`` as Compose does.

    A name without a value stays as written, and is listed as unresolved.

    Args:
        depth: How many defaults enclose ``text``.
    """
    pieces: list[str] = []
    unresolved: list[str] = []
    position, room = 0, MOST_FILLED_IN
    while match := _VARIABLE.search(text, position):
        pieces.append(text[position : match.start()])
        position = match.end()
        dollar, plain, braced, operator = match.groups()
        name = plain or braced
        default = ""
        if operator:
            end = _brace_end(text, position)
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
        elif word is not None and action != "+" and len(word.text) <= room:
            room -= len(word.text)
            pieces.append(word.text)
            unresolved += word.unresolved
        elif action != "+":
            pieces.append(text[match.start() : position])
            unresolved.append(name)
    pieces.append(text[position:])
    return Word("".join(pieces), origin, tuple(dict.fromkeys(unresolved)))


def _brace_end(text: str, position: int) -> int | None:
    """Return the index of the ``}`` that closes the ``${`` before ``position``, or None."""
    depth = 1
    for match in _BRACES.finditer(text, position):
        depth += 1 if match.group() == "${" else -1
        if not depth:
            return match.start()
    return None


def read_compose_env_file(
    text: str, name: str, surroundings: Mapping[str, Word], before: Mapping[str, Word] | None = None
) -> tuple[dict[str, Word], tuple[SourceNote, ...]]:
    """Read one env file as Compose does.

    Return its variables, over those of ``before``, and notes.

    Args:
        before: Variables of earlier files, taken as lines above. A value may name ``surroundings``
            (which win) and variables of lines above. A line is NAME=value, the value bare or wholly
            in quotes, or NAME alone. At any other line the reading ends, with a note. Never raises.
    """
    variables = dict(before or {})
    seen = Layers(variables, dict(surroundings))
    for number, written in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        line, origin = written.strip(), Origin(name, number)
        key, equals, value = line.removeprefix("export ").partition("=")
        match = _COMPOSE_VALUE.fullmatch(value.strip())
        if not line or line.startswith("#"):
            continue
        if not re.fullmatch(r"[\w.-]+", key.strip()):
            message = f"{brief(line)!r} has no name that it takes: Compose refuses the whole file; "
            return variables, (SourceNote("env-file-name", f"{message}write NAME=value", origin),)
        if match is None:
            message = f"{brief(line)!r} is more than NAME=value: the file is not read from here on"
            left = {**variables, **unknown_needed(variables, origin)}
            return left, (SourceNote("env-file-not-read", message, origin),)
        if equals:
            single, double, bare = match.groups()
            word = interpolate(double or bare or "", seen, origin)
            variables[key.strip()] = word if single is None else Word(single, origin)
        elif key in surroundings:
            variables[key] = surroundings[key]
    return variables, ()
