"""Limits of cgroups: a launch that the check refuses is killed or aborts, others live."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.container import (
    CGROUPS,
    MIB,
    REPOSITORY,
    Done,
    Limits,
    Machine,
    check,
    give_back_hugetlb,
    probe,
    version_2,
)
from tests.real.conftest import install
from tests.rows import told

pytestmark = pytest.mark.containers

PAGES = Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGE = 2 * MIB
ENOMEM, BUS_ERROR, KILLED = 12, 135, 137


def client(size_mib: int) -> tuple[str, ...]:
    return (
        "mooncake_client",
        "--protocol=tcp",
        f"--global_segment_size={size_mib}MB",
        "--metadata_server=P2PHANDSHAKE",
    )


def test_a_limit_that_the_hosts_cgroups_hide_is_not_passed(containers: Machine) -> None:
    """Seen from its namespace, nothing says which of the host's cgroups is the container's own."""
    if not version_2() and not (CGROUPS / "memory").is_dir():
        pytest.skip("this machine has no memory cgroup")
    limits = Limits(memory_bytes=100 * MIB, host_cgroups=True)
    said, done = containers.run(
        limits, check(*client(128), only="memory.cgroup"), probe("regular", 128 * MIB)
    )
    finding = said.finding("memory.cgroup")
    assert (finding["status"], said.code) == ("unknown", 3)
    assert "above the cgroup namespace" in finding["text"]
    assert done.code == KILLED


# namespace: of the container's own cgroups, or the host's.
@pytest.mark.parametrize(
    ("limit_mib", "expected", "namespace"),
    [(100, "fail", True), (126, "fail", False), (200, "pass", False), (None, "pass", True)],
)
def test_memory_beyond_the_cgroups_limit_is_death(
    containers: Machine, limit_mib: int | None, expected: str, namespace: bool
) -> None:
    """128 MiB are taken, as the client takes its segment; 126 are too few even for that alone."""
    if not version_2() and not (CGROUPS / "memory").is_dir():
        pytest.skip("this machine has no memory cgroup")
    limits = Limits(
        memory_bytes=None if limit_mib is None else limit_mib * MIB, cgroup_namespace=namespace
    )
    said, done = containers.run(
        limits, check(*client(128), only="memory.cgroup"), probe("regular", 128 * MIB)
    )
    finding = said.finding("memory.cgroup")
    assert told(finding, "need") == "128.00 MiB"
    assert finding["status"] == expected, finding
    assert done.code == (KILLED if expected == "fail" else 0)


@pytest.fixture(scope="module")
def huge_pages() -> Iterator[None]:
    """16 free pages of 2 MiB, for the containers of this module."""
    before = PAGES.read_text()
    try:
        PAGES.write_text(str(int(before) + 16))
        if int(PAGES.read_text()) < int(before) + 16:
            pytest.skip("the kernel gives no 16 huge pages")
        yield
    finally:
        PAGES.write_text(before)


@pytest.mark.parametrize(
    ("limit_pages", "expected", "namespace"),
    [(0, "fail", True), (7, "fail", False), (8, "pass", True), (None, "pass", False)],
)
@pytest.mark.usefixtures("huge_pages")
def test_huge_pages_beyond_the_cgroups_limit_cannot_be_had(
    containers: Machine, limit_pages: int | None, expected: str, namespace: bool
) -> None:
    """A segment of 8 pages of a pool of 16: mapped as Mooncake does, and as SGLang's L2."""
    allowed = {} if limit_pages is None else {"2MB": limit_pages * HUGE_PAGE}
    limits = Limits(
        hugetlb=allowed, cgroup_namespace=namespace, environment={"MC_STORE_USE_HUGEPAGE": "1"}
    )
    said, segment, pool = containers.run(
        limits,
        check(*client(16), only="hugetlb.*"),
        probe("huge", 8 * HUGE_PAGE),
        probe("memfd", 8 * HUGE_PAGE),
    )
    finding = said.finding("hugetlb.cgroup-limit")
    assert told(finding, "need") == "16.00 MiB"
    assert finding["status"] == expected, finding
    # The pool has the pages in every case.
    assert said.finding("hugetlb.shortage")["status"] == "pass"
    _assert_had(expected == "pass", segment.code, pool.code)


def _assert_had(expected: bool, *codes: int) -> None:
    """ENOMEM where the reservation counts, a bus error where only the touch does."""
    assert all(code in (0, ENOMEM, BUS_ERROR) for code in codes), codes
    assert {code == 0 for code in codes} == {expected}, codes


@pytest.fixture
def version_2_folder() -> Iterator[Path]:
    """A cgroup of version 2 with the hugetlb controller, where version 1 has the others."""
    give_back_hugetlb()
    top = CGROUPS / "unified"
    file = top / "cgroup.controllers"
    if not file.exists() or "hugetlb" not in file.read_text().split():
        pytest.skip("this machine has no hugetlb controller of version 2 beside version 1")
    enabled = top / "cgroup.subtree_control"
    before = enabled.read_text().split()
    folder = top / f"mooncake-{os.getpid()}"
    try:
        enabled.write_text("+hugetlb")
        folder.mkdir()
        yield folder
    finally:
        folder.rmdir()
        if "hugetlb" not in before:
            enabled.write_text("-hugetlb")


@pytest.mark.parametrize(("limit_pages", "expected"), [(7, "fail"), (8, "pass")])
@pytest.mark.usefixtures("huge_pages")
def test_the_limit_of_version_2_beside_version_1(
    version_2_folder: Path, limit_pages: int, expected: str
) -> None:
    """No runtime makes such containers, but systemd's hybrid layout mounts version 2 there."""
    (version_2_folder / "hugetlb.2MB.max").write_text(str(limit_pages * HUGE_PAGE))

    def run(command: str) -> Done:
        enter = f"echo $$ > {version_2_folder}/cgroup.procs; exec {command}"
        done = subprocess.run(
            ["sh", "-c", enter],
            capture_output=True,
            text=True,
            check=False,
            cwd=REPOSITORY,
            env={**os.environ, "MC_STORE_USE_HUGEPAGE": "1"},
        )
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Done(code, done.stdout)

    finding = run(check(*client(16), only="hugetlb.cgroup-limit")).finding("hugetlb.cgroup-limit")
    assert finding["status"] == expected, finding
    codes = (run(probe(how, 8 * HUGE_PAGE)).code for how in ("huge", "memfd"))
    _assert_had(expected == "pass", *codes)


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
