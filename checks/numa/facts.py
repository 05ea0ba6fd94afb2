"""NUMA facts: each node's CPUs and memory, and which this process may use."""

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.needs import LaunchNeeds
from checks.framework.patterns import MOST_ERRNO, answered, count_of
from checks.framework.root import Root, in_child
from checks.framework.unknown import Unknown, or_unknown, require
from checks.numa.nodes import (
    NODES,
    Meminfo,
    memory_nodes,
    numa_nodes,
    parse_cpu_list,
    parse_cpu_map,
    read_allowed,
    read_list,
    read_node_meminfo,
)

# System call numbers of set_mempolicy, get_mempolicy and mbind, by machine (asm/unistd.h).
SYSTEM_CALLS = {"x86_64": (238, 239, 237), "aarch64": (237, 236, 235)}
MPOL_PREFERRED = 1  # linux/mempolicy.h; with an empty node mask it asks for local memory
# The child makes three system calls; one that hangs is no answer.
LIMIT_SECONDS = 5.0


def memory_policy() -> dict[str, int]:
    """Try get_mempolicy, set_mempolicy and mbind in a child; return each errno, 0 if permitted.

    Raises:
        OSError: On a machine whose system calls are not known here.
    """
    import ctypes
    import mmap  # not in the child: another thread may hold the lock of its import for ever
    import os

    machine = os.uname().machine
    if machine not in SYSTEM_CALLS:
        raise OSError(f"the system call numbers of {machine} are not known here")
    set_mempolicy, get_mempolicy, mbind = SYSTEM_CALLS[machine]
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    library.mmap.restype = ctypes.c_void_p

    def ask(number: int, *arguments: int | None) -> int:
        ctypes.set_errno(0)
        wide = [None if value is None else ctypes.c_ulong(value) for value in arguments]
        return ctypes.get_errno() if library.syscall(ctypes.c_long(number), *wide) == -1 else 0

    def attempt() -> dict[str, int]:
        """Make the three calls; return the errno of each."""
        page = mmap.mmap(-1, mmap.PAGESIZE)  # by this name it stays mapped
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return {
            "get_mempolicy": ask(get_mempolicy, None, None, 0, None, 0),
            "set_mempolicy": ask(set_mempolicy, MPOL_PREFERRED, None, 0),
            "mbind": ask(mbind, address, mmap.PAGESIZE, MPOL_PREFERRED, None, 0, 0),
        }

    return dict(in_child(attempt, LIMIT_SECONDS))


class NumaNode(NamedTuple):
    """One NUMA node; ``node`` is its number."""

    node: int
    cpus: tuple[int, ...] | Unknown  # () for a node of memory alone
    total_bytes: int | Unknown
    free_bytes: int | Unknown
    cache_bytes: int | Unknown  # page cache and slab that the kernel gives back before it kills

    @property
    @or_unknown
    def available_bytes(self) -> int | Unknown:
        """The most memory that a process bound to this node can get, all page cache dropped."""
        return require(self.free_bytes) + require(self.cache_bytes)


class MemoryPolicy(NamedTuple):
    """The errno of each call as this process makes it; 0 if it is permitted."""

    get_mempolicy: int
    set_mempolicy: int
    mbind: int


class NumaFacts(NamedTuple):
    """NUMA nodes of a host, and what this process may use."""

    nodes: tuple[NumaNode, ...]  # those with a folder, ascending; () without NUMA
    memory_nodes: tuple[int, ...]
    cpus_allowed: tuple[int, ...] | Unknown  # of this process
    mems_allowed: tuple[int, ...] | Unknown
    cpuset_cpus: tuple[int, ...] | Unknown  # of the innermost cpuset that has a list
    cpuset_mems: tuple[int, ...] | Unknown
    cpuset_source: str  # the folder of that cpuset, "" without one
    policy: MemoryPolicy | Unknown
    balancing: int | Unknown  # kernel.numa_balancing (0 off, 1 normal, 2 memory tiering)

    def node(self, number: int) -> NumaNode | None:
        """Return the node of that number, None if the host has none."""
        return next((row for row in self.nodes if row.node == number), None)


@or_unknown
def numa_topic(root: Root, needs: LaunchNeeds | None) -> NumaFacts | Unknown:
    """Read the facts of NUMA; Unknown if the folder of NUMA nodes cannot be listed."""
    require(root.entries(NODES))
    return read_numa(root, needs)


def read_numa(root: Root, needs: LaunchNeeds | None) -> NumaFacts:
    """Read the facts of NUMA.

    Never raises; what a file did not say is Unknown.
    """
    allowed = read_allowed(root)
    tables = read_node_meminfo(root)
    return NumaFacts(
        tuple(_node(root, number, tables) for number in numa_nodes(root)),
        memory_nodes(root),
        *allowed,
        _policy(root),
        root.integer("/proc/sys/kernel/numa_balancing"),
    )


def _node(root: Root, number: int, tables: Mapping[int, Meminfo | Unknown]) -> NumaNode:
    """Read one NUMA node."""
    folder = f"{NODES}/node{number}"
    table = tables.get(number, Unknown(f"{folder}/meminfo: not read", absent=True))
    return NumaNode(
        number,
        _cpus(root, folder),
        _sum(table, "MemTotal"),
        _sum(table, "MemFree"),
        _sum(table, "Active(file)", "Inactive(file)", "SReclaimable"),
    )


def _cpus(root: Root, folder: str) -> tuple[int, ...] | Unknown:
    """Read a NUMA node's CPUs; old kernels, and some recordings, have the map alone."""
    cpus = read_list(root, f"{folder}/cpulist", parse_cpu_list)
    if isinstance(cpus, Unknown) and cpus.absent:
        return read_list(root, f"{folder}/cpumap", parse_cpu_map)
    return cpus


@or_unknown
def _sum(table: Meminfo | Unknown, *keys: str) -> int | Unknown:
    """Add up rows of a NUMA node's meminfo, in bytes."""
    return sum(require(require(table).value(key)) for key in keys)


def _policy(root: Root) -> MemoryPolicy | Unknown:
    """Read which calls of memory policy this process may make."""
    return answered(
        root.call("numa.memory_policy"),
        lambda codes: MemoryPolicy(
            *(count_of(codes[name], MOST_ERRNO) for name in MemoryPolicy._fields)
        ),
        "numa.memory_policy: not a record of errnos",
    )
