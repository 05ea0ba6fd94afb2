"""NUMA nodes of the host, the nodes and CPUs this process may use, and the notation ``0-3,8``."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from checks.framework.cgroup_mounts import CGROUP_MOUNT, MEMBERSHIPS
from checks.framework.device_nodes import GPUS
from checks.framework.root import Root
from checks.framework.units import KIB
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import kernel_count

NODES = "/sys/devices/system/node"
NUMA_STATUS = f"{GPUS}/*/numa_status"
# No machine has more: the kernel's own limits, 1 << CONFIG_NODES_SHIFT (10 at most) and
# CONFIG_NR_CPUS (8192 at most on x86; 64-bit Arm and POWER stay below twice that).
MOST_NODES = 1024
MOST_CPUS = 16384
# Old kernels end some lists with the NUL of their buffer.
_AROUND = " \t\n\0"


def numa_nodes(root: Root) -> tuple[int, ...]:
    """Return the NUMA nodes that sysfs shows, ascending; () without NUMA."""
    names = (name for name in root.listed(NODES) if name[:4] == "node" and name[4:].isdecimal())
    return tuple(sorted(int(name[4:]) for name in names))


def memory_nodes(root: Root) -> tuple[int, ...]:
    """Return the nodes with host memory, over which the kernel spreads ``vm.nr_hugepages``."""
    nodes = read_list(root, f"{NODES}/has_memory", parse_node_list)
    gpus = gpu_memory_nodes(root)
    listed = numa_nodes(root) if isinstance(nodes, Unknown) else nodes
    return tuple(number for number in listed if number not in gpus)


def gpu_memory_nodes(root: Root) -> frozenset[int]:
    """Return the nodes that are a GPU's own memory (GH200), as NVIDIA's nv-procfs.c shows them."""
    nodes: set[int] = set()
    for name in root.listed(GPUS):
        for line in root.lines(NUMA_STATUS.replace("*", name)):
            key, _, number = (part.strip() for part in line.partition(":"))
            if key == "Node" and number.isdecimal() and int(number) < MOST_NODES:
                nodes.add(int(number))
    return frozenset(nodes)


def node_list(nodes: Iterable[int]) -> str:
    """Return ``node 1`` or ``nodes 0, 1``."""
    numbers = sorted(nodes)
    return f"node{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"


def parse_node_list(text: str) -> tuple[int, ...]:
    """Parse ``"0-1,4"`` to ``(0, 1, 4)``.

    Raises:
        ValueError: On anything else.
    """
    return _parse_list(text, MOST_NODES, "NUMA nodes")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Parse a list of CPUs as ``parse_node_list`` does; an empty one is ``()``."""
    return _parse_list(text, MOST_CPUS, "CPUs") if text.strip(_AROUND) else ()


def parse_cpu_map(text: str) -> tuple[int, ...]:
    """Parse ``"00000001,0000000f"``, 32 CPUs a word, to (0, 1, 2, 3, 32).

    Raises ValueError.
    """
    masks = text.strip(_AROUND).split(",")
    if not all(re.fullmatch("[0-9a-f]{1,8}", word) for word in masks):
        raise ValueError(f"not a map of CPUs: {text.strip()[:80]!r}")
    if len(masks) * 32 > MOST_CPUS:
        raise ValueError(f"not a map of up to {MOST_CPUS} CPUs")
    mask = int("".join(word.zfill(8) for word in masks), 16)
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def _parse_list(text: str, limit: int, what: str) -> tuple[int, ...]:
    """Parse a kernel list of numbers below ``limit``.

    Raises ValueError, which names ``what``.
    """
    numbers: set[int] = set()
    for part in map(str.strip, text.strip(_AROUND).split(",")):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal():
            raise ValueError(f"not a list of {what}: {text.strip()[:80]!r}")
        if len(last) > 9 or not int(first) <= int(last) < limit:
            raise ValueError(f"not a range of {what}: {part[:80]!r}")
        numbers.update(range(int(first), int(last) + 1))
    return tuple(sorted(numbers))


STATUS = "/proc/self/status"
CPUSET = "/proc/self/cpuset"
MOUNTED = "/proc/mounts"
# The files of a cpuset: version 2, version 1, version 1 of before 3.17, and without a prefix.
_FILES = (
    ("cpuset.cpus.effective", "cpuset.mems.effective"),
    ("cpuset.effective_cpus", "cpuset.effective_mems"),
    ("cpuset.cpus", "cpuset.mems"),
    ("cpus", "mems"),
)
Parser = Callable[[str], tuple[int, ...]]
List = tuple[int, ...] | Unknown


class Allowed(NamedTuple):
    """What this process may use, and the innermost cpuset with a list."""

    cpus: List  # of this process; else those of its cpuset
    mems: List
    cpuset_cpus: List
    cpuset_mems: List
    cpuset_source: str  # the folder of that cpuset, "" without one


def read_allowed(root: Root) -> Allowed:
    """Read which CPUs and NUMA nodes this process may use; those of its cpuset, if a capture has no
    /proc/self/status.

    Never raises; what a file did not say is Unknown.
    """
    status = root.text(STATUS)
    source, cpuset_cpus, cpuset_mems = _cpuset(root)
    cpus = _allowed(status, "Cpus_allowed_list", parse_cpu_list)
    mems = _allowed(status, "Mems_allowed_list", parse_node_list)
    if isinstance(root.mode(STATUS), Unknown) and source:
        cpus, mems = cpuset_cpus, cpuset_mems
    return Allowed(cpus, mems, cpuset_cpus, cpuset_mems, source)


@or_unknown
def read_list(root: Root, name: str, parse: Parser) -> List:
    """Read a file's list, Unknown if it is none."""
    return _parsed(require(root.text(name)), name, parse)


def _parsed(content: str, name: str, parse: Parser) -> List:
    try:
        return parse(content)
    except ValueError as error:
        return Unknown(f"{name}: {error}")


@or_unknown
def _allowed(status: str | Unknown, key: str, parse: Parser) -> List:
    for line in require(status).splitlines():
        label, _, value = line.partition(":")
        if label == key:
            return _parsed(value, f"{STATUS} {key}", parse)
    return Unknown(f"{STATUS}: has no {key} line", absent=True)


def _cpuset(root: Root) -> tuple[str, List, List]:
    """Return ``(folder, CPUs, NUMA nodes)`` of the innermost cpuset that has lists; folder "" and
    Unknown lists without one.
    """
    for top, path in (*_cpusets_at_usual_mounts(root), *_mounted_cpusets(root)):
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue
        for depth in range(len(parts), -1, -1):
            folder = "/".join((top, *parts[:depth]))
            for cpus_file, mems_file in _FILES:
                cpus = read_list(root, f"{folder}/{cpus_file}", parse_cpu_list)
                if isinstance(cpus, Unknown) and cpus.absent:
                    continue
                return folder, cpus, read_list(root, f"{folder}/{mems_file}", parse_node_list)
    memberships = root.text(MEMBERSHIPS)
    missing = Unknown("no cpuset of this process is mounted here", absent=True)
    missing = memberships if isinstance(memberships, Unknown) else missing
    return "", missing, missing


def _cpusets_at_usual_mounts(root: Root) -> Iterator[tuple[str, str]]:
    """Yield ``(usual mount point, path below it)`` of this process's cpuset."""
    for line in root.lines(MEMBERSHIPS):
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            yield CGROUP_MOUNT, path
        elif "cpuset" in controllers.split(","):
            yield f"{CGROUP_MOUNT}/cpuset", path


def _mounted_cpusets(root: Root) -> Iterator[tuple[str, str]]:
    """Yield ``(mount point, path below it)`` for each file system in /proc/mounts with cpusets.

    The path is that of this process's cpuset; see cpuset(7).
    """
    path = root.word(CPUSET)
    if isinstance(path, Unknown):
        return
    for fields in map(str.split, root.lines(MOUNTED)):
        if len(fields) > 3 and (
            fields[2] in ("cpuset", "cgroup2")
            or (fields[2] == "cgroup" and "cpuset" in fields[3].split(","))
        ):
            yield fields[1], path


# Row of the host's table -> the row of a GPU's node that is in it.
_OF_GPUS = {"MemTotal": "MemTotal", "MemFree": "MemFree", "MemAvailable": "MemFree"}


class Meminfo(NamedTuple):
    """One meminfo table: sizes in bytes, the HugePages_* rows as page counts."""

    source: str
    values: Mapping[str, int]

    def value(self, key: str) -> int | Unknown:
        if key in self.values:
            return self.values[key]
        return Unknown(f"{self.source}: has no {key} line", absent=True)


@or_unknown
def read_meminfo(root: Root) -> Meminfo | Unknown:
    """Read the host's /proc/meminfo, less the memory of GPUs that are NUMA nodes."""
    table = require(read_whole_meminfo(root))
    values, gpus = dict(table.values), gpu_memory_nodes(root)
    for numa_node in gpus:
        gpu = require(_read_table(root, f"{NODES}/node{numa_node}/meminfo"))
        for row in filter(values.__contains__, _OF_GPUS):
            values[row] = max(0, values[row] - require(gpu.value(_OF_GPUS[row])))
    less = f", less the GPUs' memory ({node_list(gpus)})" if gpus else ""
    return Meminfo(table.source + less, values)


def read_whole_meminfo(root: Root) -> Meminfo | Unknown:
    """Read the table as programs do: the memory of a GPU that is a NUMA node counts in it."""
    return _read_table(root, "/proc/meminfo")


def read_node_meminfo(root: Root) -> Mapping[int, Meminfo | Unknown]:
    """Read each NUMA node's meminfo table, by node; empty if the kernel shows no nodes."""
    paths = {number: f"{NODES}/node{number}/meminfo" for number in numa_nodes(root)}
    return {number: _read_table(root, path) for number, path in paths.items()}


def read_process_sizes(root: Root, pid: int) -> Mapping[str, int]:
    """Read the sizes in /proc/PID/status (``VmPin``), in bytes; empty if the process is gone."""
    table = _read_table(root, f"/proc/{pid}/status")
    return {} if isinstance(table, Unknown) else table.values


@or_unknown
def _read_table(root: Root, name: str) -> Meminfo | Unknown:
    """Read a file of the form of /proc/meminfo; sizes in bytes, rows without a unit as counts."""
    content = require(root.text(name))
    values = {}
    for line in content.splitlines():
        label, colon, amount = line.partition(":")
        fields = amount.split()
        count = kernel_count(fields[0]) if colon and fields else None
        names = label.split()  # a node's table starts each label with "Node N "
        if count is not None and names:
            values[names[-1]] = count * (KIB if fields[1:] == ["kB"] else 1)
    if not values:
        return Unknown(f"{name}: no line reads as a memory count")
    return Meminfo(name, values)


def read_node_free(root: Root) -> dict[int, int]:
    """Return the free bytes of each NUMA node whose kernel says them."""
    tables = read_node_meminfo(root).items()
    free = {at: x if isinstance(x, Unknown) else x.value("MemFree") for at, x in tables}
    return {numa_node: size for numa_node, size in free.items() if not isinstance(size, Unknown)}
