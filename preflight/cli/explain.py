"""``mooncake-preflight explain``: what can be found, and what a log says."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from checks.host_snapshot.secrets import clean_text
from preflight.base.exit_codes import UNKNOWN
from preflight.base.output import columns, painter, say
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.cli.checks_options import CheckId
from preflight.cli.commands import command, say_answer
from preflight.cli.options import COLOR, FILE, JSON, MOONCAKE_VERSION, TIMEOUT, launch_from

if TYPE_CHECKING:
    from preflight.command_inputs.launch_words import LaunchWords
    from preflight.verdict.catalogue import Catalogue
    from preflight.verdict.report import Report

# The checks that name notices.
NOTICED_BY = ["launch.misread", "launch.unused", "launch.assumed"]


@command(
    "explain",
    "mooncake-preflight explain memlock.limit",
    "mooncake-preflight explain server.log",
    "journalctl -u sglang | mooncake-preflight explain",
    "mooncake-preflight explain 'Failed to register memory'",
    "mooncake-preflight explain --launch launch.sh 'Failed to register memory'",
    "mooncake-preflight explain memlock.limit --here",
    "mooncake-preflight explain --index | less",
    "mooncake-preflight explain --advisories launch.sh",
)
@click.argument("what", metavar="[ID|FILE|WORDS]...", type=CheckId(or_file=True), nargs=-1)
@click.option("--log", type=FILE, metavar="FILE", help="A server's log; - is standard input.")
@click.option("--index", is_flag=True, help="Every known line, in alphabetical order.")
@click.option(
    "--advisories", is_flag=True,
    help="Known-bad combinations; with a launch, those that affect it, or may.",
)  # fmt: skip
@click.option(
    "--all", "every_one", is_flag=True, help="With --advisories: all, and whether each affects it."
)
@click.option("--osv", is_flag=True, help="With --advisories: as OSV, one JSON array.")
@click.option(
    "--osv-zip", metavar="FILE",
    help="With --advisories: a .zip for scanners, of those that a wheel's release alone decides.",
)  # fmt: skip
@click.option("--here", is_flag=True, help="Make the checks that it names on this host too.")
@launch_from(
    click.option(
        "--launch", type=FILE, metavar="FILE",
        callback=lambda _, __, file: () if file is None else (file,),
        help="Make them for this launch here, with its numbers.",
    ),
    MOONCAKE_VERSION,
)  # fmt: skip
@click.option(
    "--root", type=FILE, metavar="HOST", help="Make them on this host, as check --root takes it."
)
@click.option(
    "-v", "--verbose", is_flag=True,
    help="Every problem of a log whole, and all lines that are not known.",
)  # fmt: skip
@TIMEOUT
@JSON
@COLOR
def explain(
    *,
    what: tuple[str, ...],
    log: str | None,
    index: bool,
    advisories: bool,
    every_one: bool,
    osv: bool,
    osv_zip: str | None,
    here: bool,
    launch: LaunchWords,
    root: str | None,
    verbose: bool,
    timeout_seconds: float,
    as_json: bool,
    color: str,
) -> int:
    """Explain an id, a log, or a line of one; without any, list all checks and rules.

    An ID gives the page of a check, rule, notice or known line. A FILE, or a pipe, is a log: the
    lines of SGLang, Mooncake and the kernel that are known, the likeliest cause first, and the
    errors that are not known. Several FILES, a folder, and the output of kubectl logs --prefix,
    docker compose logs or journalctl -o json are told by process. Other WORDS are looked for among
    the known lines, checks and rules: quote a line, or a part. With --here, --launch or --root the
    checks that it names are made too.

    With --advisories, WORDS are a launch, as check takes it: those are printed that affect it on
    this host, those where that cannot be known, and those that can appear while it runs. What
    `check` already judges is not repeated.

    Exit codes with a log: 0 no problem in it; 1 warnings, or errors that are not known; 2 the cause
    of a failure; 3 nothing of a folder was read. With --advisories: 0 none affects the launch, or
    none was given; 1 one does, or may; what may only arise while it runs does not count.
    """
    place = CheckTarget(launch, root or "/", timeout_seconds)
    target = place if here or launch.words or root is not None else None
    if advisories:
        if index or log is not None or (what and launch.words):
            raise click.UsageError("--advisories is about one launch, and about no log")
        from preflight.cli.advisories import print_advisories

        if osv or osv_zip is not None:
            from preflight.cli.advisories import print_osv

            return print_osv(osv_zip)
        of = launch._replace(words=what or launch.words) if what or target is not None else None
        return print_advisories(
            of, place.root, timeout_seconds, every=every_one, as_json=as_json, color=color
        )
    if every_one or osv or osv_zip is not None:
        raise click.UsageError("--all, --osv and --osv-zip are for --advisories")
    if target is None and any(launch._replace(words=())):
        raise click.UsageError("what is said of a launch goes with it: give --launch FILE")
    query = clean_text(" ".join(what))
    if index and (target is not None or what or log is not None):
        raise click.UsageError("--index is of every known line: give nothing else with it")
    if index:
        return print_index(as_json)
    if what and log is not None:
        raise click.UsageError(f"--log {log} and {query!r}: give one of them")
    if what and not query.strip():
        raise click.UsageError("give the ID of a check, a log's FILE, or words of a line")
    if not what and log is None and not is_piped(sys.stdin):
        if target is not None:
            raise click.UsageError("give an ID, a log or words: a launch and a host go with those")
        return print_list(as_json)
    if not what:
        is_folder = partial(os.path.isdir, log or "-")
        if log is not None and within(limit_seconds(), log, is_folder):
            raise click.UsageError(f"{log}: a folder: give one log of it")
        return explain_log_files([log or "-"], as_json, color, target, verbose)
    from preflight.launches.source import notices
    from preflight.server_logs.patterns import read_patterns
    from preflight.verdict.catalogue import catalogue

    every = catalogue()
    if query.upper() in {line.id for line in every.advisories}:
        return explain_page(every, query.upper(), as_json, color, target)
    if query in every.ids or query in notices():
        return explain_page(every, query, as_json, color, target)
    if query == "-" or within(limit_seconds(), query, lambda: all(map(os.path.exists, what))):
        return explain_log_files(what, as_json, color, target, verbose)
    known = [read_pattern for read_pattern in read_patterns() if read_pattern.cause]
    lines = [line.id for line in known]
    # A line of a log may be one word too: oom-kill:constraint=...
    parts = (part for line in known for part in line.find if len(part) >= _LEAST_QUOTED)
    quoted = any(part in query for part in parts)
    named = len(query.split()) == 1 and any(mark in query for mark in ".-/")
    if named and query not in lines and not quoted:
        from preflight.verdict.answer import nearest

        near = nearest(query, (*every.ids, *notices(), *lines))
        raise UsageError(f"{query}: nothing has this id, and there is no such file{near}")
    return explain_words(every, query, as_json, color, target)


# Shorter parts of known lines stand in ids too.
_LEAST_QUOTED = 16


class CheckTarget(NamedTuple):
    """The launch (or none) and the host on which explained checks are made."""

    launch: LaunchWords
    root: str
    timeout_seconds: float


def report_on(ids: Iterable[str], target: CheckTarget | None) -> Report | None:
    """Make the checks ``ids`` on a launch and a host, and return the report.

    Returns:
        None if ``target`` is None, or if no id can be checked on one host.
    """
    from preflight.command_inputs.launch_words import Chosen
    from preflight.verdict.answer import check_launch
    from preflight.verdict.catalogue import fleet_problems

    between_nodes = {problem.id for problem in fleet_problems()}
    only = tuple(dict.fromkeys(id_ for id_ in ids if id_ not in between_nodes))
    if target is None or not only:
        return None
    launch, root, timeout_seconds = target
    return check_launch(launch, root, timeout_seconds, chosen=Chosen(only=only)).report


def status_by_check(report: Report | None) -> dict[str, str]:
    """Return check id -> the worst status in ``report``, as a word; {} without a report."""
    from preflight.report.to_text import label

    worst: dict[str, str] = {}
    for row in report.rows if report is not None else ():
        worst.setdefault(row.finding.check, label(row))
    return worst


def with_report(text: str, report: Report | None, color: str, verbosity: int) -> str:
    """Return ``text`` with the findings of the host below; only ``text`` if ``report`` is None."""
    if report is None:
        return text
    from preflight.report.to_text import report_text

    if not report.rows:  # a rule, which has no answer where it finds nothing
        if report.needs is None:
            return f"{text}\n\nHere: it is about a launch: give it with --launch FILE."
        return f"{text}\n\nHere: {report.needs.source} has nothing of this."
    checked_text = report_text(report, painter(color), columns(), verbosity, more=None)
    return f"{text}\n\nChecked here:\n{checked_text}"


def say_object(
    code: int, explained: dict[str, Any], report: Report | None, reason: str | None = None
) -> None:
    """Print an explanation, with the findings of the host if any, as one JSON object."""
    launch = host = None
    if report is not None:
        from checks.host_snapshot.secrets import public
        from preflight.verdict.report import findings_objects, launch_of

        launch, host = launch_of(report), report.root
        explained = {**explained, "findings": public(findings_objects(report))}
    say_answer("explain-log", code, explained, reason=reason, launch=launch, host=host)


def is_piped(stream: TextIO) -> bool:
    """Return whether a stream may hold a log: it is open, no terminal, and not /dev/null."""
    try:
        null = os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except (OSError, ValueError):
        return False
    return not null and not stream.isatty()


def print_list(as_json: bool) -> int:
    """Print the id of every check and rule, and what it asks or finds; return 0."""
    from preflight.verdict.catalogue import catalogue

    rows = list_rows(catalogue())
    if as_json:
        say_answer("list", 0, {"checks": rows})
    else:
        say(list_text(rows, columns()))
    return 0


def list_rows(every: Catalogue) -> list[dict[str, str]]:
    """Return each id with its subject and its question or finding."""
    groups = {"host": every.host, "launch": every.launch, "fleet": every.fleet, "rule": every.rules}
    return [
        {"check": each.id, "of": of, "asks": f"{'finds ' * (of == 'rule')}{each.page.asks}"}
        for of, problems in groups.items()
        for each in problems
    ]


def list_text(rows: list[dict[str, str]], width: int) -> str:
    """Return every id with its question or finding, for a terminal of so many columns."""
    import textwrap

    column = max(len(row["check"]) for row in rows) + 2
    beside = width - column >= 40  # else below, where whole words have room
    inner = column if beside else 4
    lines = []
    for row in rows:
        each = textwrap.wrap(row["asks"], width - inner, break_on_hyphens=False)
        lines += [f"{row['check']:<{column}}{each.pop(0)}" if beside else row["check"]]
        lines += [" " * inner + line for line in each]
    return "\n".join(lines)


def print_index(as_json: bool) -> int:
    """Print every known line with its cause; return 0."""
    from preflight.server_logs.by_words import QueryAnswer, answer_object, index_rows, index_text

    if as_json:
        say_object(0, answer_object(QueryAnswer("--index", index_rows(), [])), None)
    else:
        say(index_text(index_rows(), columns()))
    return 0


def explain_page(
    every: Catalogue, id_: str, as_json: bool, color: str, target: CheckTarget | None
) -> int:
    """Print the page of a check, rule, record or notice by its id, with the findings on ``target``
    if that is given; return 0.
    """
    from preflight.launch_problems.advisories.records import advisory
    from preflight.launches.source import notices
    from preflight.verdict.catalogue import (
        advisory_page,
        as_text,
        notice_page,
        problem_page,
    )

    record = advisory(id_)
    ids = NOTICED_BY if id_ in notices() else [id_ if record is None else record.check]
    report = report_on(ids, target)
    if id_ in notices():
        page = notice_page(id_)
    elif record is not None:
        page = advisory_page(record)
    else:
        page = problem_page(every.problems[id_])
    if not as_json:
        say(with_report(as_text(page, columns()), report, color, 1))
        return 0
    outcomes = [{"status": status.value, "when": when} for status, when in page.outcomes]
    rows = [{"name": name, "text": text} for name, text in page.rows]
    explained = {"check": id_, "about": page.lead, "reason": page.why}
    say_object(0, {**explained, "outcomes": outcomes, "rows": rows}, report)
    return 0


def explain_words(
    every: Catalogue, query: str, as_json: bool, color: str, target: CheckTarget | None
) -> int:
    """Print the known lines, checks and rules that match ``query``, with the findings on
    ``target``; return 0.

    Raises:
        UsageError: If nothing matches.
    """
    from preflight.server_logs.by_words import answer_object, answer_query, answer_text, shown_lines
    from preflight.verdict.answer import nearest

    rows = {row["check"]: row["asks"] for row in list_rows(every)}
    matches = answer_query(query, rows)
    if not (matches.lines or matches.ids):
        if len(query.split()) > 1:
            raise UsageError(
                f"{query}: no known line, check or rule has these words. What ended the server may "
                "stand in another line: give the whole log (`mooncake-preflight explain "
                "server.log`), or ask what this host lacks (`mooncake-preflight check launch.sh`)"
            )
        raise UsageError(
            f"{query}: no id, no file, and no known line, check or rule has this word"
            f"{nearest(query, every.ids)}"
        )
    ids = [id_ for each in shown_lines(matches) for id_ in each.checks]
    ids = ids or [id_ for id_, _ in matches.ids]
    report = report_on(ids, target)
    if as_json:
        say_object(0, answer_object(matches), report)
    else:
        text = answer_text(matches, painter(color), columns(), status_by_check(report))
        say(with_report(text, report, color, 0))
    return 0


# So many files of a folder are read, by name.
MOST_FILES = 500


def files_of(paths: Iterable[str]) -> list[str]:
    """Return the paths, each folder replaced by its files, sorted, without those of subfolders.

    Raises:
        UsageError: For a folder with no file, or too many.
    """
    files: list[str] = []
    for path in paths:
        if path == "-" or not within(limit_seconds(), path, partial(os.path.isdir, path)):
            files.append(path)
            continue
        inside = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
        if not inside:
            raise UsageError(f"{path}: a folder: give one log of it")
        if len(inside) > MOST_FILES:
            raise UsageError(f"{path}: a folder with {len(inside)} files: give the logs of it")
        files += inside
    return files


def explain_log_files(
    paths: Sequence[str], as_json: bool, color: str, target: CheckTarget | None, verbose: bool
) -> int:
    """Print what is known of logs (all if ``verbose``), with the findings on ``target``.

    Return 0 if they show no problem, 1 for warnings or unknown errors, 2 for the cause of a
    failure, 3 if nothing of a folder was read.

    Raises:
        UsageError: If a log cannot be read.
    """
    from preflight.server_logs.explain import explanations_object, explanations_text, read_logs
    from preflight.server_logs.search import Bounded, read_blocks, why_no_log, why_no_text

    cut = False
    passed_over: list[str] = []

    def read(path: str) -> Iterator[str]:
        """Yield the blocks of one log file, or of standard input for "-".

        A file of a folder that is no log is noted, and yields none.
        """
        nonlocal cut
        name = "standard input" if path == "-" else path
        try:
            # What is open is read as long as somebody may write to it.
            opened = (
                nullcontext(sys.stdin.buffer)
                if path == "-"
                else within(limit_seconds(), path, lambda: open(path, "rb"))  # noqa: SIM115
            )
            with opened as stream:
                why = why_no_log(stream.fileno())
                if not why and path != "-" and isinstance(stream, io.BufferedReader):
                    why = why_no_text(path, stream.peek())
                if why and path in paths:
                    raise UsageError(f"{name}: {why}")
                if why:
                    passed_over.append(f"{path}: {why}")
                    return
                bounded = Bounded(stream)
                yield from read_blocks(bounded)
                cut = cut or bounded.cut
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"{name}: {reason}") from None

    files = files_of(paths)
    # One log is named by its lines alone where it came through a pipe.
    named = [("" if path == "-" else path, read(path)) for path in files]
    reading = read_logs(named)._replace(whole=not cut)
    of_folder = (
        f"{paths[0]}: nothing of it was read, so nothing is known of it: give the logs of it"
    )
    nothing = of_folder if not reading.lines and files != list(paths) else None
    code = UNKNOWN if nothing else reading.exit_code
    report = report_on([id_ for each in reading.explanations for id_ in each.checks], target)
    if as_json:
        causes = [each.cause for each in reading.explanations]
        say_object(code, explanations_object(reading), report, next(iter(causes), nothing))
    else:
        here = status_by_check(report)
        text = nothing or explanations_text(reading, painter(color), columns(), here, verbose)
        unread = [f"not read: {why}" for why in passed_over]
        say(with_report("\n".join([text, *unread]), report, color, 0))
    return code
