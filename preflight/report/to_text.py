"""A report for a person at a terminal, the worst first."""

import math
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from checks.framework.finding import Kind, Status
from checks.framework.fold import fold_alike, fold_one_number
from checks.framework.units import Quantity
from checks.framework.unknown import NOT_RECORDED
from preflight.base.one_line import clean, shortened, with_last_name, with_short_paths
from preflight.base.shell import merge_lines
from preflight.base.text import cell_widths, filled, headed, table, wrapped
from preflight.host_tuning.refusal import REFUSED
from preflight.launches.source import give_variables
from preflight.verdict.report import MOST_NAMES, Report, Row, amounts, count_text, verdict_reason

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
# Subjects that say nothing.
_EVERYWHERE = ("host", "launch")
_SAID = ("have", "need", "text")
# What is so because of another: it stands under that, where both are found.
_FOLLOWS = {
    "gpu.count": "gpu.driver",
    "hugetlb.after-reboot": "hugetlb.shortage",
    "hugetlb.node-shortage": "hugetlb.shortage",
    "hugetlb.reservation": "hugetlb.shortage",
    "rdma.device-missing": "rdma.no-device",
    "service.reachable": "service.address",
    "storage.offload-space": "storage.offload-path",
    "topology.mooncake-view": "rdma.no-device",
}
# So many of one check, or for one reason, are one line.
LEAST_TOGETHER = 3
# So many findings and steps are a page, and all that fail; the rest is counted, and in -v.
MOST_GROUPS, MOST_STEPS = 5, 4
# Of a finding and of a step so many lines are shown; a failure is said whole. -v has the rest.
MOST_LINES, MOST_FAIL_LINES = 2, 3
MOST_READ_LINES = 6  # of the sentence that says what a launch starts
# What a person calls the checks of a topic, in the order in which they are shown.
_TOPICS = {
    "hugetlb": "huge pages",
    "memlock": "locked memory",
    "limits": "limits",
    "memory": "memory",
    "numa": "NUMA",
    "gpu": "GPUs",
    "rdma": "RDMA",
    "pci": "PCIe",
    "network": "network",
    "service": "services",
    "storage": "storage",
    "software": "versions",
}
# A page of more lines ends with the verdict again.
SCREEN_LINES = 24
# What Kubernetes shows of a container's log that ended with an error.
TAIL_BYTES = 2048
# The widest label, and two spaces.
_LABEL_COLUMNS = 9


def report_text(
    report: Report,
    paint: Paint,
    width: int,
    verbosity: int,
    more: Sequence[str] | None = ("-v", "--format html"),
) -> str:
    """Return the report without a final newline.

    Args:
        more: The options of the command that show more, named in the notes at the end; None leaves
            out the notes.
        verbosity: Below 0 the verdict and the notes; 0 also a line for each finding, and what to
            do; above 0 also what was seen of each finding, and every pass and skip.
    """
    word = report.verdict.value.upper()
    mild = {name for name in report.counts if name != report.verdict.value}
    # Counts give way where they take a second line.
    for without in ((), ("pass", "skip"), mild, report.counts):
        counted = f" ({count_text(report, without)})" if without is not report.counts else ""
        sentence = with_short_paths(f"{verdict_reason(report)}{counted}", width - 4)
        if verbosity or len(word) + 2 + len(sentence) <= width or report.verdict is Status.PASS:
            break
    verdict = headed(word, sentence, width, paint(word, COLOURS[report.verdict]))
    if verbosity < 0:
        lost = filled(f"    {clean('; '.join(report.left_out))}", width) if report.left_out else ""
        notes = _notes(report, width, verbosity, more or ())
        return "\n".join(filter(None, (verdict, lost, notes)))
    head = verdict
    if report.understood:
        sentence = f"    read: {clean(report.understood)}"
        most = _line_count(MOST_READ_LINES, width) if verbosity == 0 else None
        head += "\n" + "\n".join(_wrap_and_cut(sentence, width, " " * 8, most))
    wanting = [*report.of(Status.FAIL, Status.UNKNOWN, Status.WARN), *report.waived]
    lacking = {row.finding.check.partition(".")[0] for row in wanting}
    passing = {row.finding.check.partition(".")[0] for row in report.of(Status.PASS)} - lacking
    if fine := ", ".join(name for topic, name in _TOPICS.items() if topic in passing):
        head += f"\n{filled(f'    fine: {fine}', width)}"
    if verbosity > 0:
        parts = [head, _table(wanting, paint, width)]
        parts += [_details(row, paint, width) for row in wanting]
        skipped = [row.finding for row in report.of(Status.SKIP)]
        skips = (f"{f.check}, {clean(f.subject)}: {clean(f.text)}" for f in skipped)
        painted = paint("skip", COLOURS[Status.SKIP])
        parts += [_passes(report, paint, width)]
        parts += ["\n".join(headed("skip", text, width, painted) for text in skips)]
    else:
        groups, file = group_by_cause(wanting), launch_file(report)
        parts = [head, _lines(groups, paint, width, file), _to_do(groups, width, file)]
    parts += [] if more is None else [_notes(report, width, verbosity, more)]
    text = "\n\n".join(part for part in parts if part)
    if text.count("\n") < SCREEN_LINES and len(text.encode()) < TAIL_BYTES:
        return text
    # The end of a log tells it too.
    again = with_short_paths(verdict_reason(report), width - 4)
    return f"{text}\n\n{headed(word, again, width, paint(word, COLOURS[report.verdict]))}"


def launch_file(report: Report) -> str:
    """Return the path of the launch as findings write it, "" without one."""
    return "" if report.needs is None else clean(report.needs.source)


def _table(rows: Sequence[Row], paint: Paint, width: int) -> str:
    """Return the rows as a table of whole words.

    Returns:
        "" without rows, or if ``width`` is too small.
    """
    if not rows or width < TABLE_COLUMNS:
        return ""  # what follows says all of it
    heads = ["", "check", "subject", "have", "need"]
    cell = partial(shortened, most=LONGEST_CELL)
    cells = [
        [label(row), f.check, *map(cell, (f.subject, f.have, f.need))]
        for row in rows
        for f in [row.finding]
    ]
    used = [at for at in range(len(heads)) if at < 2 or any(line[at] for line in cells)]
    heads = [heads[at] for at in used]
    cells = [[line[at] for at in used] for line in cells]
    limits = cell_widths([heads, *cells], width, firm=(0, 1), whole_words=True)
    lines = zip(limits, heads, *cells, strict=True)
    taken = [limit or max(map(len, column)) for limit, *column in lines]
    if sum(taken) + 2 * (len(taken) - 1) > width:
        return ""
    for line, row in zip(cells, rows, strict=True):
        line[0] = paint(line[0], _colour(row))
    return table(cells, heads, widths=limits)


def group_by_cause(rows: Iterable[Row]) -> list[list[Row]]:
    """Group the rows that share one line of the page: unknown for one reason, or many of one check.

    Groups keep the order of the rows, but a consequence is put after its cause, and failures of
    refused values are put first.
    """
    groups: dict[object, list[Row]] = {}
    rows = list(rows)
    unknown = [row for row in rows if row.finding.status is Status.UNKNOWN and row.ignored is None]
    causes = {row.finding.cause for row in unknown} - {""}
    for row in rows:
        finding = row.finding
        named = finding.cause or finding.tells_cause
        open_ = finding.status is Status.UNKNOWN and row.ignored is None and named in causes
        key = named if open_ else (finding.check, finding.status, row.ignored)
        groups.setdefault(key, []).append(row)
    split = ([group] if _together(group) else [[row] for row in group] for group in groups.values())
    parts = [part for group in split for part in group]
    first: dict[str, int] = {}
    alike: dict[tuple[str, str], int] = {}
    for at, part in enumerate(parts):
        first.setdefault(part[0].finding.check, at)
        for row in part:
            alike.setdefault((row.finding.check, row.finding.subject), at)
    places = []
    for at, part in enumerate(parts):
        # The cause of the same subject, where there is one: a service stands under its own address.
        follows = _FOLLOWS.get(part[0].finding.check, "")
        cause = alike.get((follows, part[0].finding.subject), first.get(follows, at))
        # A cause that is milder stays below: the worst first.
        # Refused values stand first: the sizes that others go by are not those that were meant.
        last = part[0].finding.check not in REFUSED or part[0].finding.status is not Status.FAIL
        places.append((last, min(at, cause), at))
    return [parts[at] for *_, at in sorted(places)]


def _together(rows: Sequence[Row]) -> bool:
    """Tell whether rows of a group share one line: many, two that say the same of two subjects, or
    facts that a capture lacks, with what to do about it.
    """
    if rows[0].finding.code == NOT_RECORDED:
        return True
    return len(rows) >= LEAST_TOGETHER or (len(rows) > 1 and _alike(rows))


def _alike(rows: Iterable[Row]) -> bool:
    return len({tuple(getattr(row.finding, of) for of in _SAID) for row in rows}) == 1


def _lines(groups: Sequence[Sequence[Row]], paint: Paint, width: int, file: str) -> str:
    """Return each group in two lines at most, a failure in three: ``fail memlock.limit: ...``.

    A terminal of fewer columns than a table needs gets more lines. Every failure is shown; of other
    groups, those beyond MOST_GROUPS are counted.

    Args:
        file: The path of the launch; the verdict has shown the whole path, so here the last name is
            enough.
    """
    above: set[str] = set()
    lines = []
    most = max(MOST_GROUPS, sum(_fails(rows) for rows in groups))
    for rows in groups[:most]:
        word = label(rows[0])
        so = "  so " if _FOLLOWS.get(rows[0].finding.check) in above else ""
        above.add(rows[0].finding.check)
        further = " " * (_LABEL_COLUMNS + 2 + len(so) // 2)
        lines_each = _line_count(MOST_LINES, width)
        lines_most = _line_count(MOST_FAIL_LINES if _fails(rows) else MOST_LINES, width)
        # Names give way to what is said of them, and paths: -v has all of it whole.
        for names, longest in ((MOST_NAMES, None), (MOST_NAMES, width // 2), (1, width // 2)):
            subject = with_last_name(": ".join(id_and_text(rows, names)), file)
            text = f"{word:{_LABEL_COLUMNS}}{so}{subject}"
            text = text if longest is None else with_short_paths(text, longest)
            if len(wrapped := _wrap_and_cut(text, width, further)) <= lines_each:
                break
        if len(wrapped) > lines_most:
            wrapped = _wrap_and_cut(text, width, further, lines_most)
        wrapped[0] = wrapped[0].replace(word, paint(word, _colour(rows[0])), 1)
        lines += wrapped
    if len(groups) > most:
        lines.append(f"and {len(groups) - most} more, which -v shows")
    return "\n".join(lines)


def _fails(rows: Sequence[Row]) -> bool:
    return rows[0].finding.status is Status.FAIL and rows[0].ignored is None


def _line_count(lines: int, width: int) -> int:
    """Return how many lines of a terminal hold what ``lines`` hold on one of 80 columns."""
    return max(lines, math.ceil(lines * TABLE_COLUMNS / width))


def _wrap_and_cut(text: str, width: int, further: str, most: int | None = None) -> list[str]:
    """Wrap a text; after ``most`` lines it is cut with " ...".

    Args:
        further: Indents the other lines.
    """
    wrap = textwrap.TextWrapper(width, "", further, placeholder=" ...", break_on_hyphens=False)
    wrap.max_lines = most
    return wrap.wrap(text)


def id_and_text(rows: Sequence[Row], most: int = MOST_NAMES) -> tuple[str, str]:
    """Return the two parts of a line about rows that share it: the check's id, and the text.

    The text names at most ``most`` subjects. If the rows are of several checks, it names none, and
    the ids are shortened to one text.
    """
    finding = rows[0].finding
    have, need, text = (_folded(getattr(row.finding, of) for row in rows) for of in _SAID)
    if finding.need and (finding.status is not Status.UNKNOWN or not text):
        text = f"{f'have {have}, ' if have else ''}need {need}"
    if rows[0].ignored is not None:
        text = f"was {finding.status.value}; ignored: {clean(rows[0].ignored)}"
    names = list(dict.fromkeys(row.finding.check for row in rows))
    if finding.code == NOT_RECORDED:
        return fold_alike(names, most), f"{finding.cause}: {clean(finding.advice)}"
    if len(names) > 1:
        texts = [row.finding.text for row in rows]
        # Where the cause alone does not say what is not known for it, the reasons do.
        why = clean(finding.cause) if finding.cause in texts else _folded(texts)
        return fold_alike(names, 1), why
    subjects = [each for row in rows for each in row.subjects]
    about = clean(fold_alike(list(dict.fromkeys(subjects)), most))
    if most < min(LEAST_TOGETHER, len(rows)) and not _alike(rows):
        # Each says something else: the first with what is said of it, and how many follow.
        return names[0], f"{id_and_text(rows[:1])[1]}; and {len(rows) - 1} more"
    text = text or have
    if len(rows) > 1 and isinstance(finding.need, Quantity) and _alike(rows):
        about = f"{about} (each of {len(rows)})"
    # A subject that the sentence begins with is not said twice.
    about = "" if about in _EVERYWHERE or text.startswith(about) else f"{about}: "
    return names[0], f"{about}{text}"


class ToDoStep(NamedTuple):
    """One thing to do.

    Attributes:
        mends: The checks' ids, as one text.
        conditions: Of the commands, as ``as root``.
        commands: For this place, to copy.
    """

    advice: str
    mends: str
    conditions: str
    commands: tuple[str, ...]

    @property
    def head(self) -> str:
        """The checks that the step mends, and its conditions in brackets."""
        return f"{self.mends} ({self.conditions})" if self.conditions else self.mends


# Of more kinds of advice about findings that are shown as one, the first is named.
_MOST_OWN = 3


def steps(groups: Sequence[Sequence[Row]]) -> list[ToDoStep]:
    """Return the steps that mend the groups, the worst first.

    Rows with equal advice share a step. Commands are not repeated. Waived rows, and facts that a
    capture lacks, have no step.
    """
    by_advice: dict[str, list[Row]] = {}
    every = [row for rows in groups for row in rows if row.ignored is None]
    variables = dict.fromkeys(each for row in every for each in row.finding.sets)

    def advised(row: Row) -> str:
        # All variables that are wanted are given at once.
        return clean(give_variables(variables) if row.finding.sets else row.finding.advice)

    for rows in groups:
        counting = (row for row in rows if row.ignored is None)
        wanted = [row for row in counting if row.finding.code != NOT_RECORDED]
        mine: dict[str, list[Row]] = {}
        for row in wanted:
            mine.setdefault(advised(row), []).append(row)
        mine = {each: its for each, its in mine.items() if each or any(row.commands for row in its)}
        few = 1 < len(mine) <= _MOST_OWN and fold_one_number(list(mine)) is None
        advice = "" if few else _folded(map(advised, wanted))
        for each, of_it in (mine if few else {advice: wanted}).items():
            if each or any(row.commands for row in of_it):
                by_advice.setdefault(each, []).extend(of_it)
    shown: set[str] = set()
    steps_shown = []
    for advice, rows in by_advice.items():
        lines = tuple(map(clean, merge_lines(line for row in rows for line in row.commands)))
        # What an earlier step says or has to be typed for is not said or typed again.
        sentences = (row.ask_sentence for row in rows if row.ask_sentence not in {"", *shown})
        says = list(sentences)[:1]
        mended = fold_alike(list(dict.fromkeys(row.finding.check for row in rows)), 2)
        conditions = ", ".join(dict.fromkeys(each for row in rows for each in row.conditions))
        text, left = "; ".join(filter(None, (advice, *says))), not shown.issuperset(lines)
        steps_shown.append(ToDoStep(text, mended, conditions, lines if left else ()))
        shown.update((*lines, *says))
    return steps_shown


def _to_do(groups: Sequence[Sequence[Row]], width: int, file: str) -> str:
    """Return the numbered list of what to do about the findings: for each step a sentence, and its
    commands below.

    Steps beyond MOST_STEPS that mend no failure are only counted.

    Args:
        file: The path of the launch, which is shown by its last name.
    """
    to_do = steps(groups)
    lines = ["To do:"] if to_do else []
    most = max(MOST_STEPS, len(steps([rows for rows in groups if _fails(rows)])))
    for number, step in enumerate(to_do[:most], 1):
        head = f"{number:>2}. {step.head}"
        advice = with_last_name(step.advice, file)
        text = f"{head}: {advice}" if advice else head
        lines += _wrap_and_cut(text, width, " " * 5, _line_count(MOST_FAIL_LINES, width))
        # A command is not wrapped: it is to be copied.
        lines += [f"      {line}" for line in step.commands]
    if len(to_do) > most:
        lines.append(f"    and {len(to_do) - most} more, which -v shows")
    return "\n".join(lines)


def _folded(texts: Iterable[str]) -> str:
    """Return texts that differ in a number as one; of others the first, and how many follow."""
    cleaned = list(dict.fromkeys(clean(text) for text in texts if text))
    return fold_alike([text.rstrip(".") for text in cleaned] if len(cleaned) > 1 else cleaned, 1)


def _colour(row: Row) -> str:
    return "cyan" if row.ignored is not None else COLOURS[row.finding.status]


def label(row: Row) -> str:
    """Return the status, or that it is waived."""
    return row.finding.status.value if row.ignored is None else "ignored"


def _details(row: Row, paint: Paint, width: int) -> str:
    """Return one row whole, for -v: what follows, what was seen, what to do."""
    finding = row.finding
    lines = [_headed(row, paint, width)]
    if row.ignored is not None:
        lines.append(_indented(f"was {finding.status.value}; ignored: {clean(row.ignored)}", width))
    follows = clean(finding.text)
    if finding.status is Status.FAIL and row.consequence is not None:
        follows = f"{follows}: {row.consequence.value}" if follows else row.consequence.value
    # What only repeats the sentence was not seen anywhere else.
    evidence = [s for s in finding.evidence if s.value not in finding.text or not s.value]
    unshown = len(evidence) - MOST_EVIDENCE
    texts = (
        follows,
        f"need: {clean(finding.formula)}" if finding.formula else "",
        *(
            f"seen: {clean(seen.source)}: {shortened(seen.value, LONGEST_VALUE) or '(empty)'}"
            for seen in evidence[:MOST_EVIDENCE]
        ),
        f"and {unshown} more, in --json" if unshown > 0 else "",
        f"to do: {clean(row.advice)}" if row.advice else "",
    )
    lines += [_indented(text, width) for text in texts if text]
    # A command is not wrapped: it is to be copied.
    lines += [f"      {clean(command)}" for command in row.commands]
    return "\n".join(lines)


def _headed(row: Row, paint: Paint, width: int) -> str:
    """Return ``fail: memlock.limit, rank 0-3: have 8.00 MiB, need 60.00 GiB``."""
    finding = row.finding
    seen = amounts(finding)
    sentence = f"{finding.check}, {clean(finding.subject)}{f': {seen}' if seen else ''}"
    return headed(label(row), sentence, width, paint(label(row), _colour(row)))


def _passes(report: Report, paint: Paint, width: int) -> str:
    """Return the passes as a table, or lines in a narrow terminal.

    A pass with a text, as a note about the launch, is a line with its text and advice.
    """
    rows = report.of(Status.PASS)
    notes = [row for row in rows if row.finding.text]
    plain_rows = [row for row in rows if not row.finding.text]
    table = _table(plain_rows, paint, width)
    lines = [table] if table else [_headed(row, paint, width) for row in plain_rows]
    for row in notes:
        text = "; ".join(filter(None, (row.finding.text, row.finding.advice)))
        lines += [_headed(row, paint, width), _indented(clean(text), width)]
    return "\n".join(lines)


def _notes(report: Report, width: int, verbosity: int, options: Sequence[str]) -> str:
    """Return the last lines: unused waivers, the command for all settings, what to read.

    Args:
        options: Those of the command that show more.
    """
    unused = report.unused_waivers if verbosity >= 0 else ()
    text = "waiver of {}: nothing is found that it would waive"
    lines = [filled(text.format(check), width) for check in unused]
    groups = group_by_cause(report.of(Status.FAIL, Status.UNKNOWN, Status.WARN))
    whole = _all_settings(report, width) if groups and verbosity == 0 else ""
    lines += [whole] if whole else []
    if groups:
        asked = ", ".join(options) if verbosity == 0 else "without -q" if verbosity < 0 else ""
        page = f"mooncake-preflight explain {groups[0][0].finding.check}"
        lines.append(filled(f"More: {asked}, or {page}" if asked else f"More: {page}", width))
    elif verbosity == 0 and "-v" in options:
        lines.append("More: -v lists what was looked at")
    return "\n".join(lines)


def _all_settings(report: Report, width: int) -> str:
    """Return the ``apply`` or ``plan`` command for every setting that failures and warnings want.

    Returns:
        "" if no setting is wanted, or without a launch.
    """
    wanting = [row for row in report.of(Status.FAIL, Status.WARN) if row.ignored is None]
    kinds = {setting.kind for row in wanting for setting in row.finding.settings}
    if not kinds or report.needs is None:
        return ""
    mends_all = all(row.finding.settings for row in wanting) and kinds <= {Kind.SYSCTL, Kind.SYSFS}
    lead, arguments = "Every setting:", ["mooncake-preflight", "plan"]
    if report.root != "/":
        arguments += ["--root", report.root]
    elif mends_all:
        lead, arguments = "All of it:", ["sudo", "mooncake-preflight", "apply"]
    if report.given_again is None:
        return filled(f"{lead} {shlex.join(arguments)}, of the same launch", width)
    arguments += report.given_again
    command = shlex.join(arguments)
    whole = f"{lead} {command}"
    return whole if len(whole) <= width else f"{lead}\n      {command}"


def _indented(text: str, width: int) -> str:
    return "\n".join(wrapped(f"    {text}", width, 0))
