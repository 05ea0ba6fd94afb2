"""Complete synthetic hosts: every file, link and recorded answer that the readers ask for.

Four machines that cannot be had here: ``gpu_host`` (8 H800 and 8 mlx5 NICs on two nodes, two of
each below a PCIe switch), ``erdma_host`` (a cloud instance with 2 A10 and 2 eRDMA interfaces),
``limited_container`` (an unprivileged docker container on the first) and ``plain_host`` (no GPU and
no RDMA). A test takes one, changes a field with ``dataclasses.replace``, or breaks single files and
answers with ``files``, ``links`` and ``calls``, and has ``build_host`` write it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checks.framework.needs import LaunchNeeds
from checks.framework.root import CALLS_FILE, Root
from checks.run_checks.facts import READERS, Facts, read_facts
from tests.builders.synthetic_devices import Gpu, Nic, Tree, add_gpus, add_nics
from tests.builders.synthetic_system import (
    ALL_CAPABILITIES,
    add_cgroup,
    add_memory,
    add_process,
    add_system,
)

MIB = 1 << 20
GIB = 1 << 30

# docker's default set, of which nothing helps RDMA.
DOCKER_CAPABILITIES = 0xA80425FB
UNLIMITED = "unlimited"
# No result of a test may depend on how busy the machine is.
PATIENCE_SECONDS = 600.0


PACKAGES = {"sglang": "0.5.23", "mooncake_transfer_engine": "0.3.13.post1", "torch": "2.9.1"}


@dataclass(frozen=True)
class SyntheticHost:
    """pools: page size -> pages per node, all free. memlock, nofile: (soft, hard) as /proc says.

    cgroup: files below this process's cgroup (v2). policy: errno of get_mempolicy, set_mempolicy
    and mbind. ports: those that can be bound. services: (host, port) -> what it is (master,
    metadata-http, master-admin, or "" for a closed port). packages: wheels in the interpreter's
    folder. storage: folders that exist, with free bytes. ``files`` (None removes), ``links`` and
    ``calls`` (None removes) win over all else."""

    gpus: Sequence[Gpu] = ()
    nics: Sequence[Nic] = ()
    nodes: int = 1
    cpus_per_node: int = 16
    node_bytes: int = 64 * GIB
    node_free_bytes: int | None = None
    swap_free_bytes: int = 0
    pools: Mapping[int, int] = field(default_factory=lambda: {2 * MIB: 0, GIB: 0})
    uid: int = 0
    capabilities: int = ALL_CAPABILITIES
    memlock: tuple[str, str] = (UNLIMITED, UNLIMITED)
    nofile: tuple[str, str] = ("1048576", "1048576")
    container: str = ""
    cgroup: Mapping[str, str] = field(default_factory=dict)
    mems_allowed: str | None = None
    policy: tuple[int, int, int] = (0, 0, 0)
    io_uring_errno: int = 0
    shm_bytes: int = 32 * GIB
    kernel: str = "6.8.0-60-generic"
    command_line: str = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt"
    modules: Sequence[str] = ("ib_uverbs", "ib_core", "mlx5_ib", "mlx5_core")
    nvidia_driver: str = "570.124.06"
    open_driver: bool = True
    dma_buf: bool = True
    nvml_error: tuple[int, str] | None = None
    iommu: str | None = "identity"
    acs_control: int | None = 0
    rdma_core: int = 52
    hypervisor: str = ""
    ports: Sequence[int] = (*range(30000, 30064), 8080, 8998, 9003, 9300, 50051)
    services: Mapping[tuple[str, int], str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=lambda: PACKAGES)
    storage: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, Any] = field(default_factory=dict)


def tree_of(host: SyntheticHost) -> Tree:
    """What ``host`` consists of, by absolute name."""
    tree = Tree()
    add_system(tree, host)
    add_memory(tree, host)
    add_process(tree, host)
    add_cgroup(tree, host)
    add_gpus(tree, host.gpus, host)
    add_nics(tree, host.nics, host)
    tree.links |= host.links
    for name, content in host.files.items():
        tree.files.pop(name, None)
        if content is not None:
            tree.files[name] = content
    for name, answer in host.calls.items():
        tree.calls.pop(name, None)
        if answer is not None:
            tree.calls[name] = answer
    return tree


# What every kernel has, with something in it or without.
EVERY_HOST = {"/sys/bus/pci/devices", "/sys/kernel/iommu_groups", "/sys/module", "/etc/sysctl.d"}


def build_host(path: Path, host: SyntheticHost) -> Path:
    """Write ``host`` below ``path``, which is then a root to read facts from."""
    tree = tree_of(host)
    folders = {os.path.dirname(name) for name in tree.files} | EVERY_HOST
    for folder in folders:
        os.makedirs(f"{path}/{folder}", exist_ok=True)
    for name, content in tree.files.items():
        _write(f"{path}/{name}", content)
    for name, target in tree.links.items():
        place = path / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        # Links of /sys are relative; these lead to an absolute name below the same root.
        place.symlink_to(os.path.relpath(path / target.lstrip("/"), place.parent))
    (path / CALLS_FILE).write_text(json.dumps(tree.calls, indent=1))
    return path


def _write(place: str, content: str) -> None:
    """Hundreds of tests make a host of 700 files each: as the kernel is asked, without pathlib."""
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    ended = content.endswith("\n") or not content
    os.write(handle, (content if ended else f"{content}\n").encode())
    os.close(handle)


def gpu_host() -> SyntheticHost:
    """8 H800 and 8 ConnectX-7 with RoCE: nodes 0 and 1, four switches with two of each."""
    gpus, nics = [], []
    for group, bus in enumerate((0x10, 0x40, 0x90, 0xC0)):
        switch = (f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0")
        for slot in range(4):
            parents = (*switch, f"0000:{bus + 2:02x}:{slot:02x}.0")
            address = f"0000:{bus + 3 + slot:02x}:00.0"
            number = group * 2 + slot // 2
            if slot % 2 == 0:
                gpus.append(Gpu(address, parents, group // 2))
            else:
                rest = (group // 2, f"10.0.0.{number + 1}", number)
                nics.append(Nic(f"mlx5_{number}", address, parents, *rest))
    return SyntheticHost(
        gpus=gpus,
        nics=nics,
        nodes=2,
        cpus_per_node=48,
        node_bytes=1024 * GIB,
        shm_bytes=1024 * GIB,
        modules=("nvidia_peermem", "nvidia", "ib_uverbs", "ib_core", "mlx5_ib", "mlx5_core"),
    )


def erdma_host() -> SyntheticHost:
    """A cloud instance: 2 A10 and 2 eRDMA interfaces on the root bus, one NUMA node."""
    gpus = [
        Gpu(
            f"0000:00:{8 + index:02x}.0",
            ("pci0000:00",),
            None,
            device="0x2236",
            name="NVIDIA A10",
            memory_bytes=24 * GIB,
            lanes=None,
        )
        for index in range(2)
    ]
    nics = [
        Nic(
            f"erdma_{index}",
            f"0000:00:{5 + index:02x}.0",
            ("pci0000:00",),
            None,
            f"10.1.0.{index + 1}",
            index,
            vendor="0x1ded",
            device="0x107f",
            driver="erdma",
            driver_id=19,
            provider="erdma",
            firmware="0.2.0",
            max_mr_size_bytes=64 * GIB,
            max_mr=131072,
            max_qp=65536,
            mtu_bytes=8500,
            active_mtu_bytes=4096,
            lanes=None,
            gids=tuple(
                (number, gid, kind, f"eth{index + 1}")
                for number, (gid, kind) in enumerate(
                    (
                        ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"),
                        (f"0000:0000:0000:0000:0000:ffff:0a01:{index + 1:04x}", "RoCE v2"),
                    )
                )
            ),
        )
        for index in range(2)
    ]
    return SyntheticHost(
        gpus=gpus,
        nics=nics,
        cpus_per_node=64,
        node_bytes=376 * GIB,
        modules=("erdma", "ib_uverbs", "ib_core", "nvidia_peermem", "nvidia"),
        hypervisor="Alibaba Cloud ECS",
        iommu=None,
        command_line="BOOT_IMAGE=/vmlinuz root=/dev/vda1 ro",
        files={"/sys/module/erdma/parameters/compat_mode": "Y"},
    )


def limited_container() -> SyntheticHost:
    """On ``gpu_host``: uid 1000 in docker, 64 GiB, no GPU, no RDMA node, policies refused."""
    host = gpu_host()
    return replace(
        host,
        uid=1000,
        capabilities=0,
        memlock=("8388608", "8388608"),
        nofile=("1024", "524288"),
        container="docker",
        cgroup={
            "memory.max": str(64 * GIB),
            "hugetlb.2MB.max": "0",
            "hugetlb.2MB.rsvd.max": "0",
            "cpuset.cpus.effective": "0-7",
            "cpuset.mems.effective": "0",
        },
        mems_allowed="0",
        policy=(1, 1, 1),
        io_uring_errno=1,
        shm_bytes=64 * MIB,
        gpus=[gpu._replace(mapped=False) for gpu in host.gpus],
        nics=[nic._replace(mapped=False) for nic in host.nics],
    )


def plain_host() -> SyntheticHost:
    """One NUMA node, no accelerator, no RDMA."""
    return SyntheticHost(modules=(), nvidia_driver="", iommu=None, packages={})


def read_host(
    path: Path,
    host: SyntheticHost,
    needs: LaunchNeeds | None = None,
    topics: Sequence[str] | None = None,
) -> Facts:
    """Write ``host`` below ``path`` and read its facts."""
    return read_facts(Root(str(build_host(path, host))), needs, PATIENCE_SECONDS, topics)


def varied(facts: Facts, **topics: Any) -> Facts:
    """``facts`` with other topics in place of its own."""
    return Facts({name: facts.topic(name) for name in READERS} | topics)
