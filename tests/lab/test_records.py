"""The records of the guests are of the experiments as they are declared now."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab import engines, experiments, fittings, reboots, rehearsals
from tests.lab.faults import IN_PLACE_OF
from tests.lab.record import EVERY_FAULT
from tests.lab.results import plain, recorded

KINDS: dict[str, tuple[Any, ...]] = {
    "experiments": experiments.ALL,
    "rehearsals": rehearsals.ALL,
    "fittings": fittings.ALL,
    "faults": EVERY_FAULT,
    "engines": engines.ALL,
    "reboots": reboots.BOOTS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_is_as_it_is_declared(kind: str) -> None:
    """Else: ``python -m tests.lab.record``, with the kind and the ids."""
    declared = {one.id: plain(one) for one in KINDS[kind]}
    rows = recorded(kind)
    assert [name for name, row in rows.items() if row["order"] != declared.get(name)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique(kind: str) -> None:
    assert len({one.id for one in KINDS[kind]}) == len(KINDS[kind])


def test_what_was_started_is_the_launch_itself() -> None:
    """But for SGLang, which no guest has: there it is the store on the same host."""
    faults = recorded("faults").values()
    others = {row["order"]["launch"] for row in faults if row["started"] != row["order"]["launch"]}
    assert others == set(IN_PLACE_OF)
    assert all(name.startswith("sglang") for name in others)
