"""Everything about the host's RDMA devices, read once. No RDMA at all is a fact."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.framework.device_nodes import PCI_DEVICES, RDMA_DEVICES, device_names, device_numa_node
from checks.framework.docker_config import docker_text, read_docker_config
from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require
from checks.framework.written_numbers import leading_integer
from checks.numa.nodes import parse_cpu_list, read_list
from checks.rdma.device_table import Measured, read_measured
from checks.rdma.devices import Netdev, Port, numbered_word, read_netdevs, read_ports
from checks.rdma.verbs import (
    CLASS,
    NODES,
    PROVIDERS,
    DeviceNode,
    Libraries,
    RdmaCgroup,
    RdmaKernel,
    Verbs,
    read_cgroups,
    read_device_file,
    read_kernel,
    read_libraries,
    read_verbs,
    uverbs_of,
)

# PCI functions of Alibaba's elastic RDMA: the iWARP one, and the RoCE one of newer instances.
ERDMA_VENDOR, ERDMA_DEVICES = "0x1ded", ("0x107f", "0x5007")
ERDMA_MODE = "/sys/module/erdma/parameters/compat_mode"
DEFAULT_PKEY_INDEX = 0


class Nic(NamedTuple):
    """One RDMA device."""

    name: str
    node_type: str | Unknown  # CA, RNIC (iWARP), unspecified
    driver: str | Unknown | None  # of its PCI function in the kernel; None without one (soft-RoCE)
    provider: str | Unknown  # the name of its user-space library
    firmware: str | Unknown
    hardware: str | Unknown
    pci_address: str | Unknown | None
    node: int | Unknown | None  # the NUMA node as Mooncake reads it
    uverbs: str | None  # name of its device file (uverbs0), None if it has none
    uverbs_node: DeviceNode | Unknown
    ports: tuple[Port, ...] | Unknown
    verbs: Verbs
    uverbs_number: str | Unknown | None = None  # ``231:193`` of a node that does not open

    @property
    def driven_by(self) -> str:
        """The kernel driver, or else the provider; "" if neither is known."""
        names = (self.driver, self.provider)
        return next((name for name in names if isinstance(name, str)), "")

    def port(self, number: int) -> Port | Unknown | None:
        """Return the port ``number``; None if the device has no such port."""
        if isinstance(self.ports, Unknown):
            return self.ports
        return next((port for port in self.ports if port.number == number), None)


class Erdma(NamedTuple):
    """Alibaba's elastic RDMA."""

    functions: tuple[tuple[str, str], ...] | Unknown  # PCI address, and its driver or ""
    compat_mode: str | Unknown  # Y, N; absent if the module is not loaded or lacks the parameter


class RdmaFacts(NamedTuple):
    """The host's RDMA devices, and what it takes to use them."""

    nics: tuple[Nic, ...] | Unknown  # by name
    netdevs: Mapping[str, Netdev]
    libraries: Libraries
    kernel: RdmaKernel | Unknown
    cgroups: tuple[RdmaCgroup, ...] | Unknown
    connection_manager: DeviceNode | Unknown
    erdma: Erdma
    cpus: int | Unknown  # online ones, as the C++ library counts them
    topologies: Mapping[str, str | Unknown]  # by path, the launch's files of MC_CUSTOM_TOPO_JSON
    measured: tuple[Measured, ...] = ()  # earlier results of the probe
    docker_runtime: str | Unknown = ""  # Docker's default
    parts: frozenset[str] | Unknown = Unknown("not read")  # of the Mooncake here, by ``software``
    class_exists: bool = True  # the kernel's folder of devices exists
    nodes_alone: tuple[str, ...] = ()  # nodes below /dev/infiniband if it shows no device

    @property
    def present(self) -> tuple[Nic, ...]:
        """The devices; () if they could not be read (then look at ``nics`` first)."""
        return () if isinstance(self.nics, Unknown) else self.nics


def read_rdma(root: Root, needs: LaunchNeeds | None) -> RdmaFacts:
    """Read all facts about RDMA devices. libibverbs and the kernel are asked only if sysfs shows a
    device.

    Args:
        needs: Of the launch, whose variables say which partition keys, GIDs and files to read.
    """
    names = device_names(root)
    environments = [process.environment for process in needs.processes] if needs else []
    pkeys = {*_numbers(environments, "MC_PKEY_INDEX"), DEFAULT_PKEY_INDEX}
    gids = {*_numbers(environments, "MC_GID_INDEX"), *_numbers(environments, "NCCL_IB_GID_INDEX")}
    paths = {env["MC_CUSTOM_TOPO_JSON"] for env in environments if env.get("MC_CUSTOM_TOPO_JSON")}
    listed = () if isinstance(names, Unknown) else names
    any_device = bool(listed)
    no_device = Unknown("no RDMA device, so not read", absent=True)
    kernel = read_kernel(root) if any_device else no_device
    uverbs = uverbs_of(root, listed) if any_device else {}
    present = tuple(_read_nic(root, name, uverbs, kernel, pkeys, gids) for name in listed)
    ports = [p for nic in present if not isinstance(nic.ports, Unknown) for p in nic.ports]
    return RdmaFacts(
        names if isinstance(names, Unknown) else present,
        read_netdevs(root, {name for port in ports for name in port.netdevs if "/" not in name}),
        read_libraries(root),
        kernel,
        read_cgroups(root) if any_device else (),
        read_device_file(root, f"{NODES}/rdma_cm") if any_device else no_device,
        _read_erdma(root),
        _online_cpus(root),
        {path: root.text(path) for path in sorted(paths) if path.startswith("/")},
        read_measured(root, {nic.name: nic.driven_by for nic in present}) if present else (),
        docker_text(read_docker_config(root), "default-runtime"),
        class_exists=any_device or not isinstance(root.names(RDMA_DEVICES), Unknown),
        nodes_alone=tuple(
            name for name in (() if any_device else root.listed(NODES)) if "uverbs" in name
        ),
    )


def _read_nic(
    root: Root,
    name: str,
    uverbs: dict[str, str | Unknown] | Unknown,
    kernel: RdmaKernel | Unknown,
    pkeys: set[int],
    gids: set[int],
) -> Nic:
    """Read one device.

    Args:
        uverbs: Device name -> name of its uverbs node.
        pkeys, gids: Indices to read, see ``read_ports``.
    """
    folder = f"{RDMA_DEVICES}/{name}"
    uverb = uverbs if isinstance(uverbs, Unknown) else uverbs.get(name)
    if uverb is None:
        uverb = Unknown(f"{name} has no entry in /sys/class/infiniband_verbs", absent=True)
    opened = uverb if isinstance(uverb, Unknown) else read_device_file(root, f"{NODES}/{uverb}")
    uverb = None if isinstance(uverb, Unknown) else uverb
    gone = opened.absent if isinstance(opened, Unknown) else not opened.opens
    driver = _last_part(root.link(f"{folder}/device/driver"))
    return Nic(
        name,
        numbered_word(root, f"{folder}/node_type"),
        driver,
        _provider(name, driver, kernel),
        root.word(f"{folder}/fw_ver"),
        root.word(f"{folder}/hca_type"),
        _last_part(root.link(f"{folder}/device")),
        device_numa_node(root, name),
        uverb,
        opened,
        read_ports(root, name, pkeys, gids),
        read_verbs(root, name),
        root.word(f"{CLASS}/{uverb}/dev") if uverb is not None and gone else None,
    )


# Kernel driver of the PCI function -> provider, where the kernel's own number is not to be had.
_PROVIDER_OF_DRIVER = {
    "mlx5_core": "mlx5",
    "mlx4_core": "mlx4",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "hns3": "hns",
    "efa": "efa",
    "erdma": "erdma",
    "ionic": "ionic",
    "mana": "mana",
    "qede": "qedr",
    "cxgb4": "cxgb4",
}


@or_unknown
def _provider(
    name: str, driver: str | Unknown | None, kernel: RdmaKernel | Unknown
) -> str | Unknown:
    """Return the name of a device's user-space library; Unknown if its driver is in no table."""
    number = None if isinstance(kernel, Unknown) else kernel.drivers.get(name)
    if number in PROVIDERS:
        return PROVIDERS[number]
    if isinstance(driver, str) and driver in _PROVIDER_OF_DRIVER:
        return _PROVIDER_OF_DRIVER[driver]
    driver = require(driver)
    return Unknown(f"no known user-space library for the driver {driver or 'of ' + name}")


def _last_part(path: str | Unknown) -> str | Unknown | None:
    """Return the last part of a path; None if the path does not exist."""
    return none_if_absent(path, None) if isinstance(path, Unknown) else path.rpartition("/")[2]


def _read_erdma(root: Root) -> Erdma:
    """Find the PCI functions of eRDMA cards with their drivers, and the driver's compat_mode."""
    names = root.entries(PCI_DEVICES)
    if isinstance(names, Unknown):
        return Erdma(names, root.word(ERDMA_MODE))
    cards = []
    for name in names:
        folder = f"{PCI_DEVICES}/{name}"
        vendor, device = (root.word(f"{folder}/{part}") for part in ("vendor", "device"))
        if vendor == ERDMA_VENDOR and device in ERDMA_DEVICES:
            driver = _last_part(root.link(f"{folder}/driver"))
            cards.append((name, driver if isinstance(driver, str) else ""))
    return Erdma(tuple(cards), root.word(ERDMA_MODE))


@or_unknown
def _online_cpus(root: Root) -> int | Unknown:
    """Count the CPUs of ``0-3,8``: std::thread::hardware_concurrency reads the same file."""
    name = "/sys/devices/system/cpu/online"
    return len(require(read_list(root, name, parse_cpu_list))) or Unknown(f"{name}: lists no CPU")


def _numbers(environments: list[Mapping[str, str]], name: str) -> Iterator[int]:
    for environment in environments:
        number = leading_integer(environment.get(name, ""))
        if number is not None and 0 <= number < 1 << 16:
            yield number
