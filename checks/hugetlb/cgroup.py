"""What the hugetlb cgroup controller leaves this process, per page size.

A container may see a pool full of free pages and be allowed none of them: Kubernetes sets a limit
of 0 where a Pod requests no hugepages. Limits hold for every ancestor too.
Source: Documentation/admin-guide/cgroup-v2.rst (HugeTLB), cgroup-v1/hugetlb.rst.
"""

from typing import NamedTuple

from checks.base.cgroup_mounts import cgroup_limit, own_mount
from checks.base.root import Root
from checks.base.units import kernel_size
from checks.base.unknown import Unknown, known, or_unknown

# cgroup v1 writes "no limit" as the largest page-aligned signed 64-bit number.
V1_UNLIMITED_BYTES = 1 << 62
# File system -> how its limits and its counters of use end.
_NAMES = {"cgroup2": ("max", "current"), "cgroup": ("limit_in_bytes", "usage_in_bytes")}


class HugeTlbLimit(NamedTuple):
    """The tightest limit that applies: ``left_bytes`` more may be mapped; ``source`` sets it.

    refuses: a larger mapping fails (``rsvd``); else it is granted, and a bus error ends the
    process that touches more than is left (seen on 6.1 and 6.18).
    """

    left_bytes: int
    source: str
    refuses: bool = True


@or_unknown
def hugetlb_limit(root: Root, page_size_bytes: int) -> HugeTlbLimit | Unknown | None:
    """Return the tightest limit over this process's cgroup and its ancestors; None for none."""
    mount = own_mount(root, "hugetlb")
    if mount is None or isinstance(mount, Unknown):
        return mount
    limit_name, used_name = _NAMES[mount.filesystem]
    tightest: HugeTlbLimit | None = None
    for folder in mount.folders:
        for part in ("", "rsvd."):
            stem = f"{folder}/hugetlb.{kernel_size(page_size_bytes)}B.{part}"
            left = known(_left(root, stem + limit_name, stem + used_name))
            if left is None:
                continue
            if tightest is None or left < tightest.left_bytes:
                tightest = HugeTlbLimit(left, stem + limit_name, bool(part))
            elif part and left == tightest.left_bytes:
                tightest = tightest._replace(refuses=True)
    return tightest


@or_unknown
def _left(root: Root, limit_file: str, used_file: str) -> int | Unknown | None:
    limit = known(cgroup_limit(root, limit_file))
    if limit is None or limit >= V1_UNLIMITED_BYTES:
        return None
    return max(0, limit - known(root.count(used_file)))
