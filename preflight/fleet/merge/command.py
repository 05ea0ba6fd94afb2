"""Runs ``mooncake-preflight fleet merge``: reports in, one answer out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from preflight.base.output import columns, painter, say, say_json
from preflight.fleet.base.node_sets import expand
from preflight.fleet.merge.fleet import merged
from preflight.fleet.merge.records import FAILING, PASSING, Fleet
from preflight.fleet.reports.reading import read_reports


class MergeRequest(NamedTuple):
    """What the command line asks for. expect: a node set, None for whoever reports.

    listed: passing or failing, None for the answer itself; list_format: nodeset or lines.
    """

    paths: tuple[str, ...]
    expect: str | None
    listed: str | None
    list_format: str
    as_json: bool
    html: str | None
    color: str
    verbosity: int


def run_merge(request: MergeRequest) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    fleet = merge(request.paths, None if request.expect is None else expand(request.expect))
    if request.html is not None:
        from preflight.fleet.merge.to_html import write_html

        write_html(request.html, fleet)
    if request.listed is not None:
        from preflight.fleet.merge.words import listed

        places = fleet.of(*(PASSING if request.listed == "passing" else FAILING))
        text = listed((fleet.nodes[at].name for at in places), request.list_format)
        if text:
            say(text)
    elif request.as_json:
        from preflight.fleet.merge.to_json import fleet_object

        say_json(fleet_object(fleet))
    else:
        from preflight.fleet.merge.to_text import fleet_text

        paint = painter(request.color)
        say(fleet_text(fleet, paint, columns(), request.verbosity), color=True)
    return fleet.exit_code


def merge(paths: Sequence[str], expected: Sequence[str] | None) -> Fleet:
    """The fleet that the reports of ``paths`` tell of."""
    return merged(read_reports(paths), expected)
