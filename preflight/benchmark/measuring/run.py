"""Measures the parts, each within its time: by processes with the library."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from checks.framework.root import Root
from checks.framework.units import GIB, MIB, format_bytes
from checks.framework.unknown import Unknown
from checks.gpu.facts import read_gpus
from checks.gpu.judge import IDLE_BYTES
from checks.hugetlb.pools import Pool, read_hugetlb
from checks.numa.nodes import memory_nodes
from checks.software.software_checks import missing_library_advice
from preflight.base.one_line import clean
from preflight.benchmark.measuring.findings import rate_text
from preflight.benchmark.measuring.records import (
    ALL_NICS,
    LOCAL_BUFFER_BYTES,
    MOST_CALLS,
    UNREAD_ROOM_BYTES,
    USUAL_OBJECT_BYTES,
    EngineUse,
    LaunchWish,
    MeasuredPart,
    MeasuredRun,
    Rate,
    deadlines,
    engine_use,
    pages_text,
    plan_populating,
    slice_seconds,
    store_plan,
    transfer_buffer_bytes,
    transfer_sizes,
)
from preflight.benchmark.probes.measure import PATIENCE_SECONDS
from preflight.benchmark.probes.registration import CeilingAnswer
from preflight.benchmark.rehearsal.programs import (
    BASE_VARIABLES,
    ProgramReply,
    RehearsalError,
    Running,
    StoppedError,
    await_answer,
    free_port,
)
from preflight.benchmark.rehearsal.records import Library
from preflight.benchmark.rehearsal.run import MemoryWatch

LOOPBACK = "127.0.0.1"
_ORDERS = str(Path(__file__).with_name("orders.py"))
# Sizes of the launch's own memory, which are not within --spend; and of its log, which is read.
_LEFT_OUT = ("MC_MMAP_", "MC_STORE_", "MC_LOG_")


class MeasureError(Exception):
    """A part was broken off; the message is a sentence."""


class SkippedError(Exception):
    """A part is not measured here; the message says why."""


def transport_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the launch's variables that decide how memory moves and where programs are found."""
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
        ceiling: Callable[[float, Callable[[str], None]], CeilingAnswer] | None = None,
    ) -> None:
        """Store the settings; the budget of time begins now.

        Args:
            library: Unknown, with the reason, if Mooncake was not found.
            ceiling: A function of (seconds, tell) that measures how much can be registered; None if
                that is not asked for.
        """
        self._library, self._wanted, self._spend_bytes = library, wanted, spend_bytes
        self._ceiling = ceiling
        self._budget_seconds = budget_seconds
        self._until = self._end = time.monotonic() + budget_seconds
        self._sizes = transfer_sizes(wanted.object_bytes, spend_bytes)
        self._stack = ExitStack()
        variables = {name: os.environ[name] for name in BASE_VARIABLES if name in os.environ}
        self._environment = {**variables, **transport_environment(wanted.environment)}

    def run(
        self, parts: tuple[str, ...], here: str, peer: str | None, tell: Callable[[str], None]
    ) -> MeasuredRun:
        """Measure the parts, each within its share of the budget; a part that fails does not end
        the run.

        Args:
            here: This side's address.
            peer: What --to takes, None for this host.
            tell: Is called with the name of each part.
        """
        measured = []
        ways: dict[str, Callable[[], MeasuredPart]] = {
            "memory": self._memory,
            "transfer": lambda: self._transfer(here, peer),
            "store": self._store,
            "registration": lambda: self._registration(tell),
            "storage": self._storage,
        }
        for name, seconds in deadlines(parts, self._budget_seconds).items():
            self._until = self._end - self._budget_seconds + seconds
            tell(name)
            try:
                with ExitStack() as self._stack:
                    if self._left_seconds < 0:
                        raise SkippedError("--budget was over before it began")
                    part = ways[name]()
                    done = part.rates or part.ceiling
                    why = "" if done else "; ".join(("nothing was measured", *part.notes))
                    measured.append(part._replace(failed=part.failed or why))
            except SkippedError as why:
                measured.append(MeasuredPart(name, skipped=str(why)))
            except (MeasureError, StoppedError, RehearsalError, OSError) as error:
                measured.append(MeasuredPart(name, failed=str(error)))
        library = self._library if isinstance(self._library, Unknown) else self._library.name
        where = peer and peer.partition("/")[0]
        return MeasuredRun(library, self._budget_seconds, self._spend_bytes, where, tuple(measured))

    def serve(self, stack: ExitStack, host: str) -> int:
        """Offer memory at ``host`` until ``stack`` closes; return the port.

        Raises:
            MeasureError: If it cannot be offered.
            SkippedError: If it cannot be offered.
            StoppedError: If it cannot be offered.
            OSError: If it cannot be offered.
        """
        self._stack = stack
        (process,) = self._start_loaded(1)
        return self._offer_memory(process, host)

    @property
    def _left_seconds(self) -> float:
        return self._until - time.monotonic()

    @property
    def _wait_seconds(self) -> float:
        return max(0.0, self._end - time.monotonic()) + PATIENCE_SECONDS

    def _start(self, numa_node: int | None = None, program: tuple[str, ...] = ()) -> Running:
        """Start a process that takes orders, or ``program``; it and its log end with the stack."""
        library = self._library
        python = sys.executable if isinstance(library, Unknown) else library.python
        log = os.memfd_create("log")
        self._stack.callback(os.close, log)
        where = Path(f"/proc/{os.getpid()}/fd/{log}")
        started = Running(python, self._environment, where, numa_node, program, _ORDERS)
        self._stack.callback(started.end)
        return started

    def _start_loaded(self, count: int) -> list[Running]:
        """Start ``count`` processes and have all load the library at the same time.

        Raises:
            SkippedError: Without a library or for a transport that is not measured.
        """
        if isinstance(self._library, Unknown):
            raise SkippedError(self._library.reason)
        if self._wanted.transport:
            by = self._wanted.transport
            raise SkippedError(f"the launch moves memory by {by}, which is not measured")
        started = [self._start() for _ in range(count)]
        for process in started:
            process.order({"do": "load", "folder": self._library.folder})
        for process in started:
            reply = process.answer(self._wait_seconds)
            if advice := missing_library_advice(reply.error):
                reply = reply._replace(error=f"{reply.error}; {advice}")
            _result_of(process, reply)
        return started

    def _ask(
        self, process: Running, do: str, at_most: float = math.inf, **order: Any
    ) -> Mapping[str, Any]:
        """Give an order and return its result.

        Raises:
            MeasureError: With the library's errors.
        """
        reply = process.ask({"do": do, **order}, min(at_most, self._wait_seconds))
        return _result_of(process, reply)

    def _memory(self) -> MeasuredPart:
        """Measure populating memory, by page size and NUMA node, and copying it.

        Copying to a GPU is measured, too, if all GPUs are idle.
        """
        asked, rates = plan_populating(_free_bytes(), self._spend_bytes), []
        players: dict[int | None, Running] = {}
        for number, spot in enumerate(asked):
            at = spot.numa_node
            players[at] = player = players.get(at) or self._start(at)
            seconds = slice_seconds(self._left_seconds, len(asked) - number)
            # A virtual machine may get memory when it is first touched, at a tenth of the speed.
            fresh = spot._replace(chunk_bytes=min(spot.bytes, 4 * spot.chunk_bytes))
            first = self._ask(player, "populate", seconds=0.0, **fresh._asdict())
            took = self._ask(player, "populate", seconds=seconds, **spot._asdict())
            rate = Rate("populate", spot.what, spot.chunk_bytes, page_bytes=spot.page_bytes, **took)
            once = rate._replace(what=f"{spot.what}, first touched", **first)
            rates += [once, rate] if 2 * once.bytes_per_second < rate.bytes_per_second else [rate]
        there, notes = {each.page_bytes for each in rates}, list[str]()
        if 0 in there and (chunk := min(64 * MIB, self._spend_bytes // 2)):
            player = next(iter(players.values()))
            gpu, notes = self._idle_gpu("copying to a GPU")
            order = {"seconds": slice_seconds(self._left_seconds, 1 + gpu), "bytes": chunk}
            rates.append(Rate("copy", "regular pages", chunk, **self._ask(player, "copy", **order)))
            if gpu:
                copies = self._ask(player, "copy_to_gpu", **order)
                rates.append(Rate("copy-to-gpu", "page-locked regular pages", chunk, **copies))
        missing = (pages_text(size) for size in (2 * MIB, GIB) if size not in there)
        notes += [f"{pages}: two free ones are needed, and are not there" for pages in missing]
        did = f"one thread populated up to {format_bytes(self._spend_bytes)}, and gave it back"
        return MeasuredPart("memory", did, tuple(rates), notes=tuple(notes))

    def _start_engine(
        self, process: Running, host: str, size: int, **more: Any
    ) -> tuple[int, EngineUse]:
        """Start an engine with ``size`` bytes of memory; return its port, and what it uses by its
        log.

        Args:
            more: Fields of the order, in place of the launch's.
        """
        wanted = {"protocol": self._wanted.protocol or "rdma", "devices": self._wanted.devices}
        started = self._ask(process, "engine", host=host, bytes=size, **{**wanted, **more})
        return int(started["port"]), engine_use(process.log.read_text(errors="replace"))

    def _offer_memory(self, process: Running, host: str, **more: Any) -> int:
        """Have a process offer memory at ``host``; return the port.

        Args:
            more: See ``_start_engine``.
        """
        size = transfer_buffer_bytes(self._sizes, self._spend_bytes)
        port, used = self._start_engine(process, host, size, **more)
        self._ask(process, "announce", own=f"{host}:{port}", about=used._asdict())
        return port

    def _transfer(self, address: str, peer: str | None) -> MeasuredPart:
        """Measure transfers to ``peer``, or to a second process here if None.

        With RDMA the NICs are also measured one at a time; if all GPUs are idle, GPU memory as
        well.
        """
        rates: list[Rate] = []
        notes, there, failed = [], None, ""
        did = f"one engine to {peer.partition('/')[0] if peer else 'another process of this host'}"
        peer = peer and self._admitted(peer)
        with self._ended_at_exit():
            here, used, where = self._connect(address, peer)
            names = [name for name in self._wanted.devices.split(",") if name] or used.devices
            alone = names if used.transport == "rdma" else ()
            # Where rails do not reach each other it hangs, and each alone does not.
            most = self._wait_seconds / (1 + len(alone))
            steps = [(op, each) for each in self._sizes for op in ("write", "read")]
            try:
                about = self._ask(here, "hello", most, peer=where)
                there = EngineUse(
                    about["transport"], tuple(about["devices"]), about.get("error", "")
                )
                for number, (op, each) in enumerate(steps):
                    speed = rates[-1].bytes_per_second if rates else math.inf
                    last = min(most, self._wait_seconds - PATIENCE_SECONDS)
                    if 2 * each > speed * last:  # it is moved twice
                        slow = f"at {rate_text(speed)} --budget is over before"
                        notes.append(f"{op} of {format_bytes(each)} was not measured: {slow}")
                        break
                    seconds = slice_seconds(self._left_seconds, len(steps) - number + len(alone))
                    rates.append(self._measure_transfer(here, op, each, seconds, most))
            except (MeasureError, StoppedError) as error:
                if len(alone) < 2 and not rates:
                    raise
                if len(alone) < 2:  # what is measured already stands
                    failed = str(error)
                else:
                    notes.append(f"{ALL_NICS}: {error}")
                    none = Rate("write", ALL_NICS, max(self._sizes), 0, 0.0, 0, nic=ALL_NICS)
                    rates.append(none)
        size = min(16 * MIB, max(self._sizes))
        for number, name in enumerate(alone):
            rate = Rate("write", "", size, 0, 0.0, 0)
            most = self._wait_seconds / (len(alone) - number)
            try:
                with self._ended_at_exit():
                    here, opened, where = self._connect(address, peer, devices=name)
                    if name not in opened.devices:
                        raise MeasureError(f"the engine did not open it: {opened.error}")
                    rate = rate._replace(seconds=most)  # if the transfer is not done by then
                    self._ask(here, "hello", most, peer=where)
                    seconds = slice_seconds(self._left_seconds, len(alone) - number)
                    rate = self._measure_transfer(here, "write", size, seconds, most)
            except (MeasureError, StoppedError) as error:
                notes.append(f"{name}: {error}")
            what = f"by {name} alone"
            speed = _link_speed(name)
            rates.append(rate._replace(what=what, nic=name, link_bytes_per_second=speed))
        if not isinstance(self._library, Unknown) and "non-cuda" not in self._library.name:
            gpu, busy = self._idle_gpu("transfer of GPU memory")
            notes += busy
            rates += self._gpu_transfers(address, peer, size, notes) if gpu else ()
        part = MeasuredPart("transfer", did, tuple(rates), failed=failed, notes=(*notes,))
        return part._replace(used=used, other=there)

    def _admitted(self, peer: str) -> str:
        """Have the ``measure --serve`` of ``peer`` (HOST:PORT/TOKEN) start its engine until this
        part ends; return the engine's HOST:PORT.

        Raises:
            MeasureError: If it does not.
        """
        where, _, token = peer.partition("/")
        host, _, port = where.rpartition(":")
        try:
            gate = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
            self._stack.enter_context(gate).sendall(token.encode())
            gate.settimeout(self._wait_seconds)
            reply = clean(gate.recv(1000).decode(errors="replace"))
        except OSError as error:
            raise MeasureError(f"{where}: {error.strerror or error}") from None
        if not reply.isdecimal():
            why = reply or "it is no measure --serve, or has another token"
            raise MeasureError(f"{where}: {why}")
        return f"{host}:{reply}"

    def _idle_gpu(self, what: str) -> tuple[bool, list[str]]:
        """Return whether the host has GPUs and all are idle; and, if a GPU is in use, a note that
        ``what`` was not measured.
        """
        nvml = read_gpus(Root("/"), None).nvml
        if isinstance(nvml, Unknown) or not nvml.gpus:
            return False, []
        busy = [gpu for gpu in nvml.gpus if gpu.processes or (gpu.used_bytes or 0) > IDLE_BYTES]
        note = f"{what} was not measured: GPU {{}} is in use"
        return not busy, [note.format(gpu.address) for gpu in busy[:1]]

    def _gpu_transfers(
        self, address: str, peer: str | None, size: int, notes: list[str]
    ) -> Iterator[Rate]:
        """Measure transfers between this side's GPU and the other side's host memory.

        The first error ends the measurement, and is appended to ``notes``.
        """
        try:
            with self._ended_at_exit():
                here, _, where = self._connect(address, peer, gpu=True)
                self._ask(here, "hello", peer=where)
                for number, op in enumerate(("write", "read")):
                    seconds = slice_seconds(self._left_seconds, 2 - number)
                    rate = self._measure_transfer(
                        here, op, size, seconds, self._wait_seconds, gpu=True
                    )
                    yield rate._replace(op=f"gpu-{op}", what="GPU memory, one at a time")
        except (MeasureError, StoppedError) as error:
            notes.append(f"GPU memory: {error}")

    def _connect(
        self, address: str, peer: str | None, gpu: bool = False, **more: Any
    ) -> tuple[Running, EngineUse, str]:
        """Start an engine at ``address``; without ``peer``, also an engine for the other side here.

        Return the process, the transport it uses, and HOST:PORT of the other side.

        Args:
            gpu: The engine at ``address`` registers GPU memory too.
            more: Fields of both orders, such as devices.
        """
        here, *others = self._start_loaded(1 if peer else 2)
        for there in others:
            peer = f"{LOOPBACK}:{self._offer_memory(there, LOOPBACK, **more)}"
        size = transfer_buffer_bytes(self._sizes, self._spend_bytes)
        _, used = self._start_engine(here, address, size, gpu=gpu, **more)
        return here, used, str(peer)

    def _measure_transfer(
        self, process: Running, op: str, size: int, seconds: float, most: float, gpu: bool = False
    ) -> Rate:
        order = {"op": op, "size": size, "most": MOST_CALLS, "seconds": seconds, "gpu": gpu}
        return Rate(op, "one at a time", size, **self._ask(process, "transfer", most, **order))

    @contextmanager
    def _ended_at_exit(self) -> Iterator[None]:
        """End all processes that are started in the ``with`` block at its end."""
        outer = self._stack
        try:
            with ExitStack() as self._stack:
                yield
        finally:
            self._stack = outer

    def _store(self) -> MeasuredPart:
        """Measure setup, puts and gets in a store that is started here: a master and two clients.

        Raises:
            SkippedError: Without a library, or if the objects are too large for --spend.
        """
        plan = store_plan(self._wanted.object_bytes, self._spend_bytes)
        if plan is None:
            raise SkippedError("--spend is too little for a store of the launch's objects")
        segment, client = self._start_loaded(2)
        assert not isinstance(self._library, Unknown)
        port = free_port()
        master = self._library.program("mooncake_master")
        program = (master, f"--rpc_port={port}", f"--metrics_port={free_port()}")
        await_answer(self._start(program=program), "mooncake_master", f"{LOOPBACK}:{port}")
        protocol = self._wanted.protocol or ("rdma" if _rdma_devices() else "tcp")
        setup: dict[str, Any] = {
            "metadata": "P2PHANDSHAKE",
            "local_buffer_bytes": LOCAL_BUFFER_BYTES,
        }
        setup |= {"protocol": protocol, "devices": self._wanted.devices, "more": {}}
        setup["master"] = f"{LOOPBACK}:{port}"
        for process, size in ((segment, plan.segment_bytes), (client, 0)):
            host = f"{LOOPBACK}:{free_port()}"
            began = time.monotonic()
            self._ask(process, "setup", **setup, host=host, segment_bytes=size)
            took = time.monotonic() - began
        self._ask(client, "store_buffer", bytes=plan.together * plan.object_bytes)
        rates = [Rate("setup", "a client without a segment", 0, 0, took, 1, took, took)]
        stored = 0
        steps = [(op, each) for op in ("put", "get") for each in sorted({1, plan.together})]
        for number, (op, together) in enumerate(steps):
            # Those one by one get a third of the pool: enough of it is left for the others.
            most = plan.most_objects // (3 if together == 1 < plan.together else 1)
            calls = MOST_CALLS if op == "get" else max(1, (most - stored) // together)
            seconds = slice_seconds(self._left_seconds, len(steps) - number)
            order: dict[str, Any] = {"op": op, "size": plan.object_bytes, "together": together}
            order |= {"stored": stored, "most": calls, "seconds": seconds}
            measured = self._ask(client, "objects", **order)
            stored += measured["calls"] * together if op == "put" else 0
            what = f"{together if together > 1 else 'one'} at a time"
            rates.append(Rate(op, what, plan.object_bytes, **measured))
        did = f"a master and two clients here, a segment of {format_bytes(plan.segment_bytes)}"
        used = engine_use(client.log.read_text(errors="replace"))
        return MeasuredPart("store", did, tuple(rates), used=used)

    def _registration(self, tell: Callable[[str], None]) -> MeasuredPart:
        """Measure how fast each RDMA device registers memory; if asked for, also how much it can
        register.

        Raises:
            SkippedError: Without an RDMA device, or with neither library nor ceiling.
        """
        names, rates = _rdma_devices(), []
        if not names:
            raise SkippedError("this host, or this container, has no RDMA device")
        notes = ["how much can be registered at once: --only registration"]
        ceiling = None
        if self._ceiling is not None:
            ceiling, notes = self._ceiling(max(0.0, self._left_seconds / 2), tell), []
        spots = plan_populating(_free_bytes(), self._spend_bytes // 2)
        for number, name in enumerate(names):
            if self._left_seconds < 0:
                notes.append(f"--budget was over before {', '.join(names[number:])}")
                break
            try:
                with self._ended_at_exit():
                    (process,) = self._start_loaded(1)
                    _, used = self._start_engine(
                        process, LOOPBACK, MIB, devices=name, protocol="rdma"
                    )
                    if name not in used.devices:
                        raise MeasureError(f"the engine did not open it: {used.error}")
                    for spot in (spot for spot in spots if spot.numa_node in (None, 0)):
                        took = self._ask(process, "register", **spot._asdict())
                        rate = Rate("register", f"{name}, {spot.what}", spot.bytes, **took)
                        rates.append(rate._replace(page_bytes=spot.page_bytes, nic=name))
            except SkippedError as why:
                if ceiling is None:
                    raise
                notes.append(f"the rate of registering is not measured: {why}")
                break
            except MeasureError as error:
                notes.append(f"{name}: {error}")
        did = "registered memory with one NIC at a time, and took it back"
        return MeasuredPart("registration", did, tuple(rates), notes=tuple(notes), ceiling=ceiling)

    def _storage(self) -> MeasuredPart:
        """Measure writes and reads of files in the folder to which the launch offloads.

        Raises:
            SkippedError: Without such a folder, or if it has too little free space.
        """
        folder = self._wanted.folder
        if folder is None or isinstance(folder, Unknown):
            why = "no launch with SSD offload is given" if folder is None else folder.reason
            raise SkippedError(why)
        if not os.path.isdir(folder):
            raise SkippedError(f"{folder} is not there, where the launch offloads to")
        free = os.statvfs(folder)
        if free.f_bavail * free.f_frsize < 2 * self._spend_bytes:
            raise SkippedError(f"{folder} has less free than twice --spend")
        size = min(self._wanted.object_bytes or USUAL_OBJECT_BYTES, self._spend_bytes)
        order: dict[str, Any] = {"folder": folder, "size": size, "bytes": self._spend_bytes}
        took = self._ask(self._start(), "files", seconds=max(0.2, self._left_seconds), **order)
        how = "O_DIRECT" if took["direct"] else "through the page cache: no O_DIRECT there"
        rates = tuple(Rate(op, how, size, **took[op]) for op in ("write", "read"))
        return MeasuredPart("storage", f"files without a name in {folder}, in turn", rates)


def _result_of(process: Running, reply: ProgramReply) -> Mapping[str, Any]:
    if reply.error:  # of the library's last errors the first is the cause, the last what it gave up
        lines = process.last_lines()
        raise MeasureError(": ".join((reply.error, *dict.fromkeys((*lines[:1], *lines[-1:])))))
    return reply.measured


def _link_speed(device: str) -> float:
    """Return the rate of the device's port 1 in bytes per second; 0 if unknown or in software."""
    root, place = Root(), f"/sys/class/infiniband/{device}"
    rate = root.text(f"{place}/ports/1/rate")
    if isinstance(rate, Unknown) or not os.path.exists(f"{place}/device"):
        return 0.0
    return float(rate.split()[0]) * 1e9 / 8


def _rdma_devices() -> tuple[str, ...]:
    names = Root().names("/sys/class/infiniband")
    return () if isinstance(names, Unknown) else tuple(sorted(names))


def _free_bytes() -> dict[tuple[int, int | None], int]:
    """Return the bytes that may be taken, by (page size, NUMA node).

    Page size 0: regular pages. Node None: the whole host, if it has only one node.
    """
    root = Root()
    nodes: tuple[int | None, ...] = memory_nodes(root)
    nodes = nodes if len(nodes) > 1 else (None,)
    rooms = partial(MemoryWatch, root, unread_bytes=UNREAD_ROOM_BYTES)
    watches = {numa: rooms(() if numa is None else (numa,)) for numa in nodes}
    sizes = {(0, numa): max(0, watch.room().bytes) for numa, watch in watches.items()}
    pools = read_hugetlb(root, Unknown("not asked")).pools
    for size, counts in sorted({} if isinstance(pools, Unknown) else pools.items()):
        for numa in nodes:
            if isinstance(counts, Pool) and (numa is None or numa in counts.nodes):
                here = counts if numa is None else counts.nodes[numa]
                free = min(here.free_pages, counts.free_pages - counts.reserved_pages)
                sizes[size, numa] = max(0, free) * size
    return sizes
