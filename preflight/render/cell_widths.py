"""How wide the cells of a table may be, so that its lines fit a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

# What no cell is broken below: a word of most sentences.
LEAST_CELL = 12


def cell_widths(
    lines: Sequence[Sequence[str]],
    width: int,
    firm: Collection[int],
    least: int = LEAST_CELL,
    whole_words: bool = False,
) -> list[int | None]:
    """None where a column may have what it takes; the widest give way until a line fits.

    firm: columns that are never broken. whole_words: nor is a word (a name to copy), though a line
    is then too long.
    """
    floors = [least] * len(lines[0])
    if whole_words:
        floors = [
            max([least, *(len(word) for line in lines for word in line[at].split())])
            for at in range(len(lines[0]))
        ]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    limits: list[int | None] = [None] * len(widths)
    while over > 0:
        loose = [at for at in range(len(widths)) if at not in firm and widths[at] > floors[at]]
        if not loose:
            break
        widest = max(loose, key=lambda at: widths[at])
        widths[widest] -= 1
        limits[widest] = widths[widest]
        over -= 1
    return limits
