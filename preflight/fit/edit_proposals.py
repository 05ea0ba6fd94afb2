"""Edited texts to try: the value replaced, taken away or added, the likeliest place first.

Nothing here is sure of what it does to a launch: whoever tries an edit reads the text again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from preflight.fit.launch_values import Place
from preflight.launches.source import Origin

_BEFORE, _BEHIND = r"(?<![A-Za-z0-9_.])", r"(?![A-Za-z0-9_.])"


def proposals(
    texts: Mapping[str, str], place: Place, text: str | None
) -> Iterator[tuple[str, str]]:
    """Edited texts with their paths, the likeliest first: by how near they are to the origin."""
    for path in sorted(texts, key=lambda path: path != (place.origin or Origin("")).source):
        line = place.origin.line if place.origin and place.origin.source == path else None
        content = texts[path]
        if place.written and text is not None:
            yield from ((path, after) for after in _replaced(content, place, text, line))
        elif place.written:
            yield from ((path, after) for after in _removed(content, place, line))
        elif text is not None:
            yield from ((path, after) for after in _added(content, place, text, line))


def _replaced(content: str, place: Place, text: str, line: int | None) -> Iterator[str]:
    new = text
    old = place.old
    if place.kind == "json":
        # The value within a JSON text, whose quotes the file may write with backslashes.
        bare = old.strip('"')
        new = text
        if not old.startswith('"') and not text.isdecimal():
            new = f'"{text}"'
        old = bare
    for start, end in _places(content, old, line):
        # A bare number behind a key of YAML is no text, which Kubernetes wants.
        bare_value = new.isdecimal() and not old.isdecimal() and content[:start].endswith(": ")
        said = f'"{new}"' if bare_value else new
        yield content[:start] + said + content[end:]


def _places(content: str, old: str, line: int | None) -> list[tuple[int, int]]:
    """Where ``old`` stands as a token of its own, near ``line`` first, then behind it."""
    if not old:
        return []
    first = re.escape(old)
    lead = _BEFORE if old[0].isalnum() else ""
    tail = _BEHIND if old[-1].isalnum() else ""
    spans = [match.span() for match in re.finditer(f"{lead}{first}{tail}", content)]
    at = line or 1
    return sorted(spans, key=lambda span: abs(content.count("\n", 0, span[0]) + 1 - at))


def _removed(content: str, place: Place, line: int | None) -> Iterator[str]:
    """Without the variable: its word, the option in front of it, or its whole line."""
    name = re.escape(place.name)
    quoted = rf"""["']?{name}\s*[=:]\s*(?:"[^"\n]*"|'[^'\n]*'|[^\s"']*)["']?"""
    spans: list[tuple[int, int]] = []
    patterns = (
        rf"(?m)^[ \t]*(?:export|declare -x|-|ENV)?[ \t]*{quoted}[ \t]*;?[ \t]*\n",
        rf"""(?m)^[ \t]*-[ \t]*["']?name["']?:[ \t]*["']?{name}["']?[ \t]*\n"""
        r"[ \t]*[\"']?value[\"']?:[^\n]*\n",
        rf"(?:-e|--env)(?:[ \t]+|=){quoted}[ \t]*\\?\n?[ \t]*",
        rf"[ \t]+{quoted}",
        rf"{quoted}[ \t]+",
        rf"{quoted},?",
    )
    for pattern in patterns:
        spans += [match.span() for match in re.finditer(pattern, content)]
    for start, end in spans:
        yield content[:start] + content[end:]


def _added(content: str, place: Place, text: str, line: int | None) -> Iterator[str]:
    """Behind the flag that it goes with, or beside the variable of the master."""
    if place.kind == "new-flag":
        beside = place.old
        for start, end in _places(content, beside, line):
            said = content[start:end]
            yield f"{content[:end]} {place.name} {text}{content[end:]}"
            # An item of a list, quoted or not: one item more for each word.
            head = content[content.rfind("\n", 0, start) + 1 : start]
            if head.strip() in ("-", '- "', "- '"):
                quote = head.strip()[2:] or '"'
                lead = head.rstrip("\"'")
                stop = content.find("\n", end)
                stop = len(content) if stop < 0 else stop
                items = "".join(f"\n{lead}{quote}{word}{quote}" for word in (place.name, text))
                yield content[:stop] + items + content[stop:]
            for quote in ('"', "'"):
                if content[start - 1 : start] == quote and content[end : end + 1] == quote:
                    items = (
                        f"{quote}{said}{quote}, {quote}{place.name}{quote}, {quote}{text}{quote}"
                    )
                    yield content[: start - 1] + items + content[end + 1 :]
        return
    for master in ("MOONCAKE_MASTER", "MOONCAKE_CLIENT", "MOONCAKE_PROTOCOL"):
        yield from _like(content, master, place.name, text)


def _like(content: str, other: str, name: str, text: str) -> Iterator[str]:
    """Written as ``other`` is: a line like its own, or a word beside it."""
    for match in re.finditer(rf"(?m)^(?P<line>[^\n#]*\b{other}\b[^\n]*)\n?", content):
        whole = match["line"]
        value = re.search(rf"{other}(?P<between>[\"']?[ \t]*[=:][ \t]*)(?P<value>[^\n]*)", whole)
        if value is not None:
            quote = value["value"][:1] if value["value"][:1] in ("'", '"') else ""
            new = whole[: value.start()] + name + value["between"] + quote + text + quote
            tail = re.search(r"[\"'\\ ]+$", whole)
            for ending in ("", tail.group() if tail else "", '"', "'"):
                yield f"{content[: match.end('line')]}\n{new}{ending}{content[match.end('line') :]}"
        following = re.match(
            r"\n([ \t]*[\"']?value[\"']?:[ \t]*)([^\n]*)", content[match.end("line") :]
        )
        if following is not None:
            end = match.end("line") + following.end()
            entry = whole.replace(other, name)
            yield f'{content[:end]}\n{entry}\n{following[1]}"{text}"{content[end:]}'
    for match in re.finditer(rf"\b{other}=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']*)", content):
        yield f"{content[: match.end()]} {name}={text}{content[match.end() :]}"
