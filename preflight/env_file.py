"""Environment variables as records: Docker's env files, and changes laid over what was there."""

from __future__ import annotations

import re
import stat
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path

from preflight.launch_source import Origin, SourceNote, Word

# Larger than any file that holds settings; a device or a log is not read into memory.
LARGEST_FILE_BYTES = 4 * 2**20

_QUOTED = re.compile(r"""(["']).*\1""", re.DOTALL)


def environment_words(environment: Mapping[str, str | Word]) -> dict[str, Word]:
    """The caller's variables as words; those that are words keep their origin."""
    origin = Origin("environment")
    return {
        name: value if isinstance(value, Word) else Word(value, origin)
        for name, value in environment.items()
    }


class Layers(Mapping[str, Word]):
    """``changes`` over ``base``; a change of None takes a variable away, ``clear`` takes all."""

    def __init__(
        self, base: Mapping[str, Word], changes: Mapping[str, Word | None], clear: bool = False
    ) -> None:
        self._base: Mapping[str, Word] = {} if clear else base
        self._changes = dict(changes)

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

    def __repr__(self) -> str:
        return f"Layers({dict(self)!r})"


class Variables:
    """The variables of a shell as its script goes on; each command's environment is a view of them.

    A view costs nothing to make: every change is kept with its time, and a view knows its own time.
    """

    def __init__(self, base: Mapping[str, Word]) -> None:
        self.base = base
        self.now = 0
        # Per name, the times and what the variable was from then on: its word, and if exported.
        self.times: dict[str, list[int]] = {}
        self.values: dict[str, list[tuple[Word | None, bool]]] = {}
        self._view: Mapping[str, Word] = base
        self._view_time = 0

    def state(self, name: str, time: int | None = None) -> tuple[Word | None, bool]:
        """The word that a variable has, None for none, and whether processes get it."""
        if name in self.times:
            index = bisect_right(self.times[name], self.now if time is None else time) - 1
            if index >= 0:
                return self.values[name][index]
        word = self.base.get(name)
        return word, word is not None

    def get(self, name: str) -> Word | None:
        return self.state(name)[0]

    def was_unset(self, name: str) -> bool:
        """True for a variable that the script itself took away: it is empty, not unknown."""
        return name in self.times and self.state(name)[0] is None

    def put(self, name: str, word: Word | None, exported: bool | None = None) -> None:
        """Sets a variable, or takes it away; stays exported as it was unless told otherwise."""
        if exported is None:
            exported = self.state(name)[1]
        self.now += 1
        self.times.setdefault(name, []).append(self.now)
        self.values.setdefault(name, []).append((word, exported))

    def back_to(self, time: int, changed: list[str]) -> None:
        """Gives the ``changed`` names what they had at ``time``: the end of a subshell."""
        for name in dict.fromkeys(changed):
            self.put(name, *self.state(name, time))

    def environment(self) -> Mapping[str, Word]:
        """What a process started now gets; later changes do not show in it."""
        if self._view_time != self.now:
            self._view, self._view_time = _Exported(self, self.now), self.now
        return self._view


class _Exported(Mapping[str, Word]):
    def __init__(self, variables: Variables, time: int) -> None:
        self.variables = variables
        self.time = time

    def __getitem__(self, name: str) -> Word:
        word, exported = self.variables.state(name, self.time)
        if word is None or not exported:
            raise KeyError(name)
        return word

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys([*self.variables.base, *self.variables.times])
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"environment({dict(self)!r})"


def read_env_file(
    text: str, name: str, environment: Mapping[str, str | Word]
) -> tuple[dict[str, Word], tuple[SourceNote, ...]]:
    """What ``docker run --env-file`` makes of a file: no quotes, no expansion, the last one wins.

    A name alone takes the value of ``environment``, and nothing where that has none. Never raises.
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
                notes.append(SourceNote("env-file-quotes", _quotes(key, value), origin))
        elif key in environment:
            inherited = environment[key]
            variables[key] = inherited if isinstance(inherited, Word) else Word(inherited, origin)
    return variables, tuple(notes)


def _quotes(key: str, value: str) -> str:
    bare = value.strip()[1:-1]
    return f"{key}={value}: Docker keeps the quotes as part of the value; write {key}={bare}"


def read_small_file(path: str) -> str | None:
    """The text of a regular file of at most 4 MiB; None for anything else. Never raises."""
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE_BYTES:
            return None
        return Path(path).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
