"""Reports in, one answer out: for ``fleet merge``, and for every command that asks the nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from preflight.base.output import columns, painter, say, say_json
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, save, within
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import expand, fold
from preflight.fleet.merge.fleet import FAILING, PASSING, Fleet, merged
from preflight.fleet.node.report import one_line
from preflight.fleet.remote.reply import INTERRUPTED
from preflight.fleet.reports.reading import read_reports
from preflight.fleet.reports.rows import Unusable
from preflight.fleet.reports.sources import Text, texts


class Shown(NamedTuple):
    """How the answer is asked for.

    reports: a folder to keep each node's report in. html: a file for a page too, - for it alone.
    """

    reports: str | None
    as_json: bool
    color: str
    verbosity: int
    html: str | None = None


def run_merge(
    found_texts: Iterable[Text | Unusable],
    shown: Shown,
    expect: str | None = None,
    listed_nodes: str | None = None,
    list_format: str = "nodeset",
) -> int:
    """Print the answer; returns the exit code. Raises UsageError.

    expect: a node set, None for whoever reports. listed_nodes: passing or failing, None for the
    answer itself; list_format: nodeset, as Slurm reads it, or lines, for kubectl and xargs.
    """
    fleet = merged(read_reports(found_texts), None if expect is None else expand(expect))
    if shown.html is not None:
        from preflight.fleet.merge.to_html import write_html

        write_html(shown.html, fleet)
        if shown.html == "-":  # nothing may follow what is a whole document
            return fleet.exit_code
    if listed_nodes is not None:
        names = fleet.of(*(PASSING if listed_nodes == "passing" else FAILING))
        if names:
            say(fold(names, slurm=True) if list_format == "nodeset" else "\n".join(names))
    elif shown.as_json:
        from preflight.base.envelope import envelope
        from preflight.fleet.merge.answer import fleet_object, verdict_text

        said, word = fleet_object(fleet), fleet.verdict
        say_json(envelope("fleet", fleet.exit_code, said, word=word, reason=verdict_text(fleet)))
    else:
        from preflight.fleet.merge.answer import fleet_text

        text = fleet_text(fleet, painter(shown.color), columns(), shown.verbosity)
        say(text)
    return fleet.exit_code


def merge(paths: Sequence[str], expected: Sequence[str] | None) -> Fleet:
    """Return the fleet that the reports of ``paths`` tell of."""
    return merged(read_reports(texts(paths)), expected)


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


def answer(reports: Sequence[Json], shown: Shown, stopped: int = 0) -> int:
    """Keep the reports, print what they come to together; returns its exit code.

    stopped: the signal that ended the asking, 0 for none: how many are missing is said then.
    """
    written = [Text(f"{report['node']}.json", 0, one_line(report).encode()) for report in reports]
    for report in reports:
        keep(report, shown)
    code = run_merge(written, shown)
    if not stopped:
        return code
    missing = sum(
        any(finding["check"] == INTERRUPTED for finding in report["findings"]) for report in reports
    )
    text = f"mooncake-preflight: interrupted: {missing} of {len(reports)} nodes gave no report"
    say(text, err=True)
    return 128 + stopped


def keep(report: Json, shown: Shown) -> None:
    """Write a report to the folder of --reports: one file a node, whole or not there."""
    if shown.reports is None:
        return
    path = os.path.join(shown.reports, f"{report['node']}.json")
    content = f"{one_line(report)}\n".encode()
    save(f"--reports {path}", path, content, 0o644, limit_seconds())
