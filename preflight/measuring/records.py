"""Plans of what is measured within a budget of time and memory, and records of the results."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from checks.base.regex import regex
from checks.base.units import GIB, KIB, MIB, format_page_size, round_up
from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.measuring.orders import HEAD_BYTES
from preflight.probes.registration import CeilingAnswer


class Rate(NamedTuple):
    """What one measurement came to.

    op: populate, copy, copy-to-gpu, write, read, gpu-write, gpu-read, put, get, register, setup.
    gpu-: this side's memory is that of a GPU. what: on which pages, by which NIC,
    or how many at a time. size_bytes: of one object or piece. page_bytes: of populated memory, 0
    for regular pages. p50, p99: of one call. calls: how many were made. nic: the only one, "" for
    those of the launch. link: of that one's port, in bytes a second, 0 where it has none to tell.
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


class Used(NamedTuple):
    """The transport that an engine says it took: rdma or tcp, "" where its log says neither.

    error: the last that its log has of RDMA, "" for nothing.
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


def used_of(log: str) -> Used:
    """Read from an engine's log which transport and devices it uses."""
    devices = tuple(dict.fromkeys(_OPENED.findall(log)))
    last = _FAILED.findall(log)[-1:]
    return Used("rdma" if devices else "tcp" if _TCP in log else "", devices, "".join(last)[:200])


class MeasuredPart(NamedTuple):
    """One part. skipped: why it was not measured, "" where it was. failed: what broke it off.

    did: in a sentence, what was done. used, there: the transport on this side and on the other.
    ceiling: how much can be registered, where that was asked for.
    """

    name: str
    did: str = ""
    rates: tuple[Rate, ...] = ()
    skipped: str = ""
    failed: str = ""
    used: Used | None = None
    there: Used | None = None
    notes: tuple[str, ...] = ()
    ceiling: CeilingAnswer | None = None

    def best(self, op: str) -> Rate | None:
        """Return the fastest rate of ``op`` that is not of a single NIC; None without a rate."""
        found = (each for each in self.rates if each.op == op and not each.nic)
        return max(found, key=lambda each: each.bytes_per_second, default=None)


class MeasuredRun(NamedTuple):
    """library: Mooncake's name and release. parts: those that were asked for, in their order.

    tokens_per_second: how fast the server computes a prompt; None where nobody said.
    """

    library: str | Unknown
    budget_seconds: float
    spend_bytes: int
    peer: str | None = None
    parts: tuple[MeasuredPart, ...] = ()
    tokens_per_second: float | None = None

    def part(self, name: str) -> MeasuredPart:
        """Return a part; one that was not asked for is skipped."""
        asked = (each for each in self.parts if each.name == name)
        return next(asked, MeasuredPart(name, skipped="not asked for"))


def read_measured(path: str) -> MeasuredRun:
    """Read a file that ``measure --save`` or ``--json`` wrote. Raises UsageError."""

    def read() -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    where = f"--measured {path}"
    try:
        answer = json.loads(within(limit_seconds(), where, read))["answer"]
        parts = tuple(_part_of(part) for part in answer["parts"])
        speed = answer["tokens_per_second"]
        return MeasuredRun("", 0.0, 0, None, parts, None if speed is None else float(speed))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except (LookupError, TypeError, ValueError):
        raise UsageError(f"{where}: it is not what measure --save writes") from None


def _part_of(part: Mapping[str, Any]) -> MeasuredPart:
    """Read one part back from saved JSON: only its rates, transports and notes."""

    def used(name: str) -> Used | None:
        said = part[name]
        return said and Used(said["transport"], tuple(said["devices"]), said["error"])

    rates = tuple(Rate(*(one[name] for name in Rate._fields)) for one in part["rates"])
    notes = tuple(part["notes"])
    return MeasuredPart(part["part"], "", rates, "", "", used("used"), used("there"), notes)


# In the order in which they are measured, each with its share of the time.
SHARES = {"memory": 2, "transfer": 5, "store": 4, "registration": 2, "storage": 3}
PARTS = tuple(SHARES)
LEAST_BUDGET_SECONDS, LEAST_SPEND_BYTES = 5.0, 64 * MIB
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
    """Memory of one page size (0: regular) on one node (None: anywhere), piece by piece."""

    page_bytes: int
    node: int | None
    bytes: int
    chunk_bytes: int

    @property
    def what(self) -> str:
        return pages_text(self.page_bytes) + ("" if self.node is None else f", node {self.node}")


def pages_text(page_bytes: int) -> str:
    """Return ``2 MiB pages``, or ``regular pages`` for 0."""
    return f"{format_page_size(page_bytes) if page_bytes else 'regular'} pages"


def populating(
    free_bytes: Mapping[tuple[int, int | None], int], spend_bytes: int
) -> list[Populating]:
    """Choose the memory to populate. free_bytes: what may be taken, by page size and node.

    Half of the free huge pages are left for processes that start meanwhile.
    """
    found = []
    for (page, node), free in free_bytes.items():
        size = min(spend_bytes, free // 2 if page else free)
        chunk = min(size, max(page, 64 * MIB))
        chunk -= chunk % page if page else 0
        if chunk > 0:
            found.append(Populating(page, node, size // chunk * chunk, chunk))
    return found


def transfer_sizes(object_bytes: int | None, spend_bytes: int) -> list[int]:
    """Return the sizes to transfer, small enough that two buffers fit in ``spend_bytes``."""
    wanted = {*_TRANSFERRED, object_bytes or MIB}
    return sorted(size for size in wanted if 2 * (size + HEAD_BYTES) <= spend_bytes)


def transfer_buffer_bytes(sizes: Sequence[int], spend_bytes: int) -> int:
    """Return a buffer size for two of the largest transfers, at most half of ``spend_bytes``."""
    return min(round_up(2 * max(sizes) + HEAD_BYTES, MIB), spend_bytes // 2 // MIB * MIB)


class StorePlan(NamedTuple):
    """together: objects in one call, beside one by one. most_objects: before any is evicted."""

    object_bytes: int
    segment_bytes: int
    together: int
    most_objects: int


def store_plan(object_bytes: int | None, spend_bytes: int) -> StorePlan | None:
    """Plan a store within ``spend_bytes``; None if the objects are too large for it."""
    size = object_bytes or USUAL_OBJECT_BYTES
    together = max(1, min(TOGETHER, spend_bytes // 8 // size))
    segment = min(GIB, spend_bytes - together * size - LOCAL_BUFFER_BYTES) // MIB * MIB
    # The master evicts from 95 % on (eviction_high_watermark_ratio); bins round objects up.
    most = int(segment * 0.7) // size
    fits = segment >= _LEAST_SEGMENT_BYTES and most >= 2 * together
    return StorePlan(size, segment, together, most) if fits else None
