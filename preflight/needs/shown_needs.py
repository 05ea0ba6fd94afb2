"""A launch's needs for a reader: each with its number, its unit and how it comes about."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from checks.framework.needs import Service
from checks.framework.pages import Default
from checks.framework.units import format_bytes, format_page_size
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import HEADROOM
from checks.rdma.registration import pinned_bytes, registration_of
from preflight.engines.mooncake.allocations import (
    REGULAR_PAGE_BYTES,
    Allocation,
    Backing,
    regions_of,
)
from preflight.engines.mooncake.replay import spot_of
from preflight.needs.launch_needs import handed_over, registering_clients
from preflight.needs.sizing import Sizing
from preflight.needs.sizing_inputs import Input
from preflight.processes.mooncake_users import store_devices
from preflight.processes.ports import all_ports
from preflight.processes.processes import LaunchProcess
from preflight.processes.services import services
from preflight.processes.storage import LIMIT, offload_of, storage


class Need(NamedTuple):
    """One need: an amount of something, with its formula.

    Attributes:
        unit: Bytes, pages, port, file, device, address.
        of_input: Name and value of the one input that the need is taken from; None if the need
            follows from the inputs of the whole launch.
    """

    what: str
    owner: str
    value: int | str
    unit: str
    formula: str
    of_input: tuple[str, Input] | None = None


_FILES = {"offload": "SSD offload folder", "config": "configuration"}


def host_needs(sizing: Sizing, processes: tuple[LaunchProcess, ...]) -> dict[str, list[Need]]:
    """Return the needs of a launch by kind: memory, ports, files, disk, devices, services (but no
    advertised addresses).

    Huge pages are summed up; every other need names its owner.
    """
    return {
        "hugetlb": list(_hugetlb(sizing)),
        "regular": _sums(sizing, "regular memory", Backing.REGULAR),
        # Registered on every NIC in use, and locked once for each of them.
        "registered": _registered(sizing, processes),
        # memfd pools: shared memory that no /dev/shm limit bounds.
        "shared": _sums(sizing, "shared memory (memfd)", Backing.MEMFD_HUGETLB),
        "ports": [_given(p.what, p.owner, p.port, "port", p.origin) for p in all_ports(processes)],
        "files": [
            _given(_FILES.get(each.kind, each.kind), each.owner, each.path, "file", each.origin)
            for process in processes
            for each in storage(process, 1, own_folders=False)
        ],
        "disk": [need for process in processes for need in _disk(process)],
        "devices": [need for process in processes for need in _devices(process)],
        "services": [
            _service(service) for service in services(processes) if service.kind != "advertised"
        ],
    }


def _hugetlb(sizing: Sizing) -> Iterator[Need]:
    """Yield the pages needed at each spot; the formula puts equal processes together."""
    for spot, pages in sizing.verdict.needs.items():
        where = spot.where.removeprefix(" on ") or "any node"
        # Equal processes together: 8 x (14306 L2 host pool + 8 local buffer).
        groups: dict[tuple[str, ...], int] = {}
        kept = 0
        for process in sizing.asked:
            huge = [a for a in process.allocations if a.on_huge_pages]
            huge = [a for a in huge if a.page_size_bytes == spot.page_size_bytes]
            among = process.process.among
            here = [a for a in huge if not spot.nodes or spot_of(a, among) == spot]
            kept += sum(a.pages for a in here)
            terms = tuple(f"{a.pages} {a.what}" for a in here)
            if terms:
                groups[terms] = groups.get(terms, 0) + 1
        formula = " + ".join(f"{count} x ({' + '.join(terms)})" for terms, count in groups.items())
        formula = formula or "0"
        if pages > kept:
            formula += f" + {pages - kept} free {HEADROOM}"
        what = f"pages of {format_page_size(spot.page_size_bytes)}, {where}"
        yield Need(what, "host", pages, "pages", formula)


def _sums(sizing: Sizing, what: str, backing: Backing) -> list[Need]:
    """Return a need for each process that maps memory of ``backing``.

    Args:
        what: Names that memory.
    """
    needs = []
    for process in sizing.asked:
        mapped = (*process.allocations, *process.heap)
        allocations = [a for a in mapped if a.backing is backing]
        if allocations:
            formula = " + ".join(f"{a.what} {format_bytes(a.bytes)}" for a in allocations)
            total = sum(a.mapped_bytes for a in allocations)
            needs.append(Need(what, process.process.name, total, "bytes", formula))
    return needs


def _registered(sizing: Sizing, processes: tuple[LaunchProcess, ...]) -> list[Need]:
    """Return the registered memory of each process that has any.

    What ranks hand over is counted with the client that registers it.
    """
    replays = sizing.asked_by_process
    taken: dict[int, list[Allocation]] = {}
    for number, client in registering_clients(processes, replays).items():
        theirs = (item for each in replays.get(number, ()) for item in handed_over(each))
        taken.setdefault(client, []).extend(their._replace(registered=True) for their in theirs)
    needs = []
    for process in sizing.asked:
        handed = handed_over(process)
        mapped = (*process.allocations, *process.heap)
        unshared = [item for item in mapped if item.registered and item not in handed]
        more = taken.get(process.process.id.command, [])
        if not unshared and not more:
            continue
        terms = [f"{item.what} {format_bytes(item.bytes)}" for item in unshared]
        groups = Counter(f"{item.what} {format_bytes(item.bytes)}" for item in more)
        terms += [f"{count} x {text} of its ranks" for text, count in groups.items()]
        total = sum(map(locked_bytes, (*unshared, *more)))
        what = "registered with each NIC, and locked once per NIC"
        needs.append(Need(what, process.process.name, total, "bytes", " + ".join(terms)))
    return needs


def locked_bytes(allocation: Allocation) -> int:
    """Return the bytes of regular pages that a NIC without a limit locks for an allocation."""
    return sum(
        pinned_bytes(registration_of(region, 0, None), REGULAR_PAGE_BYTES, region.offset_bytes)
        for region in regions_of(allocation)
    )


def _disk(process: LaunchProcess) -> Iterator[Need]:
    """Yield the disk space that SSD offload may fill, if it is on: its limit, 2 TiB unless set."""
    offload = offload_of(process)
    if offload is not None:
        limit = Input(offload.limit_bytes, offload.limit_origin)
        what = "SSD offload, at most"
        yield Need(what, process.name, offload.limit_bytes, "bytes", LIMIT, (LIMIT, limit))


def _devices(process: LaunchProcess) -> Iterator[Need]:
    """Yield the RDMA devices of the first rank; a device map may give other ranks other devices."""
    use = store_devices(process, 0)
    if use is not None and use.devices != ():
        names = use.devices if isinstance(use.devices, Unknown) else ",".join(use.devices)
        yield _given("RDMA device", process.name, names, "device", use.origin)


def _service(service: Service) -> Need:
    """Return the address of a service as a need."""
    what = service.kind.replace("-", " ")
    if isinstance(service.host, Unknown):
        return _given(what, service.owner, service.host, "address", service.origin)
    port = "" if service.port is None else f":{service.port}"
    address = f"{service.host}{port}{service.path}"
    return _given(what, service.owner, address, "address", service.origin)


def _given(what: str, owner: str, value: int | str | Unknown, unit: str, origin: str) -> Need:
    shown = value.reason if isinstance(value, Unknown) else value
    formula = origin if isinstance(origin, Default) else "as given"
    return Need(what, owner, shown, unit, formula, (what, Input(str(shown), origin)))
