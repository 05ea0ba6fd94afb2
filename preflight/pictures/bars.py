"""The memory map for a terminal: a bar for each place, and a table of its parts.

Letters tell the parts apart; shades and colours help. Plain: ASCII alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.base.one_line import clean
from preflight.pictures.memory_map import KINDS, Bar, MemoryMap, MemoryPlace, known_bars, table_rows
from preflight.render.text import can_encode, table, wrapped

Paint = Callable[[str, str], str]

# Where the memory ends and what is asked for does not.
END, PLAIN_END = "┃", "|"
# A part so wide has room for its letter within its shade.
LETTERED = 3


def draws_blocks(encoding: str | None) -> bool:
    """Return whether an encoding has the shades and the curve's dots."""
    return can_encode("█▓▒░·╳─┃⣿", encoding)


def bars_text(memory_map: MemoryMap, paint: Paint, width: int, plain: bool) -> str:
    """Return bars, their notes, and a table of all parts in bytes; no final newline."""
    lines = ["Memory after this launch" if memory_map.with_launch else "Memory of this host"]
    for place in memory_map.places:
        lines += _place(memory_map, place, paint, width, plain)
    places = memory_map.places
    rows = table_rows(known_bars(places).values())[:-1]
    beside = _BESIDE_NAME + max((len(row.name) for row in rows), default=0)
    count = max(1, (width - beside) // _SIZE_COLUMNS)  # as many as fit beside each other
    tables = [_table(places[at : at + count], width) for at in range(0, len(places), count)]
    return "\n".join([*lines, "", "\n\n".join(filter(None, tables))]).rstrip()


def _place(
    memory_map: MemoryMap, place: MemoryPlace, paint: Paint, width: int, plain: bool
) -> list[str]:
    """Write a line that names the place, its bar, and its notes."""
    if isinstance(place.now, Unknown):
        return _lines(f"{place.name}: unknown: {clean(place.now.reason)}", width)
    bar = place.shown
    if isinstance(bar, Unknown):
        # What is there now is known all the same; only what the launch makes of it is not.
        message = f"{_named(place.name, place.now)}; with the launch unknown: {clean(bar.reason)}"
        return [*_lines(message, width), f"  {_drawn(place.now, paint, width - 2, plain)}"]
    lines = _lines(_named(place.name, bar), width)
    if bar.parts:
        # Brackets and the margin aside; each part has a column.
        room = max(len(bar.parts), int((width - 4) * memory_map.share(bar))) + 2
        lines.append(f"  {_drawn(bar, paint, room, plain)}")
    return [*lines, *(line for note in bar.notes for line in _lines(f"  {note}", width))]


def _named(name: str, bar: Bar) -> str:
    if bar.total_bytes is None:
        return f"{name}: {format_bytes(bar.parts_bytes)}, bound to no node"
    return f"{name}: {format_bytes(bar.total_bytes)}"


def _lines(text: str, width: int) -> list[str]:
    return wrapped(text, width, 2, hyphens=True)


def _drawn(bar: Bar, paint: Paint, width: int, plain: bool) -> str:
    """Return a bar to scale between brackets; missing memory stands behind the end."""
    inside = width - 2 - bool(bar.over_bytes)
    counts = columns_of([part.bytes for part in bar.parts], inside)
    cells = [
        (char, part.kind)
        for part, count in zip(bar.parts, counts, strict=True)
        for char in _filled(part.kind, count, plain)
    ]
    if not bar.over_bytes:
        return f"[{_coloured(cells, paint)}]"
    # At least a column is over, at least one is not.
    size = bar.parts_bytes
    end = min(max(1, inside * (size - bar.over_bytes) // size), inside - 1)
    mark = paint(PLAIN_END if plain else END, "red")
    return f"[{_coloured(cells[:end], paint)}{mark}{_coloured(cells[end:], paint)}]"


def _filled(kind: str, count: int, plain: bool) -> str:
    """Return the characters of one part: its shade with its letter, or letters alone."""
    letter = KINDS[kind].letter
    if plain:
        return letter * count
    shade = KINDS[kind].shade
    if count < LETTERED or kind == "free":
        return shade * count if count >= LETTERED else letter * min(1, count) + shade * (count - 1)
    before = (count - 1) // 2
    return shade * before + letter + shade * (count - 1 - before)


def _coloured(cells: Sequence[tuple[str, str]], paint: Paint) -> str:
    """Return the text with each run of one part in its colour."""
    text = ""
    for kind, run in groupby(cells, key=lambda cell: cell[1]):
        chars, colour = "".join(char for char, _ in run), KINDS[kind].colour
        text += paint(chars, colour) if colour else chars
    return text


# The margin, a letter and the gaps beside a name; a size with its gap ("1023.99 GiB").
_BESIDE_NAME = 6
_SIZE_COLUMNS = 13


def _table(places: Sequence[MemoryPlace], width: int) -> str:
    """Return a table of all parts in bytes; empty if no part is known."""
    bars = known_bars(places)
    rows = [
        [
            "" if row.kind is None else KINDS[row.kind].letter,
            row.name,
            *(format_bytes(size) if size else "" for size in row.sizes),
        ]
        for row in table_rows(bars.values())
        if any(row.sizes)
    ]
    if not rows:
        return ""
    least = max(16, width - _BESIDE_NAME - _SIZE_COLUMNS * len(bars))
    heads = ["", "part", *bars]
    widths = [None, least, *(None for _ in bars)]
    return table(rows, heads, right=range(2, len(heads)), widths=widths, margin="  ")


def columns_of(sizes: Sequence[int], width: int) -> list[int]:
    """Return columns in proportion to ``sizes``, ``width`` in all; every size above 0 has one or
    more.

    Where more than ``width`` sizes are above 0, the largest have a column each.
    """
    filled = [at for at, size in enumerate(sizes) if size > 0]
    first = sorted(filled, key=lambda at: (-sizes[at], at))[: max(0, width)]
    columns = [int(at in first) for at in range(len(sizes))]
    # Each further column goes to whoever is furthest from its share, the first of equals.
    total = sum(sizes[at] for at in filled)
    spare = width - sum(columns)
    over = {at: max(0, sizes[at] * width - total) for at in filled}
    missing = sum(over.values())
    if spare <= 0 or not missing:
        return columns
    exact = {at: over[at] * spare for at in filled}
    for at in filled:
        columns[at] += exact[at] // missing
    left = width - sum(columns)
    for at in sorted(filled, key=lambda at: (-(exact[at] % missing), at))[:left]:
        columns[at] += 1
    return columns
