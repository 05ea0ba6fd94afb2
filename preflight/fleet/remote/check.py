"""Runs ``mooncake-preflight fleet check``: every node judged over ssh, in one answer."""

from __future__ import annotations

import json

from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.fleet.base.node_sets import named_nodes
from preflight.fleet.merge.command import Shown, keep, prepare, show_fleet
from preflight.fleet.merge.fleet import merged
from preflight.fleet.remote.program import Program, SshNodes
from preflight.fleet.remote.reply import NodeReply, answer_of
from preflight.fleet.reports.reading import ReportReader, Reports
from preflight.fleet.reports.rows import INTERRUPTED, NodeRow
from preflight.inputs.launch_words import Chosen, LaunchWords

# A node is given so long beside what its reading takes: python, ssh, the way there and back.
_OVERHEAD_SECONDS = 5.0


def run_fleet_check(
    launch: LaunchWords, where: SshNodes, program: Program, chosen: Chosen, shown: Shown
) -> int:
    """Print the answer; returns the exit code. Raises UsageError, before any node is asked."""
    from preflight.fleet.remote.engine import ask_nodes
    from preflight.inputs.host_source import recorded_launch

    nodes = nodes_of(where)
    record = recorded_launch(launch)
    # What a node may take to read itself, so that it can still say what it could not read.
    left = where.timeout_seconds - where.connect_seconds - _OVERHEAD_SECONDS
    argv = check_words(chosen, max(1.0, min(10.0, left)))
    prepare(shown)
    reader = ReportReader()
    rows: dict[str, NodeRow] = {}

    def take(reply: NodeReply) -> None:
        """Add the row of a node that answered, and keep the answer under that node's name."""
        answer = answer_of(reply, where.timeout_seconds, reader)
        rows[reply.name] = answer.row
        if answer.document is not None:
            # At once: what is there stays there, whatever becomes of this process.
            answered = answer.document.get("answer") or {}
            machine = {**(answered.get("machine") or {}), "name": reply.name}
            named = {**answer.document, "answer": {**answered, "machine": machine}}
            keep(reply.name, json.dumps(named), shown)

    quiet = shown.verbosity < 0
    stopped = ask_nodes(nodes, argv, record, where, program, take, joined=True, quiet=quiet)
    code = show_fleet(merged(Reports([rows[name] for name in nodes], ()), None), shown)
    if not stopped:
        return code
    missing = sum(INTERRUPTED in {each.check for each in row.findings} for row in rows.values())
    text = f"mooncake-preflight: interrupted: {missing} of {len(nodes)} nodes gave no report"
    say(text, err=True)
    return 128 + stopped


def nodes_of(where: SshNodes) -> list[str]:
    """Return the nodes that the options name, each once. Raises UsageError for none."""
    sets = [*where.nodes, *(text for file in where.nodes_files for text in sets_of(file))]
    nodes = named_nodes(sets, where.exclude)
    if not nodes:
        raise UsageError("no node is left to ask: give --nodes 'gpu[001-064]' or --nodes-file")
    return nodes


def check_words(chosen: Chosen, seconds: float) -> tuple[str, ...]:
    """Return the command line by which a node judges itself. Raises UsageError."""
    from preflight.check.answer import selection_of

    # The file of waivers is read here: what still holds of it goes along, the rest is said.
    selection = selection_of(chosen)
    for waiver in selection.over:
        over = f"{waiver.check}: over since {waiver.until}"
        message = f"--waivers: {over}: it counts again on every node"
        say(f"mooncake-preflight: {message}", err=True)
    argv = ["check", "--json", f"--timeout={seconds:g}"]
    argv += [f"--only={check}" for check in selection.only]
    argv += [f"--skip={check}" for check in selection.skip]
    return (*argv, *(f"--ignore={check}={why}" for check, why in selection.ignore.items()))


def sets_of(path: str) -> list[str]:
    """Read node sets, one a line; # begins a comment."""

    def read() -> list[str]:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.partition("#")[0].strip() for line in file]

    try:
        lines = within(limit_seconds(), f"--nodes-file {path}", read)
    except OSError as error:
        raise UsageError(f"--nodes-file {path}: {error.strerror}") from None
    return [line for line in lines if line]
