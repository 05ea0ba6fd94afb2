"""``mooncake-preflight fleet rails``: its options."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import COLOR, refusing_usage

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(context_settings=CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@COLOR
@click.option("-q", "--quiet", count=True, help="The verdict alone.")
@click.option("-v", "--verbose", count=True, help="A grid for each two kinds of nodes.")
@click.argument("reports", nargs=-1, required=True)
def rails(**options: Any) -> int:
    """Say which NIC of one node reaches which of another, from the nodes' reports.

    REPORTS are what fleet merge takes. Nodes whose ports lie in the same networks are one kind;
    kinds are held against each other by addresses, prefixes, GID types and routes. Nothing is sent:
    whether packets get through is what fleet pair-listen and pair-connect try.

    Exit codes: 0 every pair that Mooncake makes has a way; 1 some have none; 2 some nodes do not
    reach each other at all; 3 unknown; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.rails.command import RailsRequest, run_rails

    verbosity = options["verbose"] - options["quiet"]
    request = RailsRequest(options["reports"], options["as_json"], options["color"], verbosity)
    return int(refusing_usage(run_rails, request))
