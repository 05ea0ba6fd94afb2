"""A check's answer as one page: the verdict, what to mend, and pictures of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from checks.base.finding import Status
from checks.base.unknown import Unknown
from preflight.base.data_file import data_file
from preflight.check.report import Report, Row
from preflight.check.verdict import count_text, verdict_reason
from preflight.render.html_page import Html, element, escape, join, page, status_badge, table

NAME = "mooncake-preflight check"


class Section(NamedTuple):
    """A part of the page below the findings. draw: makes it, when the page is made.

    A picture that cannot be drawn says why in its place, and leaves the page whole.
    """

    heading: str
    draw: Callable[[], Html | Unknown]


class Made(NamedTuple):
    """What made the page: by whom, and when, as a person reads it."""

    version: str
    time: str


def report_page(report: Report, sections: Iterable[Section], made: Made) -> str:
    """The whole document."""
    about = "this host" if report.root == "/" else report.root
    launch = "" if report.needs is None else f"{report.needs.source} on "
    parts = [_verdict(report), *_findings(report), _passes(report), _skips(report)]
    parts += [_section(each) for each in sections]
    body = join([element("h1", f"{launch}{about}"), *parts, _foot(made)], "\n")
    return page(f"{report.verdict.value.upper()}: {launch}{about}", body, style=_style())


def error_page(message: str, made: Made) -> str:
    """The page of a command that gave no answer."""
    box = element(
        "section", element("strong", "No answer"), element("p", message), class_="verdict fail"
    )
    return page("No answer", join([element("h1", NAME), box, _foot(made)], "\n"), style=_style())


def _style() -> str:
    with open(data_file("pictures.css"), encoding="utf-8") as file:
        return file.read()


def _verdict(report: Report) -> Html:
    word = report.verdict.value
    head = element("strong", status_badge(word), " ", verdict_reason(report))
    return element("section", head, element("p", count_text(report)), class_=f"verdict {word}")


def _findings(report: Report) -> list[Html]:
    wanting = [*report.of(Status.FAIL, Status.UNKNOWN, Status.WARN), *report.waived]
    unused = [
        element("p", f"--ignore {check}: there was nothing to ignore")
        for check in report.unused_waivers
    ]
    if not wanting:
        return unused
    return [element("h2", "What to look at"), *(_card(row) for row in wanting), *unused]


def _card(row: Row) -> Html:
    finding = row.finding
    waived = row.ignored is not None
    word = "ignored" if waived else finding.status.value
    head = element("h3", status_badge(word), f" {finding.check}: {finding.subject}")
    follows = finding.text
    if finding.status is Status.FAIL and row.consequence is not None:
        follows = f"{follows}: {row.consequence.value}" if follows else row.consequence.value
    facts = [
        ("ignored", f"was {finding.status.value}; {row.ignored}" if waived else ""),
        ("have", finding.have),
        ("need", finding.need),
        ("formula", finding.formula),
    ]
    seen = [
        element("li", element("code", each.source), ": ", element("code", each.value or "(empty)"))
        for each in finding.evidence
    ]
    parts = [
        head,
        element("p", follows) if follows else "",
        _facts(facts),
        element("p", element("strong", "To do: "), finding.advice) if finding.advice else "",
        element("pre", "\n".join(row.commands)) if row.commands else "",
        _folded(f"Seen in {len(seen)} places" if len(seen) > 1 else "Seen", seen),
    ]
    return element("article", *parts, class_=f"card {word}")


def _facts(facts: Iterable[tuple[str, str]]) -> Html:
    inner = [
        part for name, text in facts if text for part in (element("dt", name), element("dd", text))
    ]
    return element("dl", *inner, class_="facts") if inner else Html("")


def _folded(heading: str, items: list[Html]) -> Html:
    if not items:
        return Html("")
    inner = element("ul", *items, class_="small")
    return element("details", element("summary", heading), inner)


def _passes(report: Report) -> Html:
    rows = report.of(Status.PASS)
    if not rows:
        return Html("")
    cells = [
        (row.finding.check, row.finding.subject, row.finding.have, row.finding.need) for row in rows
    ]
    count = sum(len(row.subjects) for row in rows)
    return element(
        "details",
        element("summary", f"What passed: {count}"),
        table(["check", "subject", "have", "need"], cells, caption="What passed", sortable=True),
    )


def _skips(report: Report) -> Html:
    rows = report.of(Status.SKIP)
    if not rows:
        return Html("")
    cells = [(row.finding.check, row.finding.subject, row.finding.text) for row in rows]
    return element(
        "details",
        element("summary", f"What was skipped: {sum(len(row.subjects) for row in rows)}"),
        table(["check", "subject", "why"], cells, caption="What was skipped", sortable=True),
    )


def _section(section: Section) -> Html:
    try:
        drawn = section.draw()
    except Exception as error:
        drawn = Unknown(f"defect of this picture: {type(error).__name__}: {error}")
    if isinstance(drawn, Unknown):
        drawn = element("p", f"Not shown: {drawn.reason}")
    return element("section", element("h2", section.heading), Html("\n"), drawn)


def _foot(made: Made) -> Html:
    text = f"{NAME}, mooncake-preflight {made.version}, {escape(made.time)}"
    return element("footer", element("p", Html(text), class_="small muted"), class_="foot")
