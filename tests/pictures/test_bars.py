"""Bars for a terminal: to scale, the same every time, and readable without colours or blocks."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from checks.base.units import GIB
from checks.base.unknown import Unknown
from preflight.pictures.bars import bars_text, columns_of, draws_blocks
from preflight.pictures.memory_map import KINDS, MemoryMap, MemoryPlace, Take, memory_map
from tests.pictures.memory_hosts import ONE_NODE, PAGE, TWO_NODES, memory_facts
from tests.tables import each_row


def uncoloured(text: str, colour: str) -> str:
    return text


def coloured(text: str, colour: str) -> str:
    return f"\x1b[{len(colour)}m{text}\x1b[0m"


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
    [
        ("utf-8", True),
        ("ascii", False),
        (None, False),
        ("no-such-encoding", False),
    ],
)
def test_blocks_are_drawn_where_the_stream_can_carry_them(
    encoding: str | None, blocks: bool
) -> None:
    assert draws_blocks(encoding) is blocks
