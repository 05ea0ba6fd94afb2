"""Runs the parts: processes with the library, each within its time; all end with the command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from checks.base.root import Root
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.pools import Pool, read_hugetlb
from checks.numa.nodes import memory_nodes
from checks.rdma.calls import saved
from preflight.base.usage_error import UsageError
from preflight.measuring.plan import (
    LEAST_PART_SECONDS,
    MOST_CALLS,
    deadlines,
    populating,
    slice_seconds,
    store_plan,
    transfer_buffer_bytes,
    transfer_sizes,
)
from preflight.measuring.records import MeasuredPart, MeasuredRun, Rate, Used, rate, used_of
from preflight.measuring.wanted import LaunchWish
from preflight.rehearsal.programs import (
    BASE_VARIABLES,
    ProgramReply,
    RehearsalError,
    Running,
    StoppedError,
    await_answer,
    free_port,
)
from preflight.rehearsal.records import Library
from preflight.rehearsal.run import MemoryWatch

ORDERS = str(Path(__file__).with_name("orders.py"))
Tell = Callable[[str], None]
# What hangs is broken off so long after --budget is over.
_PATIENCE_SECONDS = 5.0
LOOPBACK = "127.0.0.1"


class MeasureError(Exception):
    """A part was broken off; the message is a sentence."""


# Sizes of the launch's own memory, which are not within --spend; and of its log, which is read.
_LEFT_OUT = ("MC_MMAP_", "MC_STORE_", "MC_LOG_")


def transport_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of a launch's environment decides how memory moves, and where programs are."""
    return {
        name: text
        for name, text in environment.items()
        if (name.startswith("MC_") and not name.startswith(_LEFT_OUT)) or name in BASE_VARIABLES
    }


class Measuring:
    """A measuring run: what it may take, and the processes that it has started."""

    def __init__(
        self,
        library: Library | Unknown,
        wanted: LaunchWish,
        budget_seconds: float,
        spend_bytes: int,
        tell: Tell,
    ) -> None:
        self.budget_seconds = budget_seconds
        self.library, self.wanted, self.spend_bytes = library, wanted, spend_bytes
        self._tell = tell
        self._stack = ExitStack()
        self._until = self._end = time.monotonic() + budget_seconds
        self._base = {name: os.environ[name] for name in BASE_VARIABLES if name in os.environ}

    def run(self, parts: tuple[str, ...], own: str, peer: str | None) -> MeasuredRun:
        """Measure the parts within the budget; own, peer: addresses of this side and the other."""
        began, found = self._end - self.budget_seconds, []
        ways: dict[str, Callable[[], MeasuredPart]] = {
            "memory": self._memory,
            "transfer": lambda: self._transfer(own, peer),
            "store": self._store,
            "registration": self._registration,
            "storage": self._storage,
        }
        for name, seconds in deadlines(parts, self.budget_seconds).items():
            self._until = began + seconds
            self._tell(name)
            if self._left < LEAST_PART_SECONDS:
                found.append(MeasuredPart(name, skipped="--budget was over before it began"))
                continue
            try:
                with ExitStack() as self._stack:
                    found.append(ways[name]())
            except (MeasureError, StoppedError, RehearsalError, OSError) as error:
                found.append(MeasuredPart(name, failed=str(error)))
        library = self.library if isinstance(self.library, Unknown) else self.library.name
        return MeasuredRun(library, self.budget_seconds, self.spend_bytes, peer, tuple(found))

    @property
    def _left(self) -> float:
        return self._until - time.monotonic()

    @property
    def _patience(self) -> float:
        return max(0.0, self._end - time.monotonic()) + _PATIENCE_SECONDS

    def start(self, node: int | None = None, program: tuple[str, ...] = ()) -> Running:
        """Start a process; what it writes is kept in memory and goes with this command."""
        python = sys.executable if isinstance(self.library, Unknown) else self.library.python
        log = os.memfd_create("log")
        self._stack.callback(os.close, log)
        environment = {**self._base, **transport_environment(self.wanted.environment)}
        where = Path(f"/proc/{os.getpid()}/fd/{log}")
        started = Running(python, environment, where, node, program, ORDERS)
        self._stack.callback(started.end)
        return started

    def ask(
        self, process: Running, do: str, seconds: float = 0.0, **order: Any
    ) -> Mapping[str, Any]:
        """Return what came of an order. Raises MeasureError, with the library's last words."""
        asked = {"do": do, "seconds": seconds, **order}
        return self._checked(process, process.ask(asked, self._patience))

    def _checked(self, process: Running, reply: ProgramReply) -> Mapping[str, Any]:
        if reply.error:
            raise MeasureError(": ".join((reply.error, *process.last_lines()[-1:])))
        return reply.measured

    def _loaded(self, *processes: Running) -> None:
        """Have processes load the library, side by side."""
        assert not isinstance(self.library, Unknown)
        for process in processes:
            process.order({"do": "load", "folder": self.library.folder})
        for process in processes:
            self._checked(process, process.answer(self._patience))

    @property
    def _not_measured(self) -> str:
        if isinstance(self.library, Unknown):
            return self.library.reason
        return f"the launch moves memory by {self.wanted.transport}, which is not measured"

    # Memory -----------------------------------------------------------------------------------

    def _memory(self) -> MeasuredPart:
        asked = populating(_free_bytes(), self.spend_bytes)
        rates: list[Rate] = []
        players: dict[int | None, Running] = {}
        for number, one in enumerate(asked):
            player = players.get(one.node) or self.start(one.node)
            players[one.node] = player
            seconds = slice_seconds(self._left, len(asked) - number)
            sizes = {"bytes": one.bytes, "chunk_bytes": one.chunk_bytes}
            found = self.ask(player, "populate", seconds, page_bytes=one.page_bytes, **sizes)
            rates.append(rate("populate", one.what, one.chunk_bytes, found, one.page_bytes))
        if not rates:
            return MeasuredPart("memory", skipped="no memory is free to be populated")
        did = (
            f"mapped and populated up to {format_bytes(self.spend_bytes)} by one thread, given back"
        )
        return MeasuredPart("memory", did, tuple(rates), notes=_without_pages(rates))

    # Transfer ---------------------------------------------------------------------------------

    def _engine(self, process: Running, host: str, size: int, **more: Any) -> Mapping[str, Any]:
        wanted = {"protocol": self.wanted.protocol or "rdma", "devices": self.wanted.devices}
        order = {"host": host, "bytes": size, **wanted, **more}
        return self.ask(process, "engine", **order)

    def _transfer(self, own: str, peer: str | None) -> MeasuredPart:
        if isinstance(self.library, Unknown) or self.wanted.transport:
            return MeasuredPart("transfer", skipped=self._not_measured)
        sizes = transfer_sizes(self.wanted.object_bytes, self.spend_bytes)
        size = transfer_buffer_bytes(sizes, self.spend_bytes)
        here = self.start()
        others = () if peer else (self.start(),)
        self._loaded(here, *others)
        for there in others:
            peer = f"{LOOPBACK}:{self.serve(there, LOOPBACK, size)}"
        assert peer is not None
        self._engine(here, own, size)
        said = self.ask(here, "hello", peer=peer)
        rates: list[Rate] = []
        steps = [(op, each) for op in ("write", "read") for each in sizes]
        for number, (op, each) in enumerate(steps):
            if self._left < 0 and number:
                break
            seconds = slice_seconds(self._left, len(steps) - number)
            order = {"op": op, "size": each, "most": MOST_CALLS}
            found = self.ask(here, "transfer", seconds, **order)
            rates.append(rate(op, "one at a time", each, found))
        used = used_of(here.log.read_text(errors="replace"))
        there_used = Used(said["transport"], tuple(said["devices"]))
        did = "to another process of this host" if others else f"to {peer}"
        return MeasuredPart(
            "transfer", f"one engine {did}", tuple(rates), used=used, there=there_used
        )

    def served(self, stack: ExitStack, host: str, size: int) -> int:
        """Offer memory at ``host`` until ``stack`` is closed, and return the port.

        Raises UsageError.
        """
        self._stack = stack
        process = self.start()
        try:
            self._loaded(process)
            return self.serve(process, host, size)
        except (MeasureError, StoppedError, OSError) as error:
            raise UsageError(f"nothing can be offered: {error}") from None

    def serve(self, process: Running, host: str, size: int) -> int:
        """Have a process offer memory to the other side's engine; returns its port."""
        port = self._engine(process, host, size)["port"]
        used = used_of(process.log.read_text(errors="replace"))
        self.ask(process, "announce", about=used._asdict())
        return int(port)

    # Store ------------------------------------------------------------------------------------

    def _store(self) -> MeasuredPart:
        if isinstance(self.library, Unknown) or self.wanted.transport:
            return MeasuredPart("store", skipped=self._not_measured)
        plan = store_plan(self.wanted.object_bytes, self.spend_bytes)
        if isinstance(plan, str):
            return MeasuredPart("store", skipped=plan)
        master = f"{LOOPBACK}:{free_port()}"
        ports = f"--rpc_port={master.rpartition(':')[2]}", f"--metrics_port={free_port()}"
        program = (self.library.program("mooncake_master"), *ports)
        segment, client = self.start(), self.start()
        await_answer(self.start(program=program), "mooncake_master", master)
        self._loaded(segment, client)
        for process, size in ((segment, plan.segment_bytes), (client, 0)):
            order: dict[str, Any] = {
                "host": f"{LOOPBACK}:{free_port()}",
                "metadata": "P2PHANDSHAKE",
                "segment_bytes": size,
                "local_buffer_bytes": 16 << 20,
                "protocol": self.wanted.protocol or ("rdma" if _rdma_devices() else "tcp"),
                "devices": self.wanted.devices,
                "master": master,
                "more": {},
            }
            self.ask(process, "setup", **order)
        self.ask(client, "store_buffer", bytes=plan.buffer_bytes)
        rates: list[Rate] = []
        stored = 0
        steps = [(op, each) for op in ("put", "get") for each in sorted({1, plan.together})]
        for number, (op, together) in enumerate(steps):
            # Those one by one get a third of the pool: enough of them are left for the others.
            most = plan.most_objects // 3 if together == 1 < plan.together else plan.most_objects
            calls = MOST_CALLS if op == "get" else (most - stored) // together
            order = {
                "op": op,
                "key": f"mooncake-preflight-{os.getpid()}",
                "size": plan.object_bytes,
                "together": together,
                "first": stored if op == "put" else 0,
                "stored": stored,
                "most": max(1, calls),
            }
            seconds = slice_seconds(self._left, len(steps) - number)
            found = self.ask(client, "objects", seconds, **order)
            stored += found["calls"] * together if op == "put" else 0
            what = "one at a time" if together == 1 else f"{together} at a time"
            rates.append(rate(op, what, plan.object_bytes, found))
        used = used_of(client.log.read_text(errors="replace"))
        did = f"a master and two clients here, a segment of {format_bytes(plan.segment_bytes)}"
        return MeasuredPart("store", did, tuple(rates), used=used)

    # Registration -----------------------------------------------------------------------------

    def _registration(self) -> MeasuredPart:
        if isinstance(self.library, Unknown) or self.wanted.transport:
            return MeasuredPart("registration", skipped=self._not_measured)
        names = _rdma_devices()
        if not names:
            return MeasuredPart(
                "registration", skipped="this host, or this container, has no RDMA device"
            )
        rates: list[Rate] = []
        notes: list[str] = []
        spots = [(page, free) for (page, node), free in _free_bytes().items() if node in (None, 0)]
        for number, name in enumerate(names):
            if self._left < 0:
                notes.append(f"--budget was over before {', '.join(names[number:])}")
                break
            try:
                rates += self._registered(name, spots)
            except MeasureError as error:
                notes.append(f"{name}: {error}")
        notes += [
            f"{one['device']}: probe registration held {format_bytes(one['holds_bytes'])} there"
            for one in saved()
            if one.get("device") in names and isinstance(one.get("holds_bytes"), int)
        ] or ["how much can be registered at once: probe registration"]
        did = "registered memory with one NIC at a time, and took it back"
        return MeasuredPart("registration", did, tuple(rates), notes=tuple(notes))

    def _registered(self, name: str, spots: list[tuple[int, int]]) -> list[Rate]:
        """Register with one NIC. spots: page sizes (0: regular) and how much of each is free."""
        process, rates = self.start(), []
        self._loaded(process)
        self._engine(process, LOOPBACK, 2 << 20, devices=name, protocol="rdma")
        if name not in used_of(process.log.read_text(errors="replace")).devices:
            raise MeasureError("the engine did not open it")
        for page, free in spots:
            size = min(self.spend_bytes, free // 2) // (page or 4096) * (page or 4096)
            if size:
                found = self.ask(process, "register", bytes=size, page_bytes=page)
                pages = format_page_size(page) if page else "regular"
                rates.append(rate("register", f"{name}, {pages} pages", size, found, page))
        process.end()
        return rates

    # Storage ----------------------------------------------------------------------------------

    def _storage(self) -> MeasuredPart:
        folder = self.wanted.folder
        if folder is None or isinstance(folder, Unknown):
            why = "no launch with SSD offload is given" if folder is None else folder.reason
            return MeasuredPart("storage", skipped=why)
        if not os.path.isdir(folder):
            return MeasuredPart(
                "storage", skipped=f"{folder} is not there, where the launch offloads to"
            )
        free = os.statvfs(folder)
        if free.f_bavail * free.f_frsize < 2 * self.spend_bytes:
            return MeasuredPart("storage", skipped=f"{folder} has less free than twice --spend")
        size = min(self.wanted.object_bytes or 1 << 20, self.spend_bytes)
        process = self.start()
        order = {"folder": folder, "size": size, "bytes": self.spend_bytes}
        found = self.ask(process, "files", max(self._left, LEAST_PART_SECONDS), **order)
        how = "O_DIRECT" if found["direct"] else "through the page cache: no O_DIRECT there"
        rates = tuple(rate(op, how, size, found[op]) for op in ("write", "read"))
        return MeasuredPart(
            "storage", f"files without a name in {folder}, one after the other", rates
        )


def _rdma_devices() -> tuple[str, ...]:
    names = Root().names("/sys/class/infiniband")
    return () if isinstance(names, Unknown) else tuple(sorted(names))


def _free_bytes() -> dict[tuple[int, int | None], int]:
    """Return what may be taken by page size (0: regular pages) and node (None: there is one)."""
    root = Root()
    nodes: tuple[int | None, ...] = memory_nodes(root)
    nodes = nodes if len(nodes) > 1 else (None,)
    found = {}
    for node in nodes:
        watch = MemoryWatch(root, () if node is None else (node,))
        found[0, node] = max(0, watch.room().bytes)
    pools = read_hugetlb(root, Unknown("not asked")).pools
    for size, pool in sorted({} if isinstance(pools, Unknown) else pools.items()):
        for node in nodes:
            if isinstance(pool, Pool) and (node is None or node in pool.nodes):
                free = pool.free_pages if node is None else pool.nodes[node].free_pages
                found[size, node] = max(0, min(free, pool.free_pages - pool.reserved_pages)) * size
    return found


def _without_pages(rates: list[Rate]) -> tuple[str, ...]:
    """Return which usual sizes of huge pages were not measured."""
    there = {each.page_bytes for each in rates}
    return tuple(
        f"{format_page_size(size)} pages: two free ones are needed, and are not there"
        for size in (2 << 20, 1 << 30)
        if size not in there
    )
