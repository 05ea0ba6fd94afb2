"""A host that does not exist yet, from a description: memory, GPUs, NICs and NUMA nodes.

Files and answers like those of any other host are made, so nothing else knows of the description.
What is left open is assumed, and every assumption is a sentence for the user. The files and
the models that are known stand in ``described_host.toml`` beside this module.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from checks.framework.archive import TreeRoot
from checks.framework.root import CALLS_FILE
from checks.framework.units import GIB, KIB, MIB, TIB, format_bytes, parse_size
from checks.framework.unknown import Unknown
from checks.host_snapshot.root_names import DESCRIBED, CaptureError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "the host that is described"
# The folder that lists the devices of a topic, their name, and what describes them.
_LISTED = {
    "gpus": ("/sys/bus/pci/devices", "GPUs", "give --gpus, as 8xH800"),
    "rdma": ("/sys/class/infiniband", "NICs", "give --nics, as 8xmlx5"),
}
_MOST_NODES = 64
_CPUS_PER_NODE = 48
# struct page is 64 bytes for each 4 KiB (include/linux/mm_types.h): what the kernel's own tables
# take of the memory before MemTotal counts it.
_PAGE_TABLE_SHARE = 64
# Of MemTotal: the kernel, the system's daemons and the drivers of an idle host.
_IN_USE_PERCENT = 2
_MOST_DEVICES = 64
# The PCI id of a GPU that is known by its memory alone: of no product.
_UNLISTED = "0xffff"
# What every host has, if there be nothing in it: else nothing would be known of what is there.
_FOLDERS = frozenset(
    "/etc/sysctl.d /sys/bus/pci/devices /sys/class/net /sys/fs/cgroup /sys/kernel/iommu_groups "
    "/sys/module".split()
)
_MEMORY_LEAST, _MEMORY_MOST = 4 * GIB, 64 * TIB
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_DRIVER = "570.124.06"
# A character device that may be opened.
_OPENABLE = {"mode": 0o20666, "open": True}

Table = dict[str, Any]


@cache
def _table() -> Table:
    name = os.path.join(os.path.dirname(__file__), "described_host.toml")
    with open(name, "rb") as file:
        return tomllib.load(file)


def known_models(model_type: str) -> Mapping[str, Table]:
    """Return the table of known models of ``gpus`` or ``nics``, by name."""
    models: Mapping[str, Table] = _table()[model_type]
    return models


class Description(NamedTuple):
    """A host in words, as options and files have them; None for what is left out."""

    memory: str | None = None
    gpus: str | None = None
    nics: str | None = None
    numa: str | None = None

    @property
    def root(self) -> str:
        """Return the description as text behind ``--root``."""
        pairs = (f"{key}={text}" for key, text in self._asdict().items() if text is not None)
        return f"{DESCRIBED}{','.join(pairs)}"

    @property
    def memory_bytes(self) -> int:
        """Return the size of all memory of the host.

        Raises:
            CaptureError: If the text is missing, is no size, or is a size that no host has.
        """
        if not self.memory:
            raise CaptureError("a host is described by its memory first: give --memory, as 2tb")
        try:
            size = parse_size(self.memory)
        except ValueError as error:
            raise CaptureError(f"memory of a described host: {error}") from None
        if not _MEMORY_LEAST <= size <= _MEMORY_MOST:
            raise CaptureError(
                f"--memory {format_bytes(size)}: must be {format_bytes(_MEMORY_LEAST)} to "
                f"{format_bytes(_MEMORY_MOST)}, all of the host's"
            )
        return size

    @property
    def numa_nodes(self) -> int:
        """Return the number of NUMA nodes, 1 by default.

        Raises:
            CaptureError: If not 1 to 64.
        """
        numa = self.numa or "1"
        if not re.fullmatch("[0-9]{1,2}", numa) or not 1 <= int(numa) <= _MOST_NODES:
            raise CaptureError(f"--numa {numa}: must be 1 to {_MOST_NODES}")
        return int(numa)


class Devices(NamedTuple):
    """GPUs or NICs of one model, as ``8xH800``.

    Attributes:
        model: The row of ``name`` in the table.
    """

    number: int
    name: str
    model: Table


class DescribedHost(NamedTuple):
    """The described host as values.

    Attributes:
        gpus, nics: None if not described.
        nodes: Number of NUMA nodes.
    """

    memory_bytes: int
    gpus: Devices | None
    nics: Devices | None
    nodes: int

    @property
    def usable(self) -> tuple[int, int]:
        """Return MemTotal and MemAvailable of one NUMA node in bytes, rounded down to whole MiB."""
        each = self.memory_bytes // self.nodes
        total = (each - each // _PAGE_TABLE_SHARE) // MIB * MIB
        return total, total * (100 - _IN_USE_PERCENT) // 100 // MIB * MIB


class DescribedRoot(TreeRoot):
    """Gives the files and answers of a host that does not exist yet, made from its description.

    assumptions: what is assumed of the host, in sentences. not_described: the topics (gpus, rdma)
    that the description leaves out; their folders are Unknown, not empty.
    """

    def __init__(self, description: Description) -> None:
        """Make the files and answers of the described host.

        Raises CaptureError.
        """
        gpus, nics = _devices("gpus", description.gpus), _devices("nics", description.nics)
        host = DescribedHost(description.memory_bytes, gpus, nics, description.numa_nodes)
        self.host = host
        super().__init__(*_described_tree(host), _FOLDERS)
        self.assumptions = _assumptions(host, description.numa is None)
        topics = {"gpus": gpus, "rdma": nics}
        self.not_described = frozenset(name for name, each in topics.items() if each is None)
        # The memory of one GPU as its driver tells it.
        self.gpu_bytes = None if gpus is None else int(gpus.model["memory_mib"]) * MIB

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        for topic in self.not_described:
            folder, what, advice = _LISTED[topic]
            if name.startswith(folder):
                return Unknown(f"{what} are not described", advice=advice)
        return super().names(name)

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        if name == "network.bind":
            return {"free": True}
        if name.partition(".")[0] in ("services", "storage", "software"):
            return Unknown(f"{name}: the host is described, and not there to be asked")
        return super().call(name, *arguments)


def description_of(path: str) -> Description:
    """Read a description: ``described:memory=2tb,gpus=8xH800,...``, or the path of a TOML file with
    the same keys.

    Raises CaptureError.
    """
    if path.startswith(DESCRIBED):
        fields = path.removeprefix(DESCRIBED).split(",")
        values: Table = {key: text for key, _, text in (word.partition("=") for word in fields)}
    else:
        try:
            with open(path, "rb") as file:
                values = tomllib.load(file)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise CaptureError(f"--root {path}: {why}") from None
    keys = Description._fields
    if strange := [key for key in values if key not in keys]:
        raise CaptureError(f"--root {path}: {strange[0]}: it describes a host by {', '.join(keys)}")
    return Description(**{key: str(value).strip() for key, value in values.items()})


def _devices(model_type: str, text: str | None) -> Devices | None:
    """Read ``8xH800``: the number and the model of GPUs or NICs; None if ``text`` is None.

    Args:
        model_type: ``gpus`` or ``nics``.

    Raises:
        CaptureError: If text, number or model is not accepted.
    """
    if text is None:
        return None
    option, known = f"--{model_type}", known_models(model_type)
    match = re.fullmatch(r"(\d{1,3})\s*[x*]\s*(\S.*)", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise CaptureError(f"{option} {text!r}: write how many of which, as 8x{next(iter(known))}")
    count, wanted = int(match[1]), match[2]
    name = {_comparable(name): name for name in known}.get(_comparable(wanted))
    model = known[name] if name else _gpu_by_memory(wanted) if model_type == "gpus" else None
    if model is None:
        names = ", ".join(known)
        more = "; of others give the memory, as 8x288gb" if model_type == "gpus" else ""
        raise CaptureError(f"{option} {text}: {wanted} is not known here: known are {names}{more}")
    if not 1 <= count <= _MOST_DEVICES:
        raise CaptureError(f"{option} {text}: must be 1 to {_MOST_DEVICES}")
    return Devices(count, name or wanted, model)


def _comparable(name: str) -> str:
    """Return a name to compare by: ``RTX PRO 6000`` and ``rtx-pro-6000`` are one."""
    return re.sub(r"[\s_-]", "", name).lower()


def _gpu_by_memory(text: str) -> Table | None:
    """Return a GPU that is known only by its memory, ``288gb``, as a row of the table.

    Returns:
        None if ``text`` is no size or less than 1 GiB.
    """
    try:
        size = parse_size(text)
    except ValueError:
        return None
    row = {"product": "GPU", "device": _UNLISTED, "source": "as given; gb is 2^30 bytes"}
    return {**row, "memory_mib": size // MIB} if size >= GIB else None


def usable_bytes(memory_bytes: int, nodes: int) -> int:
    """Return the memory that is available of ``memory_bytes``."""
    return DescribedHost(memory_bytes, None, None, nodes).usable[1] * nodes


def gpu_kinds(gpus: str | None, count: int) -> Iterator[tuple[tuple[str, ...], Devices]]:
    """Yield kinds of GPUs to try, as (names of models, devices).

    If ``gpus`` describes GPUs (``8xH800``), only that kind is yielded. Else ``count`` GPUs of each
    size of memory that a known model has, the smallest first. Models with up to 8 % more memory
    than the smallest are one kind, with all their names. Raises CaptureError.
    """
    devices = _devices("gpus", gpus)
    if devices is not None:
        yield (devices.name,), devices
        return
    models = known_models("gpus")
    rest = sorted(models, key=lambda name: models[name]["memory_mib"])
    while rest:
        least = models[rest[0]]
        names = [name for name in rest if models[name]["memory_mib"] <= least["memory_mib"] * 1.08]
        yield tuple(names), Devices(count, rest[0], least)
        rest = rest[len(names) :]


def _described_tree(
    described: DescribedHost,
) -> tuple[dict[str, bytes], dict[str, str], dict[str, int]]:
    """Return the described host's files, links and modes, by absolute name; no mode is set."""
    tree = Tree({}, {}, dict(_table()["calls"]["host"]))
    _add_host(tree, described)
    if described.gpus is not None:
        _add_gpus(tree, described.gpus, described.nodes)
    if described.nics is not None:
        _add_nics(tree, described.nics, described.nodes)
    tree.files[f"/{CALLS_FILE}"] = json.dumps(tree.calls)
    return {name: f"{text}\n".encode() for name, text in tree.files.items()}, tree.links, {}


def _assumptions(described: DescribedHost, assumes_one_node: bool) -> tuple[str, ...]:
    """Return sentences on the values that the description does not give, and on the GPUs and NICs.

    Args:
        assumes_one_node: The description does not tell the number of NUMA nodes.
    """
    total, available = (size * described.nodes for size in described.usable)
    assumed = [
        f"of {format_bytes(described.memory_bytes)} the kernel's page tables take a "
        f"{_PAGE_TABLE_SHARE}th (64 bytes for each 4 KiB): MemTotal {format_bytes(total)}",
        f"the host is idle: {_IN_USE_PERCENT} % of that is in use, {format_bytes(available)} is "
        "available, evenly over the nodes and in one piece",
        "no huge page is reserved, and no cgroup limits anything",
        "memlock is unlimited, and the launch runs as root on the host itself",
        f"/dev/shm is half of the memory; {_CPUS_PER_NODE} CPUs on each NUMA node; x86-64 with "
        "pages of 4 KiB, 2 MiB and 1 GiB",
    ]
    if assumes_one_node:
        assumed.append("one NUMA node: --numa says otherwise")
    if described.gpus is not None:
        count, _, gpu = described.gpus
        product = "GPUs" if gpu["product"] == "GPU" else gpu["product"]
        assumed.append(
            f"{count} {product} of {format_bytes(gpu['memory_mib'] * MIB)} each "
            f"({gpu.get('source', 'as the driver tells it')}), evenly over the nodes"
        )
    else:
        assumed.append(
            "GPUs are not described (--gpus): the sizes are those of ranks bound to no NUMA node"
        )
    if described.nics is not None:
        count, _, nic = described.nics
        assumed.append(f"{count} NICs, {nic['product']}, with limits as seen: {nic['source']}")
    else:
        assumed.append(
            "NICs are not described (--nics): the sizes are those of memory that no NIC bounds"
        )
    return tuple(assumed)


class Tree(NamedTuple):
    """A host as files, links and answers of calls, to be filled."""

    files: dict[str, str]
    links: dict[str, str]
    calls: dict[str, Any]

    def add(self, section: str, **values: Any) -> None:
        """Add the files and links of a table section, with ``values`` for its ``{names}``."""
        for table, entries in (
            (_table()[section], self.files),
            (_table()["links"].get(section, {}), self.links),
        ):
            for name, text in table.items():
                entries[name.format(**values)] = text.format(**values)


def _listed(count: int) -> str:
    return f"0-{count - 1}" if count > 1 else "0"


def _add_host(tree: Tree, described: DescribedHost) -> None:
    """Add the files and answers of the host itself and of its NUMA nodes."""
    nodes, (total, free) = described.nodes, described.usable
    # Idle: all that is free lies in blocks of the largest order, 4 MiB.
    counts = " ".join(["0"] * 10 + [str(free // (4 * MIB))])
    tree.add(
        "host",
        cpus=_listed(nodes * _CPUS_PER_NODE),
        nodes=_listed(nodes),
        total_kib=total * nodes // KIB,
        free_kib=free * nodes // KIB,
        half_kib=total * nodes // 2 // KIB,
        threads=total * nodes // (128 * KIB),  # an 8th of the memory in stacks of 16 KiB (fork.c)
        used_kib=(total - free) * nodes // KIB,
        blocks="\n".join(f"Node {number}, zone   Normal {counts}" for number in range(nodes)),
    )
    shm = total * nodes // 2
    tree.calls["memory.space /dev/shm"] = {"size_bytes": shm, "available_bytes": shm}
    tree.calls["network.addresses"] = [{"interface": "lo", "address": "127.0.0.1", "up": True}]
    folders = ["/sys/kernel/mm"]
    for number in range(nodes):
        folders.append(f"/sys/devices/system/node/node{number}")
        tree.add(
            "node",
            node=number,
            first_cpu=number * _CPUS_PER_NODE,
            last_cpu=(number + 1) * _CPUS_PER_NODE - 1,
            total_kib=total // KIB,
            free_kib=free // KIB,
        )
    for size in (2 * MIB, GIB):
        for folder in folders:
            tree.add("pool", folder=f"{folder}/hugepages/hugepages-{size // KIB}kB")


def _add_gpus(tree: Tree, gpus: Devices, nodes: int) -> None:
    """Add GPUs of one model, evenly over ``nodes`` NUMA nodes.

    Only NVIDIA's have answers of NVML and CUDA.
    """
    count, _, model = gpus
    nvidia = "vendor" not in model
    devices = []
    for index in range(count):
        numa_node, address = index * nodes // count, f"0000:{0x10 + index:02x}:00.0"
        class_ = "0x030200" if nvidia else "0x120000"  # of AMD: processing accelerator
        driver, vendor = ("nvidia", "0x10de") if nvidia else ("amdgpu", model["vendor"])
        _add_function(tree, address, numa_node, driver, vendor, model["device"], class_)
        if nvidia:
            tree.add("gpu", index=index, driver=_DRIVER)
        devices.append(
            {
                "name": model["product"],
                "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
                "address": f"0000{address.upper()}",
                "memory_bytes": model["memory_mib"] * MIB,
                "numa_node": numa_node,
                **_table()["calls"]["gpu"],
            }
        )
    _load(tree, *(("nvidia_peermem", "nvidia") if nvidia else ("amdgpu",)))
    if nvidia:
        tree.calls["gpus.visible_devices"] = None
        tree.calls["gpus.nvml"] = {"driver": _DRIVER, "cuda": 12080, "devices": devices}
        tree.calls["gpus.cuda_attributes"] = [{"rdma": 1, "dma_buf": 1} for _ in devices]


def _add_nics(tree: Tree, nics: Devices, nodes: int) -> None:
    """Add NICs of one model, with their interfaces, evenly over ``nodes`` NUMA nodes."""
    count, model_name, model = nics
    kernel: Table = {}
    interfaces: Table = {"lo": [["127.0.0.1", 8]]}
    bound = model["max_mr_size_gib"] * GIB if "max_mr_size_gib" in model else (1 << 64) - 1
    limits = {"max_mr_size": bound, **_table()["calls"]["limits"]}
    resources = {"qp": 1, "cq": 1, "mr": 0, "pd": 1, "ctx": 0}
    port = {"active_mtu_bytes": 4096, "gid_table": 255}
    for index in range(count):
        address, name = f"0000:{0x60 + index:02x}:00.0", f"{model_name}_{index}"
        interface, ip = f"eth{index + 1}", f"10.0.0.{index + 1}"
        ids = model["driver"], model["vendor"], model["device"], "0x020000"
        folder = _add_function(tree, address, index * nodes // count, *ids)
        tree.add(
            "nic",
            folder=folder,
            own=f"{folder}/infiniband/{name}",
            verbs=f"{folder}/infiniband_verbs/uverbs{index}",
            net=f"{folder}/net/{interface}",
            name=name,
            interface=interface,
            provider=model["provider"],
            index=index,
            number=index + 1,
            minor=192 + index,
            libraries=_LIBRARIES,
            link_layer=model.get("link_layer", "Ethernet"),
            gid_type=model.get("gid_type", "RoCE v2"),
        )
        kernel[name] = {"resources": resources, "driver_id": model["driver_id"]}
        interfaces[interface] = [[ip, 24]]
        tree.calls["network.addresses"].append({"interface": interface, "address": ip, "up": True})
        tree.calls[f"rdma.device_node /dev/infiniband/uverbs{index}"] = _OPENABLE
        answer = {"listed": True, "opened": True, "limits": limits, "ports": {"1": port}}
        tree.calls[f"rdma.verbs {name}"] = answer
    _load(tree, "ib_uverbs", "ib_core")
    tree.calls["rdma.kernel"] = {"netns_mode": "shared", "copy_on_fork": True, "devices": kernel}
    tree.calls["rdma.interfaces"] = interfaces
    tree.calls["rdma.device_node /dev/infiniband/rdma_cm"] = _OPENABLE


def _load(tree: Tree, *modules: str) -> None:
    for module in modules:
        tree.files["/proc/modules"] += f"{module} 16384 0 - Live 0x0\n"


def _add_function(
    tree: Tree, address: str, numa_node: int, driver: str, vendor: str, device: str, code: str
) -> str:
    """Add a PCI function on the root bus of its address; return its folder.

    Args:
        code: Its PCI class.
    """
    bus = address[5:7]
    folder = f"/sys/devices/pci0000:{bus}/{address}"
    ids = {"driver": driver, "vendor": vendor, "device": device, "class": code}
    tree.add("function", folder=folder, address=address, bus=bus, node=numa_node, **ids)
    return folder
