"""Runs ``mooncake-preflight fleet run``: every node judged under Slurm, and one answer of it."""

from __future__ import annotations

import os

from preflight.fleet.base.option_words import option_words
from preflight.fleet.merge.collected import Shown, answer, interrupted, prepare
from preflight.fleet.node.asked_nodes import Remote
from preflight.fleet.node.carry import content
from preflight.fleet.node.sent_launch import sent_launch
from preflight.fleet.slurm.nodes import asked, read_sinfo, states_of
from preflight.fleet.slurm.run import SlurmRequest, gather
from preflight.inputs.launch_words import LaunchWords

# What a node may take of its time to read itself: the rest is Python, and the way back.
_MOST_READING_SECONDS = 10.0
_OVERHEAD_SECONDS = 5.0


def run_fleet_run(
    launch: LaunchWords,
    *,
    node_set: str | None,
    timeout_seconds: float,
    queue_seconds: int,
    srun_options: str,
    remote: Remote,
    ignore: tuple[str, ...],
    shown: Shown,
) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    nodes = asked(node_set, os.environ)
    options = option_words("--srun-options", srun_options)
    _ = remote.words  # what is wrong with them is said before any node is asked
    reading = max(1.0, min(_MOST_READING_SECONDS, timeout_seconds - _OVERHEAD_SECONDS))
    sent = sent_launch(launch, reading, ignore)
    prepare(shown)
    gathered = gather(
        SlurmRequest(
            nodes,
            lambda: states_of(read_sinfo()),
            timeout_seconds,
            queue_seconds,
            options,
            lambda carried: content(remote, sent, carried),
            remote.carry,
            os.urandom(8).hex(),
        )
    )
    code = answer(gathered.reports, shown)
    return interrupted(gathered.reports, gathered.stopped) if gathered.stopped else code
