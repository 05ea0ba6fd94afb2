"""``mooncake-preflight fleet merge``: its options."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import COLOR, refusing_usage

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(context_settings=CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@click.option("--html", metavar="FILE", help="A page with a table of the nodes too.")
@click.option(
    "--expect",
    metavar="NODESET",
    help="The nodes that there are, as 'gpu[001-064]': who gave no report is named.",
)
@click.option(
    "--list",
    "listed",
    type=click.Choice(["passing", "failing"]),
    help="Print these nodes alone: pass and warn, or fail and unknown.",
)
@click.option(
    "--list-format",
    type=click.Choice(["nodeset", "lines"]),
    default="nodeset",
    show_default=True,
    help="For --list: gpu[001-003], as Slurm reads it, or a name a line, for kubectl.",
)
@click.option("--nodes-passing", is_flag=True, help="--list passing.")
@click.option("--nodes-failing", is_flag=True, help="--list failing.")
@COLOR
@click.option("-q", "--quiet", count=True, help="The verdict alone.")
@click.option("-v", "--verbose", count=True, help="What passed, and where, too.")
@click.argument("reports", nargs=-1, required=True)
def merge(**options: Any) -> int:
    """Make one answer of many nodes' reports.

    REPORTS are files, folders, or - for standard input: what fleet check, run, collect and node
    print, one JSON object a line or one a file, gzip or not. An answer of check --json is taken
    too, in a file named after its node. What is no report is named and counted, never fatal.

    Exit codes: 0 all pass; 1 a node warns, or nodes differ; 2 a node fails, or they do not fit
    together; 3 unknown: a node is silent, or a report cannot be used; 64 usage error; 70 a defect
    of this program.
    """
    from preflight.fleet.merge.command import MergeRequest, run_merge

    wishes = [
        *([options["listed"]] if options["listed"] else []),
        *(["passing"] if options["nodes_passing"] else []),
        *(["failing"] if options["nodes_failing"] else []),
    ]
    if len(set(wishes)) > 1:
        raise click.UsageError("one list at a time: --list passing, or --list failing")
    if wishes and options["as_json"]:
        raise click.UsageError("--list prints nodes alone; --json has both lists in it")
    if options["html"] == "-" and (options["as_json"] or wishes):
        raise click.UsageError("--html - takes standard output for itself: give it a file")
    request = MergeRequest(
        options["reports"],
        options["expect"],
        wishes[0] if wishes else None,
        options["list_format"],
        options["as_json"],
        options["html"],
        options["color"],
        options["verbose"] - options["quiet"],
    )
    return int(refusing_usage(run_merge, request))
