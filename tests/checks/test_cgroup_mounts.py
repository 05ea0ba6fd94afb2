"""Where the hugetlb cgroup's limits are looked for, whatever is mounted where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.hugetlb.stock import HugeTlbLimit, hugetlb_limit
from checks.memory.facts import memory_headroom

MIB = 1 << 20
V1 = "33 25 0:29 {} /sys/fs/cgroup/{} rw,relatime - cgroup cgroup rw,{}\n"
V2 = "30 24 0:26 {} {} rw,nosuid - cgroup2 cgroup2 rw\n"
MEMORY = V1.format("/", "memory", "memory")
LIMITED = {"hugetlb.2MB.max": "0", "hugetlb.2MB.current": "0"}
LIMITED_V1 = {"hugetlb.2MB.limit_in_bytes": "0", "hugetlb.2MB.usage_in_bytes": "0"}


def limit(
    root: Path, memberships: str, mounts: str, folder: str, files: dict[str, str]
) -> HugeTlbLimit | Unknown | None:
    """What is found where ``files`` lie in ``folder``."""
    everything = {f"{folder}/{name}": text for name, text in files.items()}
    everything |= {"/proc/self/cgroup": memberships, "/proc/self/mountinfo": mounts}
    for name, text in everything.items():
        path = root / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return hugetlb_limit(Root(str(root)), 2 * MIB)


@pytest.mark.parametrize(
    ("memberships", "mounts", "folder", "files"),
    [
        pytest.param(
            "9:memory:/\n0::/job\n",
            MEMORY + V2.format("/", "/sys/fs/cgroup/unified"),
            "/sys/fs/cgroup/unified/job",
            LIMITED,
            id="version 2 beside version 1, as systemd's hybrid layout mounts it",
        ),
        pytest.param(
            "0::/job\n", V2.format("/", "/cgroups"), "/cgroups/job", LIMITED, id="elsewhere"
        ),
        pytest.param(
            "0::/docker/abc\n",
            V2.format("/docker/abc", "/sys/fs/cgroup"),
            "/sys/fs/cgroup",
            LIMITED,
            id="a container that shares the host's cgroup namespace",
        ),
        pytest.param(
            "5:hugetlb,rdma:/docker/abc\n0::/\n",
            V1.format("/docker/abc", "hugetlb,rdma", "hugetlb,rdma"),
            "/sys/fs/cgroup/hugetlb,rdma",
            LIMITED_V1,
            id="version 1 with two controllers in one mount",
        ),
        pytest.param(
            "0::/\n",
            V2.format("/../..", "/host/sys/fs/cgroup") + V2.format("/", "/sys/fs/cgroup"),
            "/sys/fs/cgroup",
            LIMITED,
            id="the host's cgroups are mounted beside the container's own",
        ),
    ],
)
def test_the_limit_is_found_where_it_is_mounted(
    tmp_path: Path, memberships: str, mounts: str, folder: str, files: dict[str, str]
) -> None:
    """Each of these once passed as no limit or will when the mount is assumed."""
    found = limit(tmp_path, memberships, mounts, folder, files)
    assert isinstance(found, HugeTlbLimit)
    assert found.left_bytes == 0
    assert found.source.startswith(f"{folder}/")


@pytest.mark.parametrize(
    ("memberships", "mounts"),
    [
        pytest.param("0::/\n", "24 1 0:2 / /proc rw - proc proc rw\n", id="none is mounted"),
        pytest.param("0::/\n", "", id="mountinfo is empty"),
        pytest.param("9:memory:/\n0::/job\n", MEMORY, id="version 2's is not mounted"),
        pytest.param("5:hugetlb:/job\n", MEMORY, id="version 1's is not mounted"),
        pytest.param(
            "0::/../other\n", V2.format("/", "/sys/fs/cgroup"), id="outside of what is mounted"
        ),
        pytest.param(
            "0::/\n",
            V2.format("/../..", "/sys/fs/cgroup"),
            id="the host's cgroups in a container with a cgroup namespace of its own",
        ),
        pytest.param("garbage\n", V2.format("/", "/sys/fs/cgroup"), id="not a list of cgroups"),
    ],
)
def test_a_cgroup_that_is_not_shown_is_unknown(
    tmp_path: Path, memberships: str, mounts: str
) -> None:
    """A container without /sys/fs/cgroup may be allowed no page: that is no pass."""
    assert isinstance(limit(tmp_path, memberships, mounts, "/sys/fs/cgroup", {}), Unknown)


@pytest.mark.parametrize(
    ("memberships", "mounts"),
    [
        pytest.param("9:memory:/docker/a\n0::/\n", MEMORY, id="version 1, without the controller"),
        pytest.param("5:hugetlb:/\n", V1.format("/", "hugetlb", "hugetlb"), id="version 1's top"),
        pytest.param("0::/\n", V2.format("/", "/sys/fs/cgroup"), id="version 2's top"),
        pytest.param("", "", id="a kernel without cgroups"),
        pytest.param(
            "0::/../..\n",
            V2.format("/../..", "/sys/fs/cgroup"),
            id="moved to the top, out of its cgroup namespace",
        ),
    ],
)
def test_where_nothing_can_limit_there_is_no_limit(
    tmp_path: Path, memberships: str, mounts: str
) -> None:
    folder = "/sys/fs/cgroup/hugetlb" if "hugetlb" in mounts else "/sys/fs/cgroup"
    assert limit(tmp_path, memberships, mounts, folder, {"cgroup.procs": "1"}) is None


UNSEEN = "24 1 0:2 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize("memberships", ["5:hugetlb:/\n", "5:hugetlb:/\n0::/\n", "0::/\n"])
@pytest.mark.parametrize(
    ("namespace", "known"),
    [("cgroup:[4026531835]", True), ("cgroup:[4026532641]", False), (None, False)],
)
def test_the_top_needs_no_mount_but_only_the_kernels_own(
    tmp_path: Path, memberships: str, namespace: str | None, known: bool
) -> None:
    """The path of a container's top is ``/`` as well, and its host may limit it."""
    if namespace is not None:
        (tmp_path / "calls.json").write_text(json.dumps({"system.cgroup_namespace": namespace}))
    found = limit(tmp_path, memberships, UNSEEN, "/sys", {})
    assert found is None if known else isinstance(found, Unknown)
    memory = memory_headroom(Root(str(tmp_path)))
    alone = "hugetlb" in memberships and "0::" not in memberships  # no hierarchy can hold memory
    assert memory is None if known or alone else isinstance(memory, Unknown)


def test_a_cgroup_below_the_top_needs_its_mount_in_the_kernels_own_namespace_too(
    tmp_path: Path,
) -> None:
    calls = {"system.cgroup_namespace": "cgroup:[4026531835]"}
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    assert isinstance(limit(tmp_path, "5:hugetlb:/job\n", UNSEEN, "/sys", {}), Unknown)
