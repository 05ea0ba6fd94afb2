"""Each check has one page, in the one order that its reader takes."""

from __future__ import annotations

import re
from pathlib import Path

from checks.framework.check import Page, read_page
from checks.framework.finding import Consequence, Status
from preflight.verdict.catalogue import catalogue
from preflight.verdict.pages import PAGES
from tests.paths import ROOT

SECTIONS = ["Outcomes", "What follows", "What to do", "Read or seen in"]
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


def test_every_page_has_the_same_order() -> None:
    """Its id, a question and a reason, four sections, and a fifth where root sees more."""
    for check in catalogue().checks.values():
        text = (Path(str(check.at)) / f"{check.id}.md").read_text()
        head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
        names = [section.partition("\n")[0] for section in sections]
        assert names in (SECTIONS, [*SECTIONS, "As root"]), check.id
        title, question, *reasons = head.strip().split("\n\n")
        assert (title, bool(question), bool(reasons)) == (f"# {check.id}", True, True)
        assert check.page.asks.endswith("?"), check.id
        outcomes = sections[0].partition("\n")[2].strip()
        assert re.match(r"- (pass|warn|fail|unknown|skip): \S", outcomes), check.id
        for section in sections[1:]:
            assert len(section.partition("\n")[2].strip().split("\n\n")) == 1, (check.id, section)
