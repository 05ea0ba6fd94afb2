"""The guests start with the session's first test, and run beside all tests but those of the lab."""

from __future__ import annotations

import pytest

from tests.lab.conftest import Guests

pytestmark = pytest.mark.lab


@pytest.mark.starts_guests
def test_they_are_running(guests: Guests) -> None:
    """Neither has given up at once: what it says is asked for by the lab's other tests."""
    for guest in (guests.pages, guests.faults):
        assert not guest.done() or guest.exception() is None
