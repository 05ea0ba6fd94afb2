"""The page of ``check --html``: what was found, and the pictures that go with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from checks.base.finding import Status
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown, UnknownFactError, UnreadTopicError, known
from checks.hugetlb.pools import Pool
from checks.memory.facts import MemoryFacts
from checks.run.facts import Facts
from checks.system.facts import SystemFacts
from preflight.base.data_file import data_file
from preflight.base.usage_error import UsageError
from preflight.capacity.answer import CapacityRequest, compute_capacity
from preflight.capacity.report import summarize_rounds
from preflight.check.report import Report, Row, count_text, verdict_reason
from preflight.inputs.host_source import Sized
from preflight.judging.judge_host import JudgedHost
from preflight.pictures.figures import capacity_figure, memory_figure, topology_figure
from preflight.pictures.memory_map import MAP_TOPICS, memory_of
from preflight.render.html_page import (
    Html,
    element,
    escape,
    facts_list,
    join,
    page,
    status_badge,
    table,
)
from preflight.sizing.launch_sizing import LaunchSizing
from preflight.topology.build import topology_of

# What the pictures are drawn from, whatever was checked.
PAGE_TOPICS = (*MAP_TOPICS, "system", "limits", "pci", "gpus", "rdma", "storage")


def check_page(report: Report, seen: JudgedHost, made: Made) -> str:
    """Write the whole document. A picture whose facts are missing says so in its place."""
    launch = seen.launch
    sections = [
        Section("Memory", lambda: memory_figure(memory_of(seen))),
        Section("GPUs and NICs", lambda: topology_figure(topology_of(seen.facts, seen.needs))),
    ]
    if isinstance(launch, Unknown):
        sections.append(Section("What the cache holds", lambda: launch))
        sections.append(Section("The launch", lambda: launch))
    elif launch is not None:
        sections.append(Section("What the cache holds", lambda: _capacity(seen, launch)))
        sections.append(Section("The launch", lambda: launch_tables(launch.needs, launch.sizing)))
    sections.append(Section("The host", lambda: host_table(seen.facts)))
    return report_page(report, sections, made)


def _capacity(seen: JudgedHost, sized: Sized) -> Html:
    """Draw every server's tiers, and the curve of the benchmark that the launch starts."""
    folders = seen.facts.storage.folders
    found = compute_capacity(
        sized.sizing.inputs, sized.options, seen.host.root, CapacityRequest(), folders
    )
    parts: list[Html] = []
    for server in found.servers:
        heading = f"{server.subject}, {server.model}" if server.model else server.subject
        parts += [element("h3", heading), capacity_figure(server.capacity)]
        said = (*summarize_rounds(server, found.workload), *server.notes)
        if said:
            parts.append(element("ul", *(element("li", note) for note in said)))
    return join([*parts, *(element("p", note) for note in found.notes)], "\n")


NAME = "mooncake-preflight check"


class Section(NamedTuple):
    """A part of the page below the findings; ``draw`` makes it, when the page is made.

    What it raises, or is not known, is said in its place, and leaves the page whole.
    """

    heading: str
    draw: Callable[[], Html | Unknown]


class Made(NamedTuple):
    """What made the page: by whom, and when, as a person reads it."""

    version: str
    time: str


def report_page(report: Report, sections: Iterable[Section], made: Made) -> str:
    """Write the whole document."""
    about = "this host" if report.root == "/" else report.root
    launch = "" if report.needs is None else f"{report.needs.source} on "
    parts = [_verdict(report), *_findings(report)]
    parts += [
        _listed(report, Status.PASS, "What passed", {"have": "have", "need": "need"}),
        _listed(report, Status.SKIP, "What was skipped", {"why": "text"}),
    ]
    parts += [_section(each) for each in sections]
    body = join([element("h1", f"{launch}{about}"), *parts, _foot(made)], "\n")
    return page(f"{report.verdict.value.upper()}: {launch}{about}", body, style=_style())


def error_page(message: str, made: Made) -> str:
    """Write the page of a command that gave no answer."""
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
    quantities = [
        ("ignored", f"was {finding.status.value}; {row.ignored}" if waived else ""),
        ("have", finding.have),
        ("need", finding.need),
        ("formula", finding.formula),
    ]
    seen = [
        element("li", element("code", each.source), ": ", element("code", each.value or "(empty)"))
        for each in finding.evidence
    ]
    heading = f"Seen in {len(seen)} places" if len(seen) > 1 else "Seen"
    parts = [
        head,
        element("p", follows) if follows else "",
        facts_list(quantities),
        element("p", element("strong", "To do: "), finding.advice) if finding.advice else "",
        element("pre", "\n".join(row.commands)) if row.commands else "",
        element("details", element("summary", heading), element("ul", *seen, class_="small"))
        if seen
        else "",
    ]
    return element("article", *parts, class_=f"card {word}")


def _listed(report: Report, status: Status, heading: str, columns: Mapping[str, str]) -> Html:
    """Return the findings of a status, folded. columns: headings, each with a field's name."""
    rows = report.of(status)
    if not rows:
        return Html("")
    names = ("check", "subject", *columns.values())
    cells = [[getattr(row.finding, name) for name in names] for row in rows]
    summary = element("summary", f"{heading}: {sum(len(row.subjects) for row in rows)}")
    heads = ["check", "subject", *columns]
    return element("details", summary, table(heads, cells, caption=heading, sortable=True))


def _section(section: Section) -> Html:
    try:
        drawn = section.draw()
    except (UsageError, UnreadTopicError) as error:
        drawn = Unknown(str(error))
    except Exception as error:
        drawn = Unknown(f"defect of this picture: {type(error).__name__}: {error}")
    if isinstance(drawn, Unknown):
        drawn = element("p", f"Not shown: {drawn.reason}")
    return element("section", element("h2", section.heading), Html("\n"), drawn)


def _foot(made: Made) -> Html:
    text = f"{NAME}, mooncake-preflight {made.version}, {escape(made.time)}"
    return element("footer", element("p", Html(text), class_="small muted"), class_="foot")


def launch_tables(needs: LaunchNeeds, sizing: LaunchSizing) -> Html:
    """Draw processes with their memory, and settings with their origins; no environment."""
    processes = table(
        ["process", "node", "GPU", "huge pages", "regular memory", "registered per NIC"],
        [_process(process) for process in needs.processes],
        caption=f"Processes of {needs.source}",
        numeric_columns=(3, 4, 5),
    )
    shown = sizing.shown
    if shown is None:
        return processes
    inputs = table(
        ["setting", "value", "from"],
        [(name, _value(given.value), given.origin) for name, given in shown.inputs.shown.items()],
        caption="Settings",
    )
    return join([processes, element("details", element("summary", "Settings"), inputs)], "\n")


def _process(process: ProcessNeeds) -> tuple[str, ...]:
    return (
        process.name,
        "any" if process.node is None else str(process.node),
        "" if process.gpu is None else str(process.gpu),
        _size(process.hugetlb_bytes),
        _size(process.regular_bytes),
        _size(process.registered_bytes),
    )


def _size(size: int | Unknown) -> str:
    if isinstance(size, Unknown):
        return "unknown"
    return format_bytes(size) if size else ""


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return "not set" if value is None else str(value)


def host_table(facts: Facts) -> Html:
    """Return the host in a few lines; what was not read says so."""
    rows = [
        ("kernel", lambda: known(facts.system.kernel_release)),
        ("distribution", lambda: _distribution(facts.system)),
        ("container", lambda: _container(facts.system)),
        ("memory", lambda: _memory(facts.memory)),
    ]
    return facts_list([*((name, _text(read)) for name, read in rows), *_pools(facts)])


def _text(read: Callable[..., str], *arguments: object) -> str:
    try:
        return read(*arguments)
    except (UnknownFactError, UnreadTopicError) as error:
        return f"unknown: {error.fact.reason}"


def _distribution(system: SystemFacts) -> str:
    name = known(system.distribution)
    return f"{name} {_text(lambda: known(system.distribution_version))}"


def _container(system: SystemFacts) -> str:
    kind, source = system.container.kind, system.container.source
    return f"{kind} ({source})" if source else kind


def _memory(memory: MemoryFacts) -> str:
    sizes = (memory.value(key) for key in ("MemTotal", "MemAvailable"))
    total, available = (_text(_known_size, size) for size in sizes)
    return f"{total}, {available} available"


def _known_size(size: int | Unknown) -> str:
    return format_bytes(known(size))


def _pools(facts: Facts) -> Iterable[tuple[str, str]]:
    try:
        pools = known(facts.hugetlb.hugetlb.pools)
    except (UnknownFactError, UnreadTopicError) as error:
        return [("huge pages", f"unknown: {error.fact.reason}")]
    return [(f"pages of {format_page_size(size)}", _text(_pool, pools[size])) for size in pools]


def _pool(read: Pool | Unknown) -> str:
    pool = known(read)
    return f"{pool.total_pages}, {pool.free_pages} free, {pool.reserved_pages} promised"
