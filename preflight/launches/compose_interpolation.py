"""``${NAME:-default}`` as Docker Compose fills it in, in its files and in its env files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from preflight.launches.documents import DEEPEST
from preflight.launches.source import Origin, Word

_VARIABLE = re.compile(
    r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])|\}))"
)
_CLOSING = re.compile(r"\$\{|\}")


# Characters of variables in one text; texts can be made whose variables double each other.
MOST_FILLED_IN = 2**17


def interpolate(text: str, variables: Mapping[str, Word], origin: Origin, depth: int = 0) -> Word:
    """``${NAME:-default}`` as Compose fills it in; a name without a value stays as written."""
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
        elif word is not None and action != "+" and len(word.text) <= room:
            room -= len(word.text)
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
