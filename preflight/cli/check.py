"""``mooncake-preflight check``: one launch held against one host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from checks.base.check import Check, Judge
from checks.base.finding import Finding
from checks.base.unknown import Unknown
from checks.run.judging import every_check
from preflight.base.output import columns, painter, say, say_json
from preflight.check.judged_host import Judged, judged
from preflight.check.report import Findings, Report, consequences, report
from preflight.check.selection import Selection, select
from preflight.inputs.host_source import LaunchWords

if TYPE_CHECKING:
    from preflight.pictures.html_report import Made

# Where the commands that mend something are to be run follows from these, whatever is checked.
_CONTEXT_TOPICS = ("system", "limits")


class CheckRequest(NamedTuple):
    """What the command line asks for."""

    launch: LaunchWords
    root: str
    only: tuple[str, ...]
    skip: tuple[str, ...]
    ignore: tuple[str, ...]
    timeout_seconds: float
    as_json: bool
    protocol: str
    fail_on: str | None
    junit: str | None
    color: str
    verbosity: int
    html: str | None = None
    memory_map: bool = False
    plain: bool = False


class Answer(NamedTuple):
    """A report, and what it was made from."""

    report: Report
    seen: Judged


def run_check(request: CheckRequest) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    from preflight.check.exit_protocols import exit_code, protocol_line

    try:
        answer = answered(request)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if request.junit not in (None, "-"):
            _write("--junit", request.junit, _error_junit(message))
        if request.html not in (None, "-"):
            _write("--html", request.html, _error_html(message))
        raise
    found = answer.report
    code = exit_code(found.verdict, request.protocol, request.fail_on)
    if request.junit is not None:
        from preflight.check.to_junit import report_junit

        _write("--junit", request.junit, report_junit(found))
    if request.html is not None:
        _write("--html", request.html, _html(answer, request))
    if request.as_json:
        from preflight.check.to_json import report_object

        say_json(report_object(found, request.protocol, code))
    elif "-" not in (request.junit, request.html):
        line = protocol_line(found, request.protocol)
        say(_text(answer, request) if line is None else line, color=True)
    return code


def check(request: CheckRequest) -> Report:
    """The answer as data."""
    return answered(request).report


def answered(request: CheckRequest) -> Answer:
    """The answer with the facts and the launch behind it. Raises UsageError."""
    host_checks = list(every_check())
    selection = _selection(request, host_checks)
    chosen = [pair for pair in host_checks if selection.takes(pair[0].id)]
    slow = _slow if sys.stderr.isatty() and request.verbosity >= 0 else None
    topics = (*_CONTEXT_TOPICS, *_picture_topics(request))
    seen = judged(request.launch, request.root, request.timeout_seconds, chosen, topics, slow)
    # That a launch could not be read is said whatever is selected.
    unread = isinstance(seen.launch, Unknown)
    of_launch = [found for found in seen.of_launch if unread or selection.takes(found.check)]
    found = [*seen.of_host, *of_launch]
    explained = _explained(found, seen, host_checks)
    return Answer(report(explained, selection.ignore, seen.needs, seen.host.name), seen)


def _picture_topics(request: CheckRequest) -> tuple[str, ...]:
    if request.html is None and not request.memory_map:
        return ()
    from preflight.pictures.check_page import MAP_TOPICS, PAGE_TOPICS

    return PAGE_TOPICS if request.html is not None else MAP_TOPICS


def _selection(request: CheckRequest, host_checks: Sequence[tuple[Check, Judge]]) -> Selection:
    if not (request.only or request.skip or request.ignore):
        return Selection()
    from preflight.check.launch import LAUNCH_CHECKS
    from preflight.rules.launch_rules import RULES

    known = [*(check.id for check, _ in host_checks), *(check.id for check in LAUNCH_CHECKS)]
    return select(request.only, request.skip, request.ignore, [*known, *RULES])


def _explained(
    found: Sequence[Finding],
    seen: Judged,
    host_checks: Sequence[tuple[Check, Judge]],
) -> Findings:
    """With what follows from each, and what mends it where it will run."""
    declared = [check for check, _ in host_checks]
    if seen.launch is not None:
        from preflight.check.launch import LAUNCH_CHECKS

        declared += LAUNCH_CHECKS
    from preflight.settings.commands import commands, context_of

    context = context_of(seen.facts)
    return Findings(found, consequences(declared), lambda one: commands(one.settings, context))


def _slow(topics: list[str]) -> None:
    say(f"mooncake-preflight: still reading {', '.join(topics)}", err=True)


def _text(answer: Answer, request: CheckRequest) -> str:
    from preflight.check.to_text import report_text

    paint, width = painter(request.color), columns()
    text = report_text(answer.report, paint, width, request.verbosity)
    if not request.memory_map:
        return text
    from preflight.pictures.bars import bars_text, draws_blocks
    from preflight.pictures.check_page import memory_of

    plain = request.plain or not draws_blocks(sys.stdout.encoding)
    return f"{text}\n\n{bars_text(memory_of(answer.seen), paint, width, plain)}"


def _html(answer: Answer, request: CheckRequest) -> str:
    from preflight.pictures.check_page import check_page

    return check_page(answer.report, answer.seen, request.launch, _made())


def _error_html(message: str) -> str:
    from preflight.pictures.html_report import error_page

    return error_page(message, _made())


def _made() -> Made:
    """Who makes a page, and when: SOURCE_DATE_EPOCH, where a build wants the same page twice."""
    import os
    import time

    from preflight.base.program_version import program_version
    from preflight.pictures.html_report import Made

    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    # Ten digits last until the year 2286.
    seconds = int(given) if given.isascii() and given.isdecimal() and len(given) < 11 else None
    moment = time.gmtime(time.time() if seconds is None else seconds)
    return Made(program_version(), time.strftime("%Y-%m-%d %H:%M UTC", moment))


def _error_junit(message: str) -> str:
    from preflight.check.to_junit import error_junit

    return error_junit(message)


def _write(option: str, path: str | None, text: str) -> None:
    if path == "-":
        say(text.rstrip("\n"))
    elif path is not None:
        from checks.base.archive import write_whole
        from preflight.base.usage_error import UsageError

        try:
            write_whole(path, text.encode(), mode=0o644)
        except OSError as error:
            raise UsageError(f"{option} {path}: {error.strerror}") from None
