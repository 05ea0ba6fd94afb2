"""A root file system that is an overlay makes no container of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.root import Root
from checks.system.facts import INITIAL_PID_NAMESPACE, read_system
from tests.checks.limit_hosts import tree

OVERLAY = "1 0 0:1 / / rw - overlay overlay rw,lowerdir=/lower,upperdir=/upper\n"


@pytest.mark.parametrize(
    ("namespace", "kind"), [(INITIAL_PID_NAMESPACE, "none"), ("pid:[4026532000]", "unnamed")]
)
def test_an_overlay_is_a_container_only_in_a_namespace_of_its_own(
    tmp_path: Path, namespace: str, kind: str
) -> None:
    """Hosts that boot from the network or from a live image have an overlay too."""
    host = tree(
        tmp_path / "host",
        {"/proc/self/mountinfo": OVERLAY},
        {"system.machine": {"pid_namespace": namespace}},
    )
    assert read_system(Root(str(host)), None).container.kind == kind
