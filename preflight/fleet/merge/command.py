"""Runs ``mooncake-preflight fleet merge``: reports in, one answer out."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.base.output import columns, painter, say, say_json
from preflight.fleet.base.node_sets import expand
from preflight.fleet.merge.fleet import merged
from preflight.fleet.merge.records import FAILING, PASSING, Fleet
from preflight.fleet.reports.reading import read_reports


def run_merge(
    paths: Sequence[str],
    *,
    expect: str | None = None,
    listed_nodes: str | None = None,
    list_format: str = "nodeset",
    as_json: bool,
    html: str | None = None,
    color: str,
    verbosity: int,
) -> int:
    """Print the answer; returns the exit code. Raises UsageError.

    expect: a node set, None for whoever reports. listed_nodes: passing or failing, None for the
    answer itself; list_format: nodeset or lines.
    """
    fleet = merge(paths, None if expect is None else expand(expect))
    if html is not None:
        from preflight.fleet.merge.to_html import write_html

        write_html(html, fleet)
        if html == "-":  # nothing may follow what is a whole document
            return fleet.exit_code
    if listed_nodes is not None:
        from preflight.fleet.merge.words import listed

        places = fleet.of(*(PASSING if listed_nodes == "passing" else FAILING))
        text = listed((fleet.nodes[at].name for at in places), list_format)
        if text:
            say(text)
    elif as_json:
        from preflight.fleet.merge.to_json import fleet_object

        say_json(fleet_object(fleet))
    else:
        from preflight.fleet.merge.to_text import fleet_text

        say(fleet_text(fleet, painter(color), columns(), verbosity))
    return fleet.exit_code


def merge(paths: Sequence[str], expected: Sequence[str] | None) -> Fleet:
    """The fleet that the reports of ``paths`` tell of."""
    return merged(read_reports(paths), expected)
