"""Environment variables as records: a shell's as its script goes on, and changes over others."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from preflight.launches.source import Origin, Word

# What a variable is: its word, None for none, and whether processes get it.
State = tuple["Word | None", bool]
_NEVER: tuple[list[int], list[State]] = ([], [])


# Without these SGLang or vLLM ends at its start: to take them for absent is a verdict.
_NEEDED = ("MOONCAKE_MASTER", "MOONCAKE_CONFIG_PATH")


def unknown_needed(variables: Mapping[str, Word], origin: Origin) -> dict[str, Word]:
    """Return the variables that a server needs and ``variables`` lacks, each as an unknown word.

    A file or host that is not read may set them; origin: where the launch names that.
    """
    return {name: Word(f"${name}", origin, (name,)) for name in _NEEDED if name not in variables}


def may_be_absent(word: Word, name: str) -> bool:
    """Return whether a variable may not exist: only a part that was not read may set it."""
    return word.unresolved == (name,) and word.text == f"${name}"


def environment_words(environment: Mapping[str, str | Word]) -> dict[str, Word]:
    """Return the caller's variables as words; those that are words keep their origin."""
    origin = Origin("environment")
    return {
        name: value if isinstance(value, Word) else Word(value, origin)
        for name, value in environment.items()
    }


def matching(environment: Mapping[str, Word], start: re.Pattern[str]) -> Iterator[tuple[str, Word]]:
    """Yield name and word of each variable whose name begins with a match of ``start``."""
    if isinstance(environment, Layers):
        yield from environment.matching(start)
        return
    candidates = environment.named(start) if isinstance(environment, _Exported) else environment
    for name in candidates:
        if start.match(name) and (word := environment.get(name)) is not None:
            yield name, word


class Layers(Mapping[str, Word]):
    """The variables of ``base`` with ``changes`` over them, which are not copied.

    A change to None takes a variable away; ``clear`` takes away all of ``base``.
    """

    __slots__ = ("_base", "_changes")

    def __init__(
        self, base: Mapping[str, Word], changes: Mapping[str, Word | None], clear: bool = False
    ) -> None:
        self._base: Mapping[str, Word] = {} if clear else base
        self._changes = changes

    def __getitem__(self, name: str) -> Word:
        word = self._changes[name] if name in self._changes else self._base[name]
        if word is None:
            raise KeyError(name)
        return word

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._base if name not in self._changes)
        yield from (name for name, word in self._changes.items() if word is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def matching(self, start: re.Pattern[str]) -> Iterator[tuple[str, Word]]:
        """Yield name and word of each variable whose name begins with a match of ``start``."""
        for name, word in matching(self._base, start):
            if name not in self._changes:
                yield name, word
        for name, changed in self._changes.items():
            if changed is not None and start.match(name):
                yield name, changed


class Variables:
    """A shell's variables over time.

    The environment at any time is a view that costs no copy, and in which later changes do not
    show.
    """

    def __init__(self, base: Mapping[str, Word], around: Variables | None = None) -> None:
        """Start with the script's environment, ``base``.

        Args:
            around: Variables of an outer scope that can be read here, exported or not; processes do
                not get them from here.
        """
        self.base = base
        self._around = around
        self.now = 0
        # What the script changed, as it is now; and per name when, and to what, it ever changed.
        self._changed: dict[str, State] = {}
        self._history: dict[str, tuple[list[int], list[State]]] = {}
        self._to_export: set[str] = set()  # names that are exported once they have a value
        self._view: Mapping[str, Word] = base
        self._view_time = 0
        # Per start how many names of the history were looked at, and those that match it.
        self._matching: dict[re.Pattern[str], tuple[int, list[str]]] = {}

    def state(self, name: str, time: int) -> State:
        """Return the state of a variable at ``time``, which is the value that ``now`` had then."""
        times, states = self._history.get(name, _NEVER)
        if index := bisect_right(times, time):
            return states[index - 1]
        word = self.base.get(name)
        return word, word is not None

    def get(self, name: str) -> Word | None:
        state = self._changed.get(name)
        if state is not None:
            return state[0]
        word = self.base.get(name)
        return self._around.get(name) if word is None and self._around is not None else word

    def was_unset(self, name: str) -> bool:
        """Return whether the script itself took a variable away: it is empty then, not unknown."""
        state = self._changed.get(name)
        if state is None and self._around is not None:
            return self._around.was_unset(name)
        return state is not None and state[0] is None

    def put(self, name: str, word: Word | None, exported: bool | None = None) -> None:
        """Set a variable, or with None take it away.

        Args:
            exported: None for no change of that.
        """
        before = self._changed.get(name)
        if exported is None:
            marked = name in self.base or name in self._to_export
            exported = before[1] if before is not None else marked
        self.now += 1
        self._changed[name] = state = (word, exported)
        self._remember(name, state)

    def _remember(self, name: str, state: State) -> None:
        times, states = self._history.setdefault(name, ([], []))
        times.append(self.now)
        states.append(state)

    def export_later(self, name: str) -> None:
        """Export a variable as soon as it has a value: ``export A; A=1``."""
        before = self._changed.get(name)
        if before is None:
            self._to_export.add(name)
        else:
            self.put(name, before[0], exported=True)

    def state_now(self, name: str) -> State | None:
        """Return the state that the script gave a variable; None if the script never touched it."""
        return self._changed.get(name)

    def restore(self, name: str, state: State | None) -> None:
        """Take a change back: give a variable the state that ``state_now`` returned before."""
        self.now += 1
        if state is None:
            self._changed.pop(name, None)
            word = self.base.get(name)
            kept: State = (word, word is not None)
        else:
            self._changed[name] = kept = state
        self._remember(name, kept)

    def names(self) -> Iterator[str]:
        """Return every name that the environment or the script ever set."""
        return iter(dict.fromkeys([*self.base, *self._history]))

    def named(self, start: re.Pattern[str], time: int) -> list[str]:
        """Return the names of ``names()`` that match ``start`` and were first set by ``time``."""
        if start not in self._matching:
            self._matching[start] = 0, [*filter(start.match, self.base)]
        seen, matches = self._matching[start]
        if seen < len(self._history):
            new = islice(self._history, seen, None)
            matches += (name for name in new if start.match(name) and name not in self.base)
            self._matching[start] = len(self._history), matches
        return matches[: bisect_right(matches, time, key=self._first_time)]

    def _first_time(self, name: str) -> int:
        return 0 if name in self.base else self._history[name][0][0]

    def environment(self) -> Mapping[str, Word]:
        """Return the environment of a process started now; later changes do not show in it."""
        if self._view_time != self.now:
            self._view, self._view_time = _Exported(self, self.now), self.now
        return self._view


class _Exported(Mapping[str, Word]):
    __slots__ = ("_time", "_variables")

    def __init__(self, variables: Variables, time: int) -> None:
        self._variables = variables
        self._time = time

    def __getitem__(self, name: str) -> Word:
        word: Word | None = self.get(name)
        if word is None:
            raise KeyError(name)
        return word

    def get(self, name: str, default: Any = None) -> Any:
        word, exported = self._variables.state(name, self._time)
        return word if exported and word is not None else default

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._variables.names() if name in self)

    def named(self, start: re.Pattern[str]) -> list[str]:
        """Return the names that match ``start``; not all of them are set at this time."""
        return self._variables.named(start, self._time)

    def __len__(self) -> int:
        return sum(1 for _ in self)
