"""Names that count up, in few words."""

from __future__ import annotations

import re
from collections.abc import Iterable


def natural(name: str) -> tuple[str, int]:
    """Sorts ``mlx5_10`` behind ``mlx5_9``."""
    match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL | re.ASCII)
    return (match[1], int(match[2])) if match else (name, -1)


def without_source(names: Iterable[str]) -> dict[str, str]:
    """Each name without ``run.sh:2 ``, the line of the launch, where that tells nobody apart."""
    given = list(dict.fromkeys(names))
    short = [re.sub(r"^\S*:\d+ (?=.)", "", name) for name in given]
    return dict(zip(given, short if len(set(short)) == len(given) else given, strict=True))


def folded(names: Iterable[str]) -> str:
    """``mlx5_0-3, mlx5_8, rank 0`` of the names in their order."""
    runs: list[tuple[str, int, int]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(0|[1-9]\d{0,8})", name, re.DOTALL | re.ASCII)
        prefix, number = (match[1], int(match[2])) if match else (name, -1)
        if runs and number > 0 and (prefix, number - 1) == (runs[-1][0], runs[-1][2]):
            runs[-1] = (prefix, runs[-1][1], number)
        else:
            runs.append((prefix, number, number))
    return ", ".join(
        prefix if first < 0 else f"{prefix}{first}" if first == last else f"{prefix}{first}-{last}"
        for prefix, first, last in runs
    )
