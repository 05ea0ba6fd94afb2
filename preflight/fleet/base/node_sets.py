"""Many node names as one text, as Slurm and ClusterShell write them: ``gpu[001-063,070]``.

``expand(fold(names))`` gives the names back, sorted. One number of a name is folded: the last of
its first label, so that ``gpu012.rack3.example`` counts by 12.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from preflight.base.usage_error import UsageError

# A typing error such as [1-1000000000] must not fill the memory; the largest fleets have a tenth.
MOST_NODES = 100_000
# RFC 1035 section 2.3.4 has 253 of them in a host name.
LONGEST_NAME = 253
# Letters of a host name, and those of addresses and of what schedulers call their nodes.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")

_ADDRESS = re.compile(r"[0-9.]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_NUMBER = re.compile(r"[0-9]+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?")
_PART = re.compile(r"\[([^\[\]]*)\]")
_WORD = re.compile(r"(?:\[[^\[\]]*\]|[^\s,])+")


class _Split(NamedTuple):
    """A name around its counted number, "" where it has none."""

    before: str
    number: str
    after: str


def is_name(text: str) -> bool:
    """Return whether ``text`` can name a node, and stand in a node set as it is."""
    return len(text) <= LONGEST_NAME and NAME.fullmatch(text) is not None


def fold(names: Iterable[str], *, slurm: bool = False) -> str:
    """Return the node set of names, as ``gpu[001-063],login``: sorted by number; "" for none.

    slurm: where Slurm is to read it. It refuses what stands behind a bracket ("Invalid hostlist":
    seen with 22.05), so ``gpu[1-2].example`` is then two names.
    """
    return _folded(tuple(names), slurm)


@lru_cache(maxsize=64)  # most lists of a fleet's nodes are the same few
def _folded(names: tuple[str, ...], slurm: bool) -> str:
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for before, number, after in sorted({_split(name) for name in names}, key=_order):
        groups.setdefault((before, after, number != ""), []).append(number)
    return ",".join(
        ",".join(f"{before}{number}{after}" for number in numbers)
        if slurm and after
        else _group(before, after, numbers)
        for (before, after, _), numbers in groups.items()
    )


def in_order(names: Iterable[str]) -> list[str]:
    """Return each name once, ``gpu2`` before ``gpu10``."""
    return ["".join(parts) for parts in sorted({_split(name) for name in names}, key=_order)]


def expand(text: str) -> list[str]:
    """Return the names of a node set, each once, in the order of their numbers.

    Raises UsageError.
    """
    names: set[str] = set()
    for word in _words(text):
        names.update(_names(word, text, MOST_NODES - len(names)))
    return in_order(names)


def _split(name: str) -> _Split:
    """Split a name around the last number of its first label, an address around its last number."""
    label = name if _ADDRESS.fullmatch(name) else name.partition(".")[0]
    found = list(_NUMBER.finditer(label)) or list(_NUMBER.finditer(name))
    if not found:
        return _Split(name, "", "")
    start, end = found[-1].span()
    return _Split(name[:start], name[start:end], name[end:])


def _order(split: _Split) -> tuple[str, str, int, int]:
    before, number, after = split
    return before, after, int(number or -1), len(number)


def _group(before: str, after: str, numbers: list[str]) -> str:
    """Return ``gpu[001-063,070]``. numbers: digits, ascending, of names that share the rest."""
    if not numbers[0]:
        return before + after
    spans: list[tuple[str, str]] = []
    # What would carry a span on, as it would be written (08, 09, 10): that span's place.
    waiting: dict[str, int] = {}
    for number in numbers:
        at = waiting.pop(number, None)
        if at is None:
            at = len(spans)
            spans.append((number, number))
        else:
            spans[at] = (spans[at][0], number)
        waiting[str(int(number) + 1).zfill(len(spans[at][0]))] = at
    if len(spans) == 1 and spans[0][0] == spans[0][1]:
        return f"{before}{spans[0][0]}{after}"
    written = ",".join(low if low == high else f"{low}-{high}" for low, high in spans)
    return f"{before}[{written}]{after}"


def _words(text: str) -> list[str]:
    """Split at commas and spaces that are in no bracket."""
    if set("[]") & set(_PART.sub("", text)):
        raise _refused(text, "its brackets do not match")
    return _WORD.findall(text)


def _names(word: str, text: str, most: int) -> list[str]:
    """Return the names of ``word``, with each of its brackets replaced by each of its numbers."""
    if word.startswith("@"):
        raise _refused(text, f"{word} is a group, and no group can be looked up here")
    names = [""]
    parts = _PART.split(word)
    for at, part in enumerate(parts):
        choices = _numbers(part, text, most) if at % 2 else [part]
        if len(names) * len(choices) > most:
            raise _refused(text, f"it has more than {MOST_NODES} names")
        names = [name + choice for name in names for choice in choices]
    for name in names:
        if not is_name(name):
            raise _refused(text, f"{name[:40]!r} cannot be the name of a node")
    return names


def _numbers(ranges: str, text: str, most: int) -> list[str]:
    """Return ``001-003,9`` as ``001``, ``002``, ``003``, ``9``: as wide as the first of a range."""
    found: list[str] = []
    for range_ in ranges.split(","):
        match = _RANGE.fullmatch(range_.strip())
        if match is None or max(map(len, match.groups(""))) > LONGEST_NAME:
            raise _refused(text, f"[{ranges[:40]}] holds no range of numbers")
        low, high, step = match[1], match[2] or match[1], int(match[3] or 1)
        if step == 0 or int(high) < int(low):
            raise _refused(text, f"[{range_.strip()[:40]}] has nothing in it")
        if (int(high) - int(low)) // step + len(found) >= most:
            raise _refused(text, f"it has more than {MOST_NODES} names")
        width = len(low)
        found += [str(number).zfill(width) for number in range(int(low), int(high) + 1, step)]
    return found


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"node set {text[:60]!r}: {why}; write it as gpu[001-064,070],login1")
