"""Rehearsals on a machine with two nodes and RDMA devices: what is measured is what is predicted.

They run in the guest of the experiments, after these; the tests look at what each came to. There
``fit`` sizes a launch under a limit that no plan lifts and writes it: on pools as fit says the real
library takes what it is told to. Workers of engines beside SGLang pin what is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.core import recorded_and_live
from tests.lab.engines import ALL as ENGINES
from tests.lab.engines import Engine, predicted_bytes
from tests.lab.rehearsals import ALL, FITTINGS, Fitting, Rehearsal
from tests.lab.rehearse_guest import Rehearsed
from tests.real.rehearse_launches import measured_pages, predicted_pages

pytestmark = pytest.mark.slow

MIB = 1 << 20
EXIT_CODES = {"starts": 0, "warns": 1, "fails": 2}


def answer_of(rehearsal: Rehearsal, rehearsed: Rehearsed) -> dict[str, Any]:
    found = rehearsed[rehearsal.id]
    assert found["answer"], found
    answer: dict[str, Any] = found["answer"]
    status = rehearsal.status
    if status == "starts" and len(answer["processes"]) > 1 and answer["transfer"]["error"]:
        status = "warns"  # soft-RoCE between two processes, on a machine that is busy
    assert answer["outcome"] == status, (answer["reason"], found)
    assert found["code"] == EXIT_CODES[status], (answer["reason"], found)
    return answer


@recorded_and_live("rehearsal", ALL)
def test_it_goes_as_predicted(rehearsal: Rehearsal, rehearsed: Rehearsed) -> None:
    """The same pages at each step, on the node where they are bound; the same error at the end.

    Pages and pinned memory are those that were measured before this program existed; a value that
    one process put is what another got, or it is told why none was tried; no page stays in use."""
    answer = answer_of(rehearsal, rehearsed)
    assert answer["as_predicted"] is True
    assert answer["differences"] == []
    for step in answer["steps"]:
        measured, predicted = measured_pages(step), predicted_pages(step)
        if measured is None:
            continue  # it died, and its pages with it
        assert measured.total == predicted.total, step
        assert all(measured.on(node) >= pages for node, pages in predicted.nodes.items()), step
    ended = answer["steps"][-1]["measured"]["error"] or ""
    assert ended.startswith(rehearsal.error)
    assert bool(ended) == bool(rehearsal.error)
    assert rehearsal.why in answer["reason"]
    assert (rehearsed[rehearsal.id]["left"], answer["left_pages"]) == ([0, 0], [])
    pages = {one["numa_node"]: one["pages"] for one in answer["pages"]}
    assert rehearsal.recorded in (None, (pages.get(0, 0), pages.get(1, 0)))
    assert rehearsal.pages in (None, pages.get(None, 0))
    if rehearsal.pinned_mib is not None:
        pinned = sum(process["pinned_bytes"] for process in answer["processes"])
        assert round(pinned / MIB, 1) == rehearsal.pinned_mib
    moved = answer["transfer"]
    if rehearsal.status == "starts":
        assert len(answer["processes"]) > 1 or moved["error"] is None
        assert bool(moved["size_bytes"]) != bool(moved["skipped"])


@recorded_and_live("rehearsal", [one for one in ALL if one.steps_mib])
def test_what_each_step_pins_is_what_was_recorded(
    rehearsal: Rehearsal, rehearsed: Rehearsed
) -> None:
    """By all processes; a rank without a segment pins nothing itself."""
    answer = answer_of(rehearsal, rehearsed)
    pinned = [round(step["measured"]["pinned_bytes"] / MIB, 1) for step in answer["steps"]]
    assert tuple(pinned) == rehearsal.steps_mib
    for staged, process in zip(rehearsal.processes, answer["processes"], strict=True):
        assert staged.name == process["name"]
        assert bool(process["pinned_bytes"]) is not staged.dummy


@recorded_and_live("fitting", FITTINGS)
def test_the_size_that_fits_starts_and_one_step_more_fails(
    fitting: Fitting, rehearsed: Rehearsed
) -> None:
    """The limit binds at the segment that it leaves: the real library refuses 1 MiB more."""
    fitted = rehearsed[fitting.id]
    answer = fitted["answer"]
    assert answer, fitted
    assert answer["sizes"]["segment"]["size_bytes"] == fitting.segment_mib * MIB, answer
    (bound,) = answer["bounds"]
    assert bound["value_bytes"] == (fitting.segment_mib + 1) * MIB
    assert fitting.binds in {finding["check"] for finding in bound["findings"]}
    assert answer["unknowns"] == []
    assert answer["written"], fitted
    found, more = fitted["rehearsed"]
    assert found["answer"]["outcome"] == "starts", found
    assert found["answer"]["differences"] == []
    assert more["answer"]["outcome"] == "fails", more
    assert found["answer"]["as_predicted"] is more["answer"]["as_predicted"] is True
    assert fitting.why in more["answer"]["reason"]
    assert more["answer"]["steps"][-1]["measured"]["error"].startswith(fitting.error)
    assert found["left"] == more["left"] == [0, 0]


@recorded_and_live("engine", ENGINES)
def test_what_is_pinned_is_what_is_predicted(
    engine: Engine, pinned: Mapping[str, Any], tmp_path: Path
) -> None:
    """Registered bytes are VmPin / 2, and no call was refused."""
    found = pinned[engine.id]
    assert set(found["said"]) == {0}, found
    assert found["pinned_bytes"] == predicted_bytes(engine, tmp_path)
