"""A fleet for a person at a terminal: the verdict, what few nodes say, then what differs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from preflight.base.one_line import clean
from preflight.fleet.base.words import COLOURS, Paint, cut, have_and_need, plural, shortened_names
from preflight.fleet.merge.records import Fleet, Said, Variant
from preflight.fleet.merge.words import (
    drift_cells,
    facts_text,
    pool_text,
    shortened,
    unusable_text,
    verdict_text,
)
from preflight.fleet.node.reply import FOLDER, PYTHON, REPORT, SSH, TIMEOUT, TOOL
from preflight.fleet.reports.records import STATUSES

MOST_OF_ONE_CHECK = 3
# A node without a report has but one finding, and its words are all that there is to go by.
MOST_OF_ABSENCE = 8
ABSENCE = (SSH, TIMEOUT, TOOL, PYTHON, FOLDER, REPORT)
MOST_ROWS = 30


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
            "\n".join(_waived(fleet, width)),
            _drift(fleet, width),
            _alike(fleet, width),
            _unusable(fleet, width),
            _passed(fleet, width, verbosity),
        ]
    return "\n\n".join(part for part in parts if part)


def verdict_line(fleet: Fleet, paint: Paint, width: int) -> str:
    """One line: ``FAIL: of 64 nodes 2 fail, 1 unknown, 61 pass (63 reports read)``."""
    return _first_word(_fill(verdict_text(fleet), width), paint, fleet.verdict)


def _statuses(fleet: Fleet, paint: Paint) -> str:
    """Which nodes have which status: the lists that a scheduler is given, in short."""
    return "\n".join(
        f"  {paint(status, COLOURS[status])}{' ' * (9 - len(status))}{shortened(fleet, places)}"
        for status in STATUSES
        if (places := fleet.of(status))
    )


def _common(fleet: Fleet, one: Said) -> bool:
    return 2 * len(one.nodes) > len(fleet.nodes) > 1


def _findings(fleet: Fleet, head: str, said: Sequence[Said], paint: Paint, width: int) -> str:
    if not said:
        return ""
    lines = [head]
    shown: dict[tuple[str, str], int] = {}
    more: dict[tuple[str, str], list[Said]] = {}
    for one in said:
        key = (one.finding.check, one.finding.status)
        most = MOST_OF_ABSENCE if one.finding.check in ABSENCE else MOST_OF_ONE_CHECK
        if shown.get(key, 0) >= most or sum(shown.values()) >= MOST_ROWS:
            more.setdefault(key, []).append(one)
            continue
        shown[key] = shown.get(key, 0) + 1
        lines.append(_finding(fleet, one, paint, width))
    for (check, status), others in more.items():
        places = sorted({place for one in others for place in one.nodes})
        where = f" on {shortened(fleet, places)}" if places else ""
        text = f"  {status}: {clean(check)}{where}: {len(others)} more, which --json has"
        lines.append(_fill(text, width))
    return "\n".join(lines)


def _finding(fleet: Fleet, one: Said, paint: Paint, width: int) -> str:
    """``fail: memlock.limit on gpu017: rank 0-7``, then have, need and what follows."""
    finding = one.finding
    where = f" on {shortened(fleet, one.nodes)}" if one.nodes else ""
    about = f": {clean(finding.subject)}" * (finding.subject not in ("node", "reports", "report"))
    head = _fill(f"{finding.status}: {clean(finding.check)}{where}{about}", width, "  ")
    lines = [_first_word(head, paint, finding.status)]
    for text in (have_and_need(finding.have, finding.need), cut(finding.text, 300)):
        if text:
            lines.append(_fill(text, width, "      "))
    return "\n".join(lines)


def _waived(fleet: Fleet, width: int) -> Iterator[str]:
    for one in fleet.waived[:MOST_ROWS]:
        where = f"{clean(one.finding.check)} on {shortened(fleet, one.nodes)}"
        yield _fill(f"ignored: {where}: {cut(one.finding.ignored or '')}", width)


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


def _unusable(fleet: Fleet, width: int) -> str:
    lines = [_fill(unusable_text(one), width) for one in fleet.unusable[:MOST_ROWS]]
    if len(fleet.unusable) > MOST_ROWS:
        lines.append(f"and {len(fleet.unusable) - MOST_ROWS} more, in --json")
    repeats = sum(fleet.repeats.values())
    if repeats:
        nodes = shortened_names(sorted(fleet.repeats))
        lines.append(_fill(f"{repeats} more of {nodes}, saying the same again", width, "  "))
    return "\n".join(["Reports that are not used, or not twice", *lines]) if lines else ""


def _passed(fleet: Fleet, width: int, verbosity: int) -> str:
    """Checks that pass, by the nodes on which they do."""
    if not fleet.passed:
        return ""
    checks: dict[str, set[int]] = {}
    for one in fleet.passed:
        checks.setdefault(one.finding.check, set()).update(one.nodes)
    if verbosity <= 0:
        return f"pass: {plural(len(checks), 'check')} (which, and where: -v)"
    groups: dict[tuple[int, ...], list[str]] = {}
    for check, places in checks.items():
        groups.setdefault(tuple(sorted(places)), []).append(check)
    return "\n".join(
        _fill(f"pass on {shortened(fleet, nodes)}: {', '.join(map(clean, sorted(names)))}", width)
        for nodes, names in sorted(groups.items(), key=lambda item: len(item[0]))
    )


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
