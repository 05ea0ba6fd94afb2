"""A host that is not there yet, from its description: memory, GPUs, NICs and NUMA nodes.

It is a tree of files and answers like any other that is read, so nothing else knows of it. What a
description leaves open is assumed, and every assumption is a sentence for the user.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

from checks.base.recording import RecordingRoot
from checks.base.root import CALLS_FILE
from checks.base.tree_root import TreeRoot
from checks.base.units import GIB, KIB, MIB, TIB, format_bytes
from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.fit.described_devices import GPUS, NICS, Tree, add_gpus, add_nics
from preflight.inputs.host_source import Host

NAME = "the host that is described"
_CPUS_PER_NODE = 48
# struct page is 64 bytes for each 4 KiB (include/linux/mm_types.h): what the kernel's own tables
# take of the memory before MemTotal counts it.
_PAGE_TABLE_SHARE = 64
# Of MemTotal: the kernel, the system's daemons and the drivers of an idle host.
_IN_USE_PERCENT = 2
_MOST_DEVICES = 64
_MEMORY_LEAST, _MEMORY_MOST = 4 * GIB, 64 * TIB


class Description(NamedTuple):
    """gpus, nics: how many, and the name of one of ``GPUS`` or ``NICS``."""

    memory_bytes: int
    gpus: tuple[int, str] | None
    nics: tuple[int, str] | None
    nodes: int


class DescribedRoot(TreeRoot):
    """Answers for what nobody can ask of a host that is not there."""

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        if name == "network.bind":
            return {"free": True}
        if name.partition(".")[0] in ("services", "storage", "software"):
            return Unknown(f"{name}: the host is described, and not there to be asked")
        return super().call(name, *arguments)


def described_host(
    memory_bytes: int | None, gpus: str | None, nics: str | None, nodes: int | None
) -> tuple[Host, tuple[str, ...]]:
    """Return the host and what is assumed of it. Raises UsageError for what cannot be meant."""
    if memory_bytes is None:
        raise UsageError("a host is described by its memory first: give --memory, as 2tb")
    if not _MEMORY_LEAST <= memory_bytes <= _MEMORY_MOST:
        raise UsageError(
            f"--memory {format_bytes(memory_bytes)}: must be {format_bytes(_MEMORY_LEAST)} to "
            f"{format_bytes(_MEMORY_MOST)}, all of the host's"
        )
    number = 1 if nodes is None else nodes
    described = Description(
        memory_bytes,
        _devices("--gpus", gpus, tuple(GPUS)),
        _devices("--nics", nics, tuple(NICS)),
        number,
    )
    root = DescribedRoot(*_tree(described))
    return Host(RecordingRoot(root), NAME, os.environ, None), _assumptions(described, nodes is None)


def _devices(option: str, text: str | None, known: tuple[str, ...]) -> tuple[int, str] | None:
    """Return ``8xH800``: how many of which."""
    if text is None:
        return None
    names = ", ".join(known)
    match = re.fullmatch(r"(\d{1,3})\s*[x*]\s*(\S+)", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise UsageError(f"{option} {text!r}: write how many of which, as 8x{known[0]}")
    count, wanted = int(match[1]), match[2]
    name = next((name for name in known if name.lower() == wanted.lower()), None)
    if name is None:
        raise UsageError(f"{option} {text}: {wanted} is not known here: known are {names}")
    if not 1 <= count <= _MOST_DEVICES:
        raise UsageError(f"{option} {text}: must be 1 to {_MOST_DEVICES}")
    return count, name


def gpu_bytes(gpus: str) -> int | None:
    """Return the memory of one GPU of ``8xH800``, as its maker sells it."""
    found = _devices("--gpus", gpus, tuple(GPUS))
    return None if found is None else GPUS[found[1]].memory_gib * GIB


def _usable(described: Description) -> tuple[int, int]:
    """MemTotal and MemAvailable of one node, in whole MiB."""
    each = described.memory_bytes // described.nodes
    total = (each - each // _PAGE_TABLE_SHARE) // MIB * MIB
    return total, total * (100 - _IN_USE_PERCENT) // 100 // MIB * MIB


def _assumptions(described: Description, one_node: bool) -> tuple[str, ...]:
    total, available = (size * described.nodes for size in _usable(described))
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
    if one_node:
        assumed.append("one NUMA node: --numa says otherwise")
    if described.gpus is not None:
        count, name = described.gpus
        gpu = GPUS[name]
        assumed.append(
            f"{count} {gpu.product} of {gpu.memory_gib} GiB each ({gpu.source}), evenly over the "
            "nodes"
        )
    else:
        assumed.append(
            "GPUs are not described (--gpus): the sizes are those of ranks bound to no NUMA node"
        )
    if described.nics is not None:
        count, name = described.nics
        nic = NICS[name]
        assumed.append(f"{count} NICs, {nic.product}, with limits as seen: {nic.source}")
    else:
        assumed.append(
            "NICs are not described (--nics): the sizes are those of memory that no NIC bounds"
        )
    return tuple(assumed)


def _tree(described: Description) -> tuple[dict[str, bytes], dict[str, str], dict[str, int]]:
    tree = Tree({}, {}, {})
    files, links, calls = tree
    _system(files, calls, described)
    _memory(files, described)
    _process(files, calls, described)
    if described.gpus is not None:
        add_gpus(tree, *described.gpus, described.nodes)
    if described.nics is not None:
        add_nics(tree, *described.nics, described.nodes)
    files[f"/{CALLS_FILE}"] = json.dumps(calls)
    return {name: f"{text}\n".encode() for name, text in files.items()}, links, {}


def _listed(count: int) -> str:
    return f"0-{count - 1}" if count > 1 else "0"


def _system(files: dict[str, str], calls: dict[str, Any], described: Description) -> None:
    total, _ = _usable(described)
    files |= {
        "/proc/cmdline": "ro iommu=pt",
        "/proc/modules": "",
        "/proc/version": "Linux version 6.8.0",
        "/proc/sys/kernel/osrelease": "6.8.0",
        "/proc/sys/kernel/numa_balancing": "0",
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "",
        "/sys/devices/system/cpu/online": _listed(described.nodes * _CPUS_PER_NODE),
        "/sys/class/net/lo/mtu": "65536",
    }
    shm = total * described.nodes // 2
    calls |= {
        "system.machine": {
            "architecture": "x86_64",
            "page_bytes": 4 * KIB,
            "pid_namespace": "pid:[4026531836]",
            "kubernetes": False,
            "container": "",
        },
        "system.io_uring": 0,
        "memory.space /dev/shm": {"size_bytes": shm, "available_bytes": shm},
        "numa.memory_policy": {"get_mempolicy": 0, "set_mempolicy": 0, "mbind": 0},
        "network.addresses": [{"interface": "lo", "address": "127.0.0.1", "up": True}],
    }


def _memory(files: dict[str, str], described: Description) -> None:
    total, free = _usable(described)
    nodes = described.nodes
    files |= {
        "/proc/meminfo": _rows(
            "",
            {
                "MemTotal": total * nodes,
                "MemFree": free * nodes,
                "MemAvailable": free * nodes,
                "SwapTotal": 0,
                "SwapFree": 0,
                "CommitLimit": total * nodes // 2,
                "Committed_AS": (total - free) * nodes,
            },
        )
        + "HugePages_Total: 0\nHugePages_Free: 0\nHugePages_Rsvd: 0\nHugePages_Surp: 0\n"
        "Hugepagesize: 2048 kB",
        "/proc/sys/vm/max_map_count": "1048576",
        "/proc/sys/vm/overcommit_memory": "0",
        "/proc/sys/vm/swappiness": "60",
        "/proc/sys/vm/zone_reclaim_mode": "0",
        "/proc/sys/vm/nr_overcommit_hugepages": "0",
        "/proc/sys/vm/nr_hugepages": "0",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never]",
    }
    folder = "/sys/devices/system/node"
    for name in ("online", "possible", "has_memory", "has_cpu"):
        files[f"{folder}/{name}"] = _listed(nodes)
    blocks = []
    for node in range(nodes):
        first = node * _CPUS_PER_NODE
        table = {"MemTotal": total, "MemFree": free}
        cache = dict.fromkeys(("Active(file)", "Inactive(file)", "SReclaimable"), 0)
        files |= {
            f"{folder}/node{node}/cpulist": f"{first}-{first + _CPUS_PER_NODE - 1}",
            f"{folder}/node{node}/distance": " ".join(
                "10" if other == node else "21" for other in range(nodes)
            ),
            f"{folder}/node{node}/meminfo": _rows(f"Node {node} ", {**table, **cache}),
        }
        # Idle: all that is free lies in blocks of the largest order, 4 MiB.
        counts = " ".join(["0"] * 10 + [str(free // (4 * MIB))])
        blocks.append(f"Node {node}, zone   Normal {counts}")
    files["/proc/buddyinfo"] = "\n".join(blocks)
    for size in (2 * MIB, GIB):
        name = f"hugepages-{size // KIB}kB"
        pools = [f"/sys/kernel/mm/hugepages/{name}"]
        pools += [f"{folder}/node{node}/hugepages/{name}" for node in range(nodes)]
        for pool in pools:
            for count in ("nr", "free", "surplus", "resv", "nr_overcommit"):
                files[f"{pool}/{count}_hugepages"] = "0"


def _rows(lead: str, table: dict[str, int]) -> str:
    return "".join(f"{lead}{name}: {size // KIB} kB\n" for name, size in table.items())


def _process(files: dict[str, str], calls: dict[str, Any], described: Description) -> None:
    limits = "\n".join(
        f"{name:<25} {'unlimited':<20} {'unlimited':<20} {unit:<10}"
        for name, unit in (
            ("Max processes", "processes"),
            ("Max open files", "files"),
            ("Max locked memory", "bytes"),
        )
    )
    head = f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} {'Units':<10}\n"
    whole = f"{(1 << 41) - 1:016x}"
    files |= {
        "/proc/self/status": (
            "Name:\tpython3\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"
            f"CapInh:\t{0:016x}\nCapPrm:\t{whole}\nCapEff:\t{whole}\nCapBnd:\t{whole}\n"
            f"CapAmb:\t{0:016x}\nNoNewPrivs:\t0\nSeccomp:\t0\n"
            f"Cpus_allowed_list:\t{_listed(described.nodes * _CPUS_PER_NODE)}\n"
            f"Mems_allowed_list:\t{_listed(described.nodes)}"
        ),
        "/proc/self/uid_map": "         0          0 4294967295",
        "/proc/self/limits": head + limits,
        "/proc/1/limits": head + limits,
        "/proc/1/cgroup": "0::/",
        "/proc/self/cgroup": "0::/",
        "/proc/self/mountinfo": (
            "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
            "24 23 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
            "25 21 0:23 / /dev/shm rw,nosuid - tmpfs tmpfs rw"
        ),
        "/sys/fs/cgroup/cgroup.procs": "1",
    }
    calls |= {
        "limits.identity": {
            "user_namespace": "user:[4026531837]",
            "sudo_uid": None,
            "slurm_job": False,
        },
        "limits.processes": {"pinned": [], "daemons": [], "complete": True},
    }
