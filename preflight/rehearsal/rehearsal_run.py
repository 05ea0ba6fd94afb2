"""Runs a plan: every process for real, step by step, and everything given back at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.hugetlb_fit import Spot
from checks.root import Root
from checks.units import format_bytes
from preflight.mooncake.allocations import Backing
from preflight.rehearsal.rehearsal_memory import (
    MemoryWatch,
    pages_in_use,
    status_bytes,
    taken_since,
)
from preflight.rehearsal.rehearsal_plan import CLIENT, HOST, MASTER, OFFLOAD, environment_of
from preflight.rehearsal.rehearsal_process import Answer, Running, StoppedError
from preflight.rehearsal.rehearsal_records import Done, Held, Member, Plan, Run, Step, Transfer
from preflight.rehearsal.rehearsal_times import Rises

Told = Callable[[str], None]
# What of this program's own environment a process needs where the launch does not say it.
_BASE = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "USER")
_START_SECONDS = 60
# The kernel gives a dead process's pages back within this time, or somebody else has them.
_BACK_SECONDS = 10
_VALUE_BYTES = 1 << 20
_PUT_SECONDS = 10


class RehearsalError(Exception):
    """Nothing could be rehearsed: the library does not load, its master does not start."""


def run(plan: Plan, root: Root, limit_seconds: float, tell: Told) -> Run:
    """Raises RehearsalError, OSError and KeyboardInterrupt, each with everything given back."""
    folder = Path(tempfile.mkdtemp(prefix="mooncake-preflight-"))
    before = pages_in_use(root)
    stage = _Stage(plan, root, folder, limit_seconds, tell, before)
    try:
        with stage.ended():
            stage.play()
    finally:
        left = _left(root, before)
        shutil.rmtree(folder, ignore_errors=True)
    return stage.result(left)


def _left(root: Root, before: Mapping[Spot, int]) -> dict[int, int]:
    """Pages by size that are not back."""
    until = time.monotonic() + _BACK_SECONDS
    while True:
        more = {
            spot.page_size_bytes: pages
            for spot, pages in taken_since(root, before).items()
            if spot.node is None and pages > 0
        }
        if not more or time.monotonic() > until:
            return more
        time.sleep(0.05)


def _regular_bytes(steps: Sequence[Step]) -> dict[int | None, int]:
    """Memory that is no huge page, by the node that it is bound to; None: all of it."""
    need: dict[int | None, int] = {None: 0}
    for one in (one for step in steps for one in step.asked if one.backing is Backing.REGULAR):
        size = one.pages * one.page_size_bytes
        for node in {None, one.node}:
            need[node] = need.get(node, 0) + size
    return need


class _Stage:
    """The running processes, and what came of each step so far."""

    def __init__(
        self,
        plan: Plan,
        root: Root,
        folder: Path,
        limit_seconds: float,
        tell: Told,
        before: Mapping[Spot, int],
    ) -> None:
        self._plan, self._root, self._folder = plan, root, folder
        self._limit_seconds, self._tell, self._before = limit_seconds, tell, before
        nodes = {m.process.node for m in plan.members if m.process.node is not None}
        nodes |= {s.node for step in plan.steps for s in step.asked if s.node is not None}
        self._watch = MemoryWatch(root, nodes)
        self._running: list[Running] = []
        self._players: dict[int, Running] = {}
        self._loaded: set[int] = set()
        self._master: Running | None = None
        self._master_is_up = False
        self._places: dict[str, str] = {}
        self._base = {name: os.environ[name] for name in _BASE if name in os.environ}
        self._done: list[Done] = []
        self._held: list[Held] = []
        self._pages: Mapping[Spot, int] = {}
        self._transfer = Transfer("", "", 0, skipped="it ended before")
        self._stopped = ""

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            for process in reversed(self._running):
                process.end()

    def result(self, left: Mapping[int, int]) -> Run:
        return Run(
            tuple(self._done),
            tuple(self._held),
            self._pages,
            self._transfer,
            self._stopped,
            left,
            lowest_room_bytes=self._watch.lowest_bytes,
        )

    def play(self) -> None:
        failed = False
        try:
            self._refuse_too_large(self._plan.steps, "the launch")
            self._begin()
            for step in self._plan.steps:
                done = self._step(step)
                self._done.append(done)
                if done.error:
                    failed = True
                    break
            self._look_back()
            if not failed:
                self._transfer = self._put_and_get()
        except StoppedError as stopped:
            self._stopped = str(stopped)
            self._look_back()

    def _look_back(self) -> None:
        """What is held now, by whom."""
        self._pages = taken_since(self._root, self._before)
        for index, member in enumerate(self._plan.members):
            player = self._players.get(index)
            sizes = {} if player is None else status_bytes(player.pid)
            kept = [sizes.get(name) for name in ("VmPin", "VmLck", "VmRSS")]
            self._held.append(Held(member.name, *kept))

    def _step(self, step: Step) -> Done:
        member = self._plan.members[step.member]
        self._tell(f"{member.name}: {step.what}")
        self._refuse_too_large((step,), f"{member.name}, {step.what}")
        player = None if step.kind == "program" else self._player(step.member)
        if step.kind in ("setup", "dummy", "program"):
            self._await_master()
        if step.kind == "dummy" and CLIENT not in self._places:
            self._start_stand_in(member)
        before = pages_in_use(self._root)
        began = time.monotonic()
        rises = Rises(self._root, before, began)
        rises.look(player)
        resident = 0 if player is None else status_bytes(player.pid).get("VmRSS", 0)

        def look() -> None:
            rises.look(self._players.get(step.member))
            self._look_at_memory()

        try:
            if player is None:
                answer = self._start_program(step, member, look)
            else:
                answer = player.ask(self._placed(step.order, member), self._limit_seconds, look)
        except StoppedError as stopped:
            raise StoppedError(f"{member.name}, {step.what}: {stopped}") from None
        rises.look(self._players.get(step.member))
        lines: tuple[str, ...] = ()
        if answer.error:
            lines = self._players[step.member].last_lines()
        taken = taken_since(self._root, before)
        now = status_bytes(self._players[step.member].pid).get("VmRSS")
        grown = None if now is None else max(0, now - resident)
        pins = [status_bytes(one.pid).get("VmPin", 0) for one in self._players.values()]
        times = rises.times
        return Done(step, answer.error, answer.seconds, taken, *times, lines, grown, sum(pins))

    def _refuse_too_large(self, steps: Sequence[Step], what: str) -> None:
        """Before they begin: what the memory is not there for is not tried."""
        found = self._watch.too_small(_regular_bytes(steps))
        if found is None:
            return
        need, room = found
        text = (
            f"{what}: takes {format_bytes(need)} of regular memory, and "
            f"{format_bytes(max(0, room.bytes))} may be taken ({room.source}): it was not tried"
        )
        if room.bytes > 0:
            text += f"; --scale {-(-need * self._plan.scale // room.bytes)} is small enough"
        raise StoppedError(text)

    def _look_at_memory(self) -> None:
        room = self._watch.room()
        if room.bytes < 0:
            raise StoppedError(f"broken off, since the host came to its limit ({room.source})")

    def _begin(self) -> None:
        """Start what needs nothing of the host yet, all at once: loading takes longer than most."""
        self._tell("starting")
        if any(member.process.clients for member in self._plan.members):
            self._start_master()
        for index, member in enumerate(self._plan.members):
            if member.program != "mooncake_client":
                player = self._start(index, self._environment(member), member.process.node, ())
                player.order({"do": "load", "folder": self._plan.library.folder})

    def _player(self, index: int) -> Running:
        """The process, once it has loaded the library."""
        player = self._players[index]
        if index not in self._loaded:
            answer = player.answer(_START_SECONDS, _nothing)
            if answer.error:
                said = " / ".join((answer.error, *player.last_lines()))
                raise RehearsalError(f"{self._plan.library.name} cannot be loaded: {said}")
            self._loaded.add(index)
        return player

    def _start(
        self,
        index: int,
        environment: Mapping[str, str],
        node: int | None,
        program: tuple[str, ...],
    ) -> Running:
        log = self._folder / f"process-{len(self._running)}.log"
        started = Running(self._plan.library.python, environment, log, node, program)
        self._running.append(started)
        if index >= 0:
            self._players[index] = started
        return started

    def _environment(self, member: Member) -> dict[str, str]:
        environment = environment_of(member, self._plan.scale, self._base)
        environment["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] = self._offload_folder(member)
        return environment

    def _offload_folder(self, member: Member) -> str:
        folder = self._folder / f"offload-{self._plan.members.index(member)}"
        folder.mkdir(exist_ok=True)
        return str(folder)

    def _start_master(self) -> None:
        port = free_port()
        program: tuple[str, ...] = (
            self._plan.library.program("mooncake_master"),
            f"--rpc_port={port}",
            f"--metrics_port={free_port()}",
        )
        clients = [client for member in self._plan.members for client in member.process.clients]
        if any(client.offload_buffer_bytes is not None for client in clients):
            program += ("--enable_offload=true",)
        self._master = self._start(-1, self._base, None, program)
        self._places[MASTER] = f"127.0.0.1:{port}"

    def _await_master(self) -> None:
        master = self._master
        if master is not None and not self._master_is_up:
            address = self._places[MASTER]
            answer = master.wait_until(lambda: _answers(address), _START_SECONDS, _nothing)
            if answer.error:
                said = " / ".join(master.last_lines())
                raise RehearsalError(f"mooncake_master did not start: {answer.error}: {said}")
            self._master_is_up = True

    def _start_program(self, step: Step, member: Member, look: Callable[[], None]) -> Answer:
        """``mooncake_client`` itself, with the launch's own words but for where things are."""
        client = member.process.clients[0]
        address = f"127.0.0.1:{free_port()}"
        words = list(member.arguments)
        words += [
            "--host=127.0.0.1",
            f"--port={address.rpartition(':')[2]}",
            "--metadata_server=P2PHANDSHAKE",
            f"--master_server_address={self._places[MASTER]}",
        ]
        if any("enable_http_server" in word for word in member.arguments):
            words.append("--enable_http_server=false")
        if self._plan.scale > 1:
            words += [
                f"--global_segment_size={client.segment_bytes}",
                f"--local_buffer_size={client.local_buffer_bytes}",
            ]
        program = (self._plan.library.program("mooncake_client"), *words)
        started = self._start(step.member, self._environment(member), member.process.node, program)
        answer = started.wait_until(lambda: _answers(address), self._limit_seconds, look)
        self._places[CLIENT] = address
        return answer

    def _start_stand_in(self, member: Member) -> None:
        """A ``mooncake_client`` without memory, where the launch has none: it is elsewhere."""
        address = f"127.0.0.1:{free_port()}"
        program = (
            self._plan.library.program("mooncake_client"),
            "--host=127.0.0.1",
            f"--port={address.rpartition(':')[2]}",
            "--metadata_server=P2PHANDSHAKE",
            f"--master_server_address={self._places[MASTER]}",
            "--global_segment_size=0",
            "--local_buffer_size=0",
            f"--protocol={member.process.clients[0].protocol.value}",
        )
        started = self._start(-1, self._base, None, program)
        answer = started.wait_until(lambda: _answers(address), _START_SECONDS, _nothing)
        if answer.error:
            said = " / ".join(started.last_lines())
            raise RehearsalError(f"mooncake_client did not start: {answer.error}: {said}")
        self._places[CLIENT] = address

    def _placed(self, order: Mapping[str, Any], member: Member) -> dict[str, Any]:
        """``order`` with where things are."""
        places = {**self._places, HOST: f"127.0.0.1:{free_port()}"}
        if order.get("more"):
            places[OFFLOAD] = self._offload_folder(member)

        def place(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: place(inner) for name, inner in value.items()}
            return places.get(value, value) if isinstance(value, str) else value

        return {name: place(value) for name, value in order.items()}

    def _put_and_get(self) -> Transfer:
        """A value from the first process to the last that can hold one."""
        able = [
            (index, client)
            for index, member in enumerate(self._plan.members)
            if member.program != "mooncake_client"
            for client in member.process.clients
            if client.local_buffer_bytes
        ]
        segments = [c.segment_bytes for m in self._plan.members for c in m.process.clients]
        largest = max(segments, default=0)
        if not able or not largest:
            return Transfer("", "", 0, skipped=_why_no_transfer(bool(able)))
        (first, local), (last, _) = able[0], able[-1]
        size = min(_VALUE_BYTES, largest // 4, local.local_buffer_bytes // 4)
        put, got = (self._plan.members[index].name for index in (first, last))
        order = {"key": f"mooncake-preflight-{os.getpid()}", "bytes": size}
        self._tell(f"a put of {format_bytes(size)}")
        seconds = 0.0
        for index, what in ((first, "put"), (last, "get")):
            try:
                limit = min(_PUT_SECONDS, self._limit_seconds)
                answer = self._players[index].ask({"do": what, **order}, limit, _nothing)
            except StoppedError as stopped:
                return Transfer(put, got, size, f"{what}: {stopped}")
            seconds += answer.seconds
            if answer.error:
                lines = "; ".join(self._players[index].last_lines()[-1:])
                return Transfer(put, got, size, f"{answer.error}: {lines}")
        return Transfer(put, got, size, seconds=seconds)


def _why_no_transfer(able: bool) -> str:
    if able:
        return "no process of the launch has a segment"
    return "no process of the launch can be asked to put a value: none has a local buffer"


def _nothing() -> None:
    """Where nothing is to be looked at."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0
