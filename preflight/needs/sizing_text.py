"""A sizing for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from checks.framework.pages import Default, MemoryKind, Spot
from checks.framework.units import format_bytes, format_page_size
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Stock, pool_needs, spot_order
from preflight.base.output import columns
from preflight.base.text import cell_widths, fitted_table, wrapped
from preflight.engines.mooncake.allocations import Allocation, Backing, OnShortage
from preflight.engines.mooncake.replay import ProcessReplay
from preflight.needs.advice import numbers_to_set, recommend
from preflight.needs.sizing import Sizing, taken_pages

if TYPE_CHECKING:
    from checks.framework.problem import Match
    from preflight.launches.source import Origin
    from preflight.needs.launch_sizing import LaunchSizing
    from preflight.needs.shown_needs import Need
    from preflight.needs.sizing_inputs import Input

Paint = Callable[[str, str], str]

INDENT = 2
# What the answer is not about.
_NEXT = "Next: mooncake-preflight check, of the same launch: ports, limits, devices and the rest"
_EVERY = "every mapping that is asked for gets its huge pages"
HEADLINES = {
    "fits": ("FITS (huge pages and memory)", "green", _EVERY),
    "falls_back": ("STARTS, NOT AS ASKED", "yellow", "something asked for is not used"),
    "fails": ("WILL NOT START", "red", "a mapping that must succeed can be left without pages"),
    "planning_only": ("NO POOL TO JUDGE", "yellow", "the kernel shows no huge page pool here"),
    "unknown": ("CANNOT BE KNOWN", "yellow", "a fact that decides it cannot be read"),
}
BACKINGS = {
    Backing.HUGETLB: "huge pages",
    Backing.MEMFD_HUGETLB: "huge pages (memfd)",
    Backing.ARENA: "the arena",
    Backing.REGULAR: "regular pages",
    Backing.NONE: "not mapped",
}
_COLOURS = dict.fromkeys(("fail", "corrupts", "unused"), "red") | {"warn": "yellow", "note": "cyan"}
SHORTAGES = {
    OnShortage.FAILS: "fails",
    OnShortage.FALLS_BACK: "falls back",
    OnShortage.BUS_ERROR: "bus error",
}


def _reading_text(sizing: LaunchSizing) -> str:
    """Return how the launch was read: the host that is sized, the parts that were not read, and
    notes.

    Notes on conditions and on commands not started are left out; equal notes are one.
    """
    places: dict[tuple[str, str], list[Origin]] = {}
    for note in sizing.reading.notes:
        if note.id not in ("condition", "not-started"):  # those that count are told above
            places.setdefault((note.id, note.text), []).append(note.origin)
    notes = []
    for (identifier, text), (first, *others) in places.items():
        again = f" and {len(others)} more{' places' * (len(others) > 1)}" if others else ""
        notes.append(_filled(f"  {text} ({first}{again}) [{identifier}]"))
    host = "" if sizing.group is None else f"Host\n  {sizing.group.text}"
    not_read = _part("Not read", [_filled(f"  {each.text}") for each in sizing.unread])
    return _parts(host, not_read, _part("How it was read", notes))


def launch_text(sizing: LaunchSizing, rule: str, paint: Paint, explained: bool = False) -> str:
    """Return the answer about a launch as it was written.

    Args:
        rule: Documented or exact.
        explained: With the formula of each need. ``paint`` colours a text: paint(text, colour).
    """
    left_out = _part("Not started", [_filled(f"  {text}") for text in sizing.reading.left_out])
    reading = _reading_text(sizing)
    shown, findings = sizing.shown, sizing.problems
    word, colour, meaning = HEADLINES[sizing.status]
    if sizing.status == "fails":
        word = sizing.consequence.value.upper()
    verdict = f"{paint(word, colour)}: {sizing.reason or meaning}"
    if shown is None:
        return _parts(_filled(verdict), left_out, _findings(findings, paint), reading)
    if (sizing.status, sizing.reason) != (shown.status, shown.reason):
        # What decides is not the huge pages: of those it is said what they are, as no verdict.
        verdict += f"\n  Of its huge pages: {_headline(shown)[1]}"
        body = sizing_text(shown, rule, paint, findings, verdict, left_out=left_out)
    else:
        plain = sizing.status == "fits" and not shown.need_bytes and sizing.regular_bytes
        verdict = f"{paint(word, colour)}: {_without_huge_pages(plain)}" if plain else ""
        body = sizing_text(shown, rule, paint, findings, verdict, _NEXT, left_out)
    needs = ""
    if explained:
        from preflight.needs.shown_needs import host_needs

        needs = explain(host_needs(shown, sizing.inputs.processes), shown.inputs.shown)
    return _parts(body, _admissions(sizing), reading, needs)


def _without_huge_pages(regular_bytes: tuple[int, int]) -> str:
    """Return the answer about a launch that fits without huge pages.

    Args:
        regular_bytes: Least, most.
    """
    if not regular_bytes[1]:
        return "it keeps no KV cache in this host's memory, and takes no huge pages"
    least, most = map(format_bytes, regular_bytes)
    span = most if least == most else f"{least} to {most}"
    return f"it takes no huge pages, and {span} of memory on regular pages"


def sizing_text(
    sizing: Sizing,
    rule: str,
    paint: Paint,
    findings: Iterable[Match] = (),
    verdict: str = "",
    next_step: str = "",
    left_out: str = "",
) -> str:
    """Return the whole answer by ``rule`` (documented or exact).

    Args:
        verdict: Replaces that on huge pages; "" keeps it.
        next_step: Shown only if the pages suffice.
        left_out: Parts that are in no number.
    """
    documented = sizing.documented
    lead = f"documented rule: {documented.status} (exit {documented.exit_code})"
    notes = [*sizing.unused, *sizing.inputs.notes]
    noted = [line for note in notes for line in _wrapped(f"  - {note.text} [{note.id}]", 2)]
    # Without HiCache and Mooncake there is nothing to put into a table.
    empty = rule != "documented" and not any(process.allocations for process in sizing.asked)
    suffices = sizing.status in ("fits", "falls_back")
    return _parts(
        lead if rule == "documented" else "",
        _head(sizing, paint, verdict, next_step if suffices else ""),
        left_out,
        *([] if empty else [_processes(sizing), _pools(sizing), _documented(sizing)]),
        _inputs(sizing),
        _findings(findings, paint),
        _part("Notice", noted),
        _advice(sizing),
    )


def _parts(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _part(head: str, lines: Iterable[str]) -> str:
    """Return lines below their head; "" without lines."""
    text = "\n".join(lines)
    return f"{head}\n{text}" if text else ""


def _findings(findings: Iterable[Match], paint: Paint) -> str:
    """Return the findings of the rules, each with its consequence and its remedy."""
    lines = []
    for finding in findings:
        page, severity = finding.page, finding.severity.value
        where = "" if finding.origin is None else f" ({finding.origin})"
        mend = finding.remedy or page.remedy
        text = f"{finding.text}{where}: {page.follows}. To mend it: {mend} [{finding.id}]"
        first, *rest = _wrapped(f"  {severity}: {text}")
        painted = paint(severity, _COLOURS[severity])
        lines += [f"  {painted}{first[2 + len(severity) :]}", *rest]
    return _part("Settings as written, and what the program makes of them", lines)


def _admissions(sizing: LaunchSizing) -> str:
    """Return the answers of SGLang's own check, server by server."""
    lines = []
    for admission in sizing.admissions:
        if isinstance(admission, Unknown):
            lines.append(f"  not known: {admission.reason}")
            continue
        answer = admission.refused or admission.late
        when = "refuses" if admission.refused else "may refuse its slowest rank"
        answer = f"{when}: {answer}" if answer else "admits the L2 pool"
        lines.append(f"  {admission.origin}: {answer}")
        if admission.pages is not None:
            span, why = admission.pages.span, admission.pages.reason
            lines.append(f"    numbers of huge pages with which it starts: {span}; {why}")
    return _part("SGLang's own check of host memory", map(_filled, lines))


def explain(needs: Mapping[str, Sequence[Need]], shown: Mapping[str, Input]) -> str:
    """Return every need with its formula, then once each input that the needs depend on, with its
    origin.

    Args:
        needs: By kind.
        shown: The inputs of the whole launch.
    """
    lines = ["Needs of this host, each with its formula"]
    inputs: dict[str, Input] = {}
    for need_kind, needs_of_kind in needs.items():
        for need in needs_of_kind:
            amount = str(need.value)
            if need.unit == "bytes" and isinstance(need.value, int):
                amount = f"{format_bytes(need.value)} ({need.value} bytes)"
            lines.append(f"  {need_kind}: {need.what}, {need.owner}: {amount} = {need.formula}")
            inputs.update(shown if need.of_input is None else [need.of_input])
    sources = (f"  {name} = {each.value} ({each.origin})" for name, each in inputs.items())
    return "\n".join(map(_filled, (*lines, "From", *sources)))


def _headline(sizing: Sizing) -> tuple[str, str, str]:
    """Return the verdict's word, its meaning here, and its colour."""
    word, colour, meaning = HEADLINES[sizing.status]
    if sizing.starts_by_luck:
        word = "MAY NOT START"
    if sizing.status == "fits" and not sizing.need_bytes:
        meaning = "it takes no huge pages"
    return word, sizing.reason or meaning, colour


def _head(sizing: Sizing, paint: Paint, verdict: str, next_step: str) -> str:
    """Return the answer: the verdict, each shortage, the number to set, and the next step.

    Args:
        verdict: "" for that of the sizing.
    """
    word, reason, colour = _headline(sizing)
    lines = (verdict or f"{paint(word, colour)}: {reason}").split("\n")
    # As check says it, and as it is set: what the nodes of a pool have to hold together.
    needs, start = pool_needs(sizing.verdict.needs), pool_needs(sizing.verdict.start)
    for short in sizing.verdict.shortages:
        spot, need = short.spot, needs.get(short.spot, 0)
        text = f"need {need} ({format_bytes(need * spot.page_size_bytes)})"
        if 0 < start.get(spot, 0) < need:
            text += f", {start[spot]} to start for certain"
        lines.append(f"  {_where(spot)}: have {_have(short.available)}, {text}")
    if sizing.need_bytes:
        lines.append(f"  Set: {numbers_to_set(sizing)}")
    lines += [f"  {next_step}"] if next_step else []
    return "\n".join(_filled(line) for line in lines)


def _filled(text: str) -> str:
    return "\n".join(_wrapped(text))


def _have(have: Stock | Unknown) -> str:
    if isinstance(have, Unknown):
        return f"unknown ({have.reason})"
    if have.least_pages == have.most_pages:
        return str(have.least_pages)
    return f"{have.least_pages} to {have.most_pages}"


def _where(spot: Spot) -> str:
    return f"{format_page_size(spot.page_size_bytes)} pages{spot.where}"


def _processes(sizing: Sizing) -> str:
    """Return the tables of what processes map; processes with equal allocations share one table."""
    groups: dict[tuple[Allocation, ...], list[ProcessReplay]] = {}
    for process in sizing.asked:
        groups.setdefault(process.allocations, []).append(process)
    version = sizing.inputs.shown["mooncake_version"]
    head = f"What is mapped, in order (Mooncake {version.value}, {version.origin})"
    parts = _wrapped(head)
    for allocations, processes in groups.items():
        if not allocations:
            parts += _wrapped(f"  {_names(processes)}: nothing", 2)
            continue
        rows = [_allocation_row(allocation) for allocation in allocations]
        heads = [_names(processes), "size", "from", "pages", "of", "node", "NICs", "if short"]
        too_wide = any(cell_widths([heads, *rows], columns() - INDENT, ()))
        widest = max(len(row[0]) for row in rows)
        if too_wide and len(heads[0]) > widest:
            parts += _wrapped(f"  {heads[0]}", 2)
            heads[0] = "what"
        parts.append(_table(rows, heads, right=(1, 3, 4, 5), firm=(1, 3, 4, 5, 6, 7)))
    return "\n".join(parts)


def _table(
    rows: list[list[str]], heads: list[str], right: Collection[int] = (), firm: Sequence[int] = ()
) -> str:
    """Return a table as wide as the terminal.

    Args:
        right, firm: As ``fitted_table`` takes them.
    """
    return fitted_table(rows, heads, columns(), right=right, firm=firm, margin=" " * INDENT)


def _names(processes: list[ProcessReplay]) -> str:
    """Return a heading for processes that map alike: the name of a single one, else ``first to
    last: each`` (``first, last: each`` for the same rank of two servers).
    """
    first, last = processes[0].process.name, processes[-1].process.name
    if len(processes) == 1:
        return first
    if first.rpartition(" ")[2] == last.rpartition(" ")[2]:  # rank 0 of several servers
        return f"{first}, {last}: each" if len(processes) == 2 else f"{first} to {last}: each"
    return f"{first} to {last.rpartition(' ')[2]}: each"


def _allocation_row(allocation: Allocation) -> list[str]:
    """Return an allocation as a row of the table."""
    in_arena = allocation.backing is Backing.ARENA
    return [
        allocation.what,
        format_bytes(allocation.bytes),
        BACKINGS[allocation.backing],
        "-" if in_arena else str(allocation.pages),
        "" if in_arena else format_page_size(allocation.page_size_bytes),
        "any" if allocation.node is None else str(allocation.node),
        "registered" if allocation.registered else "",
        "" if in_arena else SHORTAGES[allocation.on_shortage],
    ]


def _pools(sizing: Sizing) -> str:
    """Return a table of the pages needed and available at each spot."""
    needs = sizing.verdict.needs
    spots = sorted({*needs, Spot(sizing.inputs.settings.hugepage_bytes, None)}, key=spot_order)
    rows = []
    for spot in spots:
        need, taken = needs.get(spot, 0), taken_pages(sizing, spot)
        row = [_where(spot), str(need), format_bytes(need * spot.page_size_bytes)]
        have = _have(sizing.stock.get(spot, Unknown("not read")))
        rows.append([*row, have, "?" if taken is None else str(taken)])
    for spot, pages in pool_needs(needs).items():
        if pages > needs[spot]:
            size = format_bytes(pages * spot.page_size_bytes)
            rows.append(["all nodes together", str(pages), size, "", ""])
    heads = ["all processes", "need", "", "available", "takes"]
    return _table(rows, heads, right=range(1, 5))


def _documented(sizing: Sizing) -> str:
    """Return the documented rule beside the exact need."""
    rule, ranks = sizing.documented, sizing.inputs.ranks
    rows: list[tuple[str, int, int]] = [
        ("documented: baseline floor", rule.baseline_per_rank_bytes, rule.baseline_total_bytes),
        ("documented: clean arena", rule.clean_arena_per_rank_bytes, rule.clean_arena_total_bytes),
        ("exact", sizing.need_bytes // ranks, sizing.need_bytes),
    ]
    shown = [[name, format_bytes(rank), format_bytes(total)] for name, rank, total in rows]
    heads = ["huge pages", "per rank", "in all"]
    comparison = _wrapped(f"  {compare_rules(sizing)}", 0)
    return "\n".join([_table(shown, heads, right=(1, 2)), *comparison])


def _advice(sizing: Sizing) -> str:
    """Return the numbered recommendations with their commands."""
    lines = []
    for number, item in enumerate(recommend(sizing), start=1):
        text = item.text[:1].upper() + item.text[1:]
        lines += _wrapped(f"  {number}. {text} [{item.id}]", 3)
        lines += [f"       {command}" for command in item.commands]
    return _part("Do", lines)


def _inputs(sizing: Sizing) -> str:
    """Return a table of the inputs and their origins; defaults only if they are sizes."""
    rows = [
        [name, _shown(name, each.value), each.origin]
        for name, each in sizing.inputs.shown.items()
        if not isinstance(each.origin, Default) or "_bytes" in name
    ]
    return _table(rows, ["input", "value", "from"])


def _shown(name: str, value: object) -> str:
    """Return an input's value for a person; with a ``name`` in ``_bytes``, in larger units too."""
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{value} ({format_bytes(value)})"
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)


def _wrapped(text: str, further: int = 4) -> list[str]:
    return wrapped(text, columns(), further)


def compare_rules(sizing: Sizing) -> str:
    """Return sentences about the documented rule: its status, and how far it is off and why."""
    documented, need = sizing.documented, sizing.need_bytes
    target = documented.clean_arena_total_bytes
    message = f"The documented rule says {documented.status} (exit {documented.exit_code})."
    reasons = "; ".join(_reasons(sizing))
    because = f": {reasons}" if reasons else ""
    text = f"Its target is what the library takes{because}."
    if target > need:
        text = f"It asks for {format_bytes(target - need)} more than the library takes{because}."
    elif target < need:
        text = f"It misses {format_bytes(need - target)} of what the library takes{because}."
    return " ".join(part for part in (message, text, _verdicts(sizing)) if part)


def _reasons(sizing: Sizing) -> list[str]:
    """Return the reasons why the documented rule differs from the exact need."""
    terms, settings = sizing.inputs.terms, sizing.inputs.settings
    if not settings.hugepages:
        return ["without MC_STORE_USE_HUGEPAGE the library takes no huge pages"]
    reasons: list[str] = []
    sharers = terms.tp_size * terms.pp_size
    if terms.segment_scope == "instance" and terms.segment_bytes and sharers > 1:
        divided = f"SGLang divides it among {sharers}"
        reasons.append(f"it counts the segment once per rank, and {divided}")
    first = sizing.asked[0].allocations
    in_arena = [a.what for a in first if a.backing is Backing.ARENA]
    if terms.arena_bytes and in_arena:
        reasons.append(f"it adds the arena to what the arena holds ({' and '.join(in_arena)})")
    if sizing.inputs.ranks > terms.tp_size:
        sizes = f"tp {terms.tp_size} x pp {terms.pp_size} x dp {terms.dp_size}"
        reasons.append(f"it counts {terms.tp_size} ranks, and {sizing.inputs.ranks} run ({sizes})")
    if any(a.what is MemoryKind.LOCAL_BUFFER and a.pages for a in first):
        reasons.append("it leaves out the local buffer")
    if settings.arena_bytes and not terms.arena_bytes:
        reasons.append("it does not see the arena that the environment asks for")
    if any(a.mapped_bytes > a.bytes for a in first if a.pages):
        reasons.append("it rounds no mapping up to its pages")
    return reasons


def _verdicts(sizing: Sizing) -> str:
    """Return a sentence if the documented rule and the exact need disagree; "" if they agree or one
    gives no verdict.
    """
    passes = sizing.documented.status != "insufficient_for_baseline"
    sees_pool = sizing.documented.available_bytes is not None
    short = next((s for s in sizing.verdict.shortages if not s.spot.nodes), None)
    if sizing.status == "fails" and passes and sees_pool:
        if short is None or isinstance(short.available, Unknown):
            return "It would have passed this launch, which will not start."
        missing = (short.start_pages - short.available.least_pages) * short.spot.page_size_bytes
        return f"It would have passed this launch, {format_bytes(missing)} short of its need."
    if sizing.status in ("fits", "falls_back") and not passes:
        return "It would have stopped this launch, whose huge pages are there."
    return ""
