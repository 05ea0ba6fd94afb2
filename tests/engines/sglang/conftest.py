"""Running SGLang's real classes installs packages and wheels, so it happens only on request."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("MOONCAKE_PREFLIGHT_SGLANG"):
        return
    why = "installs torch and SGLang's wheels: set MOONCAKE_PREFLIGHT_SGLANG=1"
    for item in items:
        if item.get_closest_marker("sglang"):
            item.add_marker(pytest.mark.skip(reason=why))
