"""Hosts for the tests of limits, system and software: trees for readers, records for judges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.framework.needs import LaunchNeeds, ProcessNeeds, RdmaUse
from checks.framework.pages import Region
from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from checks.limits.facts import LimitFacts, ThreadFacts
from checks.limits.runtimes import Limit, RuntimeLimits
from checks.rdma.devices import Gid, Port
from checks.rdma.facts import Erdma, Nic, RdmaFacts
from checks.rdma.verbs import DeviceNode, Libraries, Verbs
from checks.run_checks.facts import Facts
from checks.system.facts import Container, SystemFacts

IPC_LOCK = 1 << 14
NOT_SAID = Unknown("not said by this test")
NO_RUNTIMES = RuntimeLimits((), None, "", {}, (), None)


def tree(root: Path, files: Mapping[str, str], calls: Mapping[str, Any] | None = None) -> Path:
    """A host of these files; a content of "/" makes a folder where a file should be."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == "/":
            path.mkdir()
        else:
            path.write_text(content)
    root.mkdir(exist_ok=True)
    if "/calls.json" not in files:
        (root / "calls.json").write_text(json.dumps(dict(calls or {})))
    return root


def limits(
    memlock: int | Unknown | None = 8 << 20, hard: int | None = -1, **other: Any
) -> LimitFacts:
    """An unprivileged user 1000 on a plain host, with this soft limit (None: unlimited)."""
    soft: Limit | Unknown
    if isinstance(memlock, Unknown):
        soft = memlock
    else:
        soft = Limit(memlock, memlock if hard == -1 else hard)
    fields: dict[str, Any] = {
        "memlock": soft,
        "nofile": Limit(1024, 1048576),
        "nproc": Limit(None, None),
        "euid": 1000,
        "effective_capabilities": 0,
        "bounding_capabilities": 0x1FFFFFFFFFF,
        "initial_user_namespace": True,
        "sudo_uid": None,
        "runtimes": NO_RUNTIMES,
        "threads": ThreadFacts((), (), 0, 8),
        "root_names": ("root",),
    }
    return LimitFacts(**{**fields, **other})


def system(container: str = "none", **other: Any) -> SystemFacts:
    fields: dict[str, Any] = {
        "kernel_release": "6.8.0-45-generic",
        "kernel": (6, 8),
        "architecture": "x86_64",
        "page_bytes": 4096,
        "distribution": "ubuntu",
        "distribution_version": "24.04",
        "container": Container(container, "" if container == "none" else "/.dockerenv"),
        "seccomp": "off",
        "uring_errno": 0,
        "uring_disabled": 0,
        "hypervisor": "",
    }
    return SystemFacts(**{**fields, **other})


def nic(name: str) -> Nic:
    """A device that Mooncake uses: node open, port active, one RoCE v2 GID of an IPv4 address."""
    gid = Gid(3, bytes(10) + b"\xff\xff\x0a\x00\x00\x01", "RoCE v2", "eth0")
    port = Port(
        number=1,
        state="ACTIVE",
        physical_state="LinkUp",
        link_layer="Ethernet",
        rate="400 Gb/sec",
        gids=(gid,),
        gid_table=255,
        pkeys={0: 0xFFFF},
    )
    return Nic(
        name=name,
        node_type="CA",
        driver="mlx5_core",
        provider="mlx5",
        firmware="28.39",
        hardware="MT4129",
        pci_address=None,
        node=0,
        uverbs="uverbs0",
        uverbs_node=DeviceNode("/dev/infiniband/uverbs0", True, True),
        ports=(port,),
        verbs=Verbs(True, "", NOT_SAID, NOT_SAID),
    )


def rdma(count: int | Unknown) -> RdmaFacts:
    """A host with ``count`` usable NICs, mlx5_0 and on."""
    nics = count if isinstance(count, Unknown) else tuple(nic(f"mlx5_{n}") for n in range(count))
    return RdmaFacts(
        nics=nics,
        netdevs={},
        libraries=Libraries(NOT_SAID, NOT_SAID, NOT_SAID),
        kernel=NOT_SAID,
        cgroups=(),
        connection_manager=NOT_SAID,
        erdma=Erdma((), NOT_SAID),
        cpus=8,
        topologies={},
    )


def facts(
    limit_facts: LimitFacts | None = None,
    nics: int | Unknown = 2,
    system_facts: SystemFacts | None = None,
    **topics: Any,
) -> Facts:
    return Facts(
        {
            "limits": limit_facts or limits(),
            "rdma": rdma(nics),
            "system": system_facts or system(),
            **topics,
        }
    )


def rank(name: str = "rank 0", size: int = 2 * GIB, **other: Any) -> ProcessNeeds:
    """An SGLang rank that registers ``size`` with all NICs that Mooncake finds."""
    regions = (Region("L2 host pool", size, 4096),)
    fields: dict[str, Any] = {"rdma": RdmaUse((), "launch.sh:3"), "regions": regions}
    return ProcessNeeds(
        name, other.pop("program", "sglang"), other.pop("environment", {})
    )._replace(**{**fields, **other})


def launch(*processes: ProcessNeeds, **other: Any) -> LaunchNeeds:
    return LaunchNeeds("launch.sh", processes, (), **other)
