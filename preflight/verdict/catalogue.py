"""Everything that can be found, by id; ``explain``, waivers and reports read the pages here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from checks.framework.finding import Status
from checks.framework.problem import Page, Problem, Severity, read_pages
from checks.run_checks.facts import READERS
from checks.run_checks.runner import every_check, page_ids
from preflight.base.text import wrapped

if TYPE_CHECKING:
    from preflight.launch_problems.advisories.records import Advisory

# The pages of what is found in a launch, between nodes of a fleet, and by measuring.
_PAGES = os.path.join(os.path.dirname(__file__), "pages")
_RULES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "launch_problems", "rules")


def paged(*topics: str) -> tuple[Problem, ...]:
    """Return the problems of ``topics``, the first word of their ids, by their pages alone.

    What finds them is not loaded.
    """
    ids = sorted(name.removesuffix(".md") for name in os.listdir(_PAGES))
    files = {id_: os.path.join(_PAGES, f"{id_}.md") for id_ in ids}
    return tuple(Problem(id_, at) for id_, at in files.items() if id_.partition(".")[0] in topics)


def launch_problems() -> tuple[Problem, ...]:
    """Return what is found in a launch beside its rules."""
    return paged("launch", "sglang", "store")


def fleet_problems() -> tuple[Problem, ...]:
    """Return what no check of one host finds: between nodes, by measuring, of what runs."""
    return paged("fleet", "measure", "observe")


def launch_ids() -> Iterator[str]:
    """Yield the ids of all that is judged of a launch alone, by their pages: no rule is loaded."""
    yield from (problem.id for problem in launch_problems())
    for name in sorted(os.listdir(_RULES)):
        if name.endswith(".md"):
            yield from read_pages(os.path.join(_RULES, name))


def judged_ids() -> Iterator[str]:
    """Yield the id of everything that one launch on one host is judged by.

    Nothing is imported, and no record read, for the ids that come before the one that is sought.
    """
    yield from page_ids()
    yield from (problem.id for problem in paged("measure"))
    yield from launch_ids()
    every = catalogue()
    elsewhere = {problem.id for problem in every.fleet}
    yield from (id_ for id_ in every.ids if id_ not in elsewhere)


class Catalogue(NamedTuple):
    """Problems of the host, launch and fleet, rules, and records, in the order of ``explain``."""

    host: tuple[Problem, ...]
    launch: tuple[Problem, ...]
    fleet: tuple[Problem, ...]
    rules: tuple[Problem, ...]
    advisories: tuple[Advisory, ...]

    @property
    def problems(self) -> dict[str, Problem]:
        every = (*self.host, *self.launch, *self.fleet, *self.rules)
        return {problem.id: problem for problem in every}

    @property
    def ids(self) -> Sequence[str]:
        return [*self.problems, *(each.check for each in self.advisories)]

    def texts_by_id(self) -> dict[str, str]:
        """Return id -> text for a reader of a finding: what is asked or found, and why."""
        pages = {id_: each.page for id_, each in self.problems.items()}
        texts = {id_: "\n\n".join(filter(None, page[:2])) for id_, page in pages.items()}
        return texts | {
            each.check: f"{each.summary}.\n\n{each.details}" for each in self.advisories
        }


def catalogue() -> Catalogue:
    """Return all problems and records; imports every module that declares checks or rules."""
    from preflight.launch_problems.advisories.records import advisories
    from preflight.launch_problems.rules.launch_rules import RULES

    host, rules = tuple(every_check()), tuple(RULES.values())
    return Catalogue(host, launch_problems(), fleet_problems(), rules, advisories())


MEANS = {
    Severity.FAIL: "fail: the process does not start, or ends by itself",
    Severity.DIES: "fail: the process starts, and ends by itself",
    Severity.CORRUPTS: "fail: the process runs, and gives wrong data",
    Severity.UNUSED: "fail: the process runs, and a tier that was asked for is not used",
    Severity.WARN: "warn: it runs, and not as it was written",
    Severity.NOTE: "note: worth knowing; nothing is wrong by itself",
}


class PageText(NamedTuple):
    """The texts of a page.

    Attributes:
        lead: A sentence.
        why: Paragraphs, or "".
        rows: A name and a few words each.
        outcomes: Each status, and when it is given.
    """

    title: str
    lead: str
    why: str
    rows: tuple[tuple[str, str], ...]
    outcomes: tuple[tuple[Status, str], ...] = ()


def problem_page(problem: Problem) -> PageText:
    """Return the page of a problem; rows without a text are left out."""
    page, lead = problem.page, problem.page.asks
    when, follows = _follows(page)
    rows = [(when, follows), ("what to do", page.remedy), ("read or seen in", page.source)]
    if page.severity is not None:
        lead = _sentence(lead)
        rows.insert(0, ("severity", MEANS[page.severity]))
    read = ", ".join(name for name in problem.about if name in READERS)
    rows += [("facts that it reads", read), ("as root", page.root)]
    rows += [("before", page.before), ("after", page.after)]
    shown = tuple(row for row in rows if row[1])
    return PageText(problem.id, lead, page.why, shown, page.outcomes)


def _follows(page: Page) -> tuple[str, str]:
    """Return what follows, and of what."""
    if page.severity is not None:
        return "what follows", page.follows
    statuses = {status for status, _ in page.outcomes}
    for status, when in _WHEN.items():
        if status in statuses:
            return when, page.follows
    return "when it is unknown", "nothing was found to fail, and nothing passes"


_WHEN = {Status.FAIL: "when it fails", Status.WARN: "what it warns of"}


def advisory_page(known: Advisory) -> PageText:
    """Return the page of a record of a known problem; rows without a text are left out."""
    from preflight.launch_problems.advisories.records import condition_text, range_text

    rows = [
        ("affected", "; ".join(map(range_text, known.affected))),
        ("where", condition_text(known.when)),
        ("and", known.arises),
        ("what follows", known.severity),
        ("what is seen", known.seen),
        ("what to do", known.remedy),
        ("judged by", ", ".join(known.covered_by)),
        ("how it is known", "; ".join(filter(None, (", ".join(known.evidence), known.command)))),
        ("read or seen in", ", ".join(url for _, url in known.references)),
    ]
    return PageText(
        known.id, known.summary + ".", known.details, tuple(row for row in rows if row[1])
    )


def notice_page(id_: str) -> PageText:
    """Return the page of a notice, which is one sentence."""
    from preflight.launches.source import notices

    return PageText(id_, _sentence(notices()[id_]), "", ())


def as_text(page: PageText, width: int) -> str:
    """Return the page for a terminal: title, lead, what to do, why, outcomes, and other rows."""
    paragraphs = [text for text in page.why.split("\n\n") if text.strip()]
    shown = (f"  {status.value}: {when}" for status, when in page.outcomes)
    outcomes = [line for text in shown for line in wrapped(text, width, 2)]
    first: list[str] = []
    rows: list[str] = []
    for name, text in page.rows:
        (first if name in _FIRST else rows).extend(wrapped(f"{name}: {text}", width, 2))
    why = [wrapped(text, width, 0) for text in paragraphs]
    parts = ([page.title], wrapped(page.lead, width, 0), first, *why, outcomes, rows)
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


_FIRST = ("what to do", "before", "after")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
