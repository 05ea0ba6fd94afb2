"""Whether there is a browser here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.pictures.browser import Browser, browser, chromium


def why_not() -> str | None:
    """Why no page can be looked at here, or None."""
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "starts a browser: set MOONCAKE_PREFLIGHT_REAL=1 to allow"
    if chromium() is None:
        return "needs a browser (apt-get install chromium)"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason and item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened
