"""``mooncake-preflight fleet``: the same judgement over many nodes, and what only many can show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from preflight.base.usage_error import UsageError
from preflight.cli.checks_options import with_checks
from preflight.cli.commands import (
    CONTEXT,
    Decorator,
    LazyGroup,
    Option,
    command,
    examples_text,
    taking,
    with_formats,
    with_one_parameter,
    with_options,
)
from preflight.cli.measure import seconds_of
from preflight.cli.options import (
    COLOR,
    FILE_TIMEOUT,
    JSON,
    SIZE,
    Integer,
    NumberOption,
    timeout_option,
    with_launch,
    with_launch_of_installed,
    with_verbosity,
)

if TYPE_CHECKING:
    from preflight.base.command_frame import Answers
    from preflight.command_inputs.launch_words import Chosen, LaunchWords
    from preflight.fleet.merge.command import AnswerOptions
    from preflight.fleet.remote.program import Program, SshNodes

_SECTIONS = {
    "Every node": ("check", "observe"),
    "Between nodes": ("rails", "measure"),
    "Their reports": ("merge",),
}
LATER = {
    title: {name: f"{__name__}:{name}" for name in names} for title, names in _SECTIONS.items()
}


@click.group(
    cls=LazyGroup,
    later=LATER,
    context_settings=CONTEXT,
    epilog=examples_text(
        "mooncake-preflight fleet check --nodes 'gpu[001-064]' launch.sh",
        "srun --label mooncake-preflight check --json launch.sh | mooncake-preflight fleet merge -",
        "mooncake-preflight fleet merge reports/",
    ),
)
def fleet() -> None:
    """Check every node of a cluster over ssh, and merge what nodes say, however they were asked.

    check asks the nodes over ssh. merge makes one answer of what check --json printed on each,
    under Slurm, in Kubernetes or by hand; rails says which NIC reaches which, and measure moves
    memory between each two nodes.
    """


_NODE_TIMEOUT = "Seconds, connecting included, after which a node that did not answer is unknown."
_FANOUT: Option = click.option(
    "--fanout", type=Integer(1, 4096), help="Nodes at a time. Default: ClusterShell's, 64."
)


def _with_ssh_nodes(timeout: str, *fanout: Option) -> Decorator:
    """Add the options for nodes and for ssh: ``where: SshNodes``.

    Args:
        timeout: The help of --timeout.
        fanout: The option --fanout, if the command has it.
    """
    nodes = "As gpu[001-064], @rack1 or @slurm:partition; may be given again."
    files = "Node sets, one a line."
    return taking(
        "where",
        _ssh_nodes,
        click.option("--nodes", multiple=True, metavar="NODESET", help=nodes),
        click.option("--nodes-file", "nodes_files", multiple=True, metavar="FILE", help=files),
        click.option("--exclude", multiple=True, metavar="NODESET", help="Leave these out."),
        timeout_option(NumberOption(1, 3600), 60.0, timeout),
        click.option(
            "--connect-timeout", "connect_seconds", type=Integer(1, 600),
            help="Seconds of --timeout in which ssh has to connect. Default: 10, or half of it.",
        ),
        *fanout,
        click.option("--user", metavar="NAME", help="Log in as this user."),
        click.option(
            "--ssh-options", default="", metavar="OPTIONS",
            help="For ssh, as '-i ~/.ssh/fleet -oPort=2222'.",
        ),
    )  # fmt: skip


# Seconds in which ssh connects, where nobody says another number and --timeout leaves so many.
_CONNECT_SECONDS = 10


def _ssh_nodes(connect_seconds: int | None, timeout_seconds: float, **options: Any) -> SshNodes:
    """Return the nodes and how ssh reaches them.

    Without --connect-timeout ssh gets 10 s to connect, or half of --timeout if that is less.
    """
    from preflight.fleet.remote.program import SshNodes

    if connect_seconds is None:
        connect_seconds = max(1, min(_CONNECT_SECONDS, int(timeout_seconds / 2)))
    options = {"fanout": None, **options, "timeout_seconds": timeout_seconds}
    return SshNodes(connect_seconds=connect_seconds, **options)


def _program(remote_command: str, remote_python: str, carry: str) -> Program:
    """Return the program on the nodes.

    Raises:
        UsageError: For no words, or an open quotation.
    """
    import shlex

    from preflight.fleet.remote.program import Program

    try:
        argv = tuple(shlex.split(remote_command))
    except ValueError as error:
        raise UsageError(f"--remote-command {remote_command!r}: {error}") from None
    if not argv:
        raise UsageError("--remote-command is empty: give the program's path on the nodes")
    return Program(argv, remote_python, carry)


# The program on a node: ``program: Program``.
_with_remote = taking(
    "program",
    _program,
    click.option(
        "--remote-command", default="mooncake-preflight", show_default=True, metavar="COMMAND",
        help="This program on the nodes.",
    ),
    click.option(
        "--carry", type=click.Choice(["auto", "always", "never"]), default="auto",
        show_default=True, help="Take this program along: where a node has none, always, never.",
    ),
    click.option(
        "--remote-python", default="python3", show_default=True, metavar="COMMAND",
        help="What runs the program that is taken along; 3.10 or newer.",
    ),
)  # fmt: skip


def _with_answer_options(function: Any) -> Any:
    """Add the options for the form of the answer, and for files: ``shown: AnswerOptions``."""
    reports = click.option(
        "--reports", metavar="FOLDER", help="Keep each node's report there, as NODE.json."
    )
    shown = "preflight.fleet.merge.command:AnswerOptions"
    made = with_one_parameter(function, "shown", shown, "reports", "answers", "color", "verbosity")
    verbosity = with_verbosity("What passed, too.")
    return with_options(reports, with_formats("text", "json", "html"), COLOR)(verbosity(made))


@command(
    "check",
    "mooncake-preflight fleet check --nodes 'gpu[001-064]' launch.sh",
    "mooncake-preflight fleet check --nodes @slurm:gpu --exclude @slurm:drained launch.sh",
    "mooncake-preflight fleet check --nodes-file nodes.txt --reports reports/",
)
@_with_ssh_nodes(_NODE_TIMEOUT, _FANOUT)
@_with_remote
@_with_answer_options
@with_checks
@with_launch
def check(
    *, where: SshNodes, program: Program, chosen: Chosen, shown: AnswerOptions, launch: LaunchWords
) -> int:
    """Check a launch on every node over ssh, and say which nodes differ.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. It is read here and sent as it was read; nothing
    of it is executed. A node that is not reached is unknown, under its name and with ssh's reason.
    ClusterShell reaches the nodes, as ClusterShell is configured.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error; 70 a defect of this program; 130 interrupted: what the others said is printed.
    """
    from preflight.fleet.over_ssh import run_fleet_check

    if where.connect_seconds >= where.timeout_seconds:
        raise click.UsageError(
            f"--connect-timeout {where.connect_seconds} leaves nothing of "
            f"--timeout {where.timeout_seconds:g}: give it less"
        )
    return run_fleet_check(launch, where, program, chosen, shown)


@command(
    "observe",
    "mooncake-preflight fleet observe --nodes 'gpu[001-064]' --user root",
    "mooncake-preflight fleet observe --nodes @slurm:gpu launch.sh",
)
@_with_ssh_nodes(_NODE_TIMEOUT, _FANOUT)
@_with_remote
@JSON
@COLOR
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict.")
@with_launch
def observe(
    *,
    where: SshNodes,
    program: Program,
    as_json: bool,
    color: str,
    quiet: bool,
    launch: LaunchWords,
) -> int:
    """Look at the servers and stores that run on every node: do they hold what was predicted?

    Each node is asked over ssh what observe says on it. Equal findings of several nodes are one
    line, without the ids of processes. With LAUNCH each of its processes has to run on each node.

    Exit codes: 0 as predicted; 1 something is not; 3 some node is unknown, or runs nothing;
    64 usage error; 70 a defect of this program; 130 interrupted.
    """
    from preflight.command_inputs.host_source import recorded_launch
    from preflight.fleet.over_ssh import nodes_of, observe_fleet
    from preflight.fleet.reports.answers import show_answer

    nodes = nodes_of(where)
    record = recorded_launch(launch) if launch.words else None
    answer = observe_fleet(nodes, record, where, program)
    return show_answer(answer, "fleet-observe", as_json, color, -1 if quiet else 0)


@command("rails", "mooncake-preflight fleet rails reports.jsonl")
@JSON
@COLOR
@with_verbosity("The whole table.")
@FILE_TIMEOUT
@click.argument("reports", nargs=-1, required=True)
def rails(*, reports: tuple[str, ...], as_json: bool, color: str, verbosity: int) -> int:
    """Say which node's NIC is in another network than the same NIC of the others.

    REPORTS are what fleet merge takes. Ports of one name are compared by addresses, prefixes, GID
    types and routes. Nothing is sent: whether packets get through is what measure --to tries.

    Exit codes: 0 each port reaches the same port of the others; 1 some cannot; 2 some node is not
    reached at all; 3 unknown; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.rails import rail_answer
    from preflight.fleet.reports.answers import show_answer
    from preflight.fleet.reports.reading import read_reports
    from preflight.fleet.reports.rows import choose_rows
    from preflight.fleet.reports.sources import given_reports

    read = read_reports(given_reports(reports))
    answer = rail_answer(choose_rows(read.rows).rows.values(), read.unusable)
    return show_answer(answer, "rails", as_json, color, verbosity)


@command(
    "measure",
    "mooncake-preflight fleet measure --nodes 'gpu[001-004]' launch.sh",
    "mooncake-preflight fleet measure --nodes @slurm:gpu --budget 20s --python /opt/v/bin/python3",
)
@_with_ssh_nodes(
    "Seconds beside --budget, connecting and loading included, after which a pair is unknown."
)
@_with_remote
@JSON
@COLOR
@with_verbosity("All pairs.")
@click.option(
    "--budget", "budget_seconds", metavar="TIME", default="10s", callback=seconds_of,
    help="The time in which one pair transfers. Default: 10s.",
)  # fmt: skip
@click.option(
    "--spend", "spend_bytes", type=SIZE, default="512mb", show_default=True,
    help="The most memory that is taken on a node.",
)  # fmt: skip
@click.option("--python", metavar="PATH", help="The interpreter on the nodes that has Mooncake.")
@with_launch_of_installed
def measure(
    *,
    where: SshNodes,
    program: Program,
    as_json: bool,
    color: str,
    verbosity: int,
    budget_seconds: float,
    spend_bytes: int,
    python: str | None,
    launch: LaunchWords,
) -> int:
    """Move memory between each two nodes over ssh, and say which node or pair is slow.

    One node of a pair runs measure --serve, the other measure --to, by the devices, protocol and
    variables of LAUNCH where one is given. Pairs at a time share no node; N nodes take N - 1
    rounds. No running service is touched; nothing is left behind.

    Exit codes: 0 measured; 1 some node or pair is slow, or not what the launch means; 2 some pair
    fails; 3 some pair was not measured; 64 usage error; 70 a defect of this program; 130
    interrupted.
    """
    from preflight.benchmark.measuring.records import LEAST_BUDGET_SECONDS
    from preflight.command_inputs.host_source import recorded_launch
    from preflight.fleet.over_ssh import measure_fleet, nodes_of
    from preflight.fleet.reports.answers import show_answer

    if budget_seconds < LEAST_BUDGET_SECONDS:
        raise click.UsageError(f"--budget is less than {LEAST_BUDGET_SECONDS:g}s")
    options = [f"--spend={spend_bytes}b", *([f"--python={python}"] if python else [])]
    where = where._replace(timeout_seconds=where.timeout_seconds + budget_seconds)
    nodes = nodes_of(where)
    if len(nodes) < 2:
        raise click.UsageError("a pair takes two nodes: give --nodes 'gpu[001-004]'")
    record = recorded_launch(launch) if launch.words else None
    answer = measure_fleet(nodes, record, options, budget_seconds, where, program)
    return show_answer(answer, "fleet-measure", as_json, color, verbosity)


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
    from preflight.fleet.base.node_sets import expand
    from preflight.fleet.merge.command import AnswerOptions, show_fleet
    from preflight.fleet.merge.fleet import merge_reports
    from preflight.fleet.reports.reading import read_reports
    from preflight.fleet.reports.sources import given_reports

    if listed and ("text", None) not in answers and any(path is None for _, path in answers):
        raise click.UsageError("--list prints nodes alone; --json has both lists in it")
    shown = AnswerOptions(None, answers, color, verbosity, listed, list_format)
    expected = None if expect is None else expand(expect)
    return show_fleet(merge_reports(read_reports(given_reports(reports)), expected), shown)
