"""A launch given as words: what follows ``--`` on this project's own command lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, Word
from preflight.launches.variables import Layers, environment_words

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def read_argv(argv: Sequence[str], environment: Mapping[str, str | Word]) -> Reading:
    """The process that a command line starts, its words already split and expanded. Never raises.

    ``NAME=value`` in front of the program is taken as a shell would, which the caller's shell no
    longer does behind ``--``.
    """
    origin = Origin("command line")
    words = [Word(text, origin) for text in argv]
    changes: dict[str, Word | None] = {}
    start = 0
    while start < len(words) and _ASSIGNMENT.match(words[start].text):
        name, _, value = words[start].text.partition("=")
        changes[name] = Word(value, origin)
        start += 1
    surroundings = environment_words(environment)
    return read_words(words[start:], Layers(surroundings, changes) if changes else surroundings)
