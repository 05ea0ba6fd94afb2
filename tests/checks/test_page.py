"""Each problem has one page, in the one order that its reader takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checks.framework.finding import Consequence, Status
from checks.framework.problem import Page, PageError, Severity, read_pages
from preflight.launch_problems.advisories.judge import ADVISORIES
from preflight.launch_problems.rules.launch_rules import DECLARED
from preflight.verdict.catalogue import catalogue, launch_problems
from preflight.verdict.launch_checks import CHECKS, OF_SERVERS
from tests.paths import ROOT

NEEDED = ["what follows", "what to do", "read or seen in"]
WHOLE = """\
# a.b

Does it
hold?

First.

Second, over
two lines.

- pass: it
  does
- fail: it: does not
- what follows: will not start, or dies later
- what to do: mend it
- read or seen in: a test
"""
TOPIC = """\
# A topic

What they share.

## a-rule

**warn**: a `--flag` that
nothing reads

- what follows: nothing
- what to do: drop
  it
- read or seen in: a.cpp

## b-rule

**dies**: another

- what follows: it ends
- what to do: drop it
- read or seen in: b.cpp
- before: `--flag`
- after: leave it out
"""
LATER = (Consequence.WILL_NOT_START, Consequence.DIES_LATER)


def read(folder: Path, text: str) -> list[tuple[str, Page]]:
    (folder / "a.b.md").write_text(text)
    read_pages.cache_clear()
    return list(read_pages(str(folder / "a.b.md")).items())


def pages() -> list[Path]:
    """Return every file of pages; the index of the rules and the table of notices are none."""
    files = [*(ROOT / "checks").rglob("*.md"), *(ROOT / "preflight").rglob("*.md")]
    return [path for path in files if path.name not in ("README.md", "notices.md")]


def test_every_page_is_that_of_a_problem() -> None:
    """A page that nothing finds would promise what is never told."""
    written = [(str(path), id_) for path in pages() for id_ in read_pages(str(path))]
    assert len(written) > 250
    problems = catalogue().problems.values()
    assert sorted(written) == sorted((str(problem.at), problem.id) for problem in problems)


def test_what_is_found_in_a_launch_has_the_page_that_is_explained() -> None:
    declared = (*CHECKS.problems, *OF_SERVERS.problems, *ADVISORIES.problems)
    explained = {problem.id: problem.page for problem in launch_problems()}
    assert {problem.id: problem.page for problem in declared}.items() <= explained.items()
    assert explained.keys() - {problem.id for problem in declared} == {"launch.waiver"}


def test_each_rule_finds_what_is_always_of_one_severity() -> None:
    assert all(rule.page.severity is not None for rule in DECLARED)


def test_a_page_is_read_whole(tmp_path: Path) -> None:
    outcomes = ((Status.PASS, "it does"), (Status.FAIL, "it: does not"))
    follows, why = "will not start, or dies later", "First.\n\nSecond, over two lines."
    page = Page("Does it hold?", why, outcomes, follows, "mend it", "a test", LATER)
    assert read(tmp_path, WHOLE) == [("a.b", page)]
    rooted = f"{WHOLE}- as root: more is seen\n"
    assert read(tmp_path, rooted) == [("a.b", page._replace(root="more is seen"))]


def test_several_pages_stand_in_one_file(tmp_path: Path) -> None:
    """Lines are joined, and backticks are for the reader of the page."""
    told = "nothing", "drop it", "a.cpp", (), Severity.WARN
    (first, page), (second, other) = read(tmp_path, TOPIC)
    assert (first, page) == ("a-rule", Page("a --flag that nothing reads", "", (), *told))
    assert (second, other.severity, other.asks) == ("b-rule", Severity.DIES, "another")
    assert (other.source, other.before, other.after) == ("b.cpp", "--flag", "leave it out")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (None, "write the page of a.b"),
        (WHOLE.replace("what to do", "to do"), "write the item - what to do: "),
        (
            WHOLE.replace("will not start", "breaks"),
            "'breaks' is none: write one of will not start",
        ),
        (WHOLE.replace("- pass:", "- maybe:"), "'maybe' is none: write one of "),
        (
            WHOLE.replace("- pass", "pass").replace("- fail", "fail"),
            "write an item for each status",
        ),
        (TOPIC.replace("**warn**", "**odd**"), "'odd' is none: write one of fail"),
        (TOPIC.replace("**dies**: another", ""), "write the question below the heading"),
    ],
)
def test_a_page_that_is_not_as_pages_are_is_named(
    tmp_path: Path, page: str | None, said: str
) -> None:
    """With its file, and what to write there."""
    read_pages.cache_clear()
    with pytest.raises(PageError) as raised:
        _ = read_pages(str(tmp_path / "a.b.md")) if page is None else read(tmp_path, page)
    assert str(raised.value).startswith(str(tmp_path / "a.b.md"))
    assert said in str(raised.value)


def test_every_page_has_the_same_order() -> None:
    """Its id; what it asks and why, or what it finds; its statuses, and what else it has."""
    for path in pages():
        for section in re.split(r"^#+ (?=[a-z])", path.read_text(), flags=re.MULTILINE)[1:]:
            head, *items = re.split(r"^- ", section, flags=re.MULTILINE)
            id_, asks, *why = head.strip().split("\n\n")
            names = [item.partition(": ")[0] for item in items]
            more = names[names.index(NEEDED[0]) + len(NEEDED) :]
            statuses = names[: names.index(NEEDED[0])]
            assert names == [*statuses, *NEEDED, *more], id_
            if asks.startswith("**"):
                assert (why, statuses, asks[-1] != ".") == ([], [], True), id_
                assert more in ([], ["before", "after"]), id_
            else:
                assert (asks[-1], bool(why), bool(statuses)) == ("?", True, True), id_
                assert len(set(statuses)) == len(statuses), id_
                assert more in ([], ["as root"]), id_
