"""What is left to do by hand after a process of a store was killed, by what happened."""

from __future__ import annotations

import pytest

from preflight.measuring.kills import OBJECTS, Survival, survival_text

SEEN = Survival("client", "wheel 1", "http", 9, 0, 9, 0, 0.1, back_seconds=1.0, lost=0)


@pytest.mark.parametrize(
    ("found", "costs", "by_hand"),
    [
        (SEEN._replace(newcomer=OBJECTS), False, "nothing"),
        (SEEN._replace(newcomer=OBJECTS, lost=3), True, "nothing"),
        (SEEN._replace(newcomer=3), True, "start the clients again"),
        (SEEN._replace(back_seconds=None, lost=None), True, "start the clients again"),
        (SEEN._replace(restart_refused="-600", mended_by="DELETE it"), True, "DELETE it"),
        (SEEN._replace(newcomer_refused="-600"), True, "nobody"),
    ],
)
def test_by_hand(found: Survival, costs: bool, by_hand: str) -> None:
    assert found.costs is costs
    assert by_hand in found.by_hand
    assert f"by hand: {found.by_hand}" in found.statements
    assert survival_text(found).startswith("WARN" if costs else "PASS")
