"""Settings for all tests: none depends on a time, and under CI the same inputs are drawn anew.

``--hypothesis-profile=thorough`` draws forty times as many examples, and other ones each time.

Side by side (``pytest -n 3``) each test goes to whichever process is free; but those of one group
share what this machine has once (its huge pages, its cgroups, its ports, a browser, the guests),
and go to one process.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "project",
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
)
settings.load_profile("project")

# Marker -> the group of its tests.
GROUPS = {
    "lab": "guests",
    "real": "host",
    "containers": "host",
    "fleet": "fleet",
    "slurm": "fleet",
    "browser": "browser",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        groups = [group for name, group in GROUPS.items() if item.get_closest_marker(name)]
        if groups:
            item.add_marker(pytest.mark.xdist_group(groups[0]))
