"""Hosts with RDMA devices, in memory: what sysfs and the calls say of them.

The defaults are a soft-RoCE device of the lab's virtual machine, word for word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.framework.finding import Finding, Setting
from checks.framework.needs import LaunchNeeds, ProcessNeeds, RdmaUse
from checks.framework.pages import Region
from checks.framework.root import Root
from checks.rdma.facts import RdmaFacts, read_rdma
from checks.run_checks.facts import Facts
from tests.builders.hosts import FOLDERS, in_memory
from tests.checks.launches import findings

MIB, GIB = 1 << 20, 1 << 30
RELEASE = "0.3.13.post1"
LIMITS = {"max_mr_size": (1 << 64) - 1, "max_mr": 524287, "max_qp": 1048560}
OPENS = {"mode": 0o20666, "open": True}


def closed(number: int, error: str) -> dict[str, Any]:
    """A device file that exists and does not open."""
    return {"mode": 0o20600, "open": False, "errno": number, "error": error}


def ipv4(text: str) -> str:
    """A GID as sysfs writes it."""
    first, second, third, fourth = (int(octet) for octet in text.split("."))
    tail = f"{first:02x}{second:02x}:{third:02x}{fourth:02x}"
    return f"0000:0000:0000:0000:0000:ffff:{tail}"


LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3457"
SITE_LOCAL = "fec0:0000:0000:0000:5054:00ff:fe12:3457"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"


@dataclass(frozen=True)
class FakeNic:
    """gids: ``(address, type)`` of each entry, or None for an empty one; all on ``netdev``. node: a
    device file's answer, None where there is none. verbs: instead of the usual answer."""

    name: str = "rxe0"
    address: str = "10.0.0.1"
    netdev: str = "eth0"
    gids: Sequence[tuple[str, str] | None] | None = None
    state: str = "4: ACTIVE"
    physical: str = "5: LinkUp"
    layer: str = "Ethernet"
    node_type: str = "1: CA"
    driver: str = ""
    driver_id: int = 14
    numa_node: int | None = None
    pkeys: Sequence[str] = ("0xffff",)
    mtu_bytes: int = 1024
    node: Mapping[str, Any] | None = field(default_factory=lambda: dict(OPENS))
    verbs: Mapping[str, Any] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=lambda: {"qp": 1, "cq": 1, "mr": 0})

    def table(self) -> Sequence[tuple[str, str] | None]:
        return ((LINK_LOCAL, V2), (ipv4(self.address), V2)) if self.gids is None else self.gids

    def verbs_answer(self) -> Mapping[str, Any]:
        port = {"active_mtu_bytes": self.mtu_bytes, "gid_table": 1024, "pkey_table": 1}
        usual = {"listed": True, "opened": True, "ports": {"1": port}}
        return self.verbs or {**usual, "limits": {**LIMITS, **self.limits}}


RXE0 = FakeNic()
RXE1 = FakeNic("rxe1", "10.0.1.1", "eth1")
RXE2 = FakeNic("rxe2", "10.0.0.2", "eth2")


@dataclass(frozen=True)
class FakeHost:
    """interfaces: ``{name: [[address, prefix]]}``; by default each NIC's, with its address /24."""

    nics: Sequence[FakeNic] = (RXE0,)
    interfaces: Mapping[str, Any] | None = None
    netns_mode: str = "shared"
    copy_on_fork: bool = True
    rdma_core: int = 44
    cgroup: Mapping[str, str] = field(default_factory=dict)  # files below /sys/fs/cgroup/a
    cpus: str = "0-7"
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, Any] = field(default_factory=dict)

    def tree(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the host's files and links, by absolute name."""
        files: dict[str, str] = {
            "/proc/self/cgroup": "0::/a\n",
            "/sys/devices/system/cpu/online": self.cpus,
            "/etc/libibverbs.d/rxe.driver": "driver rxe",
            f"/usr/lib64/libibverbs.so.1.14.{self.rdma_core}.0": "",
            "/usr/lib64/libibverbs/librxe-rdmav34.so": "",
        }
        links = {"/usr/lib64/libibverbs.so.1": f"libibverbs.so.1.14.{self.rdma_core}.0"}
        calls: dict[str, Any] = {"rdma.device_node /dev/infiniband/rdma_cm": OPENS}
        devices = {}
        for number, nic in enumerate(self.nics):
            files |= _sysfs(nic, number)
            if nic.driver:
                folder = f"/sys/bus/pci/drivers/{nic.driver}"
                files[f"{folder}/uevent"] = ""
                links[f"/sys/class/infiniband/{nic.name}/device/driver"] = folder
            missing = {"unknown": "No such file or directory", "absent": True}
            answer = missing if nic.node is None else nic.node
            calls[f"rdma.device_node /dev/infiniband/uverbs{number}"] = answer
            calls[f"rdma.verbs {nic.name}"] = nic.verbs_answer()
            devices[nic.name] = {"resources": nic.resources, "driver_id": nic.driver_id}
        kernel = {"netns_mode": self.netns_mode, "copy_on_fork": self.copy_on_fork}
        calls["rdma.kernel"] = {**kernel, "devices": devices}
        usual = {nic.netdev: [[nic.address, 24]] for nic in self.nics}
        calls["rdma.interfaces"] = usual if self.interfaces is None else self.interfaces
        files |= {f"/sys/fs/cgroup/a/{name}": text for name, text in self.cgroup.items()}
        files |= {**self.files, "/calls.json": json.dumps({**calls, **self.calls})}
        return files, {**links, **self.links}

    def write(self, folder: Path) -> None:
        """Make the host's files and links below a folder, as tools/comparing has hosts written."""
        files, links = self.tree()
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in (*files, *links):
            (folder / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name[1:]).write_text(content)
        for name, target in links.items():
            (folder / name[1:]).symlink_to(folder / target[1:] if target[0] == "/" else target)

    def root(self, *without: str) -> Root:
        """Return the host in memory. without: files and links that it lacks."""
        files, links = self.tree()
        return in_memory(
            {name: text for name, text in files.items() if name not in without},
            {name: target for name, target in links.items() if name not in without},
            folders=FOLDERS,
        )


def _sysfs(nic: FakeNic, number: int) -> dict[str, str]:
    folder = f"/sys/class/infiniband/{nic.name}"
    port = f"{folder}/ports/1"
    files = {
        f"/sys/class/infiniband_verbs/uverbs{number}/ibdev": f"{nic.name}\n",
        f"{folder}/node_type": f"{nic.node_type}\n",
        f"{folder}/fw_ver": "\n",
        f"{port}/state": f"{nic.state}\n",
        f"{port}/phys_state": f"{nic.physical}\n",
        f"{port}/link_layer": f"{nic.layer}\n",
        f"{port}/rate": "2.5 Gb/sec (1X SDR)\n",
        f"/sys/class/net/{nic.netdev}/mtu": "1500\n",
    }
    if nic.numa_node is not None:
        files[f"{folder}/device/numa_node"] = f"{nic.numa_node}\n"
    for index, key in enumerate(nic.pkeys):
        files[f"{port}/pkeys/{index}"] = f"{key}\n"
    for index, entry in enumerate(nic.table()):
        files[f"{port}/gids/{index}"] = f"{entry[0] if entry else NO_GID}\n"
        if entry:
            files[f"{port}/gid_attrs/types/{index}"] = f"{entry[1]}\n"
            files[f"{port}/gid_attrs/ndevs/{index}"] = f"{nic.netdev}\n"
    return files


REGIONS = (Region("local buffer", 16 * MIB, 4096), Region("global segment", 80 * MIB, 4096))


def process(
    *devices: str,
    environment: Mapping[str, str] | None = None,
    regions: Any = REGIONS,
    name: str = "rank 0",
    origin: str = "--hicache-storage-backend-extra-config",
    written_as: str = "",
) -> ProcessNeeds:
    """A rank that asks for RDMA; without ``devices`` Mooncake looks for them."""
    use = RdmaUse(devices, origin, written_as)
    return ProcessNeeds(name, "sglang", environment or {}, rdma=use, regions=regions)


def launch(*processes: ProcessNeeds, version: str = RELEASE, hosts: int = 1) -> LaunchNeeds:
    members = processes or (process(),)
    return LaunchNeeds("launch.sh", members, (), hosts=hosts, mooncake_version=version)


def facts_of(host: FakeHost | Root, needs: LaunchNeeds | None = None) -> RdmaFacts:
    return read_rdma(host if isinstance(host, Root) else host.root(), needs)


def found(check: str, host: FakeHost | Root, needs: LaunchNeeds | None = None) -> list[Finding]:
    """What the check ``check`` says of ``host``."""
    return findings(Facts({"rdma": facts_of(host, needs)}), needs, check)


def with_settings(environment: Mapping[str, str], settings: Sequence[Setting]) -> dict[str, str]:
    """``environment`` once the variables of ``settings`` are set or taken away."""
    changed = dict(environment)
    for setting in settings:
        if setting.wanted:
            changed[setting.name] = setting.wanted
        else:
            changed.pop(setting.name, None)
    return changed
