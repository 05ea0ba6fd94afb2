"""Which nodes ``fleet run`` asks, and which it leaves out with Slurm's own reason."""

from __future__ import annotations

import pytest

from preflight.base.usage_error import UsageError
from preflight.fleet.slurm.nodes import JobNodes, NodeState, job_nodes, states_of, unreachable

JOB = {"SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n[1-2],m9"}
SINFO = """\
n1|idle|none
n1|idle|none
n2|down*|Not responding
n3|drained|Prolog error | twice
n4|draining|kernel
n5|idle*|none
n6|mixed-|none
n7|maint|planned
garbage
"""


@pytest.mark.parametrize(
    ("node_set", "environment", "expected"),
    [
        ("n[1-3]", {}, JobNodes(("n1", "n2", "n3"), False)),
        (None, JOB, JobNodes(("m9", "n1", "n2"), True)),
        ("n2", JOB, JobNodes(("n2",), True)),
        # A job's interactive shell and its batch script are steps to Slurm, and none here.
        (None, {**JOB, "SLURM_STEP_ID": "4294967290"}, JobNodes(("m9", "n1", "n2"), True)),
        ("n1", {"SLURM_JOB_NODELIST": "left over"}, JobNodes(("n1",), False)),
    ],
)
def test_who_is_asked(
    node_set: str | None, environment: dict[str, str], expected: JobNodes
) -> None:
    assert job_nodes(node_set, environment) == expected


@pytest.mark.parametrize(
    ("node_set", "environment", "said"),
    [
        (None, {}, "give --nodes"),
        ("", {}, "names no node"),
        ("n3", JOB, "n3 is not of job 5, which has n"),
        (None, {**JOB, "SLURM_STEP_ID": "0"}, "a task of step 5.0"),
        ("n[1-", {}, "brackets"),
    ],
)
def test_who_cannot_be_asked(node_set: str | None, environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job_nodes(node_set, environment)


def test_states_as_sinfo_prints_them() -> None:
    states = states_of(SINFO)
    assert states["n1"] == NodeState("idle", "")
    assert states["n3"].text == "drained: Prolog error | twice"
    assert states["n6"].busy
    assert not states["n1"].busy
    assert "garbage" not in states


def test_outside_of_a_job_nodes_out_of_service_would_hold_up_all_others() -> None:
    nodes = [f"n{number}" for number in range(1, 9)]
    assert list(unreachable(nodes, False, states_of(SINFO))) == ["n2", "n3", "n4", "n5", "n7"]


def test_inside_of_a_job_those_that_drain_still_work() -> None:
    nodes = [f"n{number}" for number in range(1, 9)]
    assert list(unreachable(nodes, True, states_of(SINFO))) == ["n2", "n5"]
