"""What a launch asks of a host's speed: by which protocol, in which sizes, into which folder."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.capacity.deployment import Cluster, deployments
from preflight.capacity.tiers import PageObjects, page_objects
from preflight.inputs.host_source import Host, Sized
from preflight.mooncake.allocations import Backing, EndlessPools
from preflight.mooncake.replay import replay
from preflight.processes.processes import ProcessKind
from preflight.processes.services import PEER_TO_PEER
from preflight.programs.memory_records import Protocol
from preflight.programs.mooncake_flags import is_on, value_of

# The master's switch to be the metadata server, too.
HOLDS_METADATA = "enable_http_metadata_server"


class ProcessStart(NamedTuple):
    """What one process maps and registers before it is ready, and how long it may take.

    populated: bytes by page size, 0 for regular pages. registered_bytes: with each NIC.
    allowed_seconds: of its startupProbe, None without one.
    """

    name: str
    populated: Mapping[int, int]
    registered_bytes: int | Unknown = 0
    allowed_seconds: int | None = None


class LaunchWish(NamedTuple):
    """protocol: rdma, tcp, "" where no launch says it. devices: as the engine takes them.

    environment: the variables that the launch gives the process which is stood in for. objects: of
    a page of the cache. starts: each process that maps memory. folder: where SSD offload writes,
    None without one. python: the interpreter that the launch names by its path. transport:
    by which it moves memory where that is neither RDMA nor TCP, as ``ascend``: not measured.
    metadata: P2PHANDSHAKE, http, etcd ...; "" where no launch says it. master_words: its
    master's, of clients that die.
    """

    protocol: str = ""
    devices: str = ""
    environment: Mapping[str, str] = {}
    objects: PageObjects | Unknown = Unknown("no launch says which objects are stored")
    starts: tuple[ProcessStart, ...] | Unknown = Unknown("no launch says what is populated")
    folder: str | Unknown | None = None
    python: str | None = None
    transport: str = ""
    metadata: str = ""
    master_words: tuple[str, ...] = ()

    @property
    def object_bytes(self) -> int | None:
        return None if isinstance(self.objects, Unknown) else max(self.objects.whole)


def wanted_of(sized: Sized, host: Host) -> LaunchWish:
    """Read what ``measure`` needs to know of a launch; Unknown if the launch does not say it."""
    needs, most = sized.needs, sized.sizing.inputs.most
    mapped = () if isinstance(most, Unknown) else most.launch.processes
    stores = [(one.id, one.clients[0].protocol.value) for one in mapped if one.clients]
    first, protocol = next(iter(stores), (None, ""))
    process = next((one for one in needs.processes if one.id == first), None)
    if needs.rdma_processes:
        process, protocol = needs.rdma_processes[0], Protocol.RDMA.value
    use = None if process is None else process.rdma
    named = () if use is None else use.devices
    folders = [one.path for one in needs.storage if one.kind == "offload"]
    kinds = (service.kind.partition("metadata-")[2] for service in needs.services)
    wish = LaunchWish(
        protocol=protocol,
        devices="" if isinstance(named, Unknown) else ",".join(named),
        objects=_objects(sized, host.root),
        starts=_starts(sized),
        folder=next(iter(folders), None),
        python=_python(sized),
        transport=next((one.transport for one in needs.processes if one.transport), ""),
        metadata=next(filter(None, kinds), PEER_TO_PEER) if stores else "",
        master_words=_master_words(sized),
    )
    return wish if process is None else wish._replace(environment=process.environment)


def _master_words(sized: Sized) -> tuple[str, ...]:
    """Return the flags of the launch's master that decide what a dead client leaves behind."""
    masters = (p for p in sized.sizing.inputs.processes if p.kind is ProcessKind.MASTER)
    arguments = next((process.arguments for process in masters), ())
    ttl = value_of(arguments, "client_ttl")
    words = () if ttl is None or not ttl.text.isdecimal() else (f"--client_ttl={ttl.text}",)
    switches = (HOLDS_METADATA, "enable_metadata_cleanup_on_timeout")
    on = (name for name in switches if is_on(arguments, "mooncake_master", name))
    return (*words, *(f"--{name}=true" for name in on))


def _objects(sized: Sized, root: Root) -> PageObjects | Unknown:
    """Return the objects of the first server's page."""
    try:
        found = deployments(sized.sizing.inputs, sized.options, root, Cluster())
    except UsageError as error:
        return Unknown(str(error))
    request = found[0].request
    return request if isinstance(request, Unknown) else page_objects(request)


def _starts(sized: Sized) -> tuple[ProcessStart, ...] | Unknown:
    """Return what each process that populates memory maps and registers at its start.

    Unknown if the memory that the launch maps is not known.
    """
    most = sized.sizing.inputs.most
    if isinstance(most, Unknown):
        return most
    needs = {one.id: one for one in sized.needs.processes}
    numbered = {one.number: one for one in sized.sizing.inputs.processes}
    found = []
    for mapped in replay(most.launch, EndlessPools()):
        sizes: dict[int, int] = {}
        for one in mapped.allocations:
            page = 0 if one.backing is Backing.REGULAR else one.page_size_bytes
            sizes[page] = sizes.get(page, 0) + one.mapped_bytes
        need, process = needs.get(mapped.process.id), numbered.get(mapped.process.id.command)
        regions = () if need is None or need.rdma is None else need.regions
        container = None if process is None else process.command.container
        start = ProcessStart(
            mapped.process.name if need is None else need.name,
            {page: size for page, size in sizes.items() if size},
            regions if isinstance(regions, Unknown) else sum(one.bytes for one in regions),
            None if container is None else container.startup_seconds,
        )
        found.append(start)
    return tuple(one for one in found if one.populated)


def _python(sized: Sized) -> str | None:
    """Return the first interpreter that the launch names by a path of this host."""
    for process in sized.sizing.inputs.processes:
        word = process.command.words[0].text if process.command.words else ""
        named = os.path.isabs(word) and os.path.basename(word).startswith("python")
        if named and process.command.container is None and os.access(word, os.X_OK):
            return word
    return None
