"""The pages show what the commands print (``python -m tests.docs.blocks`` writes it anew)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import LEFT_OUT, PAGES, agree, renewed, run_page, steps

SHOWN = [page for page in PAGES if "\n```\n$ moon" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path) -> None:
    for step, found in run_page(page):
        assert agree(step.shown, found), "\n".join([f"$ {step.command}", *found])


def test_a_block_is_its_commands_and_what_they_print() -> None:
    block = "$ one \\\n  more\nout\n\nput\n$ two\n$ three\nlast\n"
    assert [(step.line, step.shown) for step in steps(block)] == [
        ("one    more", ["out", "", "put"]),
        ("two", []),
        ("three", ["last"]),
    ]


@pytest.mark.parametrize(
    ("shown", "found", "same"),
    [
        ("a b", "a b", True),
        ("a b", "a b c", False),
        (f"a {LEFT_OUT}", "a b c", True),
        (f"b {LEFT_OUT}", "a b c", False),
        (f"a {LEFT_OUT} c", "a b c", True),
        (f"a {LEFT_OUT} b", "a b c", False),
    ],
)
def test_what_is_left_out_may_be_anything(shown: str, found: str, same: bool) -> None:
    assert agree(shown.split(), found.split()) is same
    assert agree(renewed(shown.split(), found.split()), found.split())
