"""Plans of what is measured within a budget of time and memory, and records of the results.

A launch tells by which protocol, in which sizes and into which folder (``LaunchWish``).
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.units import GIB, KIB, MIB, format_page_size, round_up
from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.benchmark.measuring.orders import HEAD_BYTES
from preflight.benchmark.probes.registration import CeilingAnswer
from preflight.cache_sizing.capacity.deployment import Cluster, deployments
from preflight.cache_sizing.capacity.tiers import PageObjects, page_objects
from preflight.command_inputs.host_source import Host, Sized
from preflight.engines.mooncake.allocations import Backing, EndlessPools
from preflight.engines.mooncake.replay import replay
from preflight.engines.programs.memory_records import Protocol
from preflight.engines.programs.mooncake_flags import is_on, value_of
from preflight.processes.processes import ProcessKind
from preflight.processes.services import PEER_TO_PEER


class Rate(NamedTuple):
    """The result of one measurement.

    Attributes:
        op: Populate, copy, copy-to-gpu, write, read, gpu-write, gpu-read, put, get, register,
            setup. gpu-: this side's memory is that of a GPU.
        what: Which pages, which NIC, or how many at a time.
        size_bytes: Of one object or piece.
        bytes, seconds: In all.
        calls: How many were made. p50, p99: seconds of one call.
        page_bytes: Of populated memory, 0 for regular pages.
        nic: The single NIC that was measured, "" for all of the launch.
        link_bytes_per_second: The speed of that NIC's port, 0 if not known.
    """

    op: str
    what: str
    size_bytes: int
    bytes: int
    seconds: float
    calls: int = 1
    p50_seconds: float = 0.0
    p99_seconds: float = 0.0
    page_bytes: int = 0
    nic: str = ""
    link_bytes_per_second: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class EngineUse(NamedTuple):
    """The transport and devices that an engine uses, and its last RDMA warning or error, by its
    log.

    Attributes:
        transport: Rdma, tcp, or "" if the log names none.
        error: "" without one.
    """

    transport: str
    devices: tuple[str, ...]
    error: str = ""

    @property
    def text(self) -> str:
        devices = f" ({', '.join(self.devices)})" if self.devices else ""
        return f"{self.transport.upper() or 'what its log does not name'}{devices}"


# rdma_context.cpp, once for each device that the engine opened; tcp_transport.cpp.
_OPENED = regex(r"RDMA device: ([^\s,]+)")
_TCP = "TcpTransport: listen on port"
# Of an engine that goes on over TCP, or without a device: glog's warnings and errors.
ALL_NICS = "all NICs at once"
_FAILED = regex(r"^[WE]\d{4} .*?\] (.*(?:RDMA|RNIC|GID|device|topology).*)$", re.M)


def engine_use(log: str) -> EngineUse:
    """Read from an engine's log which transport and devices it uses, and the last RDMA error."""
    devices = tuple(dict.fromkeys(_OPENED.findall(log)))
    last = _FAILED.findall(log)[-1:]
    return EngineUse(
        "rdma" if devices else "tcp" if _TCP in log else "", devices, "".join(last)[:200]
    )


class MeasuredPart(NamedTuple):
    """One part of a run: its rates, and what was done.

    Attributes:
        skipped: Why it was not measured, "" if it was.
        failed: What broke it off, "" if nothing did.
        did: What was done, in a sentence.
        used, other: The transport on this side and on the other; None if not known.
        ceiling: How much can be registered, None if that was not asked for.
    """

    name: str
    did: str = ""
    rates: tuple[Rate, ...] = ()
    skipped: str = ""
    failed: str = ""
    used: EngineUse | None = None
    other: EngineUse | None = None
    notes: tuple[str, ...] = ()
    ceiling: CeilingAnswer | None = None

    def best(self, op: str) -> Rate | None:
        """Return the fastest rate of ``op`` that is not of a single NIC; None without a rate."""
        rates = (each for each in self.rates if each.op == op and not each.nic)
        return max(rates, key=lambda each: each.bytes_per_second, default=None)


class MeasuredRun(NamedTuple):
    """The measured parts, and the library, budget and peer with which they were measured.

    Attributes:
        library: Mooncake's name and release.
        peer: HOST:PORT of the other side, None for this host.
        tokens_per_second: The prefill rate that the user gave; None if not given.
    """

    library: str | Unknown
    budget_seconds: float
    spend_bytes: int
    peer: str | None = None
    parts: tuple[MeasuredPart, ...] = ()
    tokens_per_second: float | None = None

    def part(self, name: str) -> MeasuredPart:
        """Return a part by its name; a skipped part if it was not asked for."""
        asked = (each for each in self.parts if each.name == name)
        return next(asked, MeasuredPart(name, skipped="not asked for"))


def read_measured(path: str) -> MeasuredRun:
    """Read parts, peer and prefill rate from a file of ``measure --save`` or ``--json``.

    Library and budget stay empty.

    Raises:
        UsageError: For another or an unreadable file.
    """

    def read() -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    where = f"--measured {path}"
    try:
        answer = json.loads(within(limit_seconds(), where, read))["answer"]
        parts = tuple(_part_of(part) for part in answer["parts"])
        peer, speed = answer["peer"], answer["tokens_per_second"]
        return MeasuredRun("", 0.0, 0, peer, parts, None if speed is None else float(speed))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except (LookupError, TypeError, ValueError):
        raise UsageError(f"{where}: it is not what measure --save writes") from None


def _part_of(part: Mapping[str, Any]) -> MeasuredPart:
    """Build one part from saved JSON: only its name, rates, transports and notes."""

    def used(name: str) -> EngineUse | None:
        side = part[name]
        return side and EngineUse(side["transport"], tuple(side["devices"]), side["error"])

    rates = tuple(Rate(*(rate[name] for name in Rate._fields)) for rate in part["rates"])
    notes = tuple(part["notes"])
    return MeasuredPart(part["part"], "", rates, "", "", used("used"), used("there"), notes)


# In the order in which they are measured, each with its share of the time.
SHARES = {"memory": 2, "transfer": 5, "store": 4, "registration": 2, "storage": 3}
PARTS = tuple(SHARES)
LEAST_BUDGET_SECONDS, LEAST_SPEND_BYTES = 5.0, 64 * MIB
# What may be taken where the cgroup's limit cannot be read, as behind ``ip netns exec``, which has
# a /sys of its own: half of it is the least that --spend takes.
UNREAD_ROOM_BYTES = 2 * LEAST_SPEND_BYTES
DEFAULT_SPEND_BYTES = 2048 * MIB
# An object of the store where no launch says its size; and how many SGLang hands over in one call.
USUAL_OBJECT_BYTES, TOGETHER = MIB, 16
# No rate changes any more behind so many calls.
MOST_CALLS = 20_000
_TRANSFERRED = (64 * KIB, MIB, 16 * MIB, 64 * MIB)
# A smaller segment is refused on regular pages; a client's own buffer.
_LEAST_SEGMENT_BYTES, LOCAL_BUFFER_BYTES = 32 * MIB, 16 * MIB


def deadlines(parts: Sequence[str], budget_seconds: float) -> dict[str, float]:
    """Return, for each part, the seconds from the start at which it has to end."""
    ends = [sum(SHARES[each] for each in parts[: number + 1]) for number in range(len(parts))]
    return {part: budget_seconds * end / ends[-1] for part, end in zip(parts, ends, strict=True)}


def slice_seconds(left_seconds: float, items: int) -> float:
    """Return an equal share of the time that is left, in seconds, but at least 0.05."""
    return max(0.05, left_seconds / max(1, items))


class Populating(NamedTuple):
    """Memory to populate, in pieces of ``chunk_bytes``: one page size (0: regular) on one node
    (None: any).
    """

    page_bytes: int
    numa_node: int | None
    bytes: int
    chunk_bytes: int

    @property
    def what(self) -> str:
        where = "" if self.numa_node is None else f", node {self.numa_node}"
        return f"{pages_text(self.page_bytes)}{where}"


def pages_text(page_bytes: int) -> str:
    """Return ``2 MiB pages``, or ``regular pages`` for 0."""
    return f"{format_page_size(page_bytes) if page_bytes else 'regular'} pages"


def plan_populating(
    free_bytes: Mapping[tuple[int, int | None], int], spend_bytes: int
) -> list[Populating]:
    """Choose what to populate for each page size and node: at most ``spend_bytes`` each.

    Args:
        free_bytes: By page size (0: regular) and node (None: any). Of huge pages at most half of
            the free ones are taken. A size or node with too little is left out.
    """
    every = []
    for (page, numa_node), free in free_bytes.items():
        size = min(spend_bytes, free // 2 if page else free)
        chunk = min(size, max(page, 64 * MIB))
        chunk -= chunk % page if page else 0
        if chunk > 0:
            every.append(Populating(page, numa_node, size // chunk * chunk, chunk))
    return every


def transfer_sizes(object_bytes: int | None, spend_bytes: int) -> list[int]:
    """Return the sizes to transfer, small enough that two buffers fit in ``spend_bytes``.

    Args:
        object_bytes: Of the launch's objects, None if not known.
    """
    wanted = {*_TRANSFERRED, object_bytes or MIB}
    return sorted(size for size in wanted if 2 * (size + HEAD_BYTES) <= spend_bytes)


def transfer_buffer_bytes(sizes: Sequence[int], spend_bytes: int) -> int:
    """Return a buffer size for two of the largest transfers, at most half of ``spend_bytes``."""
    return min(round_up(2 * max(sizes) + HEAD_BYTES, MIB), spend_bytes // 2 // MIB * MIB)


class StorePlan(NamedTuple):
    """The sizes of a store to measure.

    Attributes:
        together: How many objects one call moves, beside calls of one object.
        most_objects: How many fit before the master evicts any.
    """

    object_bytes: int
    segment_bytes: int
    together: int
    most_objects: int


def store_plan(object_bytes: int | None, spend_bytes: int) -> StorePlan | None:
    """Plan a store within ``spend_bytes``; None if the objects are too large for that.

    Args:
        object_bytes: Of one object, None for 1 MiB.
    """
    size = object_bytes or USUAL_OBJECT_BYTES
    together = max(1, min(TOGETHER, spend_bytes // 8 // size))
    segment = min(GIB, spend_bytes - together * size - LOCAL_BUFFER_BYTES) // MIB * MIB
    # The master evicts from 95 % on (eviction_high_watermark_ratio); bins round objects up.
    most = int(segment * 0.7) // size
    fits = segment >= _LEAST_SEGMENT_BYTES and most >= 2 * together
    return StorePlan(size, segment, together, most) if fits else None


# The master's switch to be the metadata server, too.
HOLDS_METADATA = "enable_http_metadata_server"


class ProcessStart(NamedTuple):
    """What one process maps and registers before it is ready, and how long it may take.

    Attributes:
        populated: Bytes by page size, 0 for regular pages.
        registered_bytes: With each NIC.
        allowed_seconds: Of its startupProbe, None without one.
    """

    name: str
    populated: Mapping[int, int]
    registered_bytes: int | Unknown = 0
    allowed_seconds: int | None = None


class LaunchWish(NamedTuple):
    """What ``measure`` needs to know of a launch; without a launch all defaults.

    Attributes:
        protocol: Rdma or tcp; "" if no launch says it.
        devices: Names joined by commas, as the engine takes them.
        environment: Variables that the launch sets for the process that is measured.
        objects: The store's objects of one cache page.
        starts: Each process that maps memory.
        folder: The target of SSD offload; None without offload.
        python: The interpreter that the launch names by its path.
        transport: A transport that is neither RDMA nor TCP, such as ``ascend``, which is not
            measured; "" if none.
        metadata: P2PHANDSHAKE, http, etcd ...; "" if no launch says it.
        master_words: Flags of the master that decide how it treats clients that died.
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


def launch_wish(sized: Sized, host: Host) -> LaunchWish:
    """Read from a sized launch all that ``measure`` needs to know; a field that the launch does not
    tell is Unknown, None or empty.

    Protocol, devices and environment are those of the first process with RDMA, else of the first
    with a store client.
    """
    needs, most = sized.needs, sized.sizing.inputs.most
    mapped = () if isinstance(most, Unknown) else most.launch.processes
    stores = [(each.id, each.clients[0].protocol.value) for each in mapped if each.clients]
    first, protocol = next(iter(stores), (None, ""))
    process = next((each for each in needs.processes if each.id == first), None)
    if needs.rdma_processes:
        process, protocol = needs.rdma_processes[0], Protocol.RDMA.value
    use = None if process is None else process.rdma
    named = () if use is None else use.devices
    folders = [each.path for each in needs.storage if each.kind == "offload"]
    kinds = (service.kind.partition("metadata-")[2] for service in needs.services)
    wish = LaunchWish(
        protocol=protocol,
        devices="" if isinstance(named, Unknown) else ",".join(named),
        objects=_objects(sized, host.root),
        starts=_starts(sized),
        folder=next(iter(folders), None),
        python=_python(sized),
        transport=next((each.transport for each in needs.processes if each.transport), ""),
        metadata=next(filter(None, kinds), PEER_TO_PEER) if stores else "",
        master_words=_master_words(sized),
    )
    return wish if process is None else wish._replace(environment=process.environment)


def _master_words(sized: Sized) -> tuple[str, ...]:
    """Return the flags of the first master that say how it treats dead clients; () without any."""
    masters = (p for p in sized.sizing.inputs.processes if p.kind is ProcessKind.MASTER)
    arguments = next((process.arguments for process in masters), ())
    ttl = value_of(arguments, "client_ttl")
    flags = () if ttl is None or not ttl.text.isdecimal() else (f"--client_ttl={ttl.text}",)
    switches = (HOLDS_METADATA, "enable_metadata_cleanup_on_timeout")
    on = (name for name in switches if is_on(arguments, "mooncake_master", name))
    return (*flags, *(f"--{name}=true" for name in on))


def _objects(sized: Sized, root: Root) -> PageObjects | Unknown:
    """Return the store's objects of one cache page, by the first server of the launch."""
    try:
        servers = deployments(sized.sizing.inputs, sized.options, root, Cluster())
    except UsageError as error:
        return Unknown(str(error))
    request, links = servers[0].request, servers[0].server.links
    return request if isinstance(request, Unknown) else page_objects(request, links)


def _starts(sized: Sized) -> tuple[ProcessStart, ...] | Unknown:
    """Return the bytes that each process populates and registers at start; Unknown if sizes are
    unknown.

    A process that populates nothing is left out.
    """
    most = sized.sizing.inputs.most
    if isinstance(most, Unknown):
        return most
    needs = {each.id: each for each in sized.needs.processes}
    numbered = {each.number: each for each in sized.sizing.inputs.processes}
    starts = []
    for mapped in replay(most.launch, EndlessPools()):
        sizes: dict[int, int] = {}
        for each in mapped.allocations:
            page = 0 if each.backing is Backing.REGULAR else each.page_size_bytes
            sizes[page] = sizes.get(page, 0) + each.mapped_bytes
        need, process = needs.get(mapped.process.id), numbered.get(mapped.process.id.command)
        regions = () if need is None or need.rdma is None else need.regions
        container = None if process is None else process.command.container
        start = ProcessStart(
            mapped.process.name if need is None else need.name,
            {page: size for page, size in sizes.items() if size},
            regions if isinstance(regions, Unknown) else sum(each.bytes for each in regions),
            None if container is None else container.startup_seconds,
        )
        starts.append(start)
    return tuple(each for each in starts if each.populated)


def _python(sized: Sized) -> str | None:
    """Return the first Python outside containers that the launch names by a path, or None."""
    for process in sized.sizing.inputs.processes:
        word = process.command.words[0].text if process.command.words else ""
        named = os.path.isabs(word) and os.path.basename(word).startswith("python")
        if named and process.command.container is None and os.access(word, os.X_OK):
            return word
    return None
