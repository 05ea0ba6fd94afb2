"""NUMA nodes of the host, and the kernel's list notation (``0-3,8``) that names them."""

from __future__ import annotations

from checks.base.root import Root
from checks.base.unknown import Unknown

NODES = "/sys/devices/system/node"
# No machine has more: the kernel's own limits, 1 << CONFIG_NODES_SHIFT (10 at most) and
# CONFIG_NR_CPUS (8192 at most on x86; 64-bit Arm and POWER stay below twice that).
MOST_NODES = 1024
MOST_CPUS = 16384


def numa_nodes(root: Root) -> tuple[int, ...]:
    """The nodes that sysfs shows, ascending; empty where it shows none (no NUMA, no sysfs)."""
    names = root.names(NODES)
    if isinstance(names, Unknown):
        return ()
    return tuple(
        sorted(int(name[4:]) for name in names if name[:4] == "node" and name[4:].isdecimal())
    )


def memory_nodes(root: Root) -> tuple[int, ...]:
    """The nodes with memory, over which the kernel spreads ``vm.nr_hugepages``."""
    content = root.text(f"{NODES}/has_memory")
    if isinstance(content, Unknown):
        return numa_nodes(root)
    try:
        return parse_node_list(content)
    except ValueError:
        return numa_nodes(root)


def parse_node_list(text: str) -> tuple[int, ...]:
    """``"0-1,4"`` as ``(0, 1, 4)``, ascending, each once. Raises ValueError on anything else."""
    return _parse_list(text, MOST_NODES, "NUMA nodes")


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The same of CPUs; an empty list, which a node of memory alone has, is ``()``."""
    return _parse_list(text, MOST_CPUS, "CPUs") if text.strip() else ()


def _parse_list(text: str, most: int, what: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"not a list of {what}: {text.strip()[:80]!r}")
        if len(last or first) > 9 or int(last or first) >= most or int(last or first) < int(first):
            raise ValueError(f"not a range of {what}: {part.strip()[:80]!r}")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))
