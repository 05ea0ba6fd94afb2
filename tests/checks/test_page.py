"""Each check has one page, in the one order that its reader takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.finding import Consequence, Status
from checks.base.page import Page, PageError, read_page
from preflight.check.catalogue import catalogue
from preflight.judging.pages import PAGES
from tests.paths import ROOT

WHOLE = """\
# a.b

Does it
hold?

First.

Second, over
two lines.

## Outcomes

- pass: it
  does
- fail: it: does not

## What follows

will not start, or dies later

## What to do

mend it

## Read or seen in

a test
"""


def read(folder: Path, text: str) -> Page:
    (folder / "a.b.md").write_text(text)
    read_page.cache_clear()
    return read_page(str(folder), "a.b")


def test_every_page_is_that_of_a_check() -> None:
    files = [*(ROOT / "checks").glob("*/*.md"), *Path(PAGES).glob("*.md")]
    checks = catalogue().checks.values()
    assert sorted(files) == sorted(Path(str(check.at)) / f"{check.id}.md" for check in checks)


def test_a_page_is_read_whole(tmp_path: Path) -> None:
    outcomes = ((Status.PASS, "it does"), (Status.FAIL, "it: does not"))
    why = "First.\n\nSecond, over two lines."
    page = Page("Does it hold?", Consequence.WILL_NOT_START, why, outcomes, "mend it", "a test")
    later = page._replace(or_else=(Consequence.DIES_LATER,))
    assert read(tmp_path, WHOLE) == later
    rooted = f"{WHOLE}\n## As root\n\nmore is seen\n"
    assert read(tmp_path, rooted) == later._replace(root="more is seen")


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("# a.b", "# a.c"),
        ("## What to do", "## What to undo"),
        ("## What to do\n\nmend it\n\n", ""),
        ("mend it", "mend it\n\nmore"),
        ("mend it", ""),
        ("will not start", "will start"),
        ("- pass: it", "- passed: it"),
        ("- pass: it", "* pass: it"),
        ("- pass: it\n  does\n- fail: it: does not", ""),
        ("First.\n\nSecond, over\ntwo lines.\n\n", ""),
        ("- fail: it: does not", "- fail"),
    ],
)
def test_what_is_no_such_page_is_refused(tmp_path: Path, there: str, instead: str) -> None:
    assert there in WHOLE
    with pytest.raises(PageError):
        read(tmp_path, WHOLE.replace(there, instead))
