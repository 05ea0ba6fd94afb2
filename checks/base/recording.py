"""Asks a root each thing once, and remembers what it said.

Whoever reads facts through it sees one state of the host, however often and from however many
threads a file is asked for, and what was remembered is what a capture saves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from checks.base.root import Root, call_key
from checks.base.unknown import Unknown

Answer = TypeVar("Answer")


class Answers(NamedTuple):
    """What a root answered, by the name that was asked for; Unknown with its reason included.

    texts: whole files. folders: their entries, sorted. links: real names. modes: ``st_mode``.
    calls: plain data, by ``call_key``.
    """

    texts: dict[str, str | Unknown]
    folders: dict[str, tuple[str, ...] | Unknown]
    links: dict[str, str | Unknown]
    modes: dict[str, int | Unknown]
    calls: dict[str, Any | Unknown]


def no_answers() -> Answers:
    """An empty record to fill."""
    return Answers({}, {}, {}, {}, {})


class RecordingRoot(Root):
    """A root in front of another; ``answers`` grows with every question."""

    def __init__(self, inner: Root) -> None:
        super().__init__()
        self._inner = inner
        self.answers = no_answers()

    @property
    def live(self) -> bool:
        return self._inner.live

    def locate(self, name: str) -> str:
        return self._inner.locate(name)

    def text(self, name: str) -> str | Unknown:
        return _once(self.answers.texts, name, self._inner.text)

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        return _once(self.answers.folders, name, self._inner.names)

    def link(self, name: str) -> str | Unknown:
        return _once(self.answers.links, name, self._inner.link)

    def mode(self, name: str) -> int | Unknown:
        return _once(self.answers.modes, name, self._inner.mode)

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        key = call_key(name, *arguments)
        return _once(self.answers.calls, key, lambda _: self._inner.call(name, *arguments))


def _once(known: dict[str, Answer], key: str, ask: Callable[[str], Answer]) -> Answer:
    """Of two threads that ask at the same time, both get the answer that was there first."""
    if key in known:
        return known[key]
    return known.setdefault(key, ask(key))
