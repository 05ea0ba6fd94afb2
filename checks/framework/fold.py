"""Join many names into a short text, and findings that differ in their subject alone into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from checks.framework.finding import Finding, Subject
from checks.framework.regex import regex

# A number that counts: zeros in front are part of a name, and gpu009 and gpu010 are no range.
_COUNTED = regex(r"(.*?(?<!\d))(0|[1-9]\d{0,8})", re.DOTALL | re.ASCII)


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Join findings that differ only in their subject, each at the place of the first such one."""
    subjects: dict[Finding, list[str]] = {}
    for finding in findings:
        subjects.setdefault(finding._replace(subject=""), []).append(finding.subject)
    return [
        finding._replace(subject=fold_names(names) if len(names) > 1 else names[0])
        for finding, names in subjects.items()
    ]


def fold_names(names: Sequence[str]) -> Subject:
    """Join names into one subject: eight ranks become ``rank 0-7 (each of 8)``."""
    known = [name for name in names if isinstance(name, Subject)]
    kinds = {name.kind for name in known} if len(known) == len(names) else {""}
    ranks = tuple(dict.fromkeys(rank for name in known for rank in name.ranks))
    text = f"{join_names(names)} (each of {len(names)})"
    return Subject(text, kinds.pop() if len(kinds) == 1 else "", ranks)


def join_names(names: Iterable[str]) -> str:
    """Return the names as one text, in their order: ``mlx5_0-3, mlx5_8, rank 0``.

    Neighbours whose number at the end counts up by one become a range; equal parts are written
    once.
    """
    runs: list[tuple[str, list[int]]] = []  # what stands before the number, and the numbers
    for name in names:
        match = _COUNTED.fullmatch(name)
        before, numbers = (match[1], [int(match[2])]) if match else (name, [])
        if numbers and runs and runs[-1][0] == before and runs[-1][1][-1:] == [numbers[0] - 1]:
            runs[-1][1].extend(numbers)
        else:
            runs.append((before, numbers))
    # Processes that one line starts have one name: it is said once.
    return ", ".join(dict.fromkeys(f"{before}{ranges(numbers)}" for before, numbers in runs))


def fold_alike(names: Sequence[str], most: int) -> str:
    """Join names that differ in one number: ``mlx5_0-3,8 port 1``.

    Of names that differ otherwise, write the first ``most`` and how many more names exist.
    """
    folded_names = fold_one_number(names)
    if folded_names is not None:
        return folded_names
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def fold_one_number(names: Sequence[str]) -> str | None:
    """Return ``mlx5_0-3,8 port 1`` for names that differ in exactly one number.

    Returns:
        None if they differ otherwise or not at all, or if that number has leading zeros.
    """
    split = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(parts[::2]) for parts in split}) == 1:
        varying = [
            at for at in range(1, len(split[0]), 2) if len({parts[at] for parts in split}) > 1
        ]
        written = {parts[at] for parts in split for at in varying}
        if len(varying) == 1 and all(digits == str(int(digits)) for digits in written):
            at = varying[0]
            return "".join([*split[0][:at], ranges(sorted(map(int, written))), *split[0][at + 1 :]])
    return None


def ranges(numbers: Iterable[int]) -> str:
    """Return ``0-3,8`` of ascending numbers, as the kernel lists them; "" without numbers."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)
