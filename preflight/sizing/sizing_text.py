"""A sizing for a person at a terminal, and the documented rule beside it in plain words."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tabulate import tabulate

from checks.base.needs import MemoryKind, Spot
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.fit import Stock
from preflight.base.output import columns
from preflight.mooncake.allocations import Allocation, Backing, OnShortage
from preflight.mooncake.replay import ProcessReplay
from preflight.render.text import cell_widths
from preflight.sizing.advice import Recommendation
from preflight.sizing.sizing import Sizing, taken_pages

if TYPE_CHECKING:  # it comes with a launch alone
    from preflight.rules.rules import Finding

Paint = Callable[[str, str], str]

INDENT = 2
# No cell is broken below this, however narrow the terminal.
LEAST_CELL = 10
HEADLINES = {
    "fits": ("FITS", "green", "every mapping that is asked for gets its huge pages"),
    "falls_back": ("STARTS, NOT AS ASKED", "yellow", "something asked for is not used"),
    "fails": ("WILL NOT START", "red", "a mapping that must succeed can be left without pages"),
    "planning_only": ("NO POOL TO JUDGE", "yellow", "this system shows no huge page pool"),
    "unknown": ("CANNOT BE KNOWN", "yellow", "a fact that decides it cannot be read"),
}
BACKINGS = {
    Backing.HUGETLB: "huge pages",
    Backing.MEMFD_HUGETLB: "huge pages (memfd)",
    Backing.ARENA: "the arena",
    Backing.REGULAR: "regular pages",
    Backing.NONE: "not mapped",
}
_SEVERITY_COLOURS = {"fail": "red", "warn": "yellow", "note": "cyan"}
SHORTAGES = {
    OnShortage.FAILS: "fails",
    OnShortage.FALLS_BACK: "falls back",
    OnShortage.BUS_ERROR: "bus error",
}


def sizing_text(
    sizing: Sizing,
    advice: Iterable[Recommendation],
    rule: str,
    paint: Paint,
    findings: Iterable[Finding] = (),
) -> str:
    """Return the whole answer, without a final newline.

    ``paint`` colours a text: paint(text, colour).
    """
    parts = [_headline(sizing, paint), _processes(sizing), _pools(sizing), _documented(sizing)]
    if rule == "documented":
        documented = sizing.documented
        parts.insert(0, f"documented rule: {documented.status} (exit {documented.exit_code})")
    parts += [_inputs(sizing), findings_text(findings, paint), _notes(sizing), _advice(advice)]
    return "\n\n".join(part for part in parts if part)


def status_line(status: str, reason: str, paint: Paint) -> str:
    """Return the verdict in one line."""
    word, colour, meaning = HEADLINES[status]
    return f"{paint(word, colour)}: {reason or meaning}"


def findings_text(findings: Iterable[Finding], paint: Paint) -> str:
    """Return what the rules found, each with what follows and what to do instead."""
    lines = []
    for finding in findings:
        rule, severity = finding.rule, finding.rule.severity.value
        where = "" if finding.origin is None else f" ({finding.origin})"
        text = f"{severity}: {finding.text}{where}: {rule.consequence}. To mend it: "
        wrapped = _wrap(f"{text}{rule.remedy} [{rule.id}]", "      ", "  ")
        lines.append(wrapped.replace(severity, paint(severity, _SEVERITY_COLOURS[severity]), 1))
    return "\n".join(["What was written, and what becomes of it", *lines]) if lines else ""


def _headline(sizing: Sizing, paint: Paint) -> str:
    word, colour, meaning = HEADLINES[sizing.status]
    if sizing.starts_by_luck:
        word = "MAY NOT START"
    lines = [f"{paint(word, colour)}: {sizing.reason or meaning}"]
    for shortage in sizing.verdict.shortages:
        lines.append(
            f"  {_where(shortage.spot)}: have {_have(shortage.available)}, "
            + _needs(shortage.spot, shortage.need_pages, shortage.start_pages)
        )
    return "\n".join(lines)


def _needs(spot: Spot, need: int, start: int) -> str:
    size = spot.page_size_bytes
    text = f"need {need} ({format_bytes(need * size)})"
    if 0 < start < need:
        text += f", {start} to start for certain"
    return text


def _have(have: Stock | Unknown) -> str:
    if isinstance(have, Unknown):
        return f"unknown ({have.reason})"
    if have.least_pages == have.most_pages:
        return str(have.least_pages)
    return f"{have.least_pages} to {have.most_pages}"


def _where(spot: Spot) -> str:
    on = "" if spot.node is None else f" on node {spot.node}"
    return f"{format_page_size(spot.page_size_bytes)} pages{on}"


def _processes(sizing: Sizing) -> str:
    groups: dict[tuple[Allocation, ...], list[ProcessReplay]] = {}
    for process in sizing.asked:
        groups.setdefault(process.allocations, []).append(process)
    version = sizing.inputs.shown["mooncake_version"]
    head = f"What is mapped, in order (Mooncake {version.value}, {version.origin})"
    parts = [_wrap(head, "    ", "")]
    for allocations, processes in groups.items():
        rows = [_row(allocation) for allocation in allocations]
        heads = [_names(processes), "size", "from", "pages", "of", "node", "NICs", "if short"]
        right = ("left", "right", "left", "right", "right", "right", "left", "left")
        if _too_wide([heads, *rows]) and len(heads[0]) > max(len(row[0]) for row in rows):
            parts.append(_wrap(heads[0], "    ", "  "))
            heads[0] = "what"
        parts.append(_table(rows, heads, right, firm=(1, 3, 4, 5, 6, 7)))
    return "\n".join(parts)


def _too_wide(lines: list[list[str]]) -> bool:
    return any(cell_widths(lines, columns() - INDENT, ()))


def _table(
    rows: list[list[str]], heads: list[str], align: Sequence[str], firm: Sequence[int] = ()
) -> str:
    """As wide as the terminal; where that is too narrow, words go on in the next line."""
    limits = cell_widths([heads, *rows], columns() - INDENT, firm, LEAST_CELL, True)
    table = tabulate(
        rows,
        heads,
        tablefmt="simple",
        colalign=align,
        disable_numparse=True,
        maxcolwidths=limits,
    )
    return _indent(table)


def _names(processes: list[ProcessReplay]) -> str:
    first, last = processes[0].process.name, processes[-1].process.name
    if len(processes) == 1:
        return first
    return f"{first} to {last.rpartition(' ')[2]}: each"


def _row(allocation: Allocation) -> list[str]:
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
    needs = sizing.verdict.needs
    spots = sorted(
        {*needs, Spot(sizing.inputs.settings.hugepage_bytes, None)},
        key=lambda spot: (spot.page_size_bytes, -1 if spot.node is None else spot.node),
    )
    rows = []
    for spot in spots:
        need, taken = needs.get(spot, 0), taken_pages(sizing, spot)
        rows.append(
            [
                _where(spot),
                str(need),
                format_bytes(need * spot.page_size_bytes),
                _have(sizing.stock.get(spot, Unknown("not read"))),
                "?" if taken is None else str(taken),
            ]
        )
    heads = ["all processes", "need", "", "available", "takes"]
    align = ("left", "right", "right", "right", "right")
    return _table(rows, heads, align)


def _documented(sizing: Sizing) -> str:
    rule, ranks = sizing.documented, sizing.inputs.ranks
    rows: list[tuple[str, int, int]] = [
        ("documented: baseline floor", rule.baseline_per_rank_bytes, rule.baseline_total_bytes),
        ("documented: clean arena", rule.clean_arena_per_rank_bytes, rule.clean_arena_total_bytes),
        ("exact", sizing.need_bytes // ranks, sizing.need_bytes),
    ]
    shown = [[name, format_bytes(rank), format_bytes(total)] for name, rank, total in rows]
    heads = ["huge pages", "per rank", "in all"]
    align = ("left", "right", "right")
    return f"{_table(shown, heads, align)}\n{_wrap(compare_rules(sizing), '  ')}"


def _notes(sizing: Sizing) -> str:
    notes = [*sizing.unused, *sizing.inputs.notes]
    if not notes:
        return ""
    lines = [_wrap(f"- {note.text} [{note.id}]", "    ", "  ") for note in notes]
    return "\n".join(["Notice", *lines])


def _advice(advice: Iterable[Recommendation]) -> str:
    lines = []
    for number, item in enumerate(advice, start=1):
        text = item.text[:1].upper() + item.text[1:]
        lines.append(_wrap(f"{number}. {text} [{item.id}]", "     ", "  "))
        lines += [f"       {command}" for command in item.commands]
    return "\n".join(["Do", *lines]) if lines else ""


def _inputs(sizing: Sizing) -> str:
    rows = [
        [name, _shown(name, given.value), given.origin]
        for name, given in sizing.inputs.shown.items()
        if not given.origin.startswith("default") or "_bytes" in name
    ]
    return _table(rows, ["input", "value", "from"], ("left", "left", "left"))


def _shown(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{value} ({format_bytes(value)})"
    if isinstance(value, list):
        return ",".join(str(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)


def _indent(text: str) -> str:
    return "\n".join(f"{' ' * INDENT}{line}".rstrip() for line in text.splitlines())


def _wrap(text: str, indent: str, first: str | None = None) -> str:
    lead = indent if first is None else first
    return textwrap.fill(
        text,
        width=columns(),
        initial_indent=lead,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def compare_rules(sizing: Sizing) -> str:
    """Sentences for the user: the rule's status, its distance to the exact need, and why."""
    documented, need = sizing.documented, sizing.need_bytes
    target = documented.clean_arena_total_bytes
    said = f"The documented rule says {documented.status} (exit {documented.exit_code})."
    difference = target - need
    reasons = "; ".join(_reasons(sizing))
    because = f": {reasons}" if reasons else ""
    if difference > 0:
        text = f"It asks for {format_bytes(difference)} more than the library takes{because}."
    elif difference < 0:
        text = f"It misses {format_bytes(-difference)} of what the library takes{because}."
    else:
        text = f"Its target is what the library takes{because}."
    verdicts = _verdicts(sizing)
    return " ".join(part for part in (said, text, verdicts) if part)


def _reasons(sizing: Sizing) -> list[str]:
    terms, settings = sizing.inputs.terms, sizing.inputs.settings
    if not settings.hugepages:
        return ["without MC_STORE_USE_HUGEPAGE the library takes no huge pages"]
    reasons: list[str] = []
    sharers = terms.tp_size * terms.pp_size
    if terms.segment_scope == "instance" and terms.segment_bytes and sharers > 1:
        reasons.append(
            f"it counts the segment once per rank, and SGLang divides it among {sharers}"
        )
    first = sizing.asked[0].allocations
    in_arena = [a.what for a in first if a.backing is Backing.ARENA]
    if terms.arena_bytes and in_arena:
        reasons.append(f"it adds the arena to what the arena holds ({' and '.join(in_arena)})")
    if sizing.inputs.ranks > terms.tp_size:
        reasons.append(
            f"it counts {terms.tp_size} ranks, and {sizing.inputs.ranks} run "
            f"(tp {terms.tp_size} x pp {terms.pp_size} x dp {terms.dp_size})"
        )
    direct = [a for a in first if a.what is MemoryKind.LOCAL_BUFFER and a.pages]
    if direct:
        reasons.append("it leaves out the local buffer")
    if settings.arena_bytes and not terms.arena_bytes:
        reasons.append("it does not see the arena that the environment asks for")
    if any(a.pages * a.page_size_bytes > a.bytes for a in first if a.pages):
        reasons.append("it rounds no mapping up to its pages")
    return reasons


def _verdicts(sizing: Sizing) -> str:
    """Where the two rules part: a launch that it passes and that fails, or the other way round."""
    passes = sizing.documented.status != "insufficient_for_baseline"
    sees_pool = sizing.documented.available_bytes is not None
    short = next((s for s in sizing.verdict.shortages if s.spot.node is None), None)
    if sizing.status == "fails" and passes and sees_pool:
        if short is None or isinstance(short.available, Unknown):
            return "It would have passed this launch, which will not start."
        missing = (short.start_pages - short.available.least_pages) * short.spot.page_size_bytes
        return (
            f"It would have passed this launch, {format_bytes(missing)} short of a certain start."
        )
    if sizing.status in ("fits", "falls_back") and not passes:
        return "It would have stopped this launch, which starts."
    return ""
