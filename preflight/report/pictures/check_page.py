"""The page of ``check --format html``: what was found, and the pictures that go with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from checks.framework.finding import Status
from checks.framework.needs import LaunchNeeds
from checks.framework.units import format_bytes, format_page_size
from checks.framework.unknown import Unknown, UnknownFactError, UnreadTopicError, require
from checks.run_checks.facts import Facts
from preflight.base.html_page import (
    Html,
    element,
    escape,
    facts_list,
    join,
    page,
    status_badge,
    table,
    tick,
)
from preflight.base.one_line import with_last_name
from preflight.base.program import data_file
from preflight.base.usage_error import UsageError
from preflight.command_inputs.host_source import Sized
from preflight.needs.launch_sizing import LaunchSizing
from preflight.report.pictures.figures import (
    locked_figure,
    locked_of,
    memory_figure,
    topology_figure,
)
from preflight.report.pictures.memory_map import MAP_TOPICS, memory_of
from preflight.report.to_text import group_by_cause, id_and_text, label, launch_file, steps
from preflight.report.topology.answer import topology_of
from preflight.verdict.catalogue import catalogue
from preflight.verdict.judge_host import JudgedHost
from preflight.verdict.report import Report, Row, count_text, verdict_reason

# What the pictures are drawn from, whatever was checked.
PAGE_TOPICS = (*MAP_TOPICS, "system", "limits", "pci", "gpus", "rdma", "storage")


def check_page(
    report: Report,
    judged_host: JudgedHost,
    made_by: MadeBy,
    draw_tiers: Callable[[JudgedHost, Sized], Html | Unknown],
) -> str:
    """Return the HTML document of an answer of ``check``.

    A picture whose facts are missing is replaced by a sentence with the reason.

    Args:
        draw_tiers: Draws what the tiers of a launch's cache hold on its host.
    """
    launch = judged_host.launch
    facts, needs = judged_host.facts, judged_host.needs
    sections = [
        PagePart("Memory", lambda: memory_figure(memory_of(judged_host)), on_paper=True),
        PagePart("Locked memory", lambda: locked_figure(locked_of(facts, needs)), on_paper=True),
        PagePart("GPUs and NICs", lambda: topology_figure(topology_of(facts, needs))),
    ]
    if isinstance(launch, Unknown):
        sections.append(PagePart("What the cache holds", lambda: launch))
        sections.append(PagePart("The launch", lambda: launch))
    elif launch is not None:
        sections.append(PagePart("What the cache holds", lambda: draw_tiers(judged_host, launch)))
        sections.append(PagePart("The launch", lambda: launch_tables(launch.needs, launch.sizing)))
    sections.append(PagePart("The host", lambda: host_table(judged_host.facts), on_paper=True))
    return report_page(report, sections, made_by, catalogue().texts_by_id())


NAME = "mooncake-preflight check"


class PagePart(NamedTuple):
    """A part of the page under ``heading``.

    Attributes:
        draw: Returns its content, or why there is none.
        on_paper: The part is printed too.
    """

    heading: str
    draw: Callable[[], Html | Unknown]
    on_paper: bool = False


class MadeBy(NamedTuple):
    """What made the page: the toolkit's version, and the time as a person reads it."""

    version: str
    time: str


def report_page(
    report: Report, sections: Iterable[PagePart], made_by: MadeBy, about: Mapping[str, str] = {}
) -> str:
    """Return the HTML document of a report.

    Args:
        sections: Parts beside the findings.
        made_by: For the foot.
        about: Check id to the text that explains the check.
    """
    place = "this host" if report.root == "/" else report.root
    launch = "" if report.needs is None else f"{report.needs.source} on "
    wanting = [*report.of(Status.FAIL, Status.UNKNOWN, Status.WARN), *report.waived]
    groups = group_by_cause(wanting)
    drawn = list(sections)
    parts = [_verdict(report), _summary(report, groups, wanting), _to_do(groups)]
    parts += [_section(each) for each in drawn if each.on_paper]
    if wanting:
        texts = ((row, about.get(row.finding.check, "")) for row in wanting)
        cards = [_card(row, _anchor(wanting, row), text) for row, text in texts]
        parts.append(element("section", element("h2", "Each finding"), *cards, class_="screen"))
    parts += [
        _status_table(report, Status.PASS, "What passed", {"have": "have", "need": "need"}),
        _status_table(report, Status.SKIP, "What was skipped", {"why": "text"}),
    ]
    parts += [_section(each) for each in drawn if not each.on_paper]
    body = join([element("h1", f"{launch}{place}"), *parts, _foot(made_by)], "\n")
    return page(f"{report.verdict.value.upper()}: {launch}{place}", body, style=page_style())


def error_page(message: str, made_by: MadeBy) -> str:
    """Return the HTML document of a command that gave no answer.

    Args:
        message: The error.
    """
    texts = (element("strong", "No answer"), element("p", message))
    box = element("section", *texts, class_="verdict fail")
    body = join([element("h1", NAME), box, _foot(made_by)], "\n")
    return page("No answer", body, style=page_style())


def page_style() -> str:
    """Return the style sheet of the pictures, to be added to the page's own."""
    with open(data_file("pictures.css", "report/pictures"), encoding="utf-8") as file:
        return file.read()


def _verdict(report: Report) -> Html:
    """Return the page's head: verdict, reason, counts, and how the launch was read."""
    word = report.verdict.value
    parts = [element("strong", status_badge(word), " ", verdict_reason(report))]
    parts.append(element("p", count_text(report)))
    parts += [element("p", f"read: {report.understood}")] if report.understood else []
    return element("section", *parts, class_=f"verdict {word}")


def _summary(report: Report, groups: Sequence[Sequence[Row]], wanting: Sequence[Row]) -> Html:
    """Return the list of all that is not fine, then unused waivers.

    Each group of findings is a line, linked to the card of its first finding.

    Args:
        wanting: All rows that are not fine.
    """
    unused = [
        element("p", f"waiver of {check}: nothing is found that it would waive")
        for check in report.unused_waivers
    ]
    if not wanting:
        return join(unused)
    file = launch_file(report)
    lines = []
    for rows in groups:
        ids, text = id_and_text(rows)
        # The id apart: a rule's own name (store-key-unknown) makes no secret of what follows.
        texts = f"{ids}: ", with_last_name(text, file)
        link = element("a", *texts, href=f"#{_anchor(wanting, rows[0])}")
        name = label(rows[0])
        lines.append(element("li", status_badge(name), " ", link, class_=name))
    labels = list(dict.fromkeys(label(row) for row in wanting))
    shown = labels if len(labels) > 1 else []
    ticks = [tick(f"show-{word}", status_badge(word), checked=True) for word in shown]
    filters = element("p", *ticks, tick("print-all", "print all of it"), class_="filter")
    summary = element("ul", *lines, class_="summary")
    return join([element("h2", "What was found"), filters, summary, *unused], "\n")


def _anchor(wanting: Sequence[Row], row: Row) -> str:
    return f"finding-{next(at for at, each in enumerate(wanting, 1) if each is row)}"


def _to_do(groups: Sequence[Sequence[Row]]) -> Html:
    """Return the list of steps to take; empty if nothing is to be done."""
    lines = []
    for step in steps(groups):
        advice = f": {step.advice}" if step.advice else ""
        lines.append(element("li", element("strong", step.head), advice, _commands(step.commands)))
    if not lines:
        return Html("")
    return join([element("h2", "To do"), element("ol", *lines, class_="steps")])


def _commands(lines: Sequence[str]) -> Html:
    """Return the lines as markup; those with something to type get a button that copies them."""
    typed = any(not line.startswith("#") for line in lines)
    text = "\n".join(lines)
    return element("pre", text, class_="copied" if typed else None) if lines else Html("")


def _card(row: Row, anchor: str, about: str) -> Html:
    """Return the card of one finding: quantities, advice, commands, evidence, explanation.

    Args:
        anchor: The card's id on the page.
        about: The explanation of the check, "" for none.
    """
    finding = row.finding
    word = label(row)
    follows = finding.text
    if finding.status is Status.FAIL and row.consequence is not None:
        follows = f"{follows}: {row.consequence.value}" if follows else row.consequence.value
    ignored = "" if row.ignored is None else f"was {finding.status.value}; {row.ignored}"
    quantities = [("ignored", ignored)]
    quantities += [(name, getattr(finding, name)) for name in ("have", "need", "formula")]
    seen = [
        element("li", element("code", each.source), ": ", element("code", each.value or "(empty)"))
        for each in finding.evidence
    ]
    heading = f"Seen in {len(seen)} places" if len(seen) > 1 else "Seen"
    texts = [element("p", each) for each in about.split("\n\n")] if about else []
    details = [(heading, [element("ul", *seen, class_="small")] if seen else [])]
    details.append((f"What {finding.check} is about", texts))
    parts = [
        element("h3", status_badge(word), f" {finding.check}: ", finding.subject),
        element("p", follows) if follows else "",
        facts_list(quantities),
        element("p", element("strong", "To do: "), row.advice) if row.advice else "",
        _commands(row.commands),
        *(element("details", element("summary", head), *inner) for head, inner in details if inner),
    ]
    return element("article", *parts, class_=f"card {word}", id=anchor)


def _status_table(report: Report, status: Status, heading: str, columns: Mapping[str, str]) -> Html:
    """Return the table of the findings of one status, folded; empty without any.

    Args:
        columns: Heading to the field of a finding.
    """
    rows = report.of(status)
    if not rows:
        return Html("")
    names = ("check", "subject", *columns.values())
    cells = [[getattr(row.finding, name) for name in names] for row in rows]
    summary = element("summary", f"{heading}: {sum(len(row.subjects) for row in rows)}")
    heads = ["check", "subject", *columns]
    listed = table(heads, cells, caption=heading, sortable=True)
    return element("details", summary, listed, class_="screen")


def _section(section: PagePart) -> Html:
    """Return one part of the page with its heading.

    If drawing fails, the reason is shown.
    """
    try:
        drawn = section.draw()
    except (UsageError, UnreadTopicError) as error:
        drawn = Unknown(str(error))
    except Exception as error:
        drawn = Unknown(f"defect of this picture: {type(error).__name__}: {error}")
    if isinstance(drawn, Unknown):
        drawn = element("p", f"Not shown: {drawn.reason}")
    style = None if section.on_paper else "screen"
    return element("section", element("h2", section.heading), Html("\n"), drawn, class_=style)


def _foot(made_by: MadeBy) -> Html:
    text = f"{NAME}, mooncake-preflight {made_by.version}, {escape(made_by.time)}"
    return element("footer", element("p", Html(text), class_="small muted"), class_="foot")


def launch_tables(needs: LaunchNeeds, sizing: LaunchSizing) -> Html:
    """Return two tables: processes with their memory, and settings with their origins.

    The second is left out if the launch is not sized.
    """

    def size(size: int | Unknown) -> str:
        return "unknown" if isinstance(size, Unknown) else format_bytes(size) if size else ""

    rows = [
        (
            *(each.name, "any" if each.node is None else str(each.node)),
            "" if each.gpu is None else str(each.gpu),
            *map(size, (each.hugetlb_bytes, each.regular_bytes, each.registered_bytes)),
        )
        for each in needs.processes
    ]
    heads = ["process", "node", "GPU", "huge pages", "regular memory", "registered per NIC"]
    caption = f"Processes of {needs.source}"
    processes = table(heads, rows, caption=caption, numeric_columns=(3, 4, 5))
    shown = sizing.shown
    if shown is None:
        return processes
    settings = shown.inputs.shown.items()
    values = [(name, _value(each.value), each.origin) for name, each in settings]
    inputs = table(["setting", "value", "from"], values, caption="Settings")
    return join([processes, element("details", element("summary", "Settings"), inputs)], "\n")


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return "not set" if value is None else str(value)


def host_table(facts: Facts) -> Html:
    """Return the host's kernel, distribution, container, memory and huge pages in a few lines.

    A fact that is not known says why.
    """

    def memory() -> str:
        sizes = [facts.memory.value(key) for key in ("MemTotal", "MemAvailable")]
        total, available = (_text(partial(lambda x: format_bytes(require(x)), x)) for x in sizes)
        return f"{total}, {available} available"

    def container() -> str:
        engine, source = facts.system.container.kind, facts.system.container.source
        return f"{engine} ({source})" if source else engine

    version = _text(lambda: require(facts.system.distribution_version))
    rows = [
        ("kernel", _text(lambda: require(facts.system.kernel_release))),
        ("distribution", _text(lambda: f"{require(facts.system.distribution)} {version}")),
        ("container", _text(container)),
        ("memory", _text(memory)),
    ]
    return facts_list([*rows, *_pools(facts)])


def _text(read: Callable[[], str]) -> str:
    try:
        return read()
    except (UnknownFactError, UnreadTopicError) as error:
        return f"unknown: {error.fact.reason}"


def _pools(facts: Facts) -> Iterable[tuple[str, str]]:
    """Return (page size, counts of all, free and promised pages) as texts, for each page size.

    If the pools are unknown, return one pair that says why.
    """

    def text(size: int) -> str:
        counts = require(pools[size])
        return f"{counts.total_pages}, {counts.free_pages} free, {counts.reserved_pages} promised"

    try:
        pools = require(facts.hugetlb.hugetlb.pools)
    except (UnknownFactError, UnreadTopicError) as error:
        return [("huge pages", f"unknown: {error.fact.reason}")]
    return [(f"pages of {format_page_size(size)}", _text(partial(text, size))) for size in pools]
