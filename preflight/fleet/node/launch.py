"""What a launch does on one node, as its fleet adds it up: writes ``records.NodeLaunch``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from checks.base.needs import LaunchNeeds, Service
from checks.base.unknown import Unknown, known, or_unknown
from checks.base.written_numbers import leading_integer
from checks.rdma.gid_checks import AFFINITY, PEER_AFFINITY
from checks.rdma.reach_checks import DEFAULT_MTU_BYTES, MTUS_BYTES
from preflight.fleet.node.records import NodeLaunch

if TYPE_CHECKING:
    from preflight.judging.judge_host import JudgedHost
    from preflight.sizing.launch_sizing import LaunchSizing

MASTER = "master"


def node_launch(seen: JudgedHost) -> NodeLaunch | None:
    """Return the launch; None where none was given or it could not be read."""
    if seen.needs is None or seen.launch is None or isinstance(seen.launch, Unknown):
        return None
    needs, sizing = seen.needs, seen.launch.sizing
    stores = _stores(sizing)
    masters = [_address(one) for one in needs.services if one.kind == MASTER]
    return NodeLaunch(
        needs.source,
        needs.hosts,
        needs.mooncake_version,
        needs.sglang_version,
        protocol_of(sizing),
        tuple(sorted(masters, key=_written)),
        tuple((one.kind, _address(one), one.own) for one in needs.services if one.kind != MASTER),
        stores if isinstance(stores, Unknown) else sum(stores),
        stores if isinstance(stores, Unknown) else len(stores),
        _sum(one.registered_bytes for one in needs.processes),
        _sum(one.hugetlb_bytes for one in needs.processes),
        min((mtu_limit_bytes(one.environment) for one in needs.rdma_processes), default=None),
        affinity_of(needs),
        tuple((port.what, port.port) for port in needs.ports),
        tuple(process.name for process in needs.processes),
        tuple(storage.path for storage in needs.storage if storage.kind == "offload"),
    )


def _stores(sizing: LaunchSizing) -> list[int] | Unknown:
    """Return the segment of each store client in bytes, without L2, whose size may be open."""
    for bound in (sizing.inputs.most, sizing.inputs.least):
        if not isinstance(bound, Unknown):
            return [
                client.segment_bytes
                for process in bound.launch.processes
                for client in process.clients
                if not client.dummy and client.segment_bytes
            ]
    assert isinstance(sizing.inputs.most, Unknown)
    return sizing.inputs.most


@or_unknown
def protocol_of(sizing: LaunchSizing) -> str:
    """Return the protocol of the launch's stores: ``rdma``, ``tcp``, both; "" without one."""
    found: set[str] = set()
    for process in sizing.inputs.processes:
        if process.server is not None and process.server.store is not None:
            found.add(str(known(process.server.store.value("protocol"))))
        else:
            found |= {known(store.client).protocol.value for store in process.stores}
    return " ".join(sorted(found))


def mtu_limit_bytes(environment: Mapping[str, str]) -> int:
    """Return MC_MTU as Mooncake takes it; 4096 where it is none of its values."""
    asked = leading_integer(environment.get("MC_MTU", ""))
    return asked if asked in MTUS_BYTES else DEFAULT_MTU_BYTES


def affinity_of(needs: LaunchNeeds) -> str | None:
    """Return which devices talk to which, as config.cpp of Mooncake takes the two variables.

    Both of them together count as neither. None without a process that uses RDMA.
    """
    found = set()
    for process in needs.rdma_processes:
        same_name = AFFINITY in process.environment
        listed = process.environment.get(PEER_AFFINITY, "").lower() in ("1", "true")
        found.add("any" if same_name == listed else "same name" if same_name else "listed")
    return next((kind for kind in ("any", "listed", "same name") if kind in found), None)


@or_unknown
def _address(service: Service) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    host = known(service.host)
    host = f"[{host}]" if ":" in host else host
    return host if service.port is None else f"{host}:{service.port}"


def _written(address: str | Unknown) -> str:
    return f"{{{address.reason}" if isinstance(address, Unknown) else address


@or_unknown
def _sum(sizes: Iterable[int | Unknown]) -> int:
    return sum(known(size) for size in sizes)
