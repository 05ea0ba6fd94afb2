"""``mooncake-preflight fleet merge``: one answer of many nodes' reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.formats import with_formats
from preflight.cli.options import COLOR, FILE_TIMEOUT, with_verbosity

if TYPE_CHECKING:
    from preflight.base.command_frame import Answers


@command(
    "merge",
    "mooncake-preflight fleet merge --expect 'gpu[001-064]' reports/",
    "srun --label mooncake-preflight check --json launch.sh | mooncake-preflight fleet merge -",
    "mooncake-preflight fleet merge --list failing --list-format lines reports.jsonl",
)
@with_formats("text", "json", "html")
@click.option(
    "--expect", metavar="NODESET",
    help="The nodes to expect, as 'gpu[001-064]': those without a report are named.",
)  # fmt: skip
@click.option(
    "--list", "listed", type=click.Choice(["passing", "failing"]),
    help="Print these nodes alone: pass and warn, or fail and unknown. Default: the whole answer.",
)  # fmt: skip
@click.option(
    "--list-format", type=click.Choice(["nodeset", "lines"]), default="nodeset", show_default=True,
    help="For --list: gpu[001-003], as Slurm reads it, or a name a line, for kubectl.",
)  # fmt: skip
@COLOR
@with_verbosity("What passed, and where, too.")
@FILE_TIMEOUT
@click.argument("reports", nargs=-1, required=True)
def merge(
    *,
    reports: tuple[str, ...],
    answers: Answers,
    expect: str | None,
    listed: str | None,
    list_format: str,
    color: str,
    verbosity: int,
) -> int:
    """Make one answer of many nodes' reports.

    REPORTS are files, folders, or - for standard input, with what check --json printed on each
    node: gzip or not, several in one, among the other lines of a log, or labelled by srun. A report
    goes by the name that its machine gives itself, or a file's. What is no report is named and
    counted, and the rest is merged.

    Exit codes: 0 all pass; 1 a node warns, or nodes differ; 2 a node fails, or they do not fit
    together; 3 unknown: a node is silent, or a report cannot be used; 64 usage error; 70 a defect
    of this program.
    """
    from preflight.fleet.merge.command import Shown, run_merge
    from preflight.fleet.reports.sources import given_reports

    if listed and ("text", None) not in answers and any(path is None for _, path in answers):
        raise click.UsageError("--list prints nodes alone; --json has both lists in it")
    shown = Shown(None, answers, color, verbosity, listed, list_format)
    return run_merge(given_reports(reports), shown, expect)
