"""Where the limits of this process's cgroups are looked for, whatever is mounted where; and what
the memory cgroup leaves.
"""

from __future__ import annotations

import json

import pytest

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.hugetlb.stock import HugeTlbLimit, hugetlb_limit
from checks.memory.facts import MemoryHeadroom, memory_headroom
from tests.builders.hosts import in_memory
from tests.tables import each_row

MIB = 1 << 20
AT = "/sys/fs/cgroup"
V1 = "33 25 0:29 {} /sys/fs/cgroup/{} rw,relatime - cgroup cgroup rw,{}\n"
V2 = "30 24 0:26 {} {} rw,nosuid - cgroup2 cgroup2 rw\n"
USUAL = V2.format("/", AT)
ABOVE = V2.format("/../..", AT)  # the host's, in a container with a cgroup namespace of its own
MEMORY = V1.format("/", "memory", "memory")
LIMITED = {"hugetlb.2MB.max": "0", "hugetlb.2MB.current": "0"}
LIMITED_V1 = {"hugetlb.2MB.limit_in_bytes": "0", "hugetlb.2MB.usage_in_bytes": "0"}


def host(memberships: str, mounts: str | None, folders: dict[str, dict[str, str]]) -> Root:
    """Return a host whose process is in ``memberships``. folders: their files, by name."""
    files = {"/proc/self/cgroup": memberships}
    files |= {} if mounts is None else {"/proc/self/mountinfo": mounts}
    for folder, contents in folders.items():
        files |= {f"{folder}/{name}": text for name, text in contents.items()}
    return in_memory(files)


def limit(
    memberships: str, mounts: str, folder: str, files: dict[str, str]
) -> HugeTlbLimit | Unknown | None:
    """Return what is found where ``files`` lie in ``folder``."""
    return hugetlb_limit(host(memberships, mounts, {folder: files}), 2 * MIB)


@each_row(
    ("memberships", "mounts", "folder", "files"),
    [
        # Version 2 beside version 1, as systemd's hybrid layout mounts it.
        ("9:memory:/\n0::/job\n", MEMORY + V2.format("/", f"{AT}/unified"), f"{AT}/unified/job",
         LIMITED),
        ("0::/job\n", V2.format("/", "/cgroups"), "/cgroups/job", LIMITED),
        # A container that shares the host's cgroup namespace.
        ("0::/docker/abc\n", V2.format("/docker/abc", AT), AT, LIMITED),
        # Version 1 with two controllers in one mount.
        ("5:hugetlb,rdma:/docker/abc\n0::/\n",
         V1.format("/docker/abc", "hugetlb,rdma", "hugetlb,rdma"), f"{AT}/hugetlb,rdma",
         LIMITED_V1),
        # The host's cgroups are mounted beside the container's own.
        ("0::/\n", V2.format("/../..", f"/host{AT}") + USUAL, AT, LIMITED),
    ],
)  # fmt: skip
def test_the_limit_is_found_where_it_is_mounted(
    memberships: str, mounts: str, folder: str, files: dict[str, str]
) -> None:
    """Each of these once passed as no limit or will when the mount is assumed."""
    found = limit(memberships, mounts, folder, files)
    assert isinstance(found, HugeTlbLimit)
    assert found.left_bytes == 0
    assert found.source.startswith(f"{folder}/")


@each_row(
    ("memberships", "mounts"),
    [
        ("0::/\n", "24 1 0:2 / /proc rw - proc proc rw\n"),
        ("0::/\n", ""),
        ("9:memory:/\n0::/job\n", MEMORY),  # version 2's is not mounted
        ("5:hugetlb:/job\n", MEMORY),  # version 1's is not mounted
        ("0::/../other\n", USUAL),  # outside of what is mounted
        ("0::/\n", ABOVE),
        ("garbage\n", USUAL),
    ],
)
def test_a_cgroup_that_is_not_shown_is_unknown(memberships: str, mounts: str) -> None:
    """A container without /sys/fs/cgroup may be allowed no page: that is no pass."""
    assert isinstance(limit(memberships, mounts, AT, {}), Unknown)


@each_row(
    ("memberships", "mounts"),
    [
        ("9:memory:/docker/a\n0::/\n", MEMORY),  # version 1, without the controller
        ("5:hugetlb:/\n", V1.format("/", "hugetlb", "hugetlb")),
        ("0::/\n", USUAL),
        ("", ""),  # a kernel without cgroups
        ("0::/../..\n", ABOVE),  # moved to the top, out of its cgroup namespace
    ],
)
def test_where_nothing_can_limit_there_is_no_limit(memberships: str, mounts: str) -> None:
    folder = f"{AT}/hugetlb" if "hugetlb" in mounts else AT
    assert limit(memberships, mounts, folder, {"cgroup.procs": "1"}) is None


UNSEEN = "24 1 0:2 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize("memberships", ["5:hugetlb:/\n", "5:hugetlb:/\n0::/\n", "0::/\n"])
@pytest.mark.parametrize(
    ("namespace", "known"),
    [("cgroup:[4026531835]", True), ("cgroup:[4026532641]", False), (None, False)],
)
def test_the_top_needs_no_mount_but_only_the_kernels_own(
    memberships: str, namespace: str | None, known: bool
) -> None:
    """The path of a container's top is ``/`` as well, and its host may limit it."""
    calls = {} if namespace is None else {"system.cgroup_namespace": namespace}
    recorded = {"calls.json": json.dumps(calls)}
    found = limit(memberships, UNSEEN, "", recorded)
    assert found is None if known else isinstance(found, Unknown)
    memory = memory_headroom(host(memberships, UNSEEN, {"": recorded}))
    alone = "hugetlb" in memberships and "0::" not in memberships  # no hierarchy can hold memory
    assert memory is None if known or alone else isinstance(memory, Unknown)
    if known:  # a cgroup below the top needs its mount all the same
        assert isinstance(limit("5:hugetlb:/job\n", UNSEEN, "", recorded), Unknown)


def usage(current: int, active: int = 0, inactive: int = 0, **limits: str) -> dict[str, str]:
    """Return the files of a cgroup of version 2 with these bytes. limits: ``max``, ``high``."""
    stat = f"anon 5\nactive_file {active}\ninactive_file {inactive}\n"
    named = {f"memory.{name}": f"{text}\n" for name, text in limits.items()}
    return {"memory.current": f"{current}\n", "memory.stat": stat, **named}


def headroom(
    path: str, folders: dict[str, dict[str, str]], mount: str | None = USUAL
) -> MemoryHeadroom | Unknown | None:
    below = {f"{AT}{folder}": files for folder, files in folders.items()}
    return memory_headroom(host(f"0::{path}\n", mount, below))


@pytest.mark.parametrize(
    ("path", "folders", "left", "where"),
    [
        ("/a", {"/a": usage(300, max="1000", high="max")}, 700, "/a"),
        ("/a", {"/a": usage(1200, max="1000")}, 0, "/a"),
        # The tightest of all ancestors and of both limits.
        ("/a/b", {"/a/b": usage(300, max="1000", high="900"), "/a": usage(1500, max="2000")}, 500,
         "/a"),
        # Page cache is given back, unless a descendant protects it.
        ("/a", {"/a": usage(900, active=100, inactive=200, max="1000")}, 400, "/a"),
        ("/a", {"/a": usage(900, active=300, max="1000"), "/a/b": {"memory.min": "0\n"}}, 400,
         "/a"),
        ("/a", {"/a": usage(900, active=300, max="1000"), "/a/b": {"memory.min": "4096\n"}}, 100,
         "/a"),
        ("/a", {"/a": usage(900, active=300, max="1000"), "/a/b": {"memory.min": "?\n"}}, 100,
         "/a"),
        # A cgroup namespace of its own.
        ("/", {"": usage(100, max="1000")}, 900, ""),
    ],
)  # fmt: skip
def test_a_limit_leaves_what_is_not_used(
    path: str, folders: dict[str, dict[str, str]], left: int, where: str
) -> None:
    expected = MemoryHeadroom(left, f"{AT}{where}/memory.max")
    if path == "/":
        assert headroom(path, folders, V2.format("/kubepods/pod1", AT)) == expected
    else:  # a tree that tells no mounts is read where most have them
        assert headroom(path, folders) == headroom(path, folders, None) == expected


@each_row("path", ["/", "/a"])
def test_files_without_mounts_and_cgroups_tell_no_limit(path: str) -> None:
    assert isinstance(headroom(path, {}, None), Unknown)
    there = in_memory({"/proc/self/cgroup": f"0::{path}\n", AT: "/"})
    assert isinstance(memory_headroom(there), Unknown) is (path != "/")


@pytest.mark.parametrize(
    ("path", "folders", "word"),
    [
        ("/gone", {"/a": {}}, "shows no memory cgroup"),
        ("/../x", {"/a": usage(1, max="5")}, "outside what is mounted"),
        ("/a", {"/a": {"memory.max": "5\n"}}, "memory.current"),
        ("/a", {"/a": {"memory.max": "5\n", "memory.current": "1\n"}}, "memory.stat"),
        ("/a", {"/a": {**usage(1, max="5"), "memory.stat": "anon 4\n"}}, "active_file"),
        ("/a", {"/a": usage(1, max="five")}, "not a number"),
        # What the host's mount has at its top is not this cgroup's.
        ("/", {"": {"cgroup.procs": ""}, "/pods/a": usage(1, max="5")}, "above the cgroup namesp"),
    ],
)
def test_what_cannot_be_told_is_unknown(
    path: str, folders: dict[str, dict[str, str]], word: str
) -> None:
    found = headroom(path, folders, ABOVE if path == "/" else USUAL)
    assert isinstance(found, Unknown)
    assert word in found.reason
