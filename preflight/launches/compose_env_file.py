"""Env files as Docker Compose reads them: with quotes, comments and variables, unlike Docker's own.

Source: compose-spec/compose-go v2 ``dotenv/parser.go``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from preflight.launches.compose_interpolation import interpolate
from preflight.launches.source import Origin, SourceNote, Word, brief
from preflight.launches.variables import Layers

_BLANK = re.compile("[ \t\v\f\r\x85\xa0]+")
_SPACE = re.compile(r"\s+")
_NAME = re.compile(r"[^\W]?[\w.\-\[\] \t]*", re.UNICODE)
_EXPORT = re.compile(r"export[ \t]+")
_ESCAPE = re.compile(r"\\([abfnrtv$\"\\])")
_ESCAPED = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)) | {"$": "$$", '"': '"', "\\": "\\"}


def read_compose_env_file(
    text: str, name: str, surroundings: Mapping[str, Word]
) -> tuple[dict[str, Word], tuple[SourceNote, ...]]:
    """The variables of one file, whose values see ``surroundings`` and the lines above.

    A line that Compose refuses ends the reading, with a note: it starts nothing then. Never raises.
    """
    variables: dict[str, Word] = {}
    text = text.removeprefix("\ufeff")
    seen = Layers(variables, dict(surroundings))
    position, line, counted = 0, 1, 0
    while position < len(text):
        if match := _SPACE.match(text, position):
            position = match.end()
        if text.startswith("#", position):
            position = _line_end(text, position)
            continue
        if position >= len(text):
            break
        line, counted = line + text.count("\n", counted, position), position
        origin, start = Origin(name, line), position
        if match := _EXPORT.match(text, position):
            position = match.end()
        match = _NAME.match(text, position)
        end = match.end() if match else position
        key = text[position:end].strip()
        mark = text[end : end + 1]
        if mark not in ("", "\n", "=", ":") or " " in key or not key:
            written = text[start : _line_end(text, start)]
            return variables, (_refused(f"{brief(written)!r} has no name that it takes", origin),)
        position = end + 1
        if mark in ("", "\n"):
            if key in surroundings:
                variables[key] = surroundings[key]
            continue
        if match := _BLANK.match(text, position):
            position = match.end()
        quote = text[position : position + 1]
        if quote not in ("'", '"') or not quote:
            end = _line_end(text, position)
            value = text[position:end].partition(" #")[0].rstrip()
            variables[key] = interpolate(value, seen, origin)
            position = end
            continue
        closing = _closing(text, position + 1, quote)
        if closing is None:
            return variables, (_refused(f"the quote of {key} never closes", origin),)
        value = text[position + 1 : closing].replace("\\" + quote, quote)
        position = closing + 1
        if quote == '"':
            value = _ESCAPE.sub(lambda found: _ESCAPED[found.group(1)], value)
            variables[key] = interpolate(value, seen, origin)
        else:
            variables[key] = Word(value, origin)
    return variables, ()


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _closing(text: str, position: int, quote: str) -> int | None:
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == quote:
            return position
        position += 1
    return None


def _refused(why: str, origin: Origin) -> SourceNote:
    said = f"{why}: Compose refuses the whole file; write NAME=value"
    return SourceNote("env-file-name", said, origin)
