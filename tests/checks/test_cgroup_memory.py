"""The memory cgroup's headroom, from synthetic trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.memory.facts import MemoryHeadroom, memory_headroom
from tests.checks.limit_hosts import root_of

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def v2(root: Path, path: str, folders: dict[str, dict[str, str]], mount: str = V2_MOUNT) -> Root:
    files = {"/proc/self/cgroup": f"0::{path}\n", "/proc/self/mountinfo": f"{mount}\n"}
    for folder, contents in folders.items():
        for name, content in contents.items():
            files[f"/sys/fs/cgroup{folder}/{name}"] = content
    return root_of(root, files)


def usage(current: int, active: int = 0, inactive: int = 0, **limits: str) -> dict[str, str]:
    stat = f"anon 5\nactive_file {active}\ninactive_file {inactive}\n"
    named = {f"memory.{name}": f"{text}\n" for name, text in limits.items()}
    return {"memory.current": f"{current}\n", "memory.stat": stat, **named}


def test_no_procfs_is_no_limit(tmp_path: Path) -> None:
    assert memory_headroom(Root(str(tmp_path))) is None


def test_no_limit(tmp_path: Path) -> None:
    root = v2(tmp_path, "/a", {"/a": {"memory.max": "max\n", "memory.high": "max\n"}})
    assert memory_headroom(root) is None


def test_limit_less_usage(tmp_path: Path) -> None:
    root = v2(tmp_path, "/a", {"/a": usage(300, max="1000", high="max")})
    assert memory_headroom(root) == MemoryHeadroom(700, "/sys/fs/cgroup/a/memory.max")


def test_the_tightest_of_all_ancestors_and_of_both_limits(tmp_path: Path) -> None:
    root = v2(
        tmp_path,
        "/a/b",
        {"/a/b": usage(300, max="1000", high="900"), "/a": usage(1500, max="2000")},
    )
    assert memory_headroom(root) == MemoryHeadroom(500, "/sys/fs/cgroup/a/memory.max")


def test_page_cache_is_given_back(tmp_path: Path) -> None:
    root = v2(tmp_path, "/a", {"/a": usage(900, active=100, inactive=200, max="1000")})
    assert memory_headroom(root) == MemoryHeadroom(400, "/sys/fs/cgroup/a/memory.max")


@pytest.mark.parametrize(("protection", "left"), [("0\n", 400), ("4096\n", 100), ("?\n", 100)])
def test_protected_descendants_keep_their_page_cache(
    tmp_path: Path, protection: str, left: int
) -> None:
    root = v2(
        tmp_path,
        "/a",
        {"/a": usage(900, active=300, max="1000"), "/a/child": {"memory.min": protection}},
    )
    found = memory_headroom(root)
    assert isinstance(found, MemoryHeadroom)
    assert found.left_bytes == left


def test_more_used_than_allowed(tmp_path: Path) -> None:
    root = v2(tmp_path, "/a", {"/a": usage(1200, max="1000")})
    assert memory_headroom(root) == MemoryHeadroom(0, "/sys/fs/cgroup/a/memory.max")


def test_a_namespace_of_its_own(tmp_path: Path) -> None:
    mount = V2_MOUNT.replace(" / /sys", " /kubepods/pod1 /sys")
    root = v2(tmp_path, "/", {"": usage(100, max="1000")}, mount)
    found = memory_headroom(root)
    assert isinstance(found, MemoryHeadroom)
    assert found.left_bytes == 900


def test_a_mount_from_above_the_namespace_shows_no_limit_of_it(tmp_path: Path) -> None:
    """The host's /sys/fs/cgroup in a container: what it has at its top is not this cgroup's."""
    mount = V2_MOUNT.replace(" / /sys", " /../.. /sys")
    root = v2(tmp_path, "/", {"": {"cgroup.procs": ""}, "/pods/a": usage(1, max="5")}, mount)
    found = memory_headroom(root)
    assert isinstance(found, Unknown)
    assert "above the cgroup namespace" in found.reason


def test_a_tree_that_tells_no_mounts_is_read_where_most_have_them(tmp_path: Path) -> None:
    root = v2(tmp_path, "/a", {"/a": usage(300, max="1000")})
    (tmp_path / "proc/self/mountinfo").unlink()
    assert memory_headroom(root) == MemoryHeadroom(700, "/sys/fs/cgroup/a/memory.max")


@pytest.mark.parametrize("path", ["/", "/a"])
def test_files_without_mounts_and_cgroups_tell_no_limit(tmp_path: Path, path: str) -> None:
    root = root_of(tmp_path, {"/proc/self/cgroup": f"0::{path}\n"})
    assert isinstance(memory_headroom(root), Unknown)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    assert isinstance(memory_headroom(root), Unknown) is (path != "/")


def test_version_1(tmp_path: Path) -> None:
    root = root_of(
        tmp_path,
        {
            "/proc/self/cgroup": "7:cpu,cpuacct:/x\n4:memory:/a\n0::/\n",
            "/proc/self/mountinfo": f"{V1_MOUNT}\n",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1000\n",
            "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": "600\n",
            "/sys/fs/cgroup/memory/a/memory.stat": (
                "active_file 1\ntotal_active_file 50\ntotal_inactive_file 50\n"
            ),
        },
    )
    assert memory_headroom(root) == MemoryHeadroom(
        500, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"
    )


@pytest.mark.parametrize(
    ("path", "folders", "word"),
    [
        ("/gone", {"/a": {}}, "shows no memory cgroup"),
        ("/../x", {"/a": usage(1, max="5")}, "outside what is mounted"),
        ("/a", {"/a": {"memory.max": "5\n"}}, "memory.current"),
        ("/a", {"/a": {"memory.max": "5\n", "memory.current": "1\n"}}, "memory.stat"),
        ("/a", {"/a": {**usage(1, max="5"), "memory.stat": "anon 4\n"}}, "active_file"),
        ("/a", {"/a": usage(1, max="five")}, "not a number"),
    ],
)
def test_what_cannot_be_told_is_unknown(
    tmp_path: Path, path: str, folders: dict[str, dict[str, str]], word: str
) -> None:
    found = memory_headroom(v2(tmp_path, path, folders))
    assert isinstance(found, Unknown)
    assert word in found.reason
