"""A fleet as it is asked for: text, JSON, a page, or the names of its nodes alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from preflight.base.output import columns, painter, say, say_json
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, save, within
from preflight.fleet.base.node_sets import expand, fold
from preflight.fleet.merge.fleet import FAILING, PASSING, Fleet, merged
from preflight.fleet.reports.reading import read_reports
from preflight.fleet.reports.rows import Unusable
from preflight.fleet.reports.sources import FoundReport


class Shown(NamedTuple):
    """How the answer is asked for.

    reports: a folder to keep each node's report in. html: a file for a page too, - for it alone.
    listed: passing or failing nodes alone; list_format: nodeset, as Slurm reads it, or lines.
    """

    reports: str | None
    as_json: bool
    color: str
    verbosity: int
    html: str | None = None
    listed: str | None = None
    list_format: str = "nodeset"


def run_merge(found: Iterable[FoundReport | Unusable], shown: Shown, expect: str | None) -> int:
    """Print the answer; returns the exit code. Raises UsageError.

    expect: a node set, None for whoever reports.
    """
    expected = None if expect is None else expand(expect)
    return show_fleet(merged(read_reports(found), expected), shown)


def show_fleet(fleet: Fleet, shown: Shown) -> int:
    """Print a fleet; returns its exit code. Raises UsageError."""
    if shown.html is not None:
        from preflight.fleet.merge.to_html import write_html

        write_html(shown.html, fleet)
        if shown.html == "-":  # nothing may follow what is a whole document
            return fleet.exit_code
    if shown.listed is not None:
        names = fleet.of(*(PASSING if shown.listed == "passing" else FAILING))
        if names:
            say(fold(names, slurm=True) if shown.list_format == "nodeset" else "\n".join(names))
    elif shown.as_json:
        from preflight.base.envelope import envelope
        from preflight.fleet.merge.answer import fleet_object, verdict_text

        said, word = fleet_object(fleet), fleet.verdict
        say_json(envelope("fleet", fleet.exit_code, said, word=word, reason=verdict_text(fleet)))
    else:
        from preflight.fleet.merge.answer import fleet_text

        say(fleet_text(fleet, painter(shown.color), columns(), shown.verbosity))
    return fleet.exit_code


def prepare(shown: Shown) -> None:
    """Try, before a node is asked, whether all can be written: later the work would be lost."""
    if shown.reports is not None:
        _try_folder(f"--reports {shown.reports}", shown.reports, make=True)
    if shown.html is not None and shown.html != "-":
        folder = os.path.dirname(os.path.abspath(shown.html))
        _try_folder(f"--html {shown.html}", folder, make=False)


def _try_folder(option: str, folder: str, make: bool) -> None:
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


def keep(node: str, report: str, shown: Shown) -> None:
    """Write a report to the folder of --reports: one file a node, whole or not there."""
    if shown.reports is not None:
        path = os.path.join(shown.reports, f"{node}.json")
        save(f"--reports {path}", path, f"{report}\n".encode(), 0o644, limit_seconds())
