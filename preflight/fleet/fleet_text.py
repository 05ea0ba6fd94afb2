"""A fleet for a person at a terminal: the verdict, what few nodes say, then what differs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from preflight.check.verdict import clean
from preflight.fleet.fleet_records import STATUSES, Drift, Fleet, Said, Unusable, Variant
from preflight.fleet.merge_fleet import nodes_text

Paint = Callable[[str, str], str]

COLOURS = {"fail": "red", "unknown": "magenta", "warn": "yellow", "pass": "green"}
# The whole of each list is in --json; a screen holds some forty lines.
LONGEST_NODES = 60
LONGEST_VALUE = 72
MOST_OF_ONE_CHECK = 3
# A node without a report has but one finding, and its words are all that there is to go by.
MOST_OF_ABSENCE = 8
ABSENCE = (
    "fleet.ssh",
    "fleet.timeout",
    "fleet.tool",
    "fleet.python",
    "fleet.folder",
    "fleet.report",
)
MOST_ROWS = 30
MOST_VARIANTS = 4


def fleet_text(fleet: Fleet, paint: Paint, width: int, verbosity: int) -> str:
    """Without a final newline. verbosity: below 0 the verdict alone, above 0 what passed too."""
    parts = [verdict_line(fleet, paint, width)]
    if verbosity >= 0:
        few = [one for one in fleet.said if not _common(fleet, one)]
        many = [one for one in fleet.said if _common(fleet, one)]
        few_head = "What few nodes say" if many else "What the nodes say"
        parts += [
            _statuses(fleet, paint),
            _findings(fleet, few_head, few, paint, width),
            _findings(fleet, "What most nodes say", many, paint, width),
            _waived(fleet, width),
            _drift(fleet, width),
            _alike(fleet, width),
            _unusable(fleet, width),
            _passed(fleet, width, verbosity),
        ]
    return "\n\n".join(part for part in parts if part)


def verdict_line(fleet: Fleet, paint: Paint, width: int) -> str:
    """One line: ``FAIL: of 64 nodes 2 fail, 1 unknown, 61 pass (63 reports read)``."""
    return _first_word(_fill(verdict_text(fleet), width), paint, fleet.verdict)


def verdict_text(fleet: Fleet) -> str:
    """The verdict in words."""
    head = fleet.verdict.upper()
    if not fleet.nodes:
        return f"{head}: no node has a report ({_read(fleet)})"
    counts = [(len(fleet.of(status)), status) for status in STATUSES]
    said = ", ".join(f"{count} {status}" for count, status in counts if count)
    return f"{head}: of {_plural(len(fleet.nodes), 'node')} {said} ({_read(fleet)})"


def _read(fleet: Fleet) -> str:
    parts = [f"{_plural(fleet.reports, 'report')} read"]
    lost = sum(one.times for one in fleet.unusable)
    if lost:
        parts.append(f"{lost} not usable")
    if fleet.expected is not None:
        parts.append(f"{_plural(fleet.expected, 'node')} expected")
    return ", ".join(parts)


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _statuses(fleet: Fleet, paint: Paint) -> str:
    """Which nodes have which status: the lists that a scheduler is given, in short."""
    lines = []
    for status in STATUSES:
        places = fleet.of(status)
        if places:
            lines.append(
                f"  {paint(status, COLOURS[status])}{' ' * (9 - len(status))}"
                f"{shortened(fleet, places)}"
            )
    return "\n".join(lines)


def _common(fleet: Fleet, one: Said) -> bool:
    return 2 * len(one.nodes) > len(fleet.nodes) > 1


def _findings(fleet: Fleet, head: str, said: Sequence[Said], paint: Paint, width: int) -> str:
    if not said:
        return ""
    lines = [head]
    shown: dict[tuple[str, str], int] = {}
    more: dict[tuple[str, str], set[int]] = {}
    for one in said:
        key = (one.finding.check, one.finding.status)
        most = MOST_OF_ABSENCE if one.finding.check in ABSENCE else MOST_OF_ONE_CHECK
        if shown.get(key, 0) >= most or sum(shown.values()) >= MOST_ROWS:
            more.setdefault(key, set()).update(one.nodes)
            continue
        shown[key] = shown.get(key, 0) + 1
        lines.append(_finding(fleet, one, paint, width))
    for (check, status), places in more.items():
        where = shortened(fleet, sorted(places))
        lines.append(_fill(f"  {status}: {check}, in other words, on {where}: --json", width))
    return "\n".join(lines)


def _finding(fleet: Fleet, one: Said, paint: Paint, width: int) -> str:
    """``fail: memlock.limit on gpu017: rank 0-7``, then have, need and what follows."""
    finding = one.finding
    where = f" on {shortened(fleet, one.nodes)}" if one.nodes else ""
    about = (
        "" if finding.subject in ("node", "reports", "report") else f": {clean(finding.subject)}"
    )
    head = _fill(f"{finding.status}: {clean(finding.check)}{where}{about}", width, "  ")
    lines = [_first_word(head, paint, finding.status)]
    seen = ", ".join(
        f"{word} {cut(text)}"
        for word, text in (("have", finding.have), ("need", finding.need))
        if text
    )
    lines += [_fill(text, width, "      ") for text in (seen, cut(finding.text, 300)) if text]
    return "\n".join(lines)


def _waived(fleet: Fleet, width: int) -> str:
    lines = [
        _fill(
            f"ignored: {clean(one.finding.check)} on {shortened(fleet, one.nodes)}: "
            f"{cut(one.finding.ignored or '')}",
            width,
        )
        for one in fleet.waived[:MOST_ROWS]
    ]
    return "\n".join(lines)


def _drift(fleet: Fleet, width: int) -> str:
    if not fleet.drift:
        return ""
    from tabulate import tabulate

    rows = [drift_cells(fleet, one) for one in fleet.drift[:MOST_ROWS]]
    first = min(36, max(len(row[0]) for row in rows))
    second = min(28, max(12, *(len(row[1]) for row in rows)))
    table = tabulate(
        rows,
        ["not the same everywhere", "most nodes", "the others"],
        tablefmt="simple",
        disable_numparse=True,
        maxcolwidths=[max(first, 23), second, max(20, width - max(first, 23) - second - 4)],
    )
    lines = [line.rstrip() for line in table.splitlines()]
    if len(fleet.drift) > MOST_ROWS:
        lines.append(f"and {len(fleet.drift) - MOST_ROWS} more, in --json")
    return "\n".join(lines)


def drift_cells(fleet: Fleet, one: Drift) -> tuple[str, str, str]:
    """The fact, the most common value, and the other values with their nodes."""
    most = "a tie" if one.most is None else f"{cut(one.most.value)} ({len(one.most.nodes)})"
    others = [
        f"{shortened(fleet, other.nodes)}: {cut(other.value) or 'empty'}"
        for other in sorted(one.others, key=lambda other: len(other.nodes))[:MOST_VARIANTS]
    ]
    if len(one.others) > MOST_VARIANTS:
        others.append(f"and {len(one.others) - MOST_VARIANTS} more values")
    if one.unread:
        others.append(f"{shortened(fleet, one.unread)}: not read")
    return clean(one.fact), most, "; ".join(others)


def _alike(fleet: Fleet, width: int) -> str:
    """What nodes have, where they look for the master, and what they give to the pool."""
    lines = [*_variants(fleet, fleet.devices, "", width)]
    lines += _variants(fleet, fleet.masters, "master ", width)
    lines += [_fill(text, width) for text in (pool_text(fleet), facts_text(fleet)) if text]
    return "\n".join(lines)


def _variants(fleet: Fleet, variants: Sequence[Variant], what: str, width: int) -> Iterator[str]:
    for variant in variants[:MOST_ROWS]:
        yield _fill(f"{shortened(fleet, variant.nodes)}: {what}{cut(variant.value, 200)}", width)
    if len(variants) > MOST_ROWS:
        yield f"and {len(variants) - MOST_ROWS} more kinds, in --json"


def pool_text(fleet: Fleet) -> str:
    """``pool: 4.00 TiB = 63 x 64.00 GiB + 32.00 GiB (gpu040), …``; "" without a store."""
    pool = fleet.pool
    if pool is None:
        return ""
    from checks.units import format_bytes

    by_count = sorted(pool.shares, key=lambda share: -len(share[1]))
    parts = [
        f"{len(places)} x {format_bytes(size)}" + (f" ({shortened(fleet, places)})" if at else "")
        for at, (size, places) in enumerate(by_count[:MOST_VARIANTS])
    ]
    if len(by_count) > MOST_VARIANTS:
        parts.append(f"{len(by_count) - MOST_VARIANTS} other sizes")
    text = f"pool: {format_bytes(pool.total_bytes)} of global segments"
    text += f" = {' + '.join(parts)}" if parts else ""
    if pool.skew is not None:
        text += f"; the largest share is {pool.skew:.2f} times the smallest"
    if pool.unread:
        text += f"; and what {shortened(fleet, pool.unread)} adds, which is not known"
    return text


def facts_text(fleet: Fleet) -> str:
    """Which nodes could not be held against the others; "" where all could."""
    places = fleet.without_facts
    if not places:
        return ""
    return (
        f"{shortened(fleet, places)}: answers of check --json, which have no facts, addresses or "
        "segments to compare"
    )


def _unusable(fleet: Fleet, width: int) -> str:
    lines = [_fill(unusable_text(one), width) for one in fleet.unusable[:MOST_ROWS]]
    if len(fleet.unusable) > MOST_ROWS:
        lines.append(f"and {len(fleet.unusable) - MOST_ROWS} more, in --json")
    repeats = sum(fleet.repeats.values())
    if repeats:
        nodes = shortened_names(sorted(fleet.repeats))
        lines.append(_fill(f"{repeats} more of {nodes}, saying the same again", width, "  "))
    return "\n".join(["Reports that are not used, or not twice", *lines]) if lines else ""


def unusable_text(one: Unusable) -> str:
    """``gpu007.json: truncated: it ends after 8000 bytes, within the report``."""
    where = f"{one.source}:{one.line}" if one.line else one.source
    more = f" (and {_plural(one.times - 1, 'line')} like it)" if one.times > 1 else ""
    return f"  {clean(where)}: {one.trouble.value}: {cut(one.reason, 160)}{more}"


def _passed(fleet: Fleet, width: int, verbosity: int) -> str:
    """Checks that pass, by the nodes on which they do."""
    if not fleet.passed:
        return ""
    checks: dict[str, set[int]] = {}
    for one in fleet.passed:
        checks.setdefault(one.finding.check, set()).update(one.nodes)
    if verbosity <= 0:
        return f"pass: {_plural(len(checks), 'check')} (which, and where: -v)"
    groups: dict[tuple[int, ...], list[str]] = {}
    for check, places in checks.items():
        groups.setdefault(tuple(sorted(places)), []).append(check)
    return "\n".join(
        _fill(f"pass on {shortened(fleet, nodes)}: {', '.join(map(clean, sorted(names)))}", width)
        for nodes, names in sorted(groups.items(), key=lambda item: len(item[0]))
    )


def shortened(fleet: Fleet, places: Sequence[int]) -> str:
    """Nodes folded, and cut with their number where they would fill the line."""
    return _cut_set(nodes_text(fleet, places), len(places))


def shortened_names(names: Sequence[str]) -> str:
    """The same, for names."""
    from preflight.fleet.node_sets import fold

    return _cut_set(fold(names), len(names))


def _cut_set(text: str, count: int) -> str:
    if len(text) <= LONGEST_NODES:
        return text
    end = text.rfind(",", 0, LONGEST_NODES)
    return f"{text[: end if end > 0 else LONGEST_NODES]},... ({count} nodes)"


def cut(text: str, most: int = LONGEST_VALUE) -> str:
    """On one line, not too long, with nothing that moves the cursor."""
    text = clean(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _first_word(text: str, paint: Paint, status: str) -> str:
    word, colon, rest = text.partition(":")
    indent = len(word) - len(word.lstrip())
    return word[:indent] + paint(word[indent:], COLOURS[status]) + colon + rest


def _fill(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    " if len(indent) < 6 else indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def listed(names: Iterable[str], form: str) -> str:
    """Names as a scheduler reads them: ``nodeset`` for Slurm, ``lines`` for kubectl and xargs."""
    from preflight.fleet.node_sets import fold

    return fold(names, slurm=True) if form == "nodeset" else "\n".join(names)
