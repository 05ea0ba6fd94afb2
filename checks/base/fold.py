"""One finding for what is the same of several processes: eight ranks are one line, not eight."""

from __future__ import annotations

import re
from collections.abc import Iterable

from checks.base.finding import Finding


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that differ in their subject alone become one, in the order of their first."""
    subjects: dict[Finding, list[str]] = {}
    for finding in findings:
        subjects.setdefault(finding._replace(subject=""), []).append(finding.subject)
    return [
        finding._replace(subject=fold_names(names) if len(names) > 1 else names[0])
        for finding, names in subjects.items()
    ]


def fold_names(names: list[str]) -> str:
    """``rank 0-7 (each of 8)``: what counts up is a range, however much else there is."""
    shown: list[tuple[str, int | None, int]] = []  # what stands before the number, first, last
    for name in names:
        part = re.fullmatch(r"(.*?)(\d{1,9})", name)
        # Zeros in front are part of a name: gpu009 and gpu010 are no range of numbers.
        number = None if part is None or str(int(part[2])) != part[2] else int(part[2])
        if part is None or number is None:
            shown.append((name, None, 0))
        elif shown and shown[-1] == (part[1], shown[-1][1], number - 1):
            shown[-1] = (part[1], shown[-1][1], number)
        else:
            shown.append((part[1], number, number))
    return f"{', '.join(_range(*one) for one in shown)} (each of {len(names)})"


def _range(prefix: str, first: int | None, last: int) -> str:
    if first is None:
        return prefix
    return f"{prefix}{first}" if first == last else f"{prefix}{first}-{last}"
