"""One page per id that a finding can carry, from its declaration: for docs/ and for ``explain``."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.finding import Check, Status
from preflight.rules.rules import Rule, Severity

MEANS = {
    Severity.FAIL: "fail: the process does not start, or ends by itself",
    Severity.WARN: "warn: it runs, and not as it was written",
    Severity.NOTE: "note: worth knowing; nothing is wrong by itself",
}


class Page(NamedTuple):
    """lead: the question or finding, one sentence. rows: what there is to know in a few words.

    outcomes: each status, and when it is given.
    """

    title: str
    lead: str
    why: str
    rows: tuple[tuple[str, str], ...]
    outcomes: tuple[tuple[Status, str], ...] = ()


def check_page(check: Check) -> Page:
    """The page of a check of the host or the launch."""
    rows = [
        _worst_row(check),
        ("what to do", check.remedy),
        ("read or seen in", check.source),
    ]
    if check.topics:
        rows.append(("facts that it reads", ", ".join(check.topics)))
    if check.root:
        rows.append(("as root", check.root))
    return Page(check.id, check.asks, check.why, tuple(rows), check.outcomes)


def worst_status(check: Check) -> Status:
    """The worst that its findings can be, but unknown, which counts where there is nothing else."""
    given = {status for status, _ in check.outcomes}
    return next(
        (status for status in (Status.FAIL, Status.WARN) if status in given), Status.UNKNOWN
    )


def consequence_text(check: Check) -> str:
    """What comes of what it finds; "" where it never finds anything, and only does not know."""
    if worst_status(check) is Status.UNKNOWN:
        return ""
    return ", or ".join(one.value for one in (check.consequence, *check.or_else))


def _worst_row(check: Check) -> tuple[str, str]:
    """What comes of a finding, under the status that it really has."""
    worst = worst_status(check)
    if worst is Status.FAIL:
        return "when it fails", consequence_text(check)
    if worst is Status.WARN:
        return "what it warns of", consequence_text(check)
    return "when it is unknown", "nothing was found to fail, and nothing passes"


def rule_page(rule: Rule) -> Page:
    """The page of a rule about launches."""
    rows = (
        ("severity", MEANS[rule.severity]),
        ("what follows", rule.consequence),
        ("what to do", rule.remedy),
        ("read or seen in", rule.source),
    )
    return Page(rule.id, _sentence(rule.finds), "", rows)


def as_markdown(page: Page) -> str:
    """For docs/."""
    parts = [f"# {page.title}", page.lead]
    if page.why:
        parts.append(page.why)
    if page.outcomes:
        rows = "".join(f"| {status.value} | {_cell(when)} |\n" for status, when in page.outcomes)
        parts.append(f"| status | when |\n| --- | --- |\n{rows}".rstrip("\n"))
    rows = "".join(f"| {name} | {_cell(text)} |\n" for name, text in page.rows)
    parts.append(f"| | |\n| --- | --- |\n{rows}".rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def as_text(page: Page, width: int) -> str:
    """For a terminal."""
    import textwrap

    def wrap(text: str, first: str = "", rest: str = "") -> str:
        return textwrap.fill(
            text,
            width,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )

    parts = [page.title, wrap(page.lead)]
    parts += [wrap(paragraph) for paragraph in page.why.split("\n\n") if paragraph.strip()]
    if page.outcomes:
        lines = [wrap(f"{status.value}: {when}", "  ", "    ") for status, when in page.outcomes]
        parts.append("\n".join(lines))
    parts.append("\n".join(wrap(f"{name}: {text}", "", "  ") for name, text in page.rows))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
