"""Mooncake's own word on its topology, with soft-RoCE devices on no node and on two.

It is asked in the guest of the faults, as an injection that ends with an error: what that said
comes back, and nothing is broken.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fault_guest import Seen
from tests.lab.faults import Fault
from tests.lab.topology_runner import CASES, MARK

pytestmark = pytest.mark.lab

RUNNER = shlex.join([sys.executable, str(Path(__file__).with_name("topology_runner.py"))])
ASK = Fault("topology asked for", {}, inject=f"{RUNNER} 2>&1; false", mends=False)


@pytest.fixture
def answers(fault: Fault, seen: Mapping[str, Seen]) -> dict[str, Any]:
    said = seen[fault.id].defect
    assert MARK in said, said[-3000:]
    found: dict[str, Any] = json.loads(said.partition(MARK)[2].splitlines()[0])
    return found


def as_sets(rows: Any) -> Any:
    """Which of a location's names comes first is chance."""
    if isinstance(rows, str):
        return rows
    return {name: (set(preferred), set(others)) for name, preferred, others in rows}


@pytest.mark.parametrize(("fault", "live"), [(ASK, True)], ids=["guest"])
@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_the_library_says_what_was_foretold(name: str, answers: dict[str, Any]) -> None:
    answer = answers[name]
    assert as_sets(answer["measured"]) == as_sets(answer["predicted"])
    assert set(as_sets(answer["measured"])) == {"cpu:0", "cpu:1"}


@pytest.mark.parametrize(("fault", "live"), [(ASK, True)], ids=["guest"])
def test_each_node_prefers_its_own_device(answers: dict[str, Any]) -> None:
    """What ``numa_node`` says decides, and without it nothing is preferred."""
    two, none = (as_sets(answers[name]["measured"]) for name in ("two nodes", "no nodes"))
    assert two == {"cpu:0": ({"rxe0"}, {"rxe1"}), "cpu:1": ({"rxe1"}, {"rxe0"})}
    assert none == {"cpu:0": (set(), {"rxe0", "rxe1"}), "cpu:1": (set(), {"rxe0", "rxe1"})}
