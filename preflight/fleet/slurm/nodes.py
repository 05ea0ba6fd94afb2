"""Which nodes Slurm is to be asked for, and which of them it cannot reach now.

Inside an allocation (salloc, sbatch) the nodes are its own; outside they are named, and srun makes
an allocation of them. What Slurm already knows to be down or drained would hold up all the others,
so it is a finding and is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.base.usage_error import UsageError
from preflight.fleet.base.node_sets import expand

# Numbers above are steps that are none (slurm.h: SLURM_BATCH_SCRIPT, SLURM_INTERACTIVE_STEP, ...).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Seconds for the controller to answer; Slurm's own MessageTimeout is 10.
_SINFO_SECONDS = 30
# Base states (sinfo's long form) in which no step can be started, and those in which an
# allocation that stands may still be used while a new one gets none.
_DOWN = ("down", "error", "future", "powered_down", "powering_down", "inval")
_NO_NEW_JOBS = ("drained", "draining", "drain", "fail", "failing", "maint", "reserved")


class JobNodes(NamedTuple):
    """nodes: all that are judged. in_allocation: they are of a job that this runs in."""

    nodes: tuple[str, ...]
    in_allocation: bool


def job_nodes(node_set: str | None, environment: Mapping[str, str]) -> JobNodes:
    """Return the nodes to ask.

    Raises UsageError where there is nothing to ask, or this is itself one of a step's tasks.
    """
    _refuse_within_step(environment)
    own = environment.get("SLURM_JOB_NODELIST", "") if environment.get("SLURM_JOB_ID") else ""
    if not own:
        if node_set is None:
            raise UsageError(
                "no nodes: this is not inside a job of Slurm; give --nodes 'gpu[001-064]', or run "
                "it in an allocation, as salloc -N 4 mooncake-preflight fleet run ..."
            )
        return JobNodes(_some(node_set), False)
    allocated = tuple(expand(own))
    if node_set is None:
        return JobNodes(allocated, True)
    wanted = _some(node_set)
    foreign = [name for name in wanted if name not in set(allocated)]
    if foreign:
        raise UsageError(
            f"--nodes: {foreign[0]} is not of job {environment['SLURM_JOB_ID']}, which has {own}: "
            "name nodes of the job, or run this outside of it"
        )
    return JobNodes(wanted, True)


def _some(node_set: str) -> tuple[str, ...]:
    names = tuple(expand(node_set))
    if not names:
        raise UsageError(f"--nodes {node_set!r} names no node: write gpu[001-064]")
    return names


def _refuse_within_step(environment: Mapping[str, str]) -> None:
    step = environment.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP:
        job = environment.get("SLURM_JOB_ID", "?")
        raise UsageError(
            f"this is a task of step {job}.{step}, and fleet run starts its own: run it once, "
            "without srun; or have each task print its report: srun mooncake-preflight fleet node"
        )


class NodeState(NamedTuple):
    """A node as sinfo shows it: its state (``down*``, ``drained``), and why, "" without."""

    state: str
    reason: str

    @property
    def base(self) -> str:
        return self.state.rstrip("*~#!%$@^-+")

    @property
    def silent(self) -> bool:
        return "*" in self.state

    @property
    def busy(self) -> bool:
        """Return whether other jobs run on the node."""
        return self.base in ("allocated", "mixed", "planned")

    @property
    def out_of_service(self) -> bool:
        return self.silent or self.base in (*_DOWN, *_NO_NEW_JOBS)

    @property
    def text(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


def unreachable(
    nodes: Sequence[str], in_allocation: bool, states: Mapping[str, NodeState]
) -> dict[str, NodeState]:
    """Return the nodes that cannot be asked now; a node that sinfo does not show is asked."""
    found = {}
    for node in nodes:
        state = states.get(node)
        if state is None:
            continue
        down = state.base in _DOWN or state.silent
        if down or (not in_allocation and state.base in _NO_NEW_JOBS):
            found[node] = state
    return found


def states_of(sinfo: str) -> dict[str, NodeState]:
    """Return the states in ``sinfo -N -h -o '%N|%T|%E'``: one line per node and partition."""
    found = {}
    for line in sinfo.splitlines():
        name, _, rest = line.partition("|")
        state, bar, reason = rest.partition("|")
        if bar:
            reason = reason.strip()
            found[name.strip()] = NodeState(
                state.strip().lower(), "" if reason == "none" else reason
            )
    return found


def read_sinfo() -> str:
    """Ask Slurm for the states of its nodes; "" where it does not answer: then all are asked."""
    import subprocess

    command = ["sinfo", "--all", "--Node", "--noheader", "--format", "%N|%T|%E"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SINFO_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
