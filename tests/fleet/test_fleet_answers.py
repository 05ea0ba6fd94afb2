"""``fleet measure`` and ``fleet observe``: every pair once, nobody twice at a time; who is slow is
named; and nodes over a real ssh server, with the real library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.fleet.measure import MeasuredPair, fleet_answer, rounds
from preflight.fleet.reports.rows import FleetFinding
from tests.fleet.sshd_farm import Farm, Login, farm, name_of
from tests.fleet.sshd_farm import why_not as why_no_ssh
from tests.paths import ROOT
from tests.real.conftest import Store, install_release
from tests.real.conftest import why_not as why_no_wheel
from tests.real.measures import processes_of
from tests.valid import valid

GB = 10**9


@given(st.integers(0, 40).map(lambda count: [f"n{number}" for number in range(count)]))
def test_each_pair_is_measured_once_and_no_node_twice_at_a_time(nodes: list[str]) -> None:
    plan = rounds(nodes)
    for pairs in plan:
        together = list(chain.from_iterable(pairs))
        assert len(together) == len(set(together))
    every = sorted(tuple(sorted(pair)) for pair in chain.from_iterable(plan))
    assert every == sorted(tuple(sorted(pair)) for pair in combinations(nodes, 2))
    assert len(plan) == (0 if not nodes else len(nodes) - 1 + len(nodes) % 2)


Speeds = Mapping[tuple[str, str], float | None]


@pytest.mark.parametrize(
    ("speeds", "slow", "status"),
    [
        ({("a", "b"): 10, ("a", "c"): 9, ("b", "c"): 11}, [], "pass"),
        # c is slow with everybody.
        ({("a", "b"): 10, ("a", "c"): 2, ("b", "c"): 2}, [("all transfers", "c")], "warn"),
        # Only a and b are slow, between them.
        ({("a", "b"): 2, ("a", "c"): 10, ("b", "c"): 10}, [("a and b", "a,b")], "warn"),
        # Of two nodes nobody knows who is slow.
        ({("a", "b"): 0.1}, [], "pass"),
        ({("a", "b"): 10, ("a", "c"): None, ("b", "c"): 10}, [], "unknown"),
    ],
)
def test_who_is_slow(speeds: Speeds, slow: list[tuple[str, str]], status: str) -> None:
    pairs = [
        MeasuredPair(
            *nodes, (rate or 0) * GB, (rate or 0) * GB * 1.5, "rdma", ("mlx5_0",), (),
            None if rate else FleetFinding("fleet.ssh", "unknown", "transfers"), nodes[0],
        )
        for nodes, rate in speeds.items()
    ]  # fmt: skip
    answer = fleet_answer(sorted({*chain.from_iterable(speeds)}), pairs)
    found = [
        (each.finding.subject, ",".join(each.nodes))
        for each in answer.findings
        if each.finding.check == "fleet.slow-transfers"
    ]
    assert found == slow
    assert answer.status == status
    if not slow and status == "pass":
        assert answer.findings == []


# Three that have Mooncake, one that has not.
ONE, TWO, THREE, WITHOUT = range(1, 5)
TOOL = """#!/bin/sh
export {environment}
exec {python} -m mooncake_preflight "$@"
"""


def _tool(environment: Mapping[str, str]) -> str:
    text = " ".join(f"{name}='{value}'" for name, value in environment.items())
    return TOOL.format(environment=text, python=sys.executable)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Farm, str]]:
    mark = f"MARK_OF_FLEET_MEASURE={os.getpid()}"
    loads = install_release("0.3.13.post1").environment({})
    paths: dict[str, str] = {}
    for variable in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        if variable in loads:
            paths[variable] = loads[variable]
    paths["PYTHONPATH"] = f"{ROOT}:{paths['PYTHONPATH']}"
    name, _, value = mark.partition("=")
    logins = {
        number: Login({"mooncake-preflight": _tool({**paths, name: value})})
        for number in (ONE, TWO, THREE)
    }
    logins[WITHOUT] = Login({"mooncake-preflight": _tool({"PYTHONPATH": str(ROOT), name: value})})
    with farm(tmp_path_factory.mktemp("farm"), logins) as made:
        yield made, mark


@pytest.mark.fleet
@pytest.mark.real
@pytest.mark.skipif(
    bool(why_no_ssh() or why_no_wheel()), reason=str(why_no_ssh() or why_no_wheel())
)
def test_nodes_over_ssh_with_the_real_library(nodes: tuple[Farm, str]) -> None:
    """Three that have Mooncake, and one that has not: each pair told, nothing left behind."""
    made, mark = nodes
    code, answer = _ask("measure", made, ONE, TWO, THREE, words=QUICK)
    assert code == answer["exit_code"]
    assert answer["status"] in ("pass", "warn"), json.dumps(
        answer["findings"]
    )  # a busy machine may slow one
    pairs = answer["answer"]["pairs"]
    assert {frozenset((one["serving"], one["asking"])) for one in pairs} == {
        frozenset(pair) for pair in combinations(map(name_of, (ONE, TWO, THREE)), 2)
    }
    assert {one["transport"] for one in pairs} == {"tcp"}
    assert all(one["write_bytes_per_second"] > 10**6 for one in pairs)
    assert all(one["read_bytes_per_second"] > 10**6 for one in pairs)

    code, answer = _ask("measure", made, ONE, WITHOUT, words=QUICK)
    assert code == 3
    (pair,) = answer["answer"]["pairs"]
    assert pair["write_bytes_per_second"] is None
    assert "mooncake" in pair["reason"].lower()
    assert [one["nodes"]["set"] for one in answer["findings"]] == [name_of(WITHOUT)]
    # One that serves ends by itself, soon after ssh to it was broken off.
    patience = time.monotonic() + 20
    while processes_of(mark) and time.monotonic() < patience:
        time.sleep(0.2)
    assert processes_of(mark) == []


@pytest.mark.fleet
@pytest.mark.real
@pytest.mark.skipif(
    bool(why_no_ssh() or why_no_wheel()), reason=str(why_no_ssh() or why_no_wheel())
)
def test_what_runs_is_told_once_for_all_nodes(nodes: tuple[Farm, str], tmp_path: Path) -> None:
    """Two nodes are this machine: its client has gone over to TCP, which both say as one finding.

    A launch is sent along; no process here is its server.
    """
    made, _ = nodes
    store = Store(install_release("0.3.13.post1"), tmp_path)
    try:
        store.start_client({}, "--global_segment_size=16MB", "--protocol=rdma")
        code, answer = _ask("observe", made, ONE, TWO)
        (finding,) = (one for one in answer["findings"] if one["check"] == "observe.transport")
        assert finding["nodes"]["count"] == 2
        assert code == answer["exit_code"] == 1
        assert all(one["programs"] >= 2 for one in answer["answer"]["nodes"])
        launch = tmp_path / "launch.sh"
        launch.write_text("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B\n")
        code, answer = _ask("observe", made, ONE, words=(str(launch),))
        assert "observe.launch" in {one["check"] for one in answer["findings"]}
    finally:
        store.stop()


QUICK = ("--budget", "5s", "--spend", "256mb")


def _ask(
    name: str, made: Farm, *numbers: int, words: Sequence[str] = ()
) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer of ``fleet NAME`` over some nodes."""
    where = ["--nodes", ",".join(map(name_of, numbers)), made.options, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_preflight", "fleet", name, *where, *words],
        capture_output=True, text=True, timeout=240, cwd=ROOT,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    schema = ROOT / f"preflight/schemas/fleet-{name}-v1.schema.json"
    valid(answer, json.loads(schema.read_text()))
    return done.returncode, answer
