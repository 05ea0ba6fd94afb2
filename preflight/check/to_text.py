"""A report for a person at a terminal, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from checks.base.finding import Status
from preflight.base.one_line import clean
from preflight.check.report import Report, Row, amounts, count_text, verdict_reason
from preflight.render.text import cell_widths, filled, table, wrapped

Paint = Callable[[str, str], str]

COLOURS = {
    Status.FAIL: "red",
    Status.UNKNOWN: "magenta",
    Status.WARN: "yellow",
    Status.PASS: "green",
    Status.SKIP: "cyan",
}
# Below this a table's cells would be a word wide: each row is then two lines of text.
TABLE_COLUMNS = 80
# A raw value is shown so long, a cell of the table so long: the whole is below, or in --json.
LONGEST_VALUE = 160
LONGEST_CELL = 72
MOST_EVIDENCE = 4
# So many that are unknown for one reason are said in one place; -v says each.
LEAST_TOGETHER = 3
_OF_WHAT = " is not known: "
_NOT_SET = " is not set where "


def report_text(report: Report, paint: Paint, width: int, verbosity: int) -> str:
    """The whole report without a final newline; below 0 the verdict alone, above 0 everything."""
    parts = [verdict_line(report, paint, width)]
    if verbosity >= 0 and report.understood:
        parts[0] += f"\n{filled(f'    read: {clean(report.understood)}', width)}"
    if verbosity >= 0:
        wanting = [*report.of(Status.FAIL, Status.UNKNOWN, Status.WARN), *report.waived]
        groups = [[row] for row in wanting] if verbosity > 0 else _by_cause(wanting)
        parts.append(_table([_first(rows) for rows in groups], paint, width))
        parts += [_group(rows, paint, width) for rows in groups]
        parts += [_passes(report, paint, width, verbosity), _skips(report, paint, width, verbosity)]
        parts.append(_notes(report, width))
    return "\n\n".join(part for part in parts if part)


def verdict_line(report: Report, paint: Paint, width: int) -> str:
    """The verdict, what it is about and the counts."""
    text = f"{report.verdict.value.upper()}: {verdict_reason(report)} ({count_text(report)})"
    return _first_word(filled(text, width), paint, COLOURS[report.verdict])


def _table(rows: Sequence[Row], paint: Paint, width: int) -> str:
    if not rows or width < TABLE_COLUMNS:
        return ""  # what follows says all of it
    heads = ["", "check", "subject", "have", "need"]
    cells = [
        [label(row), row.finding.check, *(_short(text, LONGEST_CELL) for text in told)]
        for row in rows
        for told in [(row.finding.subject, row.finding.have, row.finding.need)]
    ]
    used = [at for at in range(len(heads)) if at < 2 or any(line[at] for line in cells)]
    heads = [heads[at] for at in used]
    cells = [[line[at] for at in used] for line in cells]
    limits = cell_widths([heads, *cells], width, firm=(0, 1))
    for line, row in zip(cells, rows, strict=True):
        line[0] = paint(line[0], _colour(row))
    return table(cells, heads, widths=limits)


def _by_cause(rows: Iterable[Row]) -> list[list[Row]]:
    """What is unknown for one reason, as a variable that nothing sets, stands together."""
    groups: dict[object, list[Row]] = {}
    for number, row in enumerate(rows):
        text = row.finding.text
        cause = text.partition(_OF_WHAT)[2] or text
        alike = row.finding.status is Status.UNKNOWN and row.ignored is None and cause
        plain = not (row.finding.advice or row.finding.have or row.commands)
        groups.setdefault(cause if alike and plain else number, []).append(row)
    return [
        part
        for group in groups.values()
        for part in ([group] if len(group) >= LEAST_TOGETHER else [[row] for row in group])
    ]


def _first(rows: Sequence[Row]) -> Row:
    """The row of the table that stands for all of them."""
    if len(rows) == 1:
        return rows[0]
    finding = rows[0].finding._replace(subject=f"and {len(rows) - 1} more, for one reason", need="")
    return rows[0]._replace(finding=finding)


def _group(rows: Sequence[Row], paint: Paint, width: int) -> str:
    if len(rows) == 1:
        return _details(rows[0], paint, width)
    text = rows[0].finding.text
    cause = clean(text.partition(_OF_WHAT)[2] or text)
    head = filled(f"{label(rows[0])}: {_ids(rows)}", width)
    lines = [_first_word(head, paint, _colour(rows[0])), _indented(cause, width)]
    before, unset, _ = cause.partition(_NOT_SET)
    if unset:
        name = before.rpartition(" ")[2]
        if name.isidentifier():  # not $(...), or $1
            advice = f"to do: put {name}=... in front of this command, or give --env-file"
            lines.append(_indented(advice, width))
    return "\n".join(lines)


def _short(text: str, most: int) -> str:
    text = clean(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _colour(row: Row) -> str:
    return "cyan" if row.ignored is not None else COLOURS[row.finding.status]


def label(row: Row) -> str:
    """The status, or that it is waived."""
    return row.finding.status.value if row.ignored is None else "ignored"


def _details(row: Row, paint: Paint, width: int) -> str:
    finding = row.finding
    lines = [_headed(row, paint, width)]
    if row.ignored is not None:
        lines.append(_indented(f"was {finding.status.value}; ignored: {clean(row.ignored)}", width))
    follows = clean(finding.text)
    if finding.status is Status.FAIL and row.consequence is not None:
        follows = f"{follows}: {row.consequence.value}" if follows else row.consequence.value
    # What only repeats the sentence was not seen anywhere else.
    evidence = [
        seen for seen in finding.evidence if seen.value not in finding.text or not seen.value
    ]
    unshown = len(evidence) - MOST_EVIDENCE
    said = (
        follows,
        f"need: {clean(finding.formula)}" if finding.formula else "",
        *(
            f"seen: {clean(seen.source)}: {_short(seen.value, LONGEST_VALUE) or '(empty)'}"
            for seen in evidence[:MOST_EVIDENCE]
        ),
        f"and {unshown} more, in --json" if unshown > 0 else "",
        f"to do: {clean(finding.advice)}" if finding.advice else "",
    )
    lines += [_indented(text, width) for text in said if text]
    # A command is not wrapped: it is to be copied.
    lines += [f"      {clean(command)}" for command in row.commands]
    return "\n".join(lines)


def _headed(row: Row, paint: Paint, width: int) -> str:
    """``fail: memlock.limit, rank 0-3: have 8.00 MiB, need 60.00 GiB``."""
    finding = row.finding
    seen = amounts(finding)
    head = f"{label(row)}: {finding.check}, {clean(finding.subject)}"
    text = filled(f"{head}: {seen}" if seen else head, width)
    return _first_word(text, paint, _colour(row))


def _passes(report: Report, paint: Paint, width: int, verbosity: int) -> str:
    rows = report.of(Status.PASS)
    if not rows:
        return ""
    if verbosity > 0 and width >= TABLE_COLUMNS:
        return _table(rows, paint, width)
    if verbosity > 0:
        return "\n".join(_headed(row, paint, width) for row in rows)
    return _first_word(filled(f"pass: {_ids(rows)}", width), paint, COLOURS[Status.PASS])


def _skips(report: Report, paint: Paint, width: int, verbosity: int) -> str:
    rows = report.of(Status.SKIP)
    if not rows:
        return ""
    said = [f"skip: {_ids(rows)} (why: -v)"]
    if verbosity > 0:
        findings = [row.finding for row in rows]
        said = [f"skip: {f.check}, {clean(f.subject)}: {clean(f.text)}" for f in findings]
    colour = COLOURS[Status.SKIP]
    return "\n".join(_first_word(filled(text, width), paint, colour) for text in said)


def _ids(rows: Iterable[Row]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.finding.check] = counts.get(row.finding.check, 0) + len(row.subjects)
    return ", ".join(f"{id_} ({count})" if count > 1 else id_ for id_, count in counts.items())


def _notes(report: Report, width: int) -> str:
    lines = [
        filled(f"--ignore {check}: there was nothing to ignore", width)
        for check in report.unused_waivers
    ]
    if any(report.of(Status.FAIL, Status.UNKNOWN, Status.WARN)):
        lines.append("mooncake-preflight explain ID says what a check is about")
    return "\n".join(lines)


def _first_word(text: str, paint: Paint, colour: str) -> str:
    """Coloured after the lines are broken: escape codes take no room on the screen."""
    word, colon, rest = text.partition(":")
    return paint(word, colour) + colon + rest


def _indented(text: str, width: int) -> str:
    return "\n".join(wrapped(f"    {text}", width, 0))
