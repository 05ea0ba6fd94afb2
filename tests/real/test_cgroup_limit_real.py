"""A cgroup's hugetlb limit on the real library: refused where reserved, a bus error where touched.

``hugetlb.2MB.max`` lets Mooncake map as much as the pool has; the process dies when it uses what
it was given. ``hugetlb.2MB.rsvd.max`` makes the mapping fail.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.base.pages import Spot
from checks.releases.mooncake import mooncake_release
from preflight.mooncake.allocations import StockedPools
from preflight.mooncake.replay import replay
from preflight.programs.memory_records import Launch, MappedProcess, StoreSettings
from tests.real.cases import MIB, ON
from tests.real.conftest import HugePages, Wheel

pytestmark = pytest.mark.real
POOL_BYTES, LIMIT_PAGES = 70 * MIB, 25
USES_A_POOL = f"""
import ctypes
from mooncake.store import MooncakeHostMemAllocator
allocator = MooncakeHostMemAllocator()
at = allocator.alloc({POOL_BYTES})
print("mapped", flush=True)
ctypes.memset(at, 1, {POOL_BYTES})
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of its own, with a hugetlb controller."""
    mounts = [Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
    for mount in mounts:
        controllers = mount / "cgroup.controllers"
        if not controllers.exists() or "hugetlb" not in controllers.read_text().split():
            continue
        folder, enabled = mount / f"preflight-test-{os.getpid()}", mount / "cgroup.subtree_control"
        before = enabled.read_text().split()
        try:
            enabled.write_text("+hugetlb")
            folder.mkdir()
        except OSError as error:
            pytest.skip(f"no cgroup of our own: {error}")
        yield folder
        folder.rmdir()
        if "hugetlb" not in before:  # containers mount this controller by itself
            enabled.write_text("-hugetlb")
        return
    pytest.skip("no cgroup v2 with a hugetlb controller")


@pytest.mark.parametrize("limit", ["max", "rsvd.max"])
def test_what_a_limit_does(
    limit: str, group: Path, wheel_0_3_13: Wheel, huge_pages: HugePages
) -> None:
    assert huge_pages.set(100, 0, 0) is None
    (group / f"hugetlb.2MB.{limit}").write_text(str(LIMIT_PAGES * 2 * MIB))
    joins = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -c '{USES_A_POOL}'"
    done = subprocess.run(
        ["sh", "-c", joins],
        env=wheel_0_3_13.environment(ON),
        capture_output=True,
        text=True,
        check=False,
    )
    killed = "mapped" in done.stdout and done.returncode == -signal.SIGBUS
    assert killed is (limit == "max"), done.stderr
    if not killed:
        assert "Failed to map shared memory: Cannot allocate memory" in done.stderr
    process = MappedProcess("process", StoreSettings(True, 2 * MIB), (POOL_BYTES,))
    pools = StockedPools({Spot(2 * MIB, None): LIMIT_PAGES}, [2 * MIB] if killed else ())
    (predicted,) = replay(Launch((process,), mooncake_release("0.3.13.post1")), pools)
    assert predicted.failure is not None
    assert predicted.failure.error.startswith("SIGBUS" if killed else "RuntimeError: Failed to map")
