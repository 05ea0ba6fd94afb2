"""The way to an RDMA device: its uverbs node, libibverbs and its provider, the kernel, the cgroup.

Mooncake needs the first three; each can be missing from a container while sysfs still shows the
device.
"""

import re
import stat
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from checks.framework.cgroup_mounts import own_mount
from checks.framework.device_nodes import RDMA_DEVICES
from checks.framework.patterns import answered, of
from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require

NODES = "/dev/infiniband"
CLASS = "/sys/class/infiniband_verbs"
PROVIDER_CONFIGURATION = "/etc/libibverbs.d"
# Where distributions keep libraries; the first that has libibverbs.so.1 is taken.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)
# enum rdma_driver_id (rdma/ib_user_ioctl_verbs.h) -> the provider's name in rdma-core.
PROVIDERS = {
    1: "mlx5",
    2: "mlx4",
    4: "cxgb4",
    6: "bnxt_re",
    7: "ocrdma",
    9: "irdma",
    10: "vmw_pvrdma",
    11: "qedr",
    12: "hns",
    14: "rxe",
    15: "hfi1verbs",
    17: "efa",
    18: "siw",
    19: "erdma",
    20: "mana",
    21: "ionic",
}


# libibverbs has no function for it: checks/rdma/libibverbs.py.
GET_PYVERBS = (
    "install pyverbs for the Python that runs this check (python3-pyverbs of Debian and Ubuntu, "
    "or this program's extra [verbs])"
)


class DeviceNode(NamedTuple):
    """A file below /dev/infiniband.

    Attributes:
        opens: For read and write by this user; else see why_not.
    """

    path: str
    character: bool
    opens: bool
    why_not: str = ""
    permissions: int = 0
    errno: int = 0


class DeviceLimits(NamedTuple):
    """Limits by ibv_query_device.

    Some drivers say 2^64 - 1 bytes or -1 if they know no bound.
    """

    max_mr_size_bytes: int
    max_mr: int
    max_qp: int


class VerbsPort(NamedTuple):
    active_mtu_bytes: int | Unknown
    gid_table: int  # the number of its entries


class Verbs(NamedTuple):
    """What libibverbs says of a device."""

    listed: bool | Unknown  # it has a provider for the device
    error: str | Unknown  # why the device cannot be opened, ""; limits and ports are Unknown then
    limits: DeviceLimits | Unknown
    ports: Mapping[int, VerbsPort] | Unknown
    errno: int = 0
    # Memory that it registers need not be pinned.
    pages_on_demand: bool | Unknown = Unknown("pyverbs was not asked", advice=GET_PYVERBS)


class Libraries(NamedTuple):
    """libibverbs and its providers."""

    file: str | Unknown
    version: int | Unknown  # of rdma-core, 44 for ``libibverbs.so.1.14.44.0``
    providers: frozenset[str] | Unknown  # those with both a driver file and a library


@or_unknown
def read_device_file(root: Root, path: str) -> DeviceNode | Unknown:
    """Read the mode of a device file, and whether it opens; an absent Unknown without the file."""
    answer = require(root.call("rdma.device_node", path))
    wrong = f"rdma.device_node {path}: the recorded answer is damaged"
    mode = require(answered(answer, lambda has: of(int, has["mode"]), wrong)) & 0xFFFF
    file = DeviceNode(path, stat.S_ISCHR(mode), True, permissions=stat.S_IMODE(mode))
    if answer.get("open") is True:
        return file
    errno = answer.get("errno")
    why = f"{answer.get('error')} ({errno})"
    return file._replace(opens=False, why_not=why, errno=errno if isinstance(errno, int) else 0)


@or_unknown
def uverbs_of(root: Root, devices: Iterable[str]) -> dict[str, str | Unknown] | Unknown:
    """Return ``{"mlx5_0": "uverbs0"}``, from CLASS or, if unreadable, from the PCI functions."""
    names = root.entries(CLASS)
    if not isinstance(names, Unknown):
        return {**require(_uverbs_in(root, CLASS, names))}
    by_device: dict[str, str | Unknown] = dict.fromkeys(devices, names)
    for device in devices:
        folder = f"{RDMA_DEVICES}/{device}/device/infiniband_verbs"
        by_device |= require(_uverbs_in(root, folder, root.listed(folder)))
    return by_device


@or_unknown
def _uverbs_in(root: Root, folder: str, names: Iterable[str]) -> dict[str, str] | Unknown:
    """Map each device to its uverbs name, by the ``ibdev`` files of the ``names`` in ``folder``."""
    by_device = {}
    for name in names:
        if name.startswith("uverbs"):
            device = root.word(f"{folder}/{name}/ibdev")
            if isinstance(device, str):
                by_device[device] = name
            elif not device.absent:
                return device  # whose it is decides whether that device can be reached
    return by_device


def read_verbs(root: Root, device: str) -> Verbs:
    """Ask libibverbs about ``device``; limits and ports are Unknown if the device is not opened."""
    answer: Any = root.call("rdma.verbs", device)
    wrong = f"rdma.verbs {device}: the recorded answer is damaged"
    listed = answered(answer, lambda has: of(bool, has["listed"]), wrong)
    if isinstance(listed, Unknown):
        return Verbs(listed, listed, listed, listed)
    if not answer.get("opened"):
        errno = answer.get("errno")
        error = str(answer.get("error", "no reason given"))
        error += "" if errno is None else f" ({errno})"
        closed = Unknown(f"libibverbs cannot open {device}: {error}")
        code = errno if isinstance(errno, int) else 0
        return Verbs(listed, error, closed, closed, code, closed)
    opened = Verbs(True, "", _verbs_limits(answer.get("limits")), _verbs_ports(answer.get("ports")))
    if "pages_on_demand" not in answer:
        return opened
    paging = answer["pages_on_demand"]
    unsaid = Unknown("its provider does not say whether it pages on demand")
    return opened._replace(pages_on_demand=paging if isinstance(paging, bool) else unsaid)


def _verbs_limits(answer: Any) -> DeviceLimits | Unknown:
    names = [name.removesuffix("_bytes") for name in DeviceLimits._fields]
    wrong = "rdma.verbs: no device limits in the answer"
    return answered(answer, lambda has: DeviceLimits(*(of(int, has[n]) for n in names)), wrong)


def _verbs_ports(answer: Any) -> dict[int, VerbsPort] | Unknown:
    """Read the ports of an answer, by number; damaged ports are left out."""
    if not isinstance(answer, dict):
        return Unknown("rdma.verbs: no ports in the answer")
    ports = {}
    for number, port in answer.items():
        if isinstance(port, dict) and str(number).isdecimal():
            mtu = port.get("active_mtu_bytes")
            known = mtu if isinstance(mtu, int) else Unknown("libibverbs names no active MTU")
            table = port.get("gid_table")
            ports[int(number)] = VerbsPort(known, table if isinstance(table, int) else 0)
    return ports


def read_libraries(root: Root) -> Libraries:
    """Find libibverbs and its providers in the first folder that has it; else all is Unknown."""
    why = Unknown("libibverbs.so.1 is in none of the usual folders", absent=True)
    for folder in LIBRARY_FOLDERS:
        file = root.link(f"{folder}/libibverbs.so.1")
        if not isinstance(file, Unknown):
            match = re.search(r"\.so\.1\.\d+\.(\d{1,4})\.\d+$", file)
            unsaid = Unknown(f"{file}: the name has no release of rdma-core")
            return Libraries(file, int(match[1]) if match else unsaid, _providers(root, folder))
        if not file.absent:
            why = file
            break
    return Libraries(why, why, why)


@or_unknown
def _providers(root: Root, folder: str) -> frozenset[str] | Unknown:
    """Return the names of the providers (such as mlx5) that have both a configuration file and a
    library.

    Args:
        folder: Where libibverbs.so.1 was found.
    """
    names_in = []
    for place, pattern in ((PROVIDER_CONFIGURATION, _DRIVER), (f"{folder}/libibverbs", _LIBRARY)):
        names = root.names(place)
        if isinstance(names, Unknown) and names.absent:
            return frozenset()
        names_in.append({match[1] for name in require(names) if (match := pattern.fullmatch(name))})
    return frozenset(names_in[0] & names_in[1])


_DRIVER = regex(r"(.+)\.driver", re.DOTALL)
_LIBRARY = regex(r"lib(\w+)-rdmav\d+\.so")


class RdmaKernel(NamedTuple):
    """What the kernel's RDMA netlink says."""

    netns_mode: str | Unknown  # shared or exclusive
    copy_on_fork: bool | Unknown  # it copies pinned pages at fork (Linux 5.12)
    resources: Mapping[str, Mapping[str, int]]  # per device, how many of each kind exist (qp, mr)
    drivers: Mapping[str, int]  # per device, its number in enum rdma_driver_id


class CgroupLimit(NamedTuple):
    """A limit of one device, or its use.

    Attributes:
        handles: Open devices (hca_handle).
        objects: Everything made on them (hca_object). None: no limit.
    """

    handles: int | None
    objects: int | None


class RdmaCgroup(NamedTuple):
    """One cgroup with limits, per device.

    Attributes:
        used: In the same shape, how much is in use.
    """

    file: str
    limits: Mapping[str, CgroupLimit]
    used: Mapping[str, CgroupLimit] | Unknown

    def limit(self, device: str) -> CgroupLimit:
        return self.limits.get(device, CgroupLimit(None, None))

    @or_unknown
    def in_use(self, device: str) -> CgroupLimit | Unknown:
        return require(self.used).get(device, CgroupLimit(0, 0))


@or_unknown
def read_kernel(root: Root) -> RdmaKernel | Unknown:
    """Read what ``rdma system`` and ``rdma resource`` show; needs no privilege."""
    answer, wrong = require(root.call("rdma.kernel")), "rdma.kernel: the recorded answer is damaged"
    devices = require(answered(answer, lambda has: of(dict, has["devices"]), wrong))
    mode, copies = answer.get("netns_mode"), answer.get("copy_on_fork")
    resources, drivers = {}, {}
    for name, device in devices.items():
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
    """Read this process's cgroup, then its ancestors, as far as they have rdma limits."""
    mount = require(own_mount(root, "rdma"))
    limited = [require(_read_cgroup(root, folder)) for folder in (mount.folders if mount else ())]
    return tuple(cgroup for cgroup in limited if cgroup is not None)


def _read_cgroup(root: Root, folder: str) -> RdmaCgroup | Unknown | None:
    """Read the rdma limits of one cgroup; None if it limits no device."""
    limits = _device_limits(root, f"{folder}/rdma.max")
    if isinstance(limits, Unknown):
        return none_if_absent(limits, None)
    if all(budget == CgroupLimit(None, None) for budget in limits.values()):
        return None
    return RdmaCgroup(f"{folder}/rdma.max", limits, _device_limits(root, f"{folder}/rdma.current"))


@or_unknown
def _device_limits(root: Root, name: str) -> dict[str, CgroupLimit] | Unknown:
    """Read lines of ``mlx5_0 hca_handle=2 hca_object=max`` as limits by device; ``max`` is None."""
    content = require(root.text(name))
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
            budgets[device] = CgroupLimit(values.get("hca_handle"), values.get("hca_object"))
    return budgets
