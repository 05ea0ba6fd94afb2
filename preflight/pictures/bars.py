"""The memory map for a terminal: a bar for each place, and a table of its parts.

Letters tell the parts apart; shades and colours help. Plain: ASCII alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    tables = [_table(chunk, width) for chunk in _chunks(memory_map.places, width)]
    return "\n".join([*lines, "", "\n\n".join(table for table in tables if table)]).rstrip()


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
    inside = width - 2 - (1 if bar.over_bytes else 0)
    counts = columns_of([part.bytes for part in bar.parts], inside)
    cells = [
        (char, part.kind)
        for part, count in zip(bar.parts, counts, strict=True)
        for char in _filled(part.kind, count, plain)
    ]
    end = len(cells)
    if bar.over_bytes:
        size = bar.parts_bytes
        # At least a column is over, at least one is not.
        end = min(max(1, inside * (size - bar.over_bytes) // size), inside - 1)
    drawn = _coloured(cells[:end], paint)
    if bar.over_bytes:
        mark = paint(PLAIN_END if plain else END, "red")
        drawn += mark + _coloured(cells[end:], paint)
    return f"[{drawn}]"


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
    text, run, kind = "", "", ""
    for char, its in [*cells, ("", "")]:
        if its != kind:
            colour = KINDS[kind].colour if run else ""
            text += paint(run, colour) if colour else run
            run, kind = "", its
        run += char
    return text


# The margin, a letter and the gaps beside a name; a size with its gap ("1023.99 GiB").
_BESIDE_NAME = 6
_SIZE_COLUMNS = 13


def _chunks(places: Sequence[MemoryPlace], width: int) -> list[Sequence[MemoryPlace]]:
    """Return rows of places, with as many beside each other as fit."""
    rows = table_rows(known_bars(places).values())[:-1]
    beside = _BESIDE_NAME + max((len(row.name) for row in rows), default=0)
    count = max(1, (width - beside) // _SIZE_COLUMNS)
    return [places[at : at + count] for at in range(0, len(places), count)]


def _table(places: Sequence[MemoryPlace], width: int) -> str:
    """Return a table of all parts in bytes; empty if no part is known."""
    known = known_bars(places)
    rows = [
        ["" if row.kind is None else KINDS[row.kind].letter, row.name, *map(_cell, row.sizes)]
        for row in table_rows(known.values())
        if any(row.sizes)
    ]
    if not rows:
        return ""
    least = max(16, width - _BESIDE_NAME - _SIZE_COLUMNS * len(known))
    heads = ["", "part", *known]
    widths = [None, least, *(None for _ in known)]
    return table(rows, heads, right=range(2, len(heads)), widths=widths, margin="  ")


def _cell(size: int) -> str:
    return format_bytes(size) if size else ""


def columns_of(sizes: Sequence[int], width: int) -> list[int]:
    """Return columns in proportion to ``sizes``, ``width`` in all; every size above 0 has one or
    more.

    Where more than ``width`` sizes are above 0, the largest have a column each.
    """
    filled = [at for at, size in enumerate(sizes) if size > 0]
    columns = [0] * len(sizes)
    if not filled or width <= 0:
        return columns
    by_size = sorted(filled, key=lambda at: (-sizes[at], at))
    for at in by_size[:width]:
        columns[at] = 1
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
