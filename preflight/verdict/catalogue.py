"""Everything that ``check`` and ``fleet`` can find, by id; ``explain`` shows each page."""

from collections.abc import Sequence
from typing import NamedTuple

from checks.framework.check import Check, Judge
from checks.framework.finding import Status
from preflight.base.text import wrapped
from preflight.launch_problems.advisories.records import Advisory, condition_text, range_text
from preflight.launch_problems.rules.rules import Rule, Severity
from preflight.launches.source import notices
from preflight.verdict.pages import MEASURED, OBSERVED, PAGES

# What fleet merge and rails find between nodes and of reports; what stands for a node without one.
_FLEET = (
    "master metadata advertised protocol address mooncake-version same-machine path-mtu "
    "rail-apart rail-same rail-unknown slow-transfers "
    "report no-verdict several-reports old-report unexpected unusable "
    "ssh timeout tool python interrupted"
).split()
FLEET_CHECKS = (*(Check(f"fleet.{name}", (), PAGES) for name in _FLEET), *MEASURED, *OBSERVED)


class Catalogue(NamedTuple):
    """Checks of the host, launch and fleet, rules, and records, in the order of ``explain``."""

    host: tuple[tuple[Check, Judge], ...]
    launch: tuple[Check, ...]
    fleet: tuple[Check, ...]
    rules: tuple[Rule, ...]
    advisories: tuple[Advisory, ...] = ()

    @property
    def checks(self) -> dict[str, Check]:
        every = [*(check for check, _ in self.host), *self.launch, *self.fleet]
        return {check.id: check for check in every}

    @property
    def ids(self) -> Sequence[str]:
        rule_ids = [rule.id for rule in self.rules]
        return [*self.checks, *rule_ids, *(each.check for each in self.advisories)]

    def texts_by_id(self) -> dict[str, str]:
        """Return id -> text for a reader of a finding: question and reason of a check, what a rule
        finds, or summary and details of a record.
        """
        texts = {id_: f"{each.page.asks}\n\n{each.page.why}" for id_, each in self.checks.items()}
        texts |= {rule.id: rule.finds for rule in self.rules}
        return texts | {
            each.check: f"{each.summary}.\n\n{each.details}" for each in self.advisories
        }


def catalogue() -> Catalogue:
    """Return all checks, rules and records; imports every module that declares some."""
    from checks.run_checks.runner import every_check
    from preflight.launch_problems.advisories.records import advisories
    from preflight.launch_problems.rules.launch_rules import RULES
    from preflight.verdict.pages import LAUNCH_CHECKS

    host, of_launch, rules = tuple(every_check()), tuple(LAUNCH_CHECKS), tuple(RULES.values())
    return Catalogue(host, of_launch, FLEET_CHECKS, rules, advisories())


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


def check_page(check: Check) -> PageText:
    """Return the page of a check of the host, the launch or the fleet."""
    page = check.page
    when, follows = "when it is unknown", "nothing was found to fail, and nothing passes"
    statuses = {status for status, _ in page.outcomes}
    if statuses & _WHEN.keys():
        when = next(text for status, text in _WHEN.items() if status in statuses)
        follows = ", or ".join(each.value for each in (page.consequence, *page.or_else))
    rows = [(when, follows), ("what to do", page.remedy), ("read or seen in", page.source)]
    if check.topics:
        rows.append(("facts that it reads", ", ".join(check.topics)))
    if page.root:
        rows.append(("as root", page.root))
    return PageText(check.id, page.asks, page.why, tuple(rows), page.outcomes)


_WHEN = {Status.FAIL: "when it fails", Status.WARN: "what it warns of"}


def rule_page(rule: Rule) -> PageText:
    """Return the page of a rule about launches."""
    rows = (
        ("severity", MEANS[rule.severity]),
        ("what follows", rule.consequence),
        ("what to do", rule.remedy),
        ("read or seen in", rule.source),
        *((name, text) for name, text in (("before", rule.before), ("after", rule.after)) if text),
    )
    return PageText(rule.id, _sentence(rule.finds), "", rows)


def advisory_page(known: Advisory) -> PageText:
    """Return the page of a record of a known problem; rows without a text are left out."""
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
