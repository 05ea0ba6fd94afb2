"""The user's own file with other sizes in it: one token at a time, each edit proven by reading it.

A file is never written from what was understood of it: a token of its text is replaced, the whole
is read again as before, and the edit stands only where the reading is the one that is wanted, word
for word, and nothing else of the launch has changed. What no edit brings about is said instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from preflight.fit.edit_proposals import proposals
from preflight.fit.launch_texts import LaunchTexts
from preflight.fit.launch_values import (
    KEY,
    Knobs,
    Place,
    Values,
    changes,
    json_with,
    with_text,
)
from preflight.launches.env_files import read_small_file
from preflight.launches.source import Command, Origin, Reading, SourceError, Word

# Edits that are tried for one place before it is given up.
_MOST_TRIES = 400
# What only running a launch can tell stays in its words as it is written.
_COMPUTED = re.compile(r"[$`]")


class Edit(NamedTuple):
    """One file, before and after."""

    path: str
    before: str
    after: str


class Advice(NamedTuple):
    """What to change by hand, and why no edit is made. text: None takes it away."""

    name: str
    text: str | None
    where: str
    why: str


class Edited(NamedTuple):
    """reading: of the edited files."""

    edits: tuple[Edit, ...]
    advice: tuple[Advice, ...]
    reading: Reading


def edited(source: LaunchTexts, sizes: Knobs, values: Values) -> Edited:
    """The files of ``source`` with ``values``, as far as they can be edited for certain."""
    texts = dict(source.texts)
    reading = source.read(texts)
    advice: list[Advice] = []
    more: list[Edit] = []
    for knob, value in changes(sizes, values):
        text = None if value == 0 and knob is sizes.arena else knob.spell(value)
        for place in sorted(knob.places, key=lambda place: -place.at):
            if place.kind == "file":
                edit = _configuration(source, place, text or "0")
                if isinstance(edit, Edit):
                    more += [edit] if edit.after != edit.before else []
                else:
                    advice.append(Advice(KEY, text, place.name, edit))
                continue
            if _says(reading, place, text):
                continue
            computed = place.written and _COMPUTED.search(place.old) is not None
            found = None if computed else _try(source, texts, reading, place, text)
            if found is None:
                why = _why(place)
                advice.append(Advice(place.name, text, str(place.origin), why))
            else:
                texts, reading = found
    edits = tuple(
        Edit(path, before, texts[path])
        for path, before in source.texts.items()
        if texts[path] != before
    )
    return Edited((*edits, *more), tuple(advice), reading)


def by_hand(reading: Reading, sizes: Knobs, values: Values) -> Edited:
    """Every value as something to change, for a launch that is no file here."""
    advice = []
    for knob, value in changes(sizes, values):
        text = None if value == 0 and knob is sizes.arena else knob.spell(value)
        for place in knob.places:
            advice.append(Advice(place.name, text, str(place.origin), "the launch is no file here"))
    return Edited((), tuple(advice), reading)


def _configuration(source: LaunchTexts, place: Place, text: str) -> Edit | str:
    """A JSON configuration with another segment, or why it is not edited."""
    path = source.beside(place.name)
    before = None if path is None else read_small_file(path)
    if path is None or before is None:
        return "it is a file of the host, which is not this one"
    after = json_with(before, text)
    try:
        old, new = json.loads(before), json.loads(after)
    except ValueError:
        return "it is no JSON that can be edited for certain"
    wanted = int(text) if text.isdecimal() else text
    if not isinstance(old, dict) or new != {**old, KEY: wanted}:
        return "it is no JSON that can be edited for certain"
    return Edit(path, before, after)


def _why(place: Place) -> str:
    if place.written and _COMPUTED.search(place.old):
        return "it is computed when the launch runs"
    if place.origin is not None and place.origin.source == "environment":
        return "it comes from the environment of the caller"
    if not place.written:
        return "it is not written there yet"
    return "the value is put together from others, or is used for something else as well"


def _says(reading: Reading, place: Place, text: str | None) -> bool:
    wanted = [with_text(reading.commands[index], place, text) for index in place.commands]
    return all(
        meaning(reading.commands[index]) == meaning(command)
        for index, command in zip(place.commands, wanted, strict=True)
    )


def _try(
    source: LaunchTexts,
    texts: Mapping[str, str],
    reading: Reading,
    place: Place,
    text: str | None,
) -> tuple[dict[str, str], Reading] | None:
    """The first edit that is read as ``place`` with ``text``, and as before everywhere else."""
    commands = list(reading.commands)
    for index in place.commands:
        commands[index] = with_text(commands[index], place, text)
    wanted = [meaning(command) for command in commands]
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
        if all(_alike(meaning(command), want, place, text) for command, want in pairs):
            return changed, read
    return None


class Meaning(NamedTuple):
    """A command without the lines that it stands on."""

    words: tuple[tuple[str, tuple[str, ...]], ...]
    environment: Mapping[str, tuple[str, tuple[str, ...]]]
    wrappers: tuple[tuple[str, ...], ...]
    container: Any


def meaning(command: Command) -> Meaning:
    return Meaning(
        tuple((word.text, word.unresolved) for word in command.words),
        {name: (word.text, word.unresolved) for name, word in command.environment.items()},
        command.wrappers,
        _without_lines(command.container),
    )


def _alike(found: Meaning, wanted: Meaning, place: Place, text: str | None) -> bool:
    """The same; ``docker run -e NAME=VALUE`` says a variable in the wrapper too."""
    added = found.environment.get(place.name)
    if place.kind == "new-variable" and added is not None and added == (text, ()):
        # Programs beside those that read it may have it too.
        wanted = wanted._replace(environment={**wanted.environment, place.name: added})
    if found._replace(wrappers=()) != wanted._replace(wrappers=()):
        return False
    if found.wrappers == wanted.wrappers:
        return True
    said = f"{place.name}={place.old}"
    if text is not None:
        swapped = tuple(
            tuple(f"{place.name}={text}" if word == said else word for word in words)
            for words in wanted.wrappers
        )
        return found.wrappers == swapped
    return found.wrappers == tuple(_without(words, said) for words in wanted.wrappers)


def _without(words: Sequence[str], said: str) -> tuple[str, ...]:
    """Without ``-e NAME=VALUE``."""
    left: list[str] = []
    for word in words:
        if word == said:
            if left and left[-1] in ("-e", "--env"):
                left.pop()
            continue
        if word not in (f"-e{said}", f"--env={said}"):
            left.append(word)
    return tuple(left)


def _without_lines(value: Any) -> Any:
    if isinstance(value, Origin):
        return Origin(value.source)
    if isinstance(value, Word):
        return value.text, value.unresolved
    if isinstance(value, tuple):
        return tuple(_without_lines(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _without_lines(item) for key, item in value.items()}
    return value
