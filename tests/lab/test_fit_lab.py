"""fit on a machine with two nodes and RDMA devices: its answer starts, one step more does not.

The launch is sized there, under a limit that no plan lifts, and written; the pools are set as fit
says; and the real library takes what it is told to.
"""

from __future__ import annotations

from typing import Any

from tests.lab.core import recorded_and_live
from tests.lab.fittings import ALL, Fitting
from tests.lab.rehearse_guest import Rehearsed

MIB = 1 << 20


def fitted(fitting: Fitting, rehearsed: Rehearsed) -> dict[str, Any]:
    found = rehearsed[fitting.id]
    assert found["answer"], found
    answer: dict[str, Any] = found["answer"]
    return answer


@recorded_and_live("fitting", ALL)
def test_the_limit_binds_at_the_segment_that_it_leaves(
    fitting: Fitting, rehearsed: Rehearsed
) -> None:
    """The arithmetic of the case, and the check that stops one MiB more."""
    answer = fitted(fitting, rehearsed)
    assert answer["sizes"]["segment"]["size_bytes"] == fitting.segment_mib * MIB, answer
    (bound,) = answer["bounds"]
    assert bound["value_bytes"] == (fitting.segment_mib + 1) * MIB
    assert fitting.binds in {finding["check"] for finding in bound["findings"]}
    assert answer["unknowns"] == []


@recorded_and_live("fitting", ALL)
def test_the_answer_starts_and_one_step_more_fails(fitting: Fitting, rehearsed: Rehearsed) -> None:
    """The real library, on the pools that fit says: it starts; 1 MiB more is refused."""
    assert fitted(fitting, rehearsed)["written"], rehearsed[fitting.id]
    found, more = rehearsed[fitting.id]["rehearsed"]
    assert found["answer"]["outcome"] == "starts", found
    assert found["answer"]["as_predicted"] is True
    assert found["answer"]["differences"] == []
    assert more["answer"]["outcome"] == "fails", more
    assert more["answer"]["as_predicted"] is True
    assert fitting.why in more["answer"]["reason"]
    assert more["answer"]["steps"][-1]["measured"]["error"].startswith(fitting.error)
    assert found["left"] == more["left"] == [0, 0]
