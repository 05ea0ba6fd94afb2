"""Which experiments run live wherever guests can, beside the records of all.

Everything that was measured in the guests is recorded (``tests/lab/record.py``), and what the
program says today is held against all of it. These few run anew as well: one of each way in which
a change of the program, of the library or of the guest itself could make the records untrue. With
MOONCAKE_PREFLIGHT_LAB=all everything runs live.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.lab.results import recorded

CORE = frozenset(
    (
        # Experiments of the newest release (rehearsals have the other): a split, an arena, a
        # start that fails in each of three ways, and processes beside each other.
        "R2 NICs on both nodes, 0.3.14",
        "R4 arena of 100mb, 0.3.14",
        "host pool on 19/100, 0.3.14",
        "NICs on both, local on 47/100, 0.3.14",
        "two ranks apart on 40/59, 0.3.14",
        # Rehearsals: what the kernel kills, what is not registered; a fitting is rehearsed twice
        # besides, where it starts and where a limit refuses it. Several processes are among the
        # experiments: rehearsing them takes a fifth of all that these take.
        "R3 one node short",
        "T1e odd local buffer",
        "hugetlb cgroup",
        # Engines: a store on huge pages; a pool that a worker registers beside its store.
        "vLLM: huge pages, odd segment",
        "LMCache: regular pool",
        # Faults: what is broken in the pools, a limit, a cgroup, a device, a port; and by apply.
        "healthy: in full",
        "pool on the wrong node",
        "pool short, mended by apply",
        "memlock that holds for one NIC and not for two",
        "hugetlb cgroup limit",
        "hugetlb cgroup limit, version 1",
        "both ports down",
        # Pairs of machines: what facts do not tell, on a rail beside one that works.
        "astray",
        # Probes, which nothing records: a limit of memory on one device and two, one of objects,
        # an end that was asked for, two refusals, and a process that is killed.
        "one NIC, a page short of two",
        "two NICs, half of the second",
        "objects 9, and 5 above",
        "spend",
        "no handle",
        "neighbour",
        "kill",
    )
)


def runs_live(name: str) -> bool:
    """Whether the experiment of that id runs in the guests of this session."""
    return name in CORE or os.environ.get("MOONCAKE_PREFLIGHT_LAB") == "all"


def recorded_and_live(name: str, each: Iterable[Any], xfail: str = "") -> pytest.MarkDecorator:
    """Parametrize with ``name`` and ``live``: each as it was recorded, and the core anew.

    xfail: the field that says why one is known to come out otherwise; "" where it does not. What is
    not recorded is skipped, and says so."""
    rows = recorded(f"{name}s")
    cases = []
    for one in each:
        why = getattr(one, xfail) if xfail else ""
        marks = [pytest.mark.xfail(reason=why, strict=True)] if why else []
        reason = f"not recorded: python -m tests.lab.record, with the id {one.id}"
        skip = [] if one.id in rows else [pytest.mark.skip(reason=reason)]
        cases.append(pytest.param(one, False, id=one.id, marks=(*marks, *skip)))
        if runs_live(one.id):
            cases.append(
                pytest.param(one, True, id=f"{one.id}, live", marks=[*marks, pytest.mark.lab])
            )
    return pytest.mark.parametrize((name, "live"), cases)
