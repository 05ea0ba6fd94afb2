"""What the hugetlb cgroup controller leaves this process, per page size.

A container may see a pool full of free pages and be allowed none of them: Kubernetes sets a limit
of 0 where a Pod requests no hugepages. Limits hold for every ancestor too.
Source: Documentation/admin-guide/cgroup-v2.rst (HugeTLB), cgroup-v1/hugetlb.rst.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.root import Root
from checks.units import GIB, KIB, MIB
from checks.unknown import Unknown

CGROUP_MOUNT = "/sys/fs/cgroup"
# cgroup v1 writes "no limit" as the largest page-aligned signed 64-bit number.
V1_UNLIMITED_BYTES = 1 << 62


class HugeTlbLimit(NamedTuple):
    """The tightest limit that applies: ``left_bytes`` more may be mapped; ``source`` sets it."""

    left_bytes: int
    source: str


def hugetlb_limit(root: Root, page_size_bytes: int) -> HugeTlbLimit | Unknown | None:
    """The tightest limit over this process's cgroup and its ancestors; None if none binds."""
    memberships = root.text("/proc/self/cgroup")
    if isinstance(memberships, Unknown):
        return None if memberships.absent else memberships
    tightest: HugeTlbLimit | None = None
    for line in memberships.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount, limit_name, used_name = CGROUP_MOUNT, "max", "current"
        elif "hugetlb" in controllers.split(","):
            mount, limit_name, used_name = (
                f"{CGROUP_MOUNT}/hugetlb",
                "limit_in_bytes",
                "usage_in_bytes",
            )
        else:
            continue
        for folder in _ancestry(mount, path):
            for part in ("", "rsvd."):
                stem = f"{folder}/hugetlb.{_size_name(page_size_bytes)}.{part}"
                left = _left(root, stem + limit_name, stem + used_name)
                if isinstance(left, Unknown):
                    return left
                if left is not None and (tightest is None or left < tightest.left_bytes):
                    tightest = HugeTlbLimit(left, stem + limit_name)
    return tightest


def _ancestry(mount: str, path: str) -> list[str]:
    """The folder of ``path`` and of each ancestor; in a cgroup namespace of its own it is /."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [
        mount + "".join(f"/{part}" for part in parts[:end]) for end in range(len(parts), -1, -1)
    ]


def _left(root: Root, limit_file: str, used_file: str) -> int | Unknown | None:
    limit = root.text(limit_file)
    if isinstance(limit, Unknown):
        return None if limit.absent else limit
    if limit.strip() == "max" or (limit.strip().isdigit() and int(limit) >= V1_UNLIMITED_BYTES):
        return None
    if not limit.strip().isdigit():
        return Unknown(f"{limit_file}: not a number: {limit.strip()[:40]!r}")
    used = root.text(used_file)
    if isinstance(used, Unknown):
        return used
    if not used.strip().isdigit():
        return Unknown(f"{used_file}: not a number: {used.strip()[:40]!r}")
    return max(0, int(limit) - int(used))


def _size_name(page_size_bytes: int) -> str:
    """The kernel's spelling: 2MB, 1GB, 64KB (mm/hugetlb_cgroup.c, mem_fmt)."""
    for unit, scale in (("GB", GIB), ("MB", MIB)):
        if page_size_bytes >= scale:
            return f"{page_size_bytes // scale}{unit}"
    return f"{page_size_bytes // KIB}KB"
