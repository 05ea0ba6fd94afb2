"""Which processes run, and what each has: memory by page size and NUMA node, limits, open files,
registrations, and the traffic of its ports.

Read from /proc, /sys and netlink alone: no process is stopped, attached to or signalled, and
nothing is written. A process that ends meanwhile is left out. Source: proc(5), numa(7).
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import kernel_count
from checks.limits.facts import INITIAL_USER_NAMESPACE, IPC_LOCK_BIT, status_rows
from checks.limits.runtimes import Limit, limit_of_file

_DEVICES = regex(r"/dev/infiniband/(uverbs\d+)")
# Folders of Python packages, by what the programs of a launch map of them.
_PACKAGES = regex(r"\s(/\S*)/(?:mooncake|sgl_kernel|torch)/")
_REPLACED = regex(r"\s(/\S*/(?:mooncake|sgl_kernel|torch)/\S+) \(deleted\)$", re.MULTILINE)


def is_of_package(line: str) -> bool:
    """Tell whether a line of maps says from which packages a process runs."""
    return _PACKAGES.search(line) is not None


class RunningProcess(NamedTuple):
    """One process and its parent; ``words`` is () for a kernel thread and an ended process."""

    pid: int
    parent: int
    words: tuple[str, ...]


class HugeMapping(NamedTuple):
    """One mapping on huge pages.

    Attributes:
        file: Device and inode, by which two processes that share it are recognized.
        pages: Of the whole mapping, which the kernel has reserved.
        node_pages: Those that were touched, by NUMA node.
    """

    file: str
    page_bytes: int
    pages: int
    node_pages: Mapping[int, int]


class HeldMemory(NamedTuple):
    """The memory that one process holds.

    Attributes:
        regular_bytes: On pages of the usual size, without files' caches.
        locked_bytes: Locked with mlock.
        pinned_bytes: Pinned by drivers, for RDMA registration.
    """

    huge: tuple[HugeMapping, ...]
    regular_bytes: int
    locked_bytes: int
    pinned_bytes: int

    @property
    def charged_bytes(self) -> int:
        """Return the larger of locked and pinned bytes: the kernel holds each against the limit."""
        return max(self.locked_bytes, self.pinned_bytes)


class OpenFiles(NamedTuple):
    """How many files a process has open, and the RDMA devices among them, as ``uverbs0``."""

    number: int
    verbs_devices: tuple[str, ...]


def read_processes(root: Root) -> tuple[RunningProcess, ...] | Unknown:
    """Return the processes that run, in the order of their pids; one that ends meanwhile is left
    out.

    Returns:
        Unknown if /proc cannot be listed.
    """
    names = root.names("/proc")
    if isinstance(names, Unknown):
        return names
    processes = []
    for pid in sorted(int(name) for name in names if name.isdecimal()):
        stat = root.text(f"/proc/{pid}/stat")
        cmdline = root.text(f"/proc/{pid}/cmdline")
        if isinstance(stat, Unknown) or isinstance(cmdline, Unknown):
            continue  # it has ended
        # The name in parentheses may hold spaces and parentheses.
        fields = stat.rpartition(")")[2].split()
        parent = kernel_count(fields[1]) if fields[1:] else None
        split = cmdline.removesuffix("\0").split("\0") if cmdline else []
        if not any(split[1:]):  # redis-server writes its address behind its name, and clears all
            split = " ".join(split).split()
        processes.append(RunningProcess(pid, parent or 0, tuple(split)))
    return tuple(processes)


def tree_of(pid: int, processes: tuple[RunningProcess, ...]) -> tuple[int, ...]:
    """Return the pids of process ``pid`` and of all its descendants in ``processes``, ascending."""
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    tree, waiting = [], [pid]
    while waiting:
        tree.append(waiting.pop())
        waiting += children.get(tree[-1], [])
    return tuple(sorted(tree))


@or_unknown
def read_environment(root: Root, pid: int) -> dict[str, str] | Unknown:
    """Return the variables that a process was started with."""
    pairs = require(root.text(f"/proc/{pid}/environ")).split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def read_held_memory(root: Root, pid: int) -> HeldMemory | Unknown:
    """Return the memory that a process holds; Unknown if its mappings cannot be read."""
    try:
        return _parse_held_memory(root, pid)
    except (ValueError, IndexError) as error:
        return Unknown(f"/proc/{pid}: its mappings are not written as proc(5) says: {error}")


@or_unknown
def _parse_held_memory(root: Root, pid: int) -> HeldMemory | Unknown:
    """Read from /proc the memory that process ``pid`` holds; Unknown if a file cannot be read.

    Raises:
        ValueError: If a file is malformed.
        IndexError: If a file is malformed.
    """
    places = {}
    for line in require(root.text(f"/proc/{pid}/maps")).splitlines():
        fields = line.split(maxsplit=5)
        start, _, end = fields[0].partition("-")
        places[start] = (f"{fields[3]}:{fields[4]}", int(end, 16) - int(start, 16))
    huge: dict[str, HugeMapping] = {}
    regular_bytes = 0
    for line in require(root.text(f"/proc/{pid}/numa_maps")).splitlines():
        start, *rest = line.split()
        counts = dict(word.split("=", 1) for word in rest if "=" in word)
        page_bytes = int(counts.get("kernelpagesize_kB", 0)) << 10
        nodes = {int(k[1:]): int(v) for k, v in counts.items() if re.fullmatch(r"N\d+", k)}
        if "huge" not in rest:
            regular_bytes += int(counts.get("anon", 0)) * page_bytes
            continue
        file, size_bytes = places.get(start, ("", sum(nodes.values()) * page_bytes))
        key = file if file not in ("", "00:00:0") else start
        # The kernel splits a mapping whose parts have other policies.
        before = huge.get(key, HugeMapping(key, page_bytes, 0, {}))
        pages = before.pages + size_bytes // page_bytes
        huge[key] = HugeMapping(key, page_bytes, pages, Counter(nodes) + Counter(before.node_pages))
    status = require(status_rows(root.text(f"/proc/{pid}/status")))
    locked, pinned = (int(status.get(n, "0").split()[0]) << 10 for n in ("VmLck", "VmPin"))
    return HeldMemory(tuple(huge.values()), regular_bytes, locked, pinned)


def pages_by_size(
    memories: tuple[HeldMemory, ...],
) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Return the huge pages of several processes; a mapping that they share is counted once.

    The first dict has the mapped pages by page size in bytes, the second the touched pages by (page
    size, NUMA node).
    """
    mappings: dict[str, HugeMapping] = {}
    for mapping in (mapping for memory in memories for mapping in memory.huge):
        before = mappings.get(mapping.file)
        if before is None or sum(before.node_pages.values()) < sum(mapping.node_pages.values()):
            mappings[mapping.file] = mapping
    mapped: Counter[int] = Counter()
    touched: Counter[tuple[int, int]] = Counter()
    for mapping in mappings.values():
        mapped[mapping.page_bytes] += mapping.pages
        for numa_node, pages in mapping.node_pages.items():
            touched[mapping.page_bytes, numa_node] += pages
    return dict(mapped), dict(touched)


def read_limit(root: Root, pid: int, name: str) -> Limit | Unknown:
    """Return a limit by its name in /proc/PID/limits."""
    source = f"/proc/{pid}/limits"
    return limit_of_file(root.text(source), name, source)


def read_memlock(root: Root, pid: int) -> Limit | Unknown:
    """Return how much memory a process may pin.

    This is its limit of locked memory, or no limit if it has CAP_IPC_LOCK in the initial user
    namespace.
    """
    status = status_rows(root.text(f"/proc/{pid}/status"))
    bits = "" if isinstance(status, Unknown) else status.get("CapEff", "")
    effective = int(bits, 16) if re.fullmatch(r"[0-9a-f]{1,16}", bits) else 0
    # Not by uid_map, which another namespace may have alike.
    initial = read_link(root, f"/proc/{pid}/ns/user") == INITIAL_USER_NAMESPACE
    if initial and effective >> IPC_LOCK_BIT & 1:
        return Limit(None, None)
    return read_limit(root, pid, "Max locked memory")


@or_unknown
def read_open_files(root: Root, pid: int) -> OpenFiles | Unknown:
    """Return how many files a process has open, and the RDMA devices among them."""
    numbers = require(root.names(f"/proc/{pid}/fd"))
    devices = set()
    for number in numbers:
        target = read_link(root, f"/proc/{pid}/fd/{number}")
        if isinstance(target, str) and (match := _DEVICES.match(target)):
            devices.add(match[1])
    return OpenFiles(len(numbers), tuple(sorted(devices)))


def read_link(root: Root, name: str) -> str | Unknown:
    """Return the text of a link that /proc makes, which may lead to no file."""
    try:
        return os.readlink(root.locate(name))
    except OSError:  # it is closed meanwhile, or is in a capture
        return root.link(name)


class Packages(NamedTuple):
    """Folders of Python packages of which a process has mapped a library or program.

    They are names below ``/proc/PID/root``, as the process's container has them.

    Attributes:
        replaced: Mapped files that were replaced or removed after the process had started.
    """

    folders: tuple[str, ...]
    replaced: tuple[str, ...]


def read_packages(root: Root, pid: int) -> Packages:
    """Return the package folders that a process runs from; none if its mappings are unreadable."""
    maps = "\n".join(root.lines(f"/proc/{pid}/maps"))
    return Packages(*(tuple(dict.fromkeys(r.findall(maps))) for r in (_PACKAGES, _REPLACED)))


class Registered(NamedTuple):
    """The objects that the processes of one program together hold of one RDMA device."""

    device: str
    bytes: int
    regions: int
    queue_pairs: int


@or_unknown
def read_registered(root: Root, pids: tuple[int, ...]) -> tuple[Registered, ...] | Unknown:
    """Return the memory regions and queue pairs that the processes together hold, by RDMA device.

    Devices that no process uses are left out.

    Returns:
        Unknown if a process is in a container and this check is not: the kernel then does not list
        the objects of that process.
    """
    for pid in pids:
        status = require(root.text(f"/proc/{pid}/status"))
        numbers = next((x for x in status.splitlines() if x.startswith("NSpid:")), "").split()
        if len(numbers) > 2:
            return Unknown(f"pid {pid} is in a container: the kernel lists its regions in there")
    answer = require(root.call("rdma.held"))
    devices = []
    for device, processes in answer.items():
        counts = [processes[str(pid)] for pid in pids if str(pid) in processes]
        if counts:
            sums = (sum(each.get(name, 0) for each in counts) for name in ("mr_bytes", "mr", "qp"))
            devices.append(Registered(device, *sums))
    return tuple(devices)


# counters/port_rcv_data and port_xmit_data are in 32-bit words (IBTA, PortCounters).
_WORD_BYTES = 4


class Traffic(NamedTuple):
    """The bytes that a port has received and sent since it came up."""

    received: int
    sent: int


@or_unknown
def read_traffic(
    root: Root, pid: int, verbs_devices: Iterable[str]
) -> dict[str, Traffic | Unknown] | Unknown:
    """Return the traffic of each port, by name: ``rdma mlx5_0 port 1``, and ``eth0`` for an
    interface in the network namespace of ``pid``.

    Args:
        verbs_devices: The verbs files of the RDMA devices, as uverbs0. What goes by RDMA is in no
            counter of an interface.
    """
    ports: dict[str, Traffic | Unknown] = {}
    for file in verbs_devices:
        device = require(root.text(f"/sys/class/infiniband_verbs/{file}/ibdev")).strip()
        folder = f"/sys/class/infiniband/{device}/ports"
        for port in require(root.names(folder)):
            ports[f"rdma {device} port {port}"] = _port(root, f"{folder}/{port}/counters")
    for line in require(root.text(f"/proc/{pid}/net/dev")).splitlines():
        interface, colon, numbers = line.partition(":")
        counts = [kernel_count(number) for number in numbers.split()]
        if colon and len(counts) >= 9 and counts[0] is not None and counts[8] is not None:
            ports[interface.strip()] = Traffic(counts[0], counts[8])
    return ports


@or_unknown
def _port(root: Root, folder: str) -> Traffic | Unknown:
    counters = (root.count(f"{folder}/{name}") for name in ("port_rcv_data", "port_xmit_data"))
    return Traffic(*(require(count) * _WORD_BYTES for count in counters))
