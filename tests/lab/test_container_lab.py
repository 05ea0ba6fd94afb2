"""Containers in the virtual machine: real registering with a NIC, and cgroups of version 2.

Whatever this machine has, the guest has soft-RoCE devices, no limit on memlock that could not be
lifted, and version 2 of cgroups alone. One boot runs all containers.
"""

from __future__ import annotations

import json

import pytest

from tests.containers.container import answers
from tests.lab.conftest import SEVERAL_WORKERS
from tests.lab.contained import VERSION_2, WHO, run_containers

pytestmark = [pytest.mark.containers, pytest.mark.lab]

ENOMEM, BUS_ERROR, KILLED = 12, 135, 137
Said = dict[str, list[str]]


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """The lines that each container wrote, by its name."""
    if SEVERAL_WORKERS:
        return run_containers(tmp_path_factory.mktemp("containers"))
    found: Said = request.getfixturevalue("guests")["containers"]
    return found


@pytest.mark.parametrize("who", WHO)
def test_registering_with_a_nic_is_what_the_check_says(said: Said, who: str) -> None:
    """Segments of 4 and 16 MB, no limit, 8 MiB and 64 KiB: refused just where the check fails."""
    rows = [json.loads(line) for line in said[who] if line.startswith('{"limit"')]
    assert len(rows) == 4, said[who]
    for row in rows:
        assert row["errno"] == (ENOMEM if row["status"] == "fail" else 0), row
    # 8 MiB hold the one of 4 MB and not that of 16, 64 KiB hold none.
    failures = sum(row["status"] == "fail" for row in rows)
    assert failures == (0 if who == "root with the capability" else 2)


@pytest.mark.parametrize("expected", VERSION_2)
def test_limits_of_cgroups_of_version_2(said: Said, expected: str) -> None:
    """What the checks refuse dies of it: of memory killed, of huge pages by a bus error."""
    lines = said[expected]
    found, regular, huge = answers("\n".join(lines[1:]) + "\n")
    for name in ("memory.cgroup", "hugetlb.cgroup-limit"):
        assert found.finding(name)["status"] == expected, lines
    fails = expected == "fail"
    assert regular.code == (KILLED if fails else 0), lines
    assert huge.code in ((ENOMEM, BUS_ERROR) if fails else (0,)), lines
