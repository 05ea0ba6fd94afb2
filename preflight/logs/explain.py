"""Explains the known lines of a log: what each means here, which check foresees it, what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from preflight.logs.conclusions import Explanation, explanation
from preflight.logs.patterns import Stage, read_patterns
from preflight.logs.search import MOST_NAMES, Search
from preflight.logs.text import MOST_LOG_BYTES, blocks

SCHEMA = "mooncake-preflight/explain-log/v1"

# Words at which a sentence does not start with a capital: they are typed.
_TYPED = frozenset(
    "apt cat curl df dmesg docker errno etcdctl getconf grep ls lsmod modprobe options ping pip "
    "ss".split()
)

_CUT = (
    f"Only the first {MOST_LOG_BYTES >> 30} GiB of the log were read, and what ends a server "
    "stands last: give its end, as tail -c 1G server.log | mooncake-preflight explain"
)

Paint = Callable[[str, str], str]
_COLOURS = {
    Stage.KERNEL: "red",
    Stage.CAUSE: "red",
    Stage.SYMPTOM: "magenta",
    Stage.WARNING: "yellow",
    Stage.CONSEQUENCE: "cyan",
}


class LogReading(NamedTuple):
    """What was read: the number of lines, and the explanations, the likely root cause first.

    whole: False where the log goes on after the most that is read of one.
    """

    lines: int
    explanations: list[Explanation]
    whole: bool = True


def explain_log(lines: Iterable[str]) -> list[Explanation]:
    """The known problems in ``lines`` (lines, or ``text.read_blocks``), root causes first."""
    return read_log(lines).explanations


def read_log(lines: Iterable[str]) -> LogReading:
    """The same with the number of lines. Holds one block of the log at a time."""
    patterns = read_patterns()
    search = Search(patterns)
    for block in blocks(lines):
        search.add(block)
    seen = search.hits
    found = [
        explanation(pattern, seen)
        for pattern in patterns
        if pattern.cause
        and pattern.id in seen
        and not any(better in seen for better in pattern.unless)
    ]
    found.sort(key=lambda explanation: (explanation.stage, explanation.line))
    return LogReading(search.lines, found)


def explanations_text(reading: LogReading, paint: Paint, width: int) -> str:
    """For a terminal ``width`` columns wide, without a final newline; paint(text, colour)."""
    found = reading.explanations
    cut = [] if reading.whole else [textwrap.fill(_CUT, width, break_on_hyphens=False)]
    if not found:
        nothing = textwrap.fill(
            f"Nothing known was found in {_lines(reading.lines)}: no line of SGLang, Mooncake, "
            "CUDA or the kernel that this program can explain. The kernel log is often where the "
            "reason stands: dmesg -T.",
            width,
        )
        return "\n\n".join([nothing, *cut])
    kinds = "kind of known problem" if len(found) == 1 else "kinds of known problems"
    head = f"{len(found)} {kinds} in {_lines(reading.lines)}, the likely root cause first."
    parts = [textwrap.fill(head, width)]
    parts += [_one(number, each, paint, width) for number, each in enumerate(found, 1)]
    parts += cut
    return "\n\n".join(parts)


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _one(number: int, each: Explanation, paint: Paint, width: int) -> str:
    times = "once" if each.times == 1 else f"{each.times} times"
    where = f"{each.printer}, line {each.line}, {times}"
    return explanation_text(f"{number}. {heading(each, paint)} ({where})", each, width)


def heading(each: Explanation, paint: Paint) -> str:
    """Return how near to the root cause the line stands, in its colour, and its id."""
    return f"{paint(each.stage.word, _COLOURS[each.stage])}: {each.pattern}"


def explanation_text(head: str, each: Explanation, width: int) -> str:
    """Return ``head``, the line, and under it what is known of it."""
    rows = [("", each.excerpt), ("Cause", _sentence(each.cause))]
    if each.sums:
        rows.append(("Numbers", _sentence(each.sums)))
    if each.decided:
        rows.append(("This log", _sentence(each.decided)))
    elif each.apart:
        rows.append(("Told apart", _sentence(each.apart)))
    if len(each.names) > 1:
        more = " and others" if len(each.names) == MOST_NAMES else ""
        rows.append(("For", f"{', '.join(each.names)}{more}"))
    rows.append(("Do", _sentence(each.remedy)))
    if each.checks:
        rows.append(("Checks", f"{', '.join(each.checks)} (mooncake-preflight explain ID)"))
    return "\n".join([head, *(_row(name, text, width) for name, text in rows)])


def _row(name: str, text: str, width: int) -> str:
    start = f"   {name + ':' if name else '|':<12}"
    return textwrap.fill(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    )


def _sentence(text: str) -> str:
    """A sentence of it: a capital where it starts with a plain word, a full stop."""
    first = text.split(" ", 1)[0]
    if first.isalpha() and first.islower() and first not in _TYPED:
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", ":")) else f"{text}."


def explanations_object(reading: LogReading, exit_code: int) -> dict[str, Any]:
    """The same as one JSON object; ``exit_code`` is that of the process."""
    return {
        "schema": SCHEMA,
        "exit_code": exit_code,
        "lines": reading.lines,
        "whole": reading.whole,
        "explanations": [explanation_object(each) for each in reading.explanations],
    }


def explanation_object(each: Explanation) -> dict[str, Any]:
    """Return one explanation as it stands in a JSON object."""
    return {
        "id": each.pattern,
        "layer": each.printer,
        "stage": each.stage.word,
        "count": each.times,
        "line": each.line,
        "excerpt": each.excerpt,
        "names": list(each.names),
        "values": dict(each.groups),
        "cause": _sentence(each.cause),
        "numbers": each.sums,
        "this_log": each.decided,
        "told_apart": each.apart,
        "remedy": _sentence(each.remedy),
        "checks": list(each.checks),
    }
