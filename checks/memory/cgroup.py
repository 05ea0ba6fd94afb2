"""What the memory cgroup leaves this process, computed as SGLang 0.5.21 and newer do.

Every limit of the process's cgroup and of each ancestor that its mounts show counts: limit less
usage, where page cache is given back unless a descendant protects it. Swap is not looked at.
Source: ``mem_cache/host_memory.py`` of SGLang 0.5.23; Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst.
"""

from collections.abc import Iterator
from typing import NamedTuple

from checks.base.c_numbers import kernel_count
from checks.base.cgroup_mounts import (
    MOUNTS,
    CgroupMount,
    at_the_top,
    cgroup_limit,
    mount_of,
    paths_of,
    read_memberships,
    usual_mount,
)
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown


class MemoryHeadroom(NamedTuple):
    """``left_bytes`` more may be charged to the cgroup; the limit file ``source`` says so."""

    left_bytes: int
    source: str


class _Hierarchy(NamedTuple):
    """The file names of one version of cgroups. limits: the one that kills first."""

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
    """Return the tightest limit over the cgroup and its ancestors; None where nothing limits.

    throttles: whether memory.high counts, beyond which the kernel slows down and kills nobody.

    Unknown where SGLang cannot tell either: it then checks an explicit size against the host's
    memory alone, and refuses to size a pool by itself.
    """
    memberships = read_memberships(root)
    if isinstance(memberships, Unknown):
        return None if memberships.absent else memberships
    paths = paths_of(memberships, "memory")
    tightest: MemoryHeadroom | None = None
    resolved: set[str] = set()
    doubts: dict[str, Unknown] = {}
    for filesystem, mount in _mounts(root, paths):
        if isinstance(mount, Unknown):
            doubts.setdefault(filesystem, mount)
            continue
        entries = root.names(mount.folders[0])
        if isinstance(entries, Unknown):
            if not entries.absent:
                return entries
            continue
        resolved.add(filesystem)
        for folder in mount.folders:
            files = _HIERARCHIES[mount.filesystem]
            files = files if throttles else files._replace(limits=files.limits[:1])
            found = known(_tightest_of(root, folder, files))
            if found is not None and (tightest is None or found.left_bytes < tightest.left_bytes):
                tightest = found
    for filesystem, doubt in doubts.items():
        if filesystem not in resolved:  # no other mount shows it
            return doubt
    if paths and not resolved and not at_the_top(root, paths):
        return Unknown(f"{MOUNTS}: shows no memory cgroup of this process")
    return tightest


def _mounts(root: Root, paths: dict[str, str]) -> Iterator[tuple[str, CgroupMount | Unknown]]:
    """Yield where the hierarchies of ``paths`` are mounted, each with its file system."""
    content = root.text(MOUNTS)
    if isinstance(content, Unknown):
        if not content.absent:
            yield "", content
        elif paths:
            mount = usual_mount(paths, "memory")
            yield mount.filesystem, mount
        return
    for line in content.splitlines():
        found = mount_of(line, paths, "memory")
        if found is not None:
            yield line.partition(" - ")[2].split()[0], found


@or_unknown
def _tightest_of(root: Root, folder: str, files: _Hierarchy) -> MemoryHeadroom | Unknown | None:
    """Return the tightest limit of one folder; None where it sets none."""
    tightest: MemoryHeadroom | None = None
    used: int | None = None
    for name in files.limits:
        limit = known(cgroup_limit(root, f"{folder}/{name}"))
        if limit is None:
            continue
        if used is None:
            used = known(_used(root, folder, files))
        left = max(0, limit - used)
        if tightest is None or left < tightest.left_bytes:
            tightest = MemoryHeadroom(left, f"{folder}/{name}")
    return tightest


@or_unknown
def _used(root: Root, folder: str, files: _Hierarchy) -> int | Unknown:
    """Return the usage less the page cache that reclaim can take, bytes."""
    usage = known(root.count(f"{folder}/{files.usage}"))
    content = known(root.text(f"{folder}/memory.stat"))
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
    """Return whether a descendant keeps memory from reclaim, or one cannot be read."""
    names = root.names(folder)
    if isinstance(names, Unknown):
        return True
    for name in names:
        child = f"{folder}/{name}"
        below = root.names(child)
        if isinstance(below, Unknown):
            if below.absent:
                continue  # a file, not a cgroup
            return True
        if root.integer(f"{child}/memory.min") != 0 or _protected_below(root, child):
            return True
    return False
