"""Tables and sentences for a terminal: as wide as it is, and no wider."""

import textwrap
from collections.abc import Collection, Sequence

# What no cell is broken below: a word of most sentences.
LEAST_CELL = 12
# The same of a table that is left where it is too wide all the same: a shorter word.
LEAST_FITTED_CELL = 10


def cell_widths(
    lines: Sequence[Sequence[str]],
    width: int,
    firm: Collection[int],
    least: int = LEAST_CELL,
    whole_words: bool = False,
) -> list[int | None]:
    """Return each column's width limit, None if it needs none, so that a row fits into ``width``.

    Args:
        lines: Rows of cells. The widest columns shrink first, but none below ``least``.
        firm: Indexes of columns that do not shrink.
        whole_words: No column is narrower than its longest word. If no column can shrink any more,
            rows stay wider than ``width``.
    """
    columns = list(zip(*lines, strict=False))
    floors = [least] * len(columns)
    if whole_words:
        floors = [max([least, *map(len, " ".join(column).split())]) for column in columns]
    widths = [max(map(len, column)) for column in columns]
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


def can_encode(characters: str, encoding: str | None) -> bool:
    """Tell whether a stream's encoding has the characters; None is ASCII."""
    try:
        characters.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def table(
    rows: Sequence[Sequence[str]],
    heads: Sequence[str],
    *,
    right: Collection[int] = (),
    widths: Sequence[int | None] | int | None = None,
    margin: str = "",
) -> str:
    """Return a table, with a line below its heads if it has some.

    Args:
        right: Indexes of columns aligned to the right.
        widths: One for each column, or one for all, to which cells are wrapped; None does not wrap.
        margin: Stands in front of each line.
    """
    from tabulate import tabulate

    aligns = ["right" if at in right else "left" for at in range(len(heads or rows[0]))]
    text = tabulate(
        rows,
        heads,
        tablefmt="simple" if heads else "plain",
        disable_numparse=True,
        colalign=aligns if rows else None,
        maxcolwidths=widths,
    )
    return "\n".join(f"{margin}{line}".rstrip() for line in text.splitlines())


def fitted_table(
    rows: Sequence[Sequence[str]],
    heads: Sequence[str],
    width: int,
    *,
    right: Collection[int] = (),
    firm: Collection[int] = (),
    margin: str = "",
) -> str:
    """Return a table whose words are whole; if it is wider than ``width``, a sentence for each row.

    Args:
        right: Indexes of columns aligned to the right. Those and the columns of ``firm`` are never
            wrapped.
        margin: Stands in front of each line.
    """
    unbroken = {*firm, *right}
    limits = cell_widths([heads, *rows], width - len(margin), unbroken, LEAST_FITTED_CELL, True)
    text = table(rows, heads, right=right, widths=limits, margin=margin)
    if max(map(len, text.splitlines())) <= width:
        return text
    # tabulate gives each head two columns more; heads that are a row get none.
    taken = [
        limit or max(map(len, cells)) for limit, *cells in zip(limits, heads, *rows, strict=True)
    ]
    lines = [heads, ["-" * each for each in taken], *rows]
    if len(margin) + sum(taken) + 2 * (len(taken) - 1) <= width:
        return table(lines, (), right=right, widths=limits, margin=margin)
    sentences = []
    for row in rows:
        cells = [f"{head} {cell}".strip() for head, cell in zip(heads, row, strict=True) if cell]
        if row[0]:
            cells[:1] = []
        first = f"{row[0]}: " if row[0] else ""
        sentences.append(filled(f"{margin}{first}{', '.join(cells)}", width, 2))
    return "\n".join(sentences)


def wrapped(text: str, width: int, further: int = 4, hyphens: bool = False) -> list[str]:
    """Wrap a text to ``width`` columns and return the lines; a word is never broken.

    Every line is indented as ``text`` is, those after the first by ``further`` spaces more.

    Args:
        hyphens: A line may end after a hyphen.
    """
    inner = text.lstrip(" ")
    margin = text[: len(text) - len(inner)]
    return textwrap.wrap(
        inner,
        width,
        initial_indent=margin,
        subsequent_indent=margin + " " * further,
        break_long_words=False,
        break_on_hyphens=hyphens,
    )


def filled(text: str, width: int, further: int = 4) -> str:
    """Return the lines of ``wrapped`` as one text."""
    return "\n".join(wrapped(text, width, further))


def headed(word: str, rest: str, width: int, painted: str, margin: str = "") -> str:
    """Return ``word: rest`` filled, the word as ``painted``: colour codes take no room."""
    return filled(f"{margin}{word}: {rest}", width).replace(word, painted, 1)
