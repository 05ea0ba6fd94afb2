"""The user's own file with other sizes in it: one token at a time, each edit proven by reading it.

No file is written from what was understood of the launch: a token of its text is replaced, the
whole is read again as before, and the edit stands only where the reading is the one that is wanted,
word for word, and nothing else of the launch has changed. What no edit brings about is said
instead.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from checks.framework.regex import regex
from checks.host_snapshot.secrets import clean_words
from preflight.cache_sizing.fit.launch_values import (
    KEY,
    Knobs,
    SizeValues,
    ValuePlace,
    changes,
    json_with,
    with_text,
)
from preflight.launches.env_files import read_small_file
from preflight.launches.launch_files import read_text
from preflight.launches.source import Command, Origin, Reading, SourceError, Word


class LaunchTexts(NamedTuple):
    """The texts of a launch's file and of its env files, as they were read.

    Attributes:
        path: Of the launch's file.
        texts: By path.
        env_files: Paths as they were given.
        environment: The caller's.
        is_local: The launch's host is this machine.
    """

    path: str
    texts: Mapping[str, str]
    env_files: tuple[str, ...]
    environment: Mapping[str, str]
    is_local: bool = True

    def read(self, texts: Mapping[str, str]) -> Reading:
        """Return the launch that ``texts``, edited or not, have in place of the files.

        Raises SourceError.
        """
        env_texts = [(name, texts[name]) for name in self.env_files]
        return read_text(texts[self.path], self.path, self.environment, env_texts)

    def path_of(self, name: str) -> str | None:
        """Return the path here of a file that the launch names; None if it is on another host."""
        if name.startswith("/"):
            return name if self.is_local else None
        return os.path.join(os.path.dirname(self.path), name)


def launch_texts(
    path: str, env_files: tuple[str, ...], environment: Mapping[str, str], is_local: bool = True
) -> LaunchTexts | None:
    """Read the launch's file ``path`` and its env files.

    Returns:
        None if one of these files does not exist, is too large or is not UTF-8.
    """
    texts: dict[str, str] = {}
    for name in (path, *env_files):
        if not os.path.isfile(name):
            return None
        text = read_small_file(name)
        if text is None or "\ufffd" in text:
            return None
        texts[name] = text.removeprefix("\ufeff")
    return LaunchTexts(path, texts, env_files, environment, is_local)


def command_line(before: Reading, after: Reading) -> str:
    """Return ``after`` as one shell command without secrets.

    Variables are written that differ from ``before`` or come from the command line.

    Returns:
        "" unless ``after`` has exactly one command.
    """
    if len(after.commands) != 1:
        return ""
    old, new = before.commands[0], after.commands[0]
    set_here = [
        f"{name}={shlex.quote(word.text)}"
        for name, word in new.environment.items()
        if old.environment.get(name) != word or word.origin.source == "command line"
    ]
    gone = [f"-u {name}" for name in old.environment if name not in new.environment]
    lead = ["env", *gone, *set_here] if gone else set_here
    wrappers = [shlex.quote(word) for texts in new.wrappers for word in texts if texts[0] != "env"]
    texts = clean_words(word.text for word in new.words)
    return " ".join([*lead, *wrappers, *(shlex.quote(word) for word in texts)])


_VALUE_LINE = regex(r"\n([ \t]*[\"']?value[\"']?:[ \t]*)([^\n]*)")
_BEFORE, _BEHIND = r"(?<![A-Za-z0-9_.])", r"(?![A-Za-z0-9_.])"


def proposals(
    texts: Mapping[str, str], place: ValuePlace, text: str | None
) -> Iterator[tuple[str, str]]:
    """Yield candidates (path, edited text) that may set ``place`` to ``text``, or for None remove
    the variable.

    Candidates nearest to the place's origin come first; each may be wrong.
    """
    for path in sorted(texts, key=lambda path: path != (place.origin or Origin("")).source):
        line = place.origin.line if place.origin and place.origin.source == path else None
        content = texts[path]
        edits = _removed(content, place) if place.written else iter(())
        if text is not None:
            edits = (_replaced if place.written else _added)(content, place, text, line)
        yield from ((path, after) for after in edits)


def _replaced(content: str, place: ValuePlace, text: str, line: int | None) -> Iterator[str]:
    """Yield ``content`` with the new value ``text`` in place of one occurrence of the old value,
    once for each occurrence, the nearest to ``line`` first.
    """
    new, old = text, place.old
    if place.form == "json":
        # The value within a JSON text, whose quotes the file may write with backslashes.
        if not old.startswith('"') and not text.isdecimal():
            new = f'"{text}"'
        old = old.strip('"')
    for start, end in _places(content, old, line):
        # A bare number behind a key of YAML is no text, which Kubernetes wants.
        bare_value = new.isdecimal() and not old.isdecimal() and content[:start].endswith(": ")
        written = f'"{new}"' if bare_value else new
        yield content[:start] + written + content[end:]


def _places(content: str, old: str, line: int | None) -> list[tuple[int, int]]:
    """Return (start, end) of each ``old`` that is a whole token, the nearest to ``line`` first."""
    if not old:
        return []
    lead = _BEFORE if old[0].isalnum() else ""
    tail = _BEHIND if old[-1].isalnum() else ""
    spans = [match.span() for match in re.finditer(f"{lead}{re.escape(old)}{tail}", content)]
    at = line or 1
    return sorted(spans, key=lambda span: abs(content.count("\n", 0, span[0]) + 1 - at))


def _removed(content: str, place: ValuePlace) -> Iterator[str]:
    """Yield candidates of ``content`` with one occurrence of the variable removed: a whole line, an
    ``-e`` option, or a word.
    """
    name = re.escape(place.name)
    quoted = rf"""["']?{name}\s*[=:]\s*(?:"[^"\n]*"|'[^'\n]*'|[^\s"']*)["']?"""
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
        for match in re.finditer(pattern, content):
            yield content[: match.start()] + content[match.end() :]


def _added(content: str, place: ValuePlace, text: str, line: int | None) -> Iterator[str]:
    """Yield candidates of ``content`` with a new flag behind the word ``place.old``, or with a new
    variable.

    The variable is written like a Mooncake variable of the file (``MOONCAKE_MASTER``...).
    """
    if place.form == "new-flag":
        beside = place.old
        for start, end in _places(content, beside, line):
            flag = content[start:end]
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
                    items = ", ".join(f"{quote}{w}{quote}" for w in (flag, place.name, text))
                    yield content[: start - 1] + items + content[end + 1 :]
        return
    for master in ("MOONCAKE_MASTER", "MOONCAKE_CLIENT", "MOONCAKE_PROTOCOL"):
        yield from _added_like(content, master, place.name, text)


def _added_like(content: str, other: str, name: str, text: str) -> Iterator[str]:
    """Yield candidate texts of a launch file with a new variable ``name`` of value ``text``.

    The variable is written the way ``other`` is: on the line below, or beside it on the same line.
    """
    for match in re.finditer(rf"(?m)^(?P<line>[^\n#]*\b{other}\b[^\n]*)\n?", content):
        whole = match["line"]
        value = re.search(rf"{other}(?P<between>[\"']?[ \t]*[=:][ \t]*)(?P<value>[^\n]*)", whole)
        if value is not None:
            quote = value["value"][:1] if value["value"][:1] in ("'", '"') else ""
            new = whole[: value.start()] + name + value["between"] + quote + text + quote
            tail = re.search(r"[\"'\\ ]+$", whole)
            for ending in ("", tail.group() if tail else "", '"', "'"):
                yield f"{content[: match.end('line')]}\n{new}{ending}{content[match.end('line') :]}"
        following = _VALUE_LINE.match(content, match.end("line"))
        if following is not None:
            end = following.end()
            entry = whole.replace(other, name)
            yield f'{content[:end]}\n{entry}\n{following[1]}"{text}"{content[end:]}'
    for match in re.finditer(rf"\b{other}=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']*)", content):
        yield f"{content[: match.end()]} {name}={text}{content[match.end() :]}"


# Edits that are tried for one place before it is given up.
_MOST_TRIES = 400
# What only running a launch can tell stays in its words as it is written.
_COMPUTED = regex(r"[$`]")


class Edit(NamedTuple):
    """One file, before and after."""

    path: str
    before: str
    after: str


class Advice(NamedTuple):
    """What to change by hand, and why no edit is made.

    Attributes:
        text: The value to write; None to remove ``name``.
        where: File and line, or the like.
    """

    name: str
    text: str | None
    where: str
    why: str


class Edited(NamedTuple):
    """A launch after editing.

    Attributes:
        reading: Of the edited files.
        advice: What could not be edited.
    """

    edits: tuple[Edit, ...]
    advice: tuple[Advice, ...]
    reading: Reading


def edit_texts(source: LaunchTexts, sizes: Knobs, values: SizeValues) -> Edited:
    """Edit the texts of a launch to have ``values``; write no file.

    A value that cannot be edited for certain becomes an advice.
    """
    texts = dict(source.texts)
    reading = source.read(texts)
    advice: list[Advice] = []
    more: list[Edit] = []
    for knob, text in changes(sizes, values):
        for place in knob.last_first:
            if place.form == "file":
                edit = _configuration(source, place, text or "0")
                if not isinstance(edit, Edit):
                    advice.append(Advice(KEY, text, place.name, edit))
                elif edit.after != edit.before:
                    more.append(edit)
                continue
            if _wanted(reading, place, text) == [meaning(command) for command in reading.commands]:
                continue
            computed = place.written and _COMPUTED.search(place.old) is not None
            edit_made = None if computed else _valid_edit(source, texts, reading, place, text)
            if edit_made is None:
                advice.append(Advice(place.name, text, str(place.origin), _why_not_edited(place)))
            else:
                texts, reading = edit_made
    pairs = source.texts.items()
    edits = (Edit(path, old, texts[path]) for path, old in pairs if texts[path] != old)
    return Edited((*edits, *more), tuple(advice), reading)


def by_hand(reading: Reading, sizes: Knobs, values: SizeValues) -> Edited:
    """Return an advice for every value, and no edits, for a launch that is no file here."""
    every = ((place, text) for knob, text in changes(sizes, values) for place in knob.places)
    why = "the launch is no file here"
    advice = tuple(Advice(each.name, text, str(each.origin), why) for each, text in every)
    return Edited((), advice, reading)


def _configuration(source: LaunchTexts, place: ValuePlace, text: str) -> Edit | str:
    """Return the edit that sets the segment size in the JSON file of ``place``; a str says why that
    file cannot be edited.
    """
    path = source.path_of(place.name)
    before = None if path is None else read_small_file(path)
    if path is None or before is None:
        return "it is a file of the host, which is not this one"
    after = json_with(before, text)
    wanted = int(text) if text.isdecimal() else text
    with suppress(ValueError):
        old, new = json.loads(before), json.loads(after)
        if isinstance(old, dict) and new == {**old, KEY: wanted}:
            return Edit(path, before, after)
    return "it is no JSON that can be edited for certain"


def _why_not_edited(place: ValuePlace) -> str:
    """Return why no edit of a value is made, as a clause of a sentence."""
    if place.written and _COMPUTED.search(place.old):
        return "it is computed when the launch runs"
    if place.origin is not None and place.origin.source == "environment":
        return "it comes from the environment of the caller"
    if not place.written:
        return "it is not written there yet"
    return "the value is put together from others, or is used for something else as well"


def _wanted(reading: Reading, place: ValuePlace, text: str | None) -> list[Meaning]:
    """Return the meaning of every command as it should be after ``text`` is set at ``place``."""
    return [
        meaning(with_text(command, place, text) if index in place.commands else command)
        for index, command in enumerate(reading.commands)
    ]


def _valid_edit(
    source: LaunchTexts,
    texts: Mapping[str, str],
    reading: Reading,
    place: ValuePlace,
    text: str | None,
) -> tuple[dict[str, str], Reading] | None:
    """Return the edited texts and their reading for the first candidate that sets ``text`` at
    ``place`` and changes nothing else.

    Returns:
        None if none of the first ``_MOST_TRIES`` does.
    """
    wanted = _wanted(reading, place, text)
    noted = {note.id for note in reading.notes}
    for tries, (path, after) in enumerate(proposals(texts, place, text)):
        if tries == _MOST_TRIES:
            return None
        changed = {**texts, path: after}
        try:
            read = source.read(changed)
        except SourceError:
            continue
        if len(read.commands) != len(wanted) or {note.id for note in read.notes} - noted:
            continue
        pairs = zip(read.commands, wanted, strict=True)
        if all(_is_wanted(meaning(command), want, place, text) for command, want in pairs):
            return changed, read
    return None


class Meaning(NamedTuple):
    """A command without the lines that its parts stand on, to compare two readings."""

    argv: tuple[tuple[str, tuple[str, ...]], ...]
    environment: Mapping[str, tuple[str, tuple[str, ...]]]
    wrappers: tuple[tuple[str, ...], ...]
    container: Any


def meaning(command: Command) -> Meaning:
    """Return a command's words, variables, wrappers and container without line numbers."""
    parts = command.words, command.environment, command.wrappers, command.container
    return Meaning(*map(_without_lines, parts))


def _is_wanted(after: Meaning, wanted: Meaning, place: ValuePlace, text: str | None) -> bool:
    """Return whether a command ``after`` an edit means the same as ``wanted``.

    A new variable may be added to other commands too, and wrapper words may hold the variable's
    assignment.
    """
    added = after.environment.get(place.name)
    if place.form == "new-variable" and added is not None and added == (text, ()):
        # Programs beside those that read it may have it too.
        wanted = wanted._replace(environment={**wanted.environment, place.name: added})
    if after._replace(wrappers=()) != wanted._replace(wrappers=()):
        return False
    if after.wrappers == wanted.wrappers:
        return True
    assignment = f"{place.name}={place.old}"
    if text is None:
        return after.wrappers == tuple(_without(wrapper, assignment) for wrapper in wanted.wrappers)
    new = {assignment: f"{place.name}={text}"}
    return after.wrappers == tuple(tuple(new.get(w, w) for w in each) for each in wanted.wrappers)


def _without(wrapper: Sequence[str], assignment: str) -> tuple[str, ...]:
    """Return the words of a wrapper without ``assignment`` and the ``-e`` before it."""
    left: list[str] = []
    for word in wrapper:
        if word == assignment and left and left[-1] in ("-e", "--env"):
            left.pop()
        elif word not in (assignment, f"-e{assignment}", f"--env={assignment}"):
            left.append(word)
    return tuple(left)


def _without_lines(value: Any) -> Any:
    """Return a value whose Origins and Words, nested ones too, have no line numbers."""
    if isinstance(value, Origin):
        return Origin(value.source)
    if isinstance(value, Word):
        return value.text, value.unresolved
    if isinstance(value, tuple):
        return tuple(_without_lines(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _without_lines(item) for key, item in value.items()}
    return value
