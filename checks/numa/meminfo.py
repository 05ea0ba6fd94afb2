"""Memory as the kernel counts it: of the host, of each NUMA node, of a process."""

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.root import Root
from checks.base.units import KIB
from checks.base.unknown import Unknown, known, or_unknown
from checks.base.written_numbers import kernel_count
from checks.numa.nodes import NODES, gpu_memory_nodes, numa_nodes

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
    """Read the host's table, less the memory of GPUs; keys as the kernel spells them."""
    table = known(read_whole_meminfo(root))
    values = dict(table.values)
    for node in gpu_memory_nodes(root):
        gpu = _read(root, f"{NODES}/node{node}/meminfo")
        for row, own in _OF_GPUS.items():
            if row in values:
                values[row] = max(0, values[row] - known(known(gpu).value(own)))
    return table._replace(values=values)


def read_whole_meminfo(root: Root) -> Meminfo | Unknown:
    """Read the table as programs do: the memory of a GPU that is a NUMA node counts in it."""
    return _read(root, "/proc/meminfo")


def read_node_meminfo(root: Root) -> Mapping[int, Meminfo | Unknown]:
    """Read each NUMA node's table; empty where the kernel shows no nodes."""
    return {node: _read(root, f"{NODES}/node{node}/meminfo") for node in numa_nodes(root)}


def read_process_sizes(root: Root, pid: int) -> Mapping[str, int]:
    """Read the sizes in /proc/PID/status (``VmPin``), in bytes; empty where the process is gone."""
    table = _read(root, f"/proc/{pid}/status")
    return {} if isinstance(table, Unknown) else table.values


@or_unknown
def _read(root: Root, name: str) -> Meminfo | Unknown:
    content = known(root.text(name))
    values: dict[str, int] = {}
    for line in content.splitlines():
        label, colon, amount = line.partition(":")
        words = amount.split()
        count = kernel_count(words[0]) if colon and words else None
        names = label.split()  # a node's table starts each label with "Node N "
        if count is None or not names:
            continue
        values[names[-1]] = count * (KIB if words[1:] == ["kB"] else 1)
    if not values:
        return Unknown(f"{name}: no line reads as a memory count")
    return Meminfo(name, values)


def read_node_free(root: Root) -> dict[int, int]:
    """Return the free memory of each node whose kernel says it."""
    free: dict[int, int] = {}
    for node, table in read_node_meminfo(root).items():
        value = table if isinstance(table, Unknown) else table.value("MemFree")
        if not isinstance(value, Unknown):
            free[node] = value
    return free
