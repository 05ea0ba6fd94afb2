"""Bars and curves for a terminal: to scale, the same every time, readable without colours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from preflight.base.output import drawing_encoding
from preflight.cache_sizing.capacity.deployment import Capacity, Round
from preflight.cache_sizing.capacity.figure import MOST_MARKS, capacity_figure
from preflight.cache_sizing.capacity.report import (
    Hit,
    curve_text,
    drawn_tiers,
    evicting_text,
    hit_of,
    hit_text,
    share,
)
from preflight.report.pictures.memory_map import (
    KINDS,
    MemoryMap,
    MemoryPlace,
    Take,
    bars_text,
    columns_of,
    draws_blocks,
    memory_map,
)
from tests.paths import ROOT
from tests.report.pictures.test_memory_map import ONE_NODE, PAGE, TWO_NODES, memory_facts
from tests.tables import each_row


def uncoloured(text: str, colour: str) -> str:
    return text


def lines(text: str) -> list[str]:
    return text.splitlines()


# Columns -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1 << 50), max_size=12), st.integers(0, 200))
def test_columns_fill_the_line_and_leave_nobody_out(sizes: list[int], width: int) -> None:
    columns = columns_of(sizes, width)
    filled = [size for size in sizes if size]
    assert sum(columns) == (width if filled else 0)
    for size, count in zip(sizes, columns, strict=True):
        assert count >= (1 if size and len(filled) <= width else 0)
        assert size or not count
    # Whoever is larger has no fewer columns.
    ordered = sorted(zip(sizes, columns, strict=True))
    assert all(less <= more for (x, less), (y, more) in pairwise(ordered) if x < y)


# Pictures ------------------------------------------------------------------------------------

TAKES = [
    Take("l2", 24 * GIB, PAGE, 0),
    Take("segment", 20 * GIB, None, 1),
    Take("arena", 4 * GIB, PAGE, None),
]
PLAIN = """\
Memory after this launch
node 0: 64.00 GiB
  [ooooHHHLLLLLLLLLLLLLLLLLLLL...........................]
  8.00 GiB of the huge pages are not reserved yet
node 1: 64.00 GiB
  [oooHHHPPPPPPPPPPPPPPsssssssssssssssss.................]
any node: 4.00 GiB, bound to no node
  [A]
host: 128.00 GiB
  [oooHHHLLLLLLLLLLAAPPsssssssss.....................rrrr]
"""


def test_a_picture_in_ascii() -> None:
    """Letters to scale; of 64 GiB on 54 columns 24 GiB are 20 or 21."""
    text = bars_text(memory_map(memory_facts(TWO_NODES), TAKES), uncoloured, 58, plain=True)
    assert text.isascii()
    head, _, tables = text.partition("\n\n")
    assert head == PLAIN.rstrip()
    assert "L   L2 on huge pages" in tables
    assert tables.count("part") == 4  # one place beside another does not fit


OVER = """\
Memory after this launch
host: 64.00 GiB
  [oolllllllllllllllllllllllll|lllll]
  over-committed: 10.00 GiB more than
    there is

      part                   host
  --  ----------------  ---------
  o   system and other   4.00 GiB
      processes
  l   L2                70.00 GiB
      less: asked for,  10.00 GiB
      and not there
      memory            64.00 GiB"""


def test_what_is_not_there_stands_behind_the_end_of_memory() -> None:
    """70 GiB asked for, 60 there: the last 10 of 74 lie beyond the mark."""
    takes = [Take("l2", 70 * GIB, None, None)]
    found = memory_map(memory_facts(ONE_NODE), takes)
    assert bars_text(found, uncoloured, 37, plain=True) == OVER


def test_unknown_is_said_and_not_drawn() -> None:
    found = MemoryMap((MemoryPlace("host", Unknown("/proc/meminfo: \x1b[31mdenied"), None),))
    text = bars_text(found, uncoloured, 80, plain=True)
    assert lines(text) == ["Memory of this host", r"host: unknown: /proc/meminfo: \x1b[31mdenied"]


def test_an_unknown_launch_leaves_the_picture_of_now() -> None:
    found = memory_map(memory_facts(ONE_NODE), Unknown("no size"))
    text = bars_text(found, uncoloured, 80, plain=True)
    assert "host: 64.00 GiB; with the launch unknown: no size" in lines(text)
    assert any(re.fullmatch(r"  \[o+\.+r+\]", line) for line in lines(text))


def test_every_part_has_a_letter_of_its_own_and_a_shade() -> None:
    assert len({kind.letter for kind in KINDS.values()}) == len(KINDS)
    assert all(kind.shade for kind in KINDS.values())


@each_row(
    ("encoding", "blocks"),
    [("utf-8", True), ("ascii", False), (None, False), ("no-such-encoding", False)],
)
def test_blocks_are_drawn_where_the_stream_can_carry_them(
    encoding: str | None, blocks: bool
) -> None:
    assert draws_blocks(encoding) is blocks


def hits(number: int, **parts: float) -> Round:
    """A round of 100 tokens a client; parts by tier, exact."""
    found = tuple((name, part, part) for name, part in parts.items())
    evicting = tuple(name for name, part in parts.items() if part < 1)
    return Round(number, 100 * number, 100 * (number - 1), found, evicting)


# Ten clients' worth: L2 holds three rounds, L3 all.
ROUNDS = tuple(hits(at + 1, L2=part, L3=1) for at, part in enumerate((1, 1, 1, 0.5, 0.25)))


def test_a_line_is_drawn_at_the_least() -> None:
    each = Round(4, 400, 300, (("L2", 0.6, 1.0),), ("L2",), ())
    assert hit_of(each, "L2") == Hit(0.6, 1.0)
    row = next(
        line for line in curve_text([each], uncoloured, 100, True).splitlines() if "60" in line
    )
    assert row == " 60 % |2"
    assert hit_of(each, "L9") == Hit(0.0, 0.0)


@each_row(
    ("hit", "text"),
    [
        (Hit(1, 1), "100 %"),
        (Hit(0.999, 0.999), "99 %"),
        (Hit(0.58, 0.58), "58 %"),  # 57.999... as a binary fraction
        (Hit(0.0555, 0.8361), "6 to 84 %"),
        (Hit(0.0001, 0.5), "1 to 50 %"),
        (Hit(0.5, 1), "50 to 100 %"),
        (Hit(0, 0), "0 %"),
    ],
)
def test_parts_are_rounded_away_from_all_and_nothing(hit: Hit, text: str) -> None:
    assert hit_text(hit) == text


@each_row("part", [0, 0.0001, 0.0555, 0.5, 0.8361, 0.9999, 1])
def test_the_page_and_the_terminal_show_the_same_number(part: float) -> None:
    """One rounded down and the other to the next: 5 to 83 % here, 6 to 84% there."""
    assert hit_text(Hit(part, part)).replace(" ", "") == share(part, part)


def test_what_may_evict_is_told_from_what_does() -> None:
    each = Round(3, 3, 2, (), ("L1",), ("L1", "L2"))
    assert evicting_text(each) == "L1, perhaps L2"


def test_of_a_tier_that_nothing_is_known_of_there_is_no_line() -> None:
    rounds = [Round(n, n, n - 1, (("L1", 0.0, 1.0), ("L2", 1.0, 1.0)), ()) for n in (1, 2, 3)]
    assert drawn_tiers(rounds) == ("L2",)
    assert "1 L1" not in curve_text(rounds, uncoloured, 80, True)
    only = [Round(n, n, n - 1, (("L1", 0.0, 1.0),), ()) for n in (1, 2, 3)]
    said = "What the tiers hold is not known: there is no curve to draw"
    assert curve_text(only, uncoloured, 80, True) == said


def test_rounds_without_reuse_have_no_curve() -> None:
    said = "Nothing is reused in these rounds: there is no curve to draw"
    assert curve_text(ROUNDS[:1], uncoloured, 80, True) == said
    assert curve_text((), uncoloured, 80, True) == said


def test_more_rounds_than_columns_are_thinned() -> None:
    """Of a thousand rounds the first and the last are shown, and the picture fits."""
    rounds = [hits(number, L2=1 / number) for number in range(1, 1001)]
    text = curve_text(rounds, uncoloured, 60, True)
    assert max(len(line) for line in text.splitlines()) <= 60
    numbers = text.splitlines()[-2].split()
    assert (numbers[0], numbers[1], numbers[-1]) == ("round", "2", "1000")
    figure = capacity_figure(Capacity((), 1, tuple(rounds)))
    assert figure.count("<circle") == MOST_MARKS + 1  # one in the key


LOCALES: list[tuple[dict[str, str], bool]] = [
    ({"LC_ALL": "C"}, True),
    ({"LANG": "C"}, True),
    ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # as Python makes the line above
    ({"LANG": "en_US.UTF-8", "LC_CTYPE": "POSIX"}, True),
    ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
    ({"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, False),
    ({"LC_ALL": "C", "PYTHONUTF8": "1"}, False),
    ({"LC_CTYPE": "C.UTF-8"}, False),
    ({}, False),
]
OF_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8")


@pytest.mark.parametrize(("variables", "ascii_alone"), LOCALES)
def test_pictures_have_the_characters_of_the_locale(
    variables: dict[str, str], ascii_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OF_LOCALE:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert draws_blocks(drawing_encoding()) is not ascii_alone


@pytest.mark.slow
@pytest.mark.parametrize("command", [["topology"], ["check", "--memory-map"]])
def test_a_locale_of_ascii_gets_pictures_of_ascii(command: list[str]) -> None:
    """Python writes UTF-8 in it, and a terminal of that locale shows signs in place of boxes."""
    launch = ROOT / "tests/data/launches/h800-l1-l2-mooncake.sh"
    words = [sys.executable, "-m", "preflight", *command, "--root", "demo:h800", str(launch)]
    others = {name: value for name, value in os.environ.items() if name not in OF_LOCALE}
    for variables, ascii_alone in (LOCALES[0], LOCALES[1], LOCALES[-1]):
        ran = subprocess.run(words, env={**others, **variables}, cwd=ROOT, stdout=subprocess.PIPE)
        assert ran.stdout.isascii() is ascii_alone
