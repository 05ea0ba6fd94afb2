"""The host's memory, what the memory cgroup leaves, and the limits on mapping memory.

What the memory cgroup leaves is computed as SGLang 0.5.21 and newer do: every limit of the
process's cgroup and of each ancestor that its mounts show counts, limit less usage; page
cache is given back unless a descendant protects it. Swap is not looked at.
Source: ``mem_cache/host_memory.py`` of SGLang 0.5.23; Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst.
"""

import os
from typing import NamedTuple

from checks.framework.cgroup_mounts import MOUNTS, cgroup_limit, own_mount
from checks.framework.needs import LaunchNeeds
from checks.framework.patterns import answered, of
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import kernel_count
from checks.numa.nodes import Meminfo, read_meminfo


def space(path: str) -> dict[str, int | bool]:
    """Return size and free bytes of the file system at ``path``, as an unprivileged process has
    them.

    Raises OSError.

    full_of_files: the file system counts files, and has no room for another. Source: ``statvfs``.
    """
    status = os.statvfs(path)
    return {
        "size_bytes": status.f_blocks * status.f_frsize,
        "available_bytes": status.f_bavail * status.f_frsize,
        "read_only": bool(status.f_flag & os.ST_RDONLY),
        "full_of_files": status.f_files > 0 and status.f_favail == 0,
    }


class MemoryHeadroom(NamedTuple):
    """How many more bytes may be charged to a cgroup; ``source`` is the file of the limit."""

    left_bytes: int
    source: str


class _Hierarchy(NamedTuple):
    """The file names of one version of cgroups.

    Attributes:
        limits: First the limit at which the kernel kills.
        page_cache: Counters of memory.stat.
        protection: Whether memory.min exists.
    """

    limits: tuple[str, ...]
    usage: str
    page_cache: tuple[str, ...]
    protection: bool


_HIERARCHIES = {
    "cgroup2": _Hierarchy(
        ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file"), True
    ),
    # The counters without total_ leave descendants out, unlike the usage.
    "cgroup": _Hierarchy(
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        ("total_active_file", "total_inactive_file"),
        False,
    ),
}


@or_unknown
def memory_headroom(root: Root, throttles: bool = True) -> MemoryHeadroom | Unknown | None:
    """Return the smallest headroom (limit less usage) of the cgroup and its ancestors; None if
    nothing limits them.

    SGLang then checks an explicit size against the host's memory only, and refuses to choose the
    size of a pool.

    Args:
        throttles: Include memory.high, above which the kernel slows down and kills nobody.

    Returns:
        Unknown if a file cannot be read.
    """
    mount = require(own_mount(root, "memory"))
    if mount is None:
        return None
    require(root.names(mount.folders[0]))
    files = _HIERARCHIES[mount.filesystem]
    files = files if throttles else files._replace(limits=files.limits[:1])
    rooms = [require(_tightest_of(root, folder, files)) for folder in mount.folders]
    bound = [room for room in rooms if room is not None]
    return min(bound, key=lambda room: room.left_bytes, default=None)


@or_unknown
def _tightest_of(root: Root, folder: str, files: _Hierarchy) -> MemoryHeadroom | Unknown | None:
    """Return the smallest headroom below one folder's limits; None if the folder sets no limit."""
    every = [(require(cgroup_limit(root, path := f"{folder}/{x}")), path) for x in files.limits]
    limits = [(limit, path) for limit, path in every if limit is not None]
    if not limits:
        return None
    used = require(_used_bytes(root, folder, files))
    rooms = (MemoryHeadroom(max(0, limit - used), path) for limit, path in limits)
    return min(rooms, key=lambda room: room.left_bytes)


@or_unknown
def _used_bytes(root: Root, folder: str, files: _Hierarchy) -> int | Unknown:
    """Return the bytes that a cgroup uses, without page cache that the kernel can give back.

    Returns:
        Unknown if a count is missing.
    """
    usage = require(root.count(f"{folder}/{files.usage}"))
    content = require(root.text(f"{folder}/memory.stat"))
    rows = dict(line.split() for line in content.splitlines() if len(line.split()) == 2)
    cached = 0
    for key in files.page_cache:
        count = kernel_count(rows.get(key, ""))
        if count is None:
            return Unknown(f"{folder}/memory.stat: has no {key} count")
        cached += count
    if cached and files.protection and _protected_below(root, folder):
        cached = 0
    return max(0, usage - cached)


def _protected_below(root: Root, folder: str) -> bool:
    """Tell whether a cgroup below ``folder`` protects memory from reclaim (memory.min).

    True too if a cgroup cannot be read.
    """
    names = root.names(folder)
    if isinstance(names, Unknown):
        return True
    for child in (f"{folder}/{name}" for name in names):
        below = root.names(child)
        if isinstance(below, Unknown):
            if not below.absent:  # else a file, not a cgroup
                return True
        elif root.integer(f"{child}/memory.min") != 0 or _protected_below(root, child):
            return True
    return False


SHM = "/dev/shm"
MAX_MAP_COUNT = "/proc/sys/vm/max_map_count"
OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
READ_ONLY, NO_FILE_LEFT = "it is mounted read-only", "it holds as many files as it may"
SHM_REFUSALS = {"read_only": READ_ONLY, "full_of_files": NO_FILE_LEFT}
# Mount option of cgroup v2: huge pages count against memory.max too (since Linux 6.7).
HUGETLB_ACCOUNTING = "memory_hugetlb_accounting"


class MemoryFacts(NamedTuple):
    """The host's memory, in bytes.

    Attributes:
        headroom: The tightest memory limit over the cgroup and its ancestors; None without a limit.
        killing_headroom: The same of the limits at which the kernel kills, so without memory.high.
        overcommit: 0 heuristic, 1 always, 2 never beyond CommitLimit. shm_*: /dev/shm as mounted
            here.
        shm_refuses: Why no file can be made in /dev/shm, "" if nothing was seen.
        hugetlb_charged: Huge pages count against the memory cgroup.
    """

    meminfo: Meminfo | Unknown
    headroom: MemoryHeadroom | Unknown | None
    overcommit: int | Unknown
    max_map_count: int | Unknown
    swappiness: int | Unknown
    shm_size_bytes: int | Unknown
    shm_available_bytes: int | Unknown
    hugetlb_charged: bool | Unknown
    killing_headroom: MemoryHeadroom | Unknown | None = None
    shm_refuses: str = ""

    def value(self, key: str) -> int | Unknown:
        """Return a row of /proc/meminfo in bytes."""
        return self.meminfo if isinstance(self.meminfo, Unknown) else self.meminfo.value(key)


def read_memory(root: Root, needs: LaunchNeeds | None) -> MemoryFacts:
    """Read the host's memory below ``root``."""
    size, available, refuses = _read_shm(root)
    policy = root.integer(OVERCOMMIT)
    wrong = Unknown(f"{OVERCOMMIT}: no policy of the kernel: {policy}")
    return MemoryFacts(
        read_meminfo(root),
        memory_headroom(root),
        policy if isinstance(policy, Unknown) or policy in (0, 1, 2) else wrong,
        root.count(MAX_MAP_COUNT),
        root.count("/proc/sys/vm/swappiness"),
        size,
        available,
        _hugetlb_charged(root),
        memory_headroom(root, throttles=False),
        refuses,
    )


def _read_shm(root: Root) -> tuple[int | Unknown, int | Unknown, str]:
    """Return size and free bytes of /dev/shm, and why no file can be made in it ("" if one can).

    All three are from ``memory.space``; the first two may be Unknown.
    """
    answer = root.call("memory.space", SHM)

    def count(key: str) -> int | Unknown:
        wrong = f"memory.space {SHM}: has no {key}"
        return answered(answer, lambda has: of(int, has[key]), wrong)

    space = answer if isinstance(answer, dict) else {}
    refuses = (why for key, why in SHM_REFUSALS.items() if space.get(key) is True)
    return count("size_bytes"), count("available_bytes"), next(refuses, "")


@or_unknown
def _hugetlb_charged(root: Root) -> bool | Unknown:
    content = require(root.text(MOUNTS))
    lines = [line for line in content.splitlines() if " - cgroup2 " in line]
    return any(HUGETLB_ACCOUNTING in line.rpartition(" - ")[2] for line in lines)
