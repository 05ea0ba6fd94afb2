"""What is left to do by hand after a process of a store was killed, by what happened."""

from __future__ import annotations

import pytest

from checks.base.finding import Status
from preflight.measuring.kills import OBJECTS, Survival, survival_text

SEEN = Survival("client", "wheel 1", "http", 9, 0, 9, 0, 0.1, back_seconds=1.0, lost=0)


@pytest.mark.parametrize(
    ("found", "status", "by_hand"),
    [
        (SEEN._replace(newcomer=OBJECTS), Status.PASS, "nothing"),
        (SEEN._replace(newcomer=OBJECTS, lost=3), Status.WARN, "nothing"),
        (SEEN._replace(newcomer=3), Status.WARN, "start the clients again"),
        (SEEN._replace(back_seconds=None, lost=None), Status.WARN, "start the clients again"),
        (SEEN._replace(restart_refused="-600", mended_by="DELETE it"), Status.WARN, "DELETE it"),
        (SEEN._replace(newcomer_refused="-600"), Status.WARN, "nobody"),
    ],
)
def test_by_hand(found: Survival, status: Status, by_hand: str) -> None:
    assert found.status is status
    assert by_hand in found.by_hand
    assert f"by hand: {found.by_hand}" in found.statements
    assert survival_text(found).startswith(status.value.upper())
