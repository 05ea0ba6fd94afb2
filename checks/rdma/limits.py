"""What bounds RDMA objects besides the device itself: the rdma cgroup, and what exists already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.cgroup_mounts import own_mount
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown


class RdmaKernel(NamedTuple):
    """What the kernel's RDMA netlink says.

    netns_mode: shared or exclusive. copy_on_fork: it copies pinned pages at fork (Linux 5.12).
    resources: per device, how many of each kind exist (qp, cq, mr, pd, ctx, cm_id, srq).
    drivers: per device, its number in enum rdma_driver_id.
    """

    netns_mode: str | Unknown
    copy_on_fork: bool | Unknown
    resources: Mapping[str, Mapping[str, int]]
    drivers: Mapping[str, int]


class Budget(NamedTuple):
    """hca_handle: open devices; hca_object: everything made on them. None: no limit."""

    handles: int | None
    objects: int | None


class RdmaCgroup(NamedTuple):
    """One cgroup with limits, per device; ``used`` has the same shape."""

    file: str
    limits: Mapping[str, Budget]
    used: Mapping[str, Budget] | Unknown


@or_unknown
def read_kernel(root: Root) -> RdmaKernel | Unknown:
    """``rdma system`` and ``rdma resource``; needs no privilege."""
    answer = known(root.call("rdma.kernel"))
    if not isinstance(answer, dict) or not isinstance(answer.get("devices"), dict):
        return Unknown("rdma.kernel: not an answer")
    mode, copies = answer.get("netns_mode"), answer.get("copy_on_fork")
    resources, drivers = {}, {}
    for name, device in answer["devices"].items():
        if not isinstance(device, dict):
            continue
        counts = device.get("resources")
        if isinstance(counts, dict):
            resources[name] = {k: v for k, v in counts.items() if isinstance(v, int)}
        if isinstance(device.get("driver_id"), int):
            drivers[name] = device["driver_id"]
    return RdmaKernel(
        mode if isinstance(mode, str) else Unknown("the kernel does not say"),
        copies if isinstance(copies, bool) else Unknown("the kernel does not say"),
        resources,
        drivers,
    )


@or_unknown
def read_cgroups(root: Root) -> tuple[RdmaCgroup, ...] | Unknown:
    """This process's cgroup and its ancestors, those that have rdma limits, the own one first.

    Source: Documentation/admin-guide/cgroup-v2.rst (RDMA), kernel/cgroup/rdma.c.
    """
    mount = own_mount(root, "rdma")
    if mount is None or isinstance(mount, Unknown):
        return () if mount is None else mount
    found: list[RdmaCgroup] = []
    for folder in mount.folders:
        read = known(_read_cgroup(root, folder))
        if read is not None:
            found.append(read)
    return tuple(found)


def _read_cgroup(root: Root, folder: str) -> RdmaCgroup | Unknown | None:
    limits = _budgets(root, f"{folder}/rdma.max")
    if isinstance(limits, Unknown):
        return None if limits.absent else limits
    if all(budget == Budget(None, None) for budget in limits.values()):
        return None
    return RdmaCgroup(f"{folder}/rdma.max", limits, _budgets(root, f"{folder}/rdma.current"))


@or_unknown
def _budgets(root: Root, name: str) -> dict[str, Budget] | Unknown:
    """Lines of ``mlx5_0 hca_handle=2 hca_object=max``."""
    content = known(root.text(name))
    budgets = {}
    for line in content.splitlines():
        device, *pairs = line.split() or [""]
        values: dict[str, Any] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if value != "max" and not (equals and value.isdecimal() and len(value) < 19):
                return Unknown(f"{name}: not a limit: {pair[:40]!r}")
            values[key] = None if value == "max" else int(value)
        if device:
            budgets[device] = Budget(values.get("hca_handle"), values.get("hca_object"))
    return budgets
