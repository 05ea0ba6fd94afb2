"""A fleet as it is asked for: text, JSON, a page, or the names of its nodes alone."""

import os
from typing import NamedTuple

from preflight.base.command_frame import Answers
from preflight.base.output import columns, output_to, painter, say, say_json
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, save, within
from preflight.fleet.base.node_sets import fold
from preflight.fleet.merge.fleet import FAILING, PASSING, Fleet


class AnswerOptions(NamedTuple):
    """How a fleet's answer is to be printed, by the options of the command.

    Attributes:
        reports: A folder to keep each node's report in, or None.
        answers: The formats, each with its file.
        listed: "passing" or "failing" prints the names of these nodes alone, None the whole answer.
        list_format: Of the names, nodeset (as Slurm reads it) or lines.
    """

    reports: str | None
    answers: Answers
    color: str
    verbosity: int
    listed: str | None = None
    list_format: str = "nodeset"


def show_fleet(fleet: Fleet, shown: AnswerOptions) -> int:
    """Print a fleet; returns its exit code.

    Raises UsageError.
    """
    for name, path in shown.answers:
        with output_to(path):
            _say(fleet, shown, name)
    return fleet.exit_code


def _say(fleet: Fleet, shown: AnswerOptions, format_: str) -> None:
    """Print the fleet in one format.

    As text, only the nodes' names if ``shown.listed``.
    """
    if format_ == "html":
        from preflight.fleet.merge.to_html import fleet_page

        say(fleet_page(fleet).rstrip("\n"))
    elif shown.listed is not None and format_ == "text":
        names = fleet.of(*(PASSING if shown.listed == "passing" else FAILING))
        if names:
            say(fold(names, slurm=True) if shown.list_format == "nodeset" else "\n".join(names))
    elif format_ == "json":
        from preflight.base.envelope import envelope
        from preflight.fleet.merge.answer import fleet_object, verdict_text

        answer, word = fleet_object(fleet), fleet.verdict
        say_json(envelope("fleet", fleet.exit_code, answer, word=word, reason=verdict_text(fleet)))
    else:
        from preflight.fleet.merge.answer import fleet_text

        say(fleet_text(fleet, painter(shown.color), columns(), shown.verbosity))


def prepare(shown: AnswerOptions) -> None:
    """Make the folder of --reports.

    Raises:
        UsageError: Before any node is asked, if a folder to write to is missing or not writable.
    """
    if shown.reports is not None:
        _try_folder(f"--reports {shown.reports}", shown.reports, make=True)
    for _, path in shown.answers:
        if path is not None:
            folder = os.path.dirname(os.path.abspath(path))
            _try_folder(f"--output {path}", folder, make=False)


def _try_folder(option: str, folder: str, make: bool) -> None:
    """Raise UsageError if a folder cannot be written to; ``make``: make it first."""

    def look() -> None:
        if make:
            os.makedirs(folder, exist_ok=True)
        os.stat(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")

    try:
        within(limit_seconds(), option, look)
    except OSError as error:
        raise UsageError(f"{option}: {error.strerror}") from None


def keep(name: str, report: str, shown: AnswerOptions) -> None:
    """Write a report to the folder of --reports: one whole file a node."""
    if shown.reports is not None:
        path = os.path.join(shown.reports, f"{name}.json")
        save(f"--reports {path}", path, f"{report}\n".encode(), 0o644, limit_seconds())
