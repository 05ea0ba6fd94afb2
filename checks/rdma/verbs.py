"""The way to an RDMA device from user space: its uverbs node, libibverbs, and its provider.

Mooncake reaches a device only if all three are there; each can be missing from a container while
sysfs still shows the device.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown

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


class DeviceNode(NamedTuple):
    """A file below /dev/infiniband. opens: this user may read and write; why_not: the errno."""

    path: str
    character: bool
    opens: bool
    why_not: str = ""
    permissions: int = 0


class DeviceLimits(NamedTuple):
    """ibv_query_device. Some drivers say 2^64 - 1 bytes or -1 where they know no bound."""

    max_mr_size_bytes: int
    page_size_cap: int
    max_mr: int
    max_qp: int
    max_qp_wr: int
    max_cq: int
    max_cqe: int
    max_pd: int
    max_sge: int


class VerbsPort(NamedTuple):
    active_mtu_bytes: int | Unknown
    gid_table: int
    pkey_table: int


class Verbs(NamedTuple):
    """What libibverbs says of a device. listed: it has a provider for it.

    error: why it cannot be opened, "" if it can. limits and ports are Unknown then.
    """

    listed: bool | Unknown
    error: str | Unknown
    limits: DeviceLimits | Unknown
    ports: Mapping[int, VerbsPort] | Unknown


class Libraries(NamedTuple):
    """version: of rdma-core, 44 for ``libibverbs.so.1.14.44.0``. file: that file.

    providers: names that have both a driver file and a library in the library's folder.
    """

    file: str | Unknown
    version: int | Unknown
    providers: frozenset[str] | Unknown


@or_unknown
def read_node(root: Root, path: str) -> DeviceNode | Unknown:
    """Absent where there is no such file."""
    answer = known(root.call("rdma.device_node", path))
    if not isinstance(answer, dict) or not isinstance(answer.get("mode"), int):
        return Unknown(f"rdma.device_node {path}: not an answer")
    mode = answer["mode"] & 0xFFFF  # type and permissions
    why = f"{answer.get('error')} ({answer.get('errno')})"
    opens = answer.get("open") is True
    return DeviceNode(path, stat.S_ISCHR(mode), opens, "" if opens else why, stat.S_IMODE(mode))


def uverbs_of(root: Root) -> dict[str, str] | Unknown:
    """The uverbs name of each RDMA device: ``{"mlx5_0": "uverbs0"}``."""
    names = root.names(CLASS)
    if isinstance(names, Unknown):
        return {} if names.absent else names
    found = {}
    for name in names:
        if name.startswith("uverbs"):
            device = root.word(f"{CLASS}/{name}/ibdev")
            if isinstance(device, str):
                found[device] = name
            elif not device.absent:
                return device  # whose it is decides whether that device can be reached
    return found


def read_verbs(root: Root, device: str) -> Verbs:
    """Ask libibverbs for its view of ``device``."""
    answer = root.call("rdma.verbs", device)
    if isinstance(answer, Unknown):
        return Verbs(answer, answer, answer, answer)
    if not isinstance(answer, dict) or not isinstance(answer.get("listed"), bool):
        wrong = Unknown(f"rdma.verbs {device}: not an answer")
        return Verbs(wrong, wrong, wrong, wrong)
    if not answer.get("opened"):
        error = str(answer.get("error", "no reason given"))
        if "errno" in answer:
            error += f" ({answer['errno']})"
        closed = Unknown(f"libibverbs cannot open {device}: {error}")
        return Verbs(answer["listed"], error, closed, closed)
    return Verbs(True, "", _limits(answer.get("limits")), _verbs_ports(answer.get("ports")))


def _limits(given: Any) -> DeviceLimits | Unknown:
    names = [name.removesuffix("_bytes") for name in DeviceLimits._fields]
    if not isinstance(given, dict) or not all(isinstance(given.get(name), int) for name in names):
        return Unknown("rdma.verbs: no device limits in the answer")
    return DeviceLimits(*(given[name] for name in names))


def _verbs_ports(given: Any) -> dict[int, VerbsPort] | Unknown:
    if not isinstance(given, dict):
        return Unknown("rdma.verbs: no ports in the answer")
    ports = {}
    for number, port in given.items():
        if isinstance(port, dict) and str(number).isdecimal():
            mtu = port.get("active_mtu_bytes")
            known = mtu if isinstance(mtu, int) else Unknown("libibverbs names no active MTU")
            tables = [port.get(name) for name in ("gid_table", "pkey_table")]
            sizes = [size if isinstance(size, int) else 0 for size in tables]
            ports[int(number)] = VerbsPort(known, *sizes)
    return ports


def read_libraries(root: Root) -> Libraries:
    """libibverbs and its providers in the folders of this root."""
    for folder in LIBRARY_FOLDERS:
        file = root.link(f"{folder}/libibverbs.so.1")
        if isinstance(file, Unknown):
            if file.absent:
                continue
            return Libraries(file, file, file)
        match = re.search(r"\.so\.1\.\d+\.(\d{1,4})\.\d+$", file)
        version: int | Unknown = Unknown(f"{file}: the name has no release of rdma-core")
        if match:
            version = int(match.group(1))
        return Libraries(file, version, _providers(root, folder))
    why = Unknown("libibverbs.so.1 is in none of the usual folders", absent=True)
    return Libraries(why, why, why)


def _providers(root: Root, folder: str) -> frozenset[str] | Unknown:
    configured = root.names(PROVIDER_CONFIGURATION)
    libraries = root.names(f"{folder}/libibverbs")
    for names in (configured, libraries):
        if isinstance(names, Unknown):
            return frozenset() if names.absent else names
    assert isinstance(configured, tuple)
    assert isinstance(libraries, tuple)
    there = {match.group(1) for name in libraries if (match := _LIBRARY.fullmatch(name))}
    drivers = {name.removesuffix(".driver") for name in configured if name.endswith(".driver")}
    return frozenset(drivers & there)


_LIBRARY = re.compile(r"lib(\w+)-rdmav\d+\.so")
