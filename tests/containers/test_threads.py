"""Where the check of threads refuses a launch, the real programs abort; else they live."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containers.container import CGROUPS, Limits, Machine, check, version_2
from tests.real.conftest import install

pytestmark = pytest.mark.containers

CLIENT = ("--protocol=tcp", "--global_segment_size=16MB", "--metadata_server=P2PHANDSHAKE")
# A shell's code of a program that abort() ended, and what timeout(1) says of one that still ran.
ABORTED, STILL_RUNNING = 134, 124
SECONDS = 2


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of the real mooncake_master and mooncake_client."""
    if not version_2() and not (CGROUPS / "pids").is_dir():
        pytest.skip("this machine has no pids cgroup")
    return install("mooncake-transfer-engine-non-cuda", "0.3.13.post1") / "mooncake"


@pytest.mark.parametrize(
    ("program", "arguments", "bound", "expected"),
    [
        ("mooncake_master", (), 15, "fail"),
        ("mooncake_master", (), None, "pass"),
        ("mooncake_client", CLIENT, 15, "fail"),
        ("mooncake_client", CLIENT, None, "pass"),
    ],
)
def test_a_bound_that_is_too_low_aborts_the_real_program(
    containers: Machine,
    programs: Path,
    program: str,
    arguments: tuple[str, ...],
    bound: int | None,
    expected: str,
) -> None:
    """The client finds no master here, and waits for one with about half of its threads."""
    said, done = containers.run(
        Limits(pids=bound),
        check(program, *arguments, only="limits.threads"),
        f"timeout {SECONDS} {programs / program} {' '.join(arguments)} 2>&1",
    )
    statuses = {row["status"] for row in said.json["findings"]}
    assert statuses == {expected, "pass"}, said.out
    # Two threads of the master may abort at once: the reason is not always printed to its end.
    aborted = "terminate called" in done.out
    assert aborted == (expected == "fail"), done.out[-500:]
    if expected == "fail":
        assert done.code == ABORTED
    else:
        assert done.code == STILL_RUNNING
