"""What the cache still serves, round by round, as a curve for a terminal.

One line for each tier: the part of a round's reusable tokens that tiers up to it still hold, as is
to be expected where clients take turns at random, or where that is not told, at least. Where lines
meet, the tier nearest to the GPU is shown: it is enough by itself.
"""

import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from preflight.base.one_line import clean
from preflight.capacity.deployment import Round

Paint = Callable[[str, str], str]

# Rows of the plot; eleven show every ten per cent.
ROWS = 11
# "100 % |"
_AXIS = 7
# A plot wider than this is only longer lines.
MOST_PLOT = 72
COLOURS = ("yellow", "blue", "green", "magenta")
# A braille cell is two dots wide and four high; the bit of each.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def tiers_of(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the names of the tiers that the rounds speak of, nearest to the GPU first."""
    return tuple(dict.fromkeys(name for each in rounds for name, _, _ in each.hits))


def drawn_tiers(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the tiers that have a line to draw: one that nothing is known of has none."""
    return tuple(tier for tier in tiers_of(rounds) if not _open(rounds, tier))


def spans_are_known(rounds: Sequence[Round], tier: str) -> bool:
    """Return whether the most that tiers up to ``tier`` may serve is more than a guess."""
    names = tiers_of(rounds)
    return not any(_open(rounds, name) for name in names[: names.index(tier) + 1])


def _open(rounds: Sequence[Round], tier: str) -> bool:
    """Return whether nothing of a tier is certain or expected, though it may serve something."""
    told = any(name == tier for each in rounds for name, _ in each.likely)
    spans = {(low, high) for each in rounds for name, low, high in each.hits if name == tier}
    return not told and all(low == 0 for low, _ in spans) and any(high > 0 for _, high in spans)


def reusing(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Return rounds with anything to reuse: the first has nothing that was seen before."""
    return tuple(each for each in rounds if each.reusable_tokens > 0)


def thinned(rounds: Sequence[Round], most: int) -> tuple[Round, ...]:
    """Return at most so many of the rounds, evenly, the first and the last among them."""
    if len(rounds) <= most:
        return tuple(rounds)
    return tuple(rounds[at * (len(rounds) - 1) // (most - 1)] for at in range(most))


def letter_of(tier: str) -> str:
    """Return the letter of a tier: ``L2`` is ``2``, ``SSD`` is ``S``."""
    return tier[1] if tier[:1] == "L" and tier[1:2].isdigit() else tier[:1] or "?"


class Hit(NamedTuple):
    """Parts of the reusable tokens, 0 to 1. expected: where it is not told, what is certain."""

    least: float
    expected: float
    most: float


def hit_of(each: Round, tier: str) -> Hit:
    """Return what tiers up to ``tier`` serve in a round; nothing if the round does not say."""
    likely = dict(each.likely)
    nearer = 0.0
    for name, low, high in each.hits:
        least, most = _part(low), _part(high)
        # Tiers up to this one serve what those up to the nearer one do, at least.
        nearer = min(most, max(least, nearer, _part(likely.get(name, 0.0))))
        if name == tier:
            return Hit(least, nearer, most)
    return Hit(0.0, 0.0, 0.0)


def _part(number: float) -> float:
    return min(1.0, max(0.0, number))


def whole_percent(part: float) -> int:
    """Return a part in whole per cent, but 0 only for nothing and 100 only for everything."""
    whole = round(part * 100)
    return min(99, max(1, whole)) if 0 < part < 1 else whole


def hit_text(hit: Hit) -> str:
    """Return ``96 %``, ``50 to 100 %`` or ``80 % (50 to 100 %)``."""
    least, expected, most = map(whole_percent, hit)
    if least == most:
        return f"{least} %"
    span = f"{least} to {most} %"
    return span if expected == least else f"{expected} % ({span})"


def evicting_text(each: Round) -> str:
    """Return ``L1, L2, perhaps L3``."""
    return ", ".join((*each.evicting, *(f"perhaps {name}" for name in each.may_evict_too)))


def curve_text(rounds: Sequence[Round], paint: Paint, width: int, plain: bool) -> str:
    """Return the plot without a final newline; a sentence if there is nothing to plot."""
    shown = reusing(rounds)
    if not shown:
        return textwrap.fill("Nothing is reused in these rounds: there is no curve to draw", width)
    tiers = drawn_tiers(shown)
    if not tiers:
        return textwrap.fill("What the tiers hold is not known: there is no curve to draw", width)
    lines = textwrap.wrap(caption(shown), width)
    # The last round's number begins below its mark.
    room = min(MOST_PLOT, width - _AXIS - len(str(shown[-1].number)) + 1)
    shown = thinned(shown, room)
    plotted = _plot(shown, tiers, room, plain)
    for row, cells in enumerate(plotted):
        label = f"{100 - 10 * row:3d} %" if row % 2 == 0 else "     "
        text = "".join(paint(char, COLOURS[at % 4]) if at >= 0 else char for char, at in cells)
        lines.append(f"{label} |{text}".rstrip())
    return "\n".join([*lines, *_axis(shown, len(plotted[0])), *_legend(shown, tiers, width)])


def caption(rounds: Sequence[Round]) -> str:
    """Return the caption of a line: what it shows."""
    how = "where clients take turns at random" if any(r.likely for r in rounds) else "at least"
    return f"Reuse that is left, by round, with all tiers up to each, {how}"


def _plot(
    rounds: Sequence[Round], tiers: Sequence[str], width: int, plain: bool
) -> list[list[tuple[str, int]]]:
    """Return rows of (character, index of its tier, or -1 if it is of no tier)."""
    across, down = (1, 1) if plain else (2, 4)
    columns = _columns(rounds, width)
    size = columns[-1] + 1
    colours = [tiers_of(rounds).index(tier) for tier in tiers]
    cells: list[list[tuple[str, int]]] = [[(" ", -1)] * size for _ in range(ROWS)]
    dots: dict[tuple[int, int], int] = {}
    # The nearest tier last: its marks stand on top.
    for at in reversed(range(len(tiers))):
        heights = [hit_of(each, tiers[at]).expected for each in rounds]
        for (x0, h0), (x1, h1) in pairwise(zip(columns, heights, strict=True)):
            for step in range((x1 - x0) * across + 1):
                share = step / ((x1 - x0) * across)
                y = (1 - (h0 + (h1 - h0) * share)) * (ROWS - 1) * down + (down - 1) / 2
                x, row = divmod(x0 * across + step, across)[0], int(y) // down
                bit = _DOTS[int(y) % down][(x0 * across + step) % across]
                dots[row, x] = bit | (
                    dots.get((row, x), 0) if cells[row][x][1] == colours[at] else 0
                )
                cells[row][x] = ("." if plain else chr(0x2800 + dots[row, x]), colours[at])
        for column, height in zip(columns, heights, strict=True):
            row = int((1 - height) * (ROWS - 1) + 0.5)
            cells[row][column] = (letter_of(tiers[at]), colours[at])
    return cells


def _columns(rounds: Sequence[Round], width: int) -> list[int]:
    """Return the column of each round."""
    if len(rounds) == 1:
        return [0]
    step = max(1, min(8, (width - 1) // (len(rounds) - 1)))
    last = min(width - 1, step * (len(rounds) - 1))
    return [at * last // (len(rounds) - 1) for at in range(len(rounds))]


def _legend(rounds: Sequence[Round], tiers: Sequence[str], width: int) -> list[str]:
    """Explain the digits of the plot's lines: ``1 L1, 2 up to L2``."""
    first = tiers_of(rounds)[0]
    named = [f"{letter_of(t)} {'' if t == first else 'up to '}{clean(t)}" for t in tiers]
    margin = " " * _AXIS
    return textwrap.wrap(", ".join(named), width, initial_indent=margin, subsequent_indent=margin)


def _axis(rounds: Sequence[Round], size: int) -> list[str]:
    """Return the line below the plot, with as many round numbers as there is room for."""
    row = [" "] * (size + 8)
    free = 0
    for column, each in zip(_columns(rounds, size), rounds, strict=True):
        number = str(each.number)
        if column >= free:
            row[column : column + len(number)] = number
            free = column + len(number) + 1
    return [f"      +{'-' * size}", f"round  {''.join(row).rstrip()}"]
