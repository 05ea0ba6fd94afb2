"""Synthetic hosts: the files of /proc and /sys that the checkers read, written below a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.framework.archive import TreeRoot
from checks.framework.root import Root

MIB = 1 << 20
GIB = 1 << 30


FOLDERS = "sys/class/net sys/bus/pci/devices sys/fs/cgroup sys/module proc/sys dev".split()


def in_memory(
    files: Mapping[str, str],
    links: Mapping[str, str] | None = None,
    calls: Mapping[str, Any] | None = None,
    folders: Iterable[str] = (),
) -> Root:
    """Return a host of these files, by absolute name; "/" makes a folder where a file should be."""
    texts = {name: text for name, text in files.items() if text != "/"}
    if calls is not None:
        texts["/calls.json"] = json.dumps(dict(calls))
    made = {name for name, text in files.items() if text == "/"} | {f"/{x}" for x in folders}
    contents = {name: text.encode() for name, text in texts.items()}
    return TreeRoot(contents, links or {}, {}, frozenset(made))


@dataclass(frozen=True)
class HostPool:
    """One page size. ``nodes``: (total, free) per node; without them the host is one node 0."""

    total: int = 0
    free: int | None = None
    reserved: int = 0
    surplus: int = 0
    overcommit: int = 0
    nodes: Mapping[int, tuple[int, int]] | None = None


@dataclass(frozen=True)
class Host:
    pools: Mapping[int, HostPool] = field(default_factory=lambda: {2 * MIB: HostPool()})
    nodes: Sequence[int] = (0,)
    memory_bytes: int = 1024 * GIB
    nics: Mapping[str, int | None] = field(default_factory=dict)
    gpus: Sequence[int] = ()
    cgroup: Mapping[str, str] = field(default_factory=dict)  # files below /sys/fs/cgroup
    files: Mapping[str, str] = field(default_factory=dict)  # more, by name below the root

    def write(self, root: Path) -> Path:
        """Make the host's files below a folder."""
        for part in FOLDERS:
            (root / part).mkdir(parents=True, exist_ok=True)
        for name, content in self._every_file().items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return root

    def root(self, *without: str) -> Root:
        """Return the host in memory. without: files that it lacks."""
        files = {f"/{name}": f"{text}\n" for name, text in self._every_file().items()}
        kept = {name: text for name, text in files.items() if name not in without}
        return in_memory(kept, folders=FOLDERS)

    def _every_file(self) -> dict[str, object]:
        files: dict[str, object] = {
            "proc/meminfo": self._meminfo(),
            "proc/self/cgroup": "0::/\n",
            "proc/self/status": f"Mems_allowed_list:\t{','.join(map(str, self.nodes))}",
            "sys/devices/system/node/has_memory": ",".join(str(node) for node in self.nodes),
        }
        for node in self.nodes:
            files[f"sys/devices/system/node/node{node}/cpulist"] = ""
        for size, pool in self.pools.items():
            files |= self._pool_files(size, pool)
        for name, nic_node in self.nics.items():
            files[f"sys/class/infiniband/{name}/node_type"] = "1: CA"
            if nic_node is not None:
                files[f"sys/class/infiniband/{name}/device/numa_node"] = nic_node
        for index, node in enumerate(self.gpus):
            folder = f"sys/bus/pci/devices/0000:{16 + index:02x}:00.0"
            files[f"{folder}/vendor"] = "0x10de"
            files[f"{folder}/class"] = "0x030200"
            files[f"{folder}/numa_node"] = node
        files |= {f"sys/fs/cgroup/{name}": text for name, text in self.cgroup.items()}
        files |= self.files
        return files

    def _meminfo(self) -> str:
        default = self.pools.get(2 * MIB, HostPool())
        free = default.total if default.free is None else default.free
        kib = self.memory_bytes // 1024
        return (
            f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n"
            f"HugePages_Total: {default.total}\nHugePages_Free: {free}\n"
            f"HugePages_Rsvd: {default.reserved}\nHugePages_Surp: {default.surplus}\n"
            "Hugepagesize: 2048 kB"
        )

    def _pool_files(self, size: int, pool: HostPool) -> dict[str, object]:
        name = f"hugepages-{size // 1024}kB"
        free = pool.total if pool.free is None else pool.free
        shares = pool.nodes if pool.nodes is not None else {self.nodes[0]: (pool.total, free)}
        total = sum(share[0] for share in shares.values())
        folder = f"sys/kernel/mm/hugepages/{name}"
        files: dict[str, object] = {
            f"{folder}/nr_hugepages": total,
            f"{folder}/free_hugepages": sum(share[1] for share in shares.values()),
            f"{folder}/resv_hugepages": pool.reserved,
            f"{folder}/surplus_hugepages": pool.surplus,
            f"{folder}/nr_overcommit_hugepages": pool.overcommit,
        }
        for node, (node_total, node_free) in shares.items():
            node_folder = f"sys/devices/system/node/node{node}/hugepages/{name}"
            files[f"{node_folder}/nr_hugepages"] = node_total
            files[f"{node_folder}/free_hugepages"] = node_free
            files[f"{node_folder}/surplus_hugepages"] = 0
        return files
