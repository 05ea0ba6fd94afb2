"""Explains the known lines of a log: what each means here, which check foresees it, what to do.

A function that a pattern's ``compute`` names works out amounts from the numbers of a line.
"""

from __future__ import annotations

import string
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from checks.framework.units import GIB, KIB, MIB, format_bytes, format_page_size, round_up
from preflight.base.plain_data import fields
from preflight.engines.sglang.admission_gate import RESERVE_BYTES
from preflight.launch_problems.advisories.records import advisories
from preflight.server_logs.patterns import (
    Case,
    Groups,
    Hits,
    Pattern,
    PatternHit,
    Stage,
    read_patterns,
)
from preflight.server_logs.search import (
    MOST_LOG_BYTES,
    MOST_NAMES,
    Search,
    UnknownText,
    blocks,
    is_exception,
    parts,
    speaker_of,
)

Compute = Callable[[Groups, Hits], Mapping[str, Any]]

# The sizes that Mooncake names in its messages.
_PAGE_BYTES = {"2MB": 2 * MIB, "512MB": 512 * MIB, "1GB": GIB}
_DRIVER_PAGE_BYTES = 4 * KIB


def number(values: Mapping[str, Any], name: str) -> int | None:
    """Return a value as a whole number (decimal or 0x); None if missing, too long or no number."""
    text = values.get(name, "")
    if isinstance(text, int):
        return text
    if len(text) > 40:
        return None
    try:
        return int(text, 0) if text.startswith("0x") else int(text)
    except ValueError:
        return None


def _pages(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Compute size, page count and page size of a mapping on huge pages; {} if the size is unknown.

    The page size is that of the line, else that of another line in the log, else 2 MiB.
    """
    mark, shared = seen.get("mark.hugepage-size"), seen.get("mark.hugepage-shm")
    size_bytes = number(groups, "size") or (number(shared.last, "size") if shared else None)
    default = 2 * MIB
    if "page" in groups:
        page_bytes = _PAGE_BYTES.get(groups["page"])
    else:
        page_bytes = _PAGE_BYTES.get(mark.last.get("page", ""), default) if mark else default
    if not size_bytes or not page_bytes:
        return {}
    count = round_up(size_bytes, page_bytes) // page_bytes
    return {"size": size_bytes, "page_count": count, "page_size": format_page_size(page_bytes)}


def _arena(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Compute the room left in the arena, and the least size that is enough; {} if not known."""
    asked, offset, size = (number(groups, name) for name in ("asked", "offset", "size"))
    if asked is None or offset is None or size is None:
        return {}
    return {"asked": asked, "size": size, "left": max(size - offset, 0), "least": offset + asked}


def _admission(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Compute how much memory SGLang's check at start found missing, as texts in GB (10^9 bytes).

    If ``asked`` is above ``free``, the line's free memory is already less the reserve.

    Returns:
        {} if a number is missing.
    """
    try:
        asked, free = float(groups["asked"]), float(groups["free"])
    except (KeyError, ValueError):
        return {}
    reserve = RESERVE_BYTES / 1e9
    missing = asked - free + (reserve if asked <= free else 0)
    amounts = {"free": free, "reserve": reserve, "kept": free - reserve, "missing": missing}
    amounts["wanted"] = asked + reserve
    texts = {f"{name}_gb": f"{amount:.2f}" for name, amount in amounts.items()}
    return {"admitted": "yes" if asked <= free else "no", **texts}


def _victim(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Add up the bytes of the process that the kernel killed; {} if no line tells them."""
    hit = seen.get("kernel.oom-victim")
    sizes = [number(hit.first, name) for name in ("anon", "file", "shmem")] if hit else []
    known = [size for size in sizes if size is not None]
    if hit is None or not known:
        return {}
    victim, shared = hit.first.get("name", "it"), (sizes[2] or 0) * KIB
    return {"victim": victim, "held": sum(known) * KIB, "shared": shared}


def _pinned_pages(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Compute the bytes that one call of the GPU's driver pins, from its pages of 4 KiB."""
    pages = number(groups, "pages")
    if pages is None or pages > 1 << 48:
        return {}
    return {"page_count": pages, "pinned": pages * _DRIVER_PAGE_BYTES}


def _missing(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Compute how many are missing: those wanted less those that came; {} if not known."""
    wanted, got = ("wanted", "joined") if "wanted" in groups else ("asked", "got")
    most, least = number(groups, wanted), number(groups, got)
    if most is None or least is None:
        return {}
    return {wanted: most, got: least, "missing": max(most - least, 0)}


def _slabs(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Name the size or address that is no multiple of the allocator's slab, or both; {} if none."""
    size, address, slab = (number(groups, name) for name in ("size", "address", "slab"))
    if not slab or size is None or address is None:
        return {}
    over = [f"its size ({format_bytes(size)})"] * bool(size % slab)
    over += [f"its address ({address:#x})"] * bool(address % slab)
    return {"over": " and ".join(over)} if over else {}


def _flag_releases(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return the first Mooncake program that has the line's flag in some releases only, and name
    these releases.

    Without such a program, return the oldest and the newest known release.
    """
    from preflight.engines.programs.mooncake_flags import flag_table

    releases, programs = flag_table()
    for program, flags in programs.items():
        flag = flags.get(groups.get("name", ""))
        if flag is not None and (flag.since or flag.until):
            until = f"to {flag.until}" if flag.until else "on"
            return {"program": program, "since": flag.since or releases[0], "until": until}
    return {"oldest": releases[0], "newest": releases[-1]}


def _dropped(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Count the clients that a mooncake_client dropped while they had memory mapped, and the calls
    for memory that is not mapped beyond one for each client that ended in order.
    """
    expired, calls = seen.get("client.server-expired"), seen.get("mooncake.client-restarted")
    dropped = (expired.times if expired else 0) - (calls.times if calls else 0)
    return {"dropped": dropped, "beyond": -dropped}


COMPUTE: dict[str, Compute] = {"pages": _pages, "arena": _arena, "admission": _admission}
COMPUTE |= {"victim": _victim, "pinned-pages": _pinned_pages, "missing": _missing}
COMPUTE |= {"slabs": _slabs, "flag-releases": _flag_releases, "dropped": _dropped}


# Words at which a sentence does not start with a capital: they are typed.
_TYPED = frozenset(
    "apt cat curl df dmesg docker errno etcdctl getconf grep ip kubectl ls lsmod modprobe numactl "
    "options ping pip srun ss sudo".split()
)

_CUT = (
    f"Only the first {MOST_LOG_BYTES >> 30} GiB of the log were read, and what ends a server "
    "stands last: give its end, as tail -c 1G server.log | mooncake-preflight explain"
)

_NONE = (
    ": no line of SGLang, Mooncake, CUDA or the kernel that this program can explain, and no error "
    "that it does not know. The kernel log is often where the reason stands: dmesg -T."
)
Paint = Callable[[str, str], str]
# By id, what a check found of a launch on a host ("fail"); empty if no check ran.
Outcomes = Mapping[str, str]
NO_CHECKS: Outcomes = {}
_COLOURS = {Stage.KERNEL: "red", Stage.CAUSE: "red", Stage.SYMPTOM: "magenta"}
_COLOURS |= {Stage.WARNING: "yellow", Stage.HARMLESS: "green"}
_COLOURS |= dict.fromkeys((Stage.CONSEQUENCE, Stage.SIMILAR), "cyan")
# What stands so long before the end of its process did not end it.
BEFORE_THE_END_SECONDS = 30 * 60
# Stages that tell why something failed.
CAUSES = (Stage.KERNEL, Stage.CAUSE, Stage.SYMPTOM)


class LogProcess(NamedTuple):
    """The process that printed a line: its log file ("" if unnamed), and its name by the line's
    prefix.
    """

    file: str = ""
    process: str = ""


class UnknownLine(NamedTuple):
    """An error that no pattern knows, and the process that printed the error."""

    place: LogProcess
    unknown: UnknownText


class LogReading(NamedTuple):
    """The result of reading logs: the number of lines, and explanations, the likely root cause
    first.

    Attributes:
        unknown: Errors that no pattern knows: exceptions, the last one first, then errors, the
            first one first, then other lines.
        ends: The last line of each process.
        harmless: Explanations of lines that mean no problem.
        whole: False if a log was too long and only the beginning was read.
    """

    lines: int
    explanations: list[Explanation]
    unknown: Sequence[UnknownLine] = ()
    ends: Sequence[UnknownLine] = ()
    harmless: Sequence[Explanation] = ()
    whole: bool = True

    @property
    def causes(self) -> list[Explanation]:
        """The explanations of a failure, without those that are marked ``earlier``."""
        return [each for each in self.explanations if each.stage in CAUSES and not each.earlier]

    @property
    def exit_code(self) -> int:
        """Return 2, 1 or 0.

        2: a cause of a failure, or a consequence if every error is known. 1: anything else
        explained, or an error that is not known. 0: neither.
        """
        failed = [each for each in self.explanations if not each.earlier]
        if self.causes or (not self.unknown and any(o.stage is not Stage.WARNING for o in failed)):
            return 2
        return 1 if self.explanations or self.unknown else 0


def read_log(lines: Iterable[str], alone: bool = False) -> LogReading:
    """Explain the known lines of a log.

    Args:
        alone: The log is one quoted line.
    """
    return read_logs([("", lines)], alone)


def read_logs(logs: Iterable[tuple[str, Iterable[str]]], alone: bool = False) -> LogReading:
    """Explain the known lines of several logs, given as (file name, lines).

    The meaning of a line may depend on other lines: those of the same process, and those of the
    kernel or a container, which concern every process.

    Args:
        alone: The log is one quoted line, so cases that depend on other lines are left out.
    """
    searches: dict[LogProcess, Search] = {}
    for file, lines in logs:
        for process, block, numbers in parts(blocks(lines)):
            search = searches.setdefault(LogProcess(file, process), Search())
            search.add(block, numbers)
    hits = {place: search.hits for place, search in searches.items()}
    # What the kernel and containers say is of all processes; the rest each says of itself.
    everybody = ("kernel", "container or shell")
    common = {each.id for each in read_patterns() if each.printer in everybody}
    every: dict[str, PatternHit] = {}
    for of_process in hits.values():
        every.update({id_: hit for id_, hit in of_process.items() if id_ in common})
    explanations: list[Explanation] = []
    harmless: list[Explanation] = []
    fatal: set[tuple[LogProcess, str]] = set()
    for place, mine in hits.items():
        of_place = _explanations_of(place, {**every, **mine}, mine, alone)
        harmless += [each for each in of_place if each.stage is Stage.HARMLESS]
        of_place = [each for each in of_place if each.stage is not Stage.HARMLESS]
        timed = of_place if alone else _mark_earlier(of_place, mine, searches[place].end[0])
        explanations += timed
        fatal.add((place, _last_exception(timed, mine)))
    files = list(dict.fromkeys(place.file for place in searches))
    # Of several processes what came first may have ended the others.
    first = len(searches) > 1

    def order_of(each: Explanation) -> tuple[Any, ...]:
        time = (each.first_time or "~") if first and each.stage in CAUSES else ""
        stage = Stage.KERNEL if time else each.stage
        ended_it = (LogProcess(each.file, each.source), each.pattern) in fatal
        where = (each.stage, not ended_it, files.index(each.file), each.line)
        return (bool(each.earlier), stage, time, *where)

    explanations.sort(key=order_of)
    # An exception tells more than an error: the last one, and the first error, tell most.

    def sequence(each: UnknownText) -> int:
        return each.line if each.fault == "error" else -each.last_line

    order = {"exception": 0, "error": 1, "line": 2}
    unknown = []
    for place, search in searches.items():
        ready = hits[place].get("mark.ready")
        # A line that only has a word such as failed is worth less.
        last = sys.maxsize if any(each.fault != "line" for each in search.unknown) else 0
        last = max(last, ready.last_line if ready is not None else 0)
        rows = (each for each in search.unknown if each.fault != "line" or each.last_line >= last)
        unknown += [UnknownLine(place, each) for each in rows]
    unknown.sort(key=lambda each: (order[each.unknown.fault], sequence(each.unknown)))
    ends = [UnknownLine(place, search.last) for place, search in searches.items()]
    count = sum(search.lines for search in searches.values())
    return LogReading(count, explanations, unknown, ends, harmless)


def _explanations_of(
    place: LogProcess, seen: Hits, own_hits: Hits, alone: bool
) -> list[Explanation]:
    """Explain each pattern with a cause that one process printed.

    A pattern is left out if a better one (``unless``) is in the log.

    Args:
        own_hits: Lines of this process.
        seen: ``own_hits``, and the lines that concern every process.
        alone: Cases that depend on other lines are left out.
    """
    return [
        explanation(pattern, seen, alone)._replace(file=place.file, source=place.process)
        for pattern in read_patterns()
        if pattern.cause and pattern.id in own_hits and seen.keys().isdisjoint(pattern.unless)
    ]


def _mark_earlier(
    explanations: list[Explanation], hits: Hits, end_seconds: float | None
) -> list[Explanation]:
    """Mark the explanations (``earlier``) that cannot explain the end of the process: of an earlier
    start, from before it was ready, or long before the end.

    Warnings are not marked. Without any line about a start or readiness, nothing is marked if that
    would leave no cause. Nor is what a process that did not end has seen since it was ready, if no
    later cause explains its later warnings.

    Args:
        end_seconds: The last time in the log, None if not known.
    """
    started, ready = hits.get("mark.started"), hits.get("mark.ready")

    def earlier(each: Explanation) -> str:
        """Say why an explanation is of an earlier time; "" if it is not."""
        if each.stage is Stage.WARNING:
            return ""
        if started is not None and each.last_line < started.last_line:
            return "in an earlier start"
        if ready is not None and each.last_line < ready.last_line:
            return "before the server was ready"
        return ""

    def long_before(each: Explanation) -> str:
        """Say how long before the end an explanation is; "" if that is not long."""
        seconds = hits[each.pattern].last_time[0]
        if end_seconds is None or seconds is None or each.stage is Stage.WARNING:
            return ""
        before = end_seconds - seconds
        return f"{before / 3600:.1f} h before the end" if before > BEFORE_THE_END_SECONDS else ""

    of_run = [each._replace(earlier=earlier(each)) for each in explanations]
    timed = [each._replace(earlier=each.earlier or long_before(each)) for each in of_run]
    explained = any(each.stage in CAUSES and not each.earlier for each in timed)
    last = max((each.last_line for each in timed if not each.earlier), default=0)
    if not explained and "process.ended" not in hits:
        pairs = zip(of_run, timed, strict=True)
        timed = [whole if whole.last_line < last else each for whole, each in pairs]
    # Else nothing later explains an end: a process may hang long after what went wrong.
    return timed if explained or ready is not None or started is not None else explanations


def _last_exception(explanations: Iterable[Explanation], hits: Hits) -> str:
    """Return the pattern of the last exception before the server ended itself; "" for none.

    It is what ended the process, whatever went wrong and was survived before it.
    """
    end = hits["process.ended"].last_line if "process.ended" in hits else 0
    raised = [
        (each.last_line, each.pattern)
        for each in explanations
        if each.last_line < end and is_exception(each.excerpt)
    ]
    return max(raised, default=(0, ""))[1]


def explanations_text(
    reading: LogReading, paint: Paint, width: int, here: Outcomes = NO_CHECKS, verbose: bool = False
) -> str:
    """Write the answer for a terminal, without a final newline.

    The first cause of each process (three at most) is explained in full, eight further problems in
    short; with ``verbose`` all are in full.

    Args:
        here: The result of each check on this host, by id.
    """
    if len({each.place.file for each in reading.ends}) == 1:
        # Of one log the number of a line is enough.
        plain = [each._replace(file="") for each in reading.explanations]
        reading = reading._replace(explanations=plain)
    explanations = reading.explanations
    cut = [] if reading.whole else [filled_text(_CUT, width)]
    unknown = _unknown_text(reading, paint, width, verbose)
    harmless = []
    if reading.harmless and (verbose or reading.lines <= MOST_QUOTED):
        rows = [f"{x.pattern} (line {x.line}: {x.decided or x.cause})" for x in reading.harmless]
        harmless = [filled_text(f"Harmless: {'; '.join(rows)}.", width)]
    if not explanations and not unknown:
        nothing = textwrap.fill(f"No problem was found in {_lines(reading.lines)}{_NONE}", width)
        return "\n\n".join([nothing, *harmless, *cut])
    first_of: dict[tuple[str, str], Explanation] = {}  # of each process that has a cause
    for each in reading.causes or explanations[: 0 if reading.unknown else 1]:
        first_of.setdefault((each.file, each.source), each)
    whole = explanations if verbose else list(first_of.values())[:MOST_FIRST]
    parts_ = []
    if explanations:
        kinds = "kind of known problem" if len(explanations) == 1 else "kinds of known problems"
        head = f"{len(explanations)} {kinds} in {_lines(reading.lines)}"
        first = ", the likely root cause first." if reading.causes else "."
        parts_ = [textwrap.fill(f"{head}{first}", width)]
    if unknown and not reading.causes:
        parts_ = [*unknown, *parts_]
    parts_ += [_full_text(number, each, paint, width, here) for number, each in enumerate(whole, 1)]
    rows = []
    for each in (each for each in explanations if each not in whole):
        text = f"{heading(each, paint)} ({_place_and_times(each)}): {_sentence(each.cause)}"
        rows.append(filled_text(text, width, "  ", "    "))
    if rows:
        more = f" {len(rows) - MOST_ALSO} more;" if len(rows) > MOST_ALSO else ""
        head = f"Also (in this order;{more} -v explains each):"
        parts_.append("\n".join([head, *rows[:MOST_ALSO]]))
    if unknown and reading.causes:
        parts_ += unknown
    return "\n\n".join([*parts_, *harmless, *cut])


# So many further problems, and unknown lines, are named in short; so many processes have a cause.
MOST_ALSO, MOST_UNKNOWN_SHOWN, MOST_FIRST = 8, 3, 3
# A log of so many lines was quoted: that they are harmless is its answer.
MOST_QUOTED = 3


def _unknown_text(reading: LogReading, paint: Paint, width: int, verbose: bool) -> list[str]:
    """Return the paragraph on errors that no pattern knows, and on the last lines of their
    processes.

    If a cause is known, and ``verbose`` is False, the paragraph tells only the first of them, and
    their number.

    Returns:
        [] if no error is unknown.
    """
    if not reading.unknown:
        return []
    if reading.causes and not verbose:
        count = len(reading.unknown)
        kinds = "1 kind of error line is" if count == 1 else f"{count} kinds of error lines are"
        place, first = reading.unknown[0]
        others = "; -v shows all" if count > 1 else ""
        where = _place(place.file, place.process, first.last_line)
        return [f"{kinds} not known here{others}:\n  {where} ({first.fault})\n    {first.text}"]
    shown = list(reading.unknown[: (20 if verbose else MOST_UNKNOWN_SHOWN)])
    places = {each.place for each in shown}
    rows = []
    for place, line in shown:
        times = "" if line.times == 1 else f", {line.times} times, the last"
        at = f", {line.time[1]}" if line.time[1] else ""
        where = _place(place.file, place.process, line.last_line)
        rows += [f"  {where} ({line.fault}{times}{at})", f"    {line.text}"]
    for place, end in reading.ends:
        if place in places and end.text and all(end.line != line.last_line for _, line in shown):
            where = _place(place.file, place.process, end.line)
            rows += [f"  {where} (the last line)", f"    {end.text}"]
    more = len(reading.unknown) - len(shown)
    left = f"; {more} more: -v" if more else ""
    head = f"{paint('not known', 'yellow')}: no table of this program has these lines{left}:"
    return ["\n".join([head, *rows])]


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _place(file: str, source: str, line: int) -> str:
    """Write the place of a line: its process, and file and line number as an editor takes them."""
    where = f"{file}:{line}" if file else f"line {line}"
    return f"{source}, {where}" if source else where


def _place_and_times(each: Explanation) -> str:
    """Say where in the log the line is, when it was printed, how often, and by which ranks."""
    times = "once" if each.times == 1 else f"{each.times} times to line {each.last_line}"
    parts_ = [_place(each.file, each.source, each.line), each.first_time, times]
    if each.last_time and each.last_time != each.first_time:
        parts_.append(f"last {each.last_time}")
    if each.ranks:
        ranks = "rank" if len(each.ranks) == 1 else f"{len(each.ranks)} ranks:"
        parts_.append(f"{ranks} {', '.join(each.ranks[:3])}{'..' * (len(each.ranks) > 3)}")
    return ", ".join(part for part in [*parts_, each.earlier] if part)


def _full_text(number: int, each: Explanation, paint: Paint, width: int, here: Outcomes) -> str:
    of_itself = each.ranks or each.process == each.printer
    who = each.printer if of_itself else f"{each.printer} {each.process}"
    head = f"{number}. {heading(each, paint)} ({who}, {_place_and_times(each)})"
    head = filled_text(head, width, "", "   ")
    return explanation_text(head, each, width, here)


def heading(each: Explanation, paint: Paint) -> str:
    """Return the stage of an explanation, in colour, and the id of its pattern."""
    return f"{paint(each.stage.word, _COLOURS[each.stage])}: {each.pattern}"


def explanation_text(
    head: str, each: Explanation, width: int, here: Outcomes, decided_by: str = "This log"
) -> str:
    """Return ``head``, the line of the log, its cause, numbers and remedy, and the checks.

    Args:
        here: What each check found on this host, by check id.
        decided_by: The label in front of ``decided``.
    """
    more = " and others" if len(each.names) == MOST_NAMES else ""
    here = {id_: here[id_] for id_ in each.checks if id_ in here}
    judged = ", ".join(f"{id_} {outcome}" for id_, outcome in here.items())
    fine = "pass" in here.values() and {*here.values()} <= {"pass", "skip"}
    elsewhere = "What check can see is fine here: look where the line points, or at the other end."
    checks = f"{', '.join(each.checks)} (mooncake-preflight explain ID)"
    rows = (
        ("", each.excerpt),
        ("Cause", _sentence(each.cause)),
        ("Numbers", each.sums and _sentence(each.sums)),
        (decided_by, each.decided and _sentence(each.decided)),
        ("Tell apart", each.apart and not each.decided and _sentence(each.apart)),
        ("For", len(each.names) > 1 and f"{', '.join(each.names)}{more}"),
        ("Do", _sentence(each.remedy)),
        ("Checks", each.checks and checks),
        ("Here", judged and f"{judged}.{f' {elsewhere}' * fine}"),
    )
    filled = []
    for name, text in rows:
        start = f"   {name + ':' if name else '|':<12}"
        if text or not name:
            filled.append(filled_text(str(text), width, start, " " * len(start)))
    return "\n".join([head, *filled])


def filled_text(text: str, width: int, first: str = "", further: str = "") -> str:
    """Break a text into lines; first, further: what its first and its other lines begin with."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=further, break_on_hyphens=False
    )


def _sentence(text: str) -> str:
    """Return the text with a full stop, and a capital unless it starts with a command or a name."""
    first = text.split(" ", 1)[0]
    if first.isalpha() and first.islower() and first not in _TYPED:
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", ":")) else f"{text}."


def explanations_object(reading: LogReading) -> dict[str, Any]:
    """Return the answer as JSON data of ``schemas/explain-log-v1.schema.json``."""
    return {
        "lines": reading.lines,
        "whole": reading.whole,
        "explanations": [explanation_object(each) for each in reading.explanations],
        "unknown": [_unknown_object(each) for each in reading.unknown[: MOST_UNKNOWN_SHOWN * 4]],
        "ends": [_unknown_object(each) for each in reading.ends if each.unknown.text],
        "harmless": [explanation_object(each) for each in reading.harmless],
    }


def _unknown_object(each: UnknownLine) -> dict[str, Any]:
    """Return one unknown line as JSON data."""
    (file, source), line = each
    texts = {
        "file": file,
        "source": source,
        "kind": line.fault,
        "text": line.text,
        "count": line.times,
    }
    return {**texts, **fields(line, "line", "last_line"), "time": line.time[1]}


def explanation_object(each: Explanation) -> dict[str, Any]:
    """Return one explanation as JSON data."""
    return {
        "pattern": each.pattern,
        "layer": each.printer,
        "stage": each.stage.word,
        "count": each.times,
        **fields(each, "file", "source", "process", "ranks", "line", "last_line", "first_time"),
        **fields(each, "last_time", "earlier", "excerpt", "names"),
        "values": dict(each.groups),
        "cause": _sentence(each.cause),
        "numbers": each.sums,
        "this_log": each.decided,
        "told_apart": each.apart,
        "advice": _sentence(each.remedy),
        "checks": list(each.checks),
    }


# Groups of the line and what was computed from them: texts as they stand there, and numbers.
Values = dict[str, Any]
_OTHERS = ("seen", "unseen", "before", "after")  # conditions of a case about other lines


class Explanation(NamedTuple):
    """One kind of known line, explained for this log.

    Attributes:
        line: The number of the first such line, from 1.
        excerpt: That line, shortened.
        names: Devices, variables or addresses that differ between the lines.
        groups: The named values of the first line.
        sums: A sentence on its numbers.
        decided: A sentence that other lines of the log make certain.
        apart: How to tell it from similar lines.
        checks: Ids of checks and rules that foresee the line, the best first.
        file, source: The log's name, and the process by its lines' prefix.
        process: The process by source file or rank.
        first_time, last_time: As they stand in the lines.
        earlier: Why it cannot explain the end of the process, or "".
    """

    pattern: str
    printer: str
    stage: Stage
    times: int
    line: int
    excerpt: str
    names: tuple[str, ...]
    groups: Groups
    cause: str
    sums: str
    decided: str
    apart: str
    remedy: str
    checks: tuple[str, ...]
    file: str = ""
    source: str = ""
    process: str = ""
    last_line: int = 0
    first_time: str = ""
    last_time: str = ""
    ranks: tuple[str, ...] = ()
    earlier: str = ""


def explanation(pattern: Pattern, seen: Hits, alone: bool = False) -> Explanation:
    """Explain ``pattern``, which the log has, by the first of its cases whose conditions hold.

    Args:
        seen: All hits that a case may use.
        alone: Leave out cases that depend only on other lines.
    """
    hit, case = seen[pattern.id], Case()
    values: Values = dict(hit.first)
    if pattern.compute:
        values.update(COMPUTE[pattern.compute](hit.first, seen))
    for each in pattern.cases:
        with_others = {**values, **_values_of_other_line(each, seen)}
        by_own_line = each.is_ or each.begins or each.has or each.above
        if (by_own_line or not alone) and _holds(each, with_others, seen, hit):
            case, values = each, with_others
            break
    printing = (record.check for record in advisories() if pattern.id in record.log)
    try:
        sums = _Words().vformat(case.sums or pattern.sums, (), values)
    except KeyError:
        sums = ""
    return Explanation(
        **{name: getattr(hit, name) for name in ("times", "line", "excerpt", "names", "ranks")},
        pattern=pattern.id,
        printer=pattern.printer,
        stage=pattern.stage if case.stage is None else case.stage,
        groups=hit.first,
        cause=_fill(case.cause or pattern.cause, values),
        sums=sums,
        decided=_fill(case.decided, values),
        apart=_fill(pattern.apart, values),
        remedy=_fill(case.remedy or pattern.remedy, values),
        checks=(*(pattern.checks if case.checks is None else case.checks), *printing),
        process=speaker_of(hit.first_text, pattern.process or pattern.printer),
        last_line=hit.last_line,
        first_time=hit.first_time[1],
        last_time=hit.last_time[1],
    )


def _values_of_other_line(case: Case, seen: Hits) -> Values:
    """Return the values of the first line in ``case.seen`` that the log has: ``seen.NAME`` of its
    first match, ``last.NAME`` of its last.

    Returns:
        {} if the log has none of these lines.
    """
    for other in (seen[id_] for id_ in case.seen if id_ in seen):
        sides = (("seen", other.first), ("last", other.last))
        return {f"{side}.{name}": value for side, of in sides for name, value in of.items()}
    return {}


def _holds(case: Case, values: Values, seen: Hits, hit: PatternHit) -> bool:
    """Tell whether all conditions of a case hold.

    Args:
        values: Of this line and other lines, by name.
    """
    others = {name: [seen[id_] for id_ in getattr(case, name) if id_ in seen] for name in _OTHERS}
    texts = {name: str(values.get(name, "")) for name in (*case.is_, *case.begins, *case.has)}
    return (
        (not case.seen or bool(others["seen"]))
        and not others["unseen"]
        and (not case.before or any(hit.last_line < other.line for other in others["before"]))
        and (not case.after or any(other.line < hit.line for other in others["after"]))
        and all(texts[name] in among for name, among in case.is_.items())
        and all(texts[name].startswith(begin) for name, begin in case.begins.items())
        and all(any(part in texts[name] for part in some) for name, some in case.has.items())
        and all((number(values, name) or 0) > least for name, least in case.above.items())
    )


class _Words(string.Formatter):
    """Fills texts: ``{seen.limit}`` is one name, ``{size:bytes}`` a number with its unit."""

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return kwargs[field_name], field_name

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Format a number of bytes with its unit.

        Raises:
            KeyError: For no size.
        """
        if format_spec != "bytes":
            return super().format_field(value, format_spec)
        if isinstance(value, int):
            return format_bytes(value)
        size_bytes = number({"": value}, "")
        if not size_bytes or size_bytes < 0:
            raise KeyError(value)
        return format_bytes(size_bytes)


def _fill(template: str, values: Values) -> str:
    known = defaultdict(lambda: "?", {"name": "(not named)", **values})
    text = _Words().vformat(template, (), known)
    return text.replace(" (?)", "").replace(" ((not named))", "")
