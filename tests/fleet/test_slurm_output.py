"""What srun prints, taken apart: pieces of long lines, and its own words about nodes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.node.report import absent, one_line
from preflight.fleet.remote.program import SAYS
from preflight.fleet.slurm.srun import ON_NODE, by_node, complaints

# Of Slurm 22.05.8: a slurmd that was killed, a prolog that failed, and what befell the others.
KILLED = b"""\
srun: error: Task launch for StepId=15.0 failed on node n3: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
0: slurmstepd-n1: error: *** STEP 15.0 ON n1 CANCELLED AT 2026-11-21T10:06:45 ***
srun: error: n1: task 0: Killed
srun: error: n[2,4]: tasks 1,3: Exited with exit code 2
"""


def printed(reports: dict[str, str], piece_bytes: int, order: list[int]) -> bytes:
    """As ``srun --label`` has it: each line cut, and pieces of all tasks in any order."""
    left = []
    for task, (node, report) in enumerate(reports.items()):
        lines = [f"{ON_NODE}{node}", f"{SAYS} start", report, "", f"{SAYS} end 0"]
        cut = [
            line[at : at + piece_bytes].encode()
            for line in lines
            for at in range(0, max(1, len(line)), piece_bytes)
        ]
        left.append([b"%d: " % task + piece for piece in cut])
    out = []
    for number in order:
        queue = left[number % len(left)]
        out += [queue.pop(0)] if queue else []
    return b"\n".join([*out, *(line for queue in left for line in queue)]) + b"\n"


@given(
    texts=st.lists(st.text(max_size=200), min_size=1, max_size=4),
    piece_bytes=st.integers(64, 1100),
    order=st.lists(st.integers(0, 3), max_size=60),
)
def test_reports_come_whole_however_they_are_cut_and_mixed(
    texts: list[str], piece_bytes: int, order: list[int]
) -> None:
    reports = {
        f"n{number}": one_line(absent(f"n{number}", "fleet.ssh", text * 20))
        for number, text in enumerate(texts)
    }
    found = by_node(printed(reports, piece_bytes, order), b"")
    assert {node: said.lines[1].decode() for node, said in found.items()} == reports
    assert {said.lines[-1] for said in found.values()} == {f"{SAYS} end 0".encode()}


def test_a_task_that_does_not_say_its_node_is_nobodys() -> None:
    assert by_node(b"0: motd\n12: x\nunlabelled\n", b"0: error\n") == {}


def test_errors_stay_with_their_task() -> None:
    output = f" 3: {ON_NODE}n4\n12: {ON_NODE}n13\n12: {SAYS} start\n".encode()
    errors = b" 3: first\nsrun: error: n13: task 12: Killed\n 3: 12: last\n"
    found = by_node(output, errors)
    assert found["n4"] == ((), (b"first", b"12: last"))
    assert found["n13"] == ((f"{SAYS} start".encode(),), ())


def test_what_srun_says_of_nodes() -> None:
    words = complaints(KILLED)
    assert words.not_launched == {"n3": "Communication connection failure"}
    code = "Exited with exit code 2"
    assert words.ended == {"n1": "Killed", "n2": code, "n4": code}
    assert words.aborted


@pytest.mark.parametrize(
    ("errors", "general"),
    [
        (b"srun: error: Unable to allocate resources: X\n", "Unable to allocate resources: X"),
        (b"srun: unrecognized option '--x'\nTry \"srun --help\"\n", "unrecognized option '--x'"),
        (b"srun: job 12 queued and waiting for resources\n", ""),
        (b"0: srun: error: of a task\n", ""),
        (b"\xff\x00\x1b[31m\n", ""),
    ],
)
def test_what_srun_says_of_itself(errors: bytes, general: str) -> None:
    assert complaints(errors).general == general
    assert not complaints(errors).aborted


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_output_is_too_strange(output: bytes, errors: bytes) -> None:
    by_node(output, errors)
    json.dumps(complaints(errors).not_launched)
