"""Everything that a launch needs of its host, one record; every number says how it comes about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from checks.base.needs import BoundPort, Service
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.wanted import HEADROOM
from checks.rdma.registration import pinned_bytes, registration_of
from preflight.mooncake.allocations import REGULAR_PAGE_BYTES, Allocation, Backing, regions_of
from preflight.processes.mooncake_users import store_devices
from preflight.processes.processes import LaunchProcess
from preflight.processes.services import ports, services
from preflight.processes.storage import LIMIT, offload_of, storage
from preflight.sizing.page_usages import ON_HUGE_PAGES
from preflight.sizing.sizing import Sizing
from preflight.sizing.sizing_records import Input


class Need(NamedTuple):
    """One thing needed: how much, of what, how that comes about, and from which inputs."""

    what: str
    owner: str
    value: int | str
    unit: str  # bytes, pages, port, file, device, address
    formula: str
    inputs: tuple[tuple[str, Input], ...] = ()


class HostNeeds(NamedTuple):
    """A host's needs, by kind; sums are over all processes of the launch."""

    hugetlb: tuple[Need, ...]
    regular: tuple[Need, ...]
    registered: tuple[Need, ...]
    shared: tuple[Need, ...]
    ports: tuple[Need, ...]
    files: tuple[Need, ...]
    disk: tuple[Need, ...]
    devices: tuple[Need, ...]
    services: tuple[Need, ...]


def host_needs(sizing: Sizing, processes: tuple[LaunchProcess, ...]) -> HostNeeds:
    """Return the needs of the launch that ``sizing`` is of.

    ``processes`` as its source has them.
    """
    return HostNeeds(
        tuple(_hugetlb(sizing)),
        tuple(_regular(sizing)),
        tuple(_registered(sizing)),
        tuple(_shared(sizing)),
        tuple(_port(port) for process in processes for port in ports(process)),
        tuple(need for process in processes for need in _files(process)),
        tuple(need for process in processes for need in _disk(process)),
        tuple(need for process in processes for need in _devices(process)),
        tuple(_service(found) for found in services(processes) if found.kind != "advertised"),
    )


def _hugetlb(sizing: Sizing) -> Iterator[Need]:
    for spot, pages in sizing.verdict.needs.items():
        where = "any node" if spot.node is None else f"node {spot.node}"
        page = format_page_size(spot.page_size_bytes)
        terms = _page_terms(sizing, spot.page_size_bytes, spot.node)
        kept = sum(
            a.pages
            for process in sizing.asked
            for a in process.allocations
            if a.backing in ON_HUGE_PAGES
            and a.page_size_bytes == spot.page_size_bytes
            and spot.node in (None, a.node)
        )
        if pages > kept:
            terms += f" + {pages - kept} free {HEADROOM}"
        yield Need(f"pages of {page}, {where}", "host", pages, "pages", terms, _inputs(sizing))


def _page_terms(sizing: Sizing, page_size_bytes: int, node: int | None) -> str:
    """``8 x (14306 L2 host pool + 8 local buffer)``, equal processes together."""
    groups: dict[tuple[str, ...], int] = {}
    for process in sizing.asked:
        terms = tuple(
            f"{a.pages} {a.what}"
            for a in process.allocations
            if a.backing in ON_HUGE_PAGES
            and a.page_size_bytes == page_size_bytes
            and node in (None, a.node)
        )
        if terms:
            groups[terms] = groups.get(terms, 0) + 1
    return " + ".join(f"{count} x ({' + '.join(terms)})" for terms, count in groups.items()) or "0"


def _regular(sizing: Sizing) -> Iterator[Need]:
    for process in sizing.asked:
        mapped = (*process.allocations, *process.heap)
        found = [a for a in mapped if a.backing is Backing.REGULAR]
        if found:
            size = sum(a.pages * a.page_size_bytes for a in found)
            yield Need(
                "regular memory",
                process.process.name,
                size,
                "bytes",
                _terms(found),
                _inputs(sizing),
            )


def _registered(sizing: Sizing) -> Iterator[Need]:
    """Registered on every NIC in use, and locked once for each of them."""
    for process in sizing.asked:
        found = [a for a in (*process.allocations, *process.heap) if a.registered]
        if found:
            size = sum(locked_bytes(a) for a in found)
            yield Need(
                "registered with each NIC, and locked once per NIC",
                process.process.name,
                size,
                "bytes",
                _terms(found),
                _inputs(sizing),
            )


def locked_bytes(allocation: Allocation) -> int:
    """What one NIC locks of it: regular pages, whatever backs it, of a device without a limit."""
    return sum(
        pinned_bytes(registration_of(region, 0, None), REGULAR_PAGE_BYTES, region.offset_bytes)
        for region in regions_of(allocation)
    )


def _shared(sizing: Sizing) -> Iterator[Need]:
    """memfd pools: shared memory that no /dev/shm limit bounds."""
    for process in sizing.asked:
        found = [a for a in process.allocations if a.backing is Backing.MEMFD_HUGETLB]
        if found:
            size = sum(a.pages * a.page_size_bytes for a in found)
            name = process.process.name
            yield Need("shared memory (memfd)", name, size, "bytes", _terms(found), _inputs(sizing))


def _terms(allocations: list[Allocation]) -> str:
    return " + ".join(f"{a.what} {format_bytes(a.bytes)}" for a in allocations)


def _inputs(sizing: Sizing) -> tuple[tuple[str, Input], ...]:
    return tuple(sizing.inputs.shown.items())


def _port(port: BoundPort) -> Need:
    return _given(port.what, port.owner, port.port, "port", port.origin)


def _files(process: LaunchProcess) -> Iterator[Need]:
    for item in storage(process, 1, own_folders=False):
        what = {"offload": "SSD offload folder", "config": "configuration"}.get(item.kind)
        yield _given(what or item.kind, item.owner, item.path, "file", item.origin)


def _disk(process: LaunchProcess) -> Iterator[Need]:
    """Yield what SSD offload may fill: Mooncake's own limit, 2 TiB unless it is set."""
    offload = offload_of(process)
    if offload is not None:
        limit = Input(offload.limit_bytes, offload.limit_origin)
        what, given = "SSD offload, at most", ((LIMIT, limit),)
        yield Need(what, process.name, offload.limit_bytes, "bytes", LIMIT, given)


def _devices(process: LaunchProcess) -> Iterator[Need]:
    """Yield the devices that the first rank names; a map gives other ranks others."""
    use = store_devices(process, 0)
    if use is not None and use.devices != ():
        names = use.devices if isinstance(use.devices, Unknown) else ",".join(use.devices)
        yield _given("RDMA device", process.name, names, "device", use.origin)


def _service(service: Service) -> Need:
    what = service.kind.replace("-", " ")
    if isinstance(service.host, Unknown):
        return _given(what, service.owner, service.host, "address", service.origin)
    port = "" if service.port is None else f":{service.port}"
    address = f"{service.host}{port}{service.path}"
    return _given(what, service.owner, address, "address", service.origin)


def _given(what: str, owner: str, value: int | str | Unknown, unit: str, origin: str) -> Need:
    shown = value.reason if isinstance(value, Unknown) else value
    formula = origin if origin.startswith("default") else "as given"
    return Need(what, owner, shown, unit, formula, ((what, Input(str(shown), origin)),))


def explain(needs: HostNeeds) -> str:
    """Every need with its formula and, once, the inputs that they share and their origins."""
    lines = ["Needs of this host, each with its formula"]
    shared: dict[str, Input] = {}
    for kind, found in zip(HostNeeds._fields, needs, strict=True):
        for need in found:
            value = need.value
            shown = (
                format_bytes(value) if need.unit == "bytes" and isinstance(value, int) else value
            )
            amount = f"{shown} ({value} bytes)" if need.unit == "bytes" else f"{shown}"
            lines.append(f"  {kind}: {need.what}, {need.owner}: {amount} = {need.formula}")
            shared.update(need.inputs)
    lines.append("From")
    lines += [f"  {name} = {given.value} ({given.origin})" for name, given in shared.items()]
    return "\n".join(lines)
