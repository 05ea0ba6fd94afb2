"""The programs of a rehearsal: started where the launch has them, found, and ended together."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from preflight.rehearsal.plan import CLIENT, HOST, MASTER, OFFLOAD, environment_of
from preflight.rehearsal.process import Reply, Running
from preflight.rehearsal.records import Member, Plan, Step

# What of this program's own environment a process needs where the launch does not say it.
_BASE = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "USER")
_START_SECONDS = 60


class RehearsalError(Exception):
    """Nothing could be rehearsed: the library does not load, its master does not start."""


class Programs:
    """Those that run, and where each of them listens. players: by the member that each one is."""

    def __init__(self, plan: Plan, folder: Path, limit_seconds: float) -> None:
        self._plan, self._folder, self._limit_seconds = plan, folder, limit_seconds
        self.players: dict[int, Running] = {}
        self._running: list[Running] = []
        self._loaded: set[int] = set()
        self._master: Running | None = None
        self._master_is_up = False
        self._places: dict[str, str] = {}
        self._base = {name: os.environ[name] for name in _BASE if name in os.environ}

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            for process in reversed(self._running):
                process.end()

    def begin(self) -> None:
        """Start what needs nothing of the host yet, all at once: loading takes longer than most."""
        if any(member.process.clients for member in self._plan.members):
            self._start_master()
        for index, member in enumerate(self._plan.members):
            if member.program != "mooncake_client":
                player = self._start(index, self._environment(member), member.process.node, ())
                player.order({"do": "load", "folder": self._plan.library.folder})

    def player(self, index: int) -> Running:
        """The process, once it has loaded the library."""
        player = self.players[index]
        if index not in self._loaded:
            answer = player.answer(_START_SECONDS)
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
            self.players[index] = started
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

    def await_master(self) -> None:
        master = self._master
        if master is not None and not self._master_is_up:
            _await(master, "mooncake_master", self._places[MASTER])
            self._master_is_up = True

    def start_client(self, step: Step, member: Member, look: Callable[[], None]) -> Reply:
        """``mooncake_client`` itself, with the launch's own words but for where things are."""
        client = member.process.clients[0]
        address = f"127.0.0.1:{free_port()}"
        words = [*member.arguments, *self._where(address)]
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

    def need_client(self, member: Member) -> None:
        """Start a ``mooncake_client`` without memory, for ranks to hand theirs to.

        Where the launch has one, that runs already; else it is elsewhere, and this stands in.
        """
        if CLIENT in self._places:
            return
        address = f"127.0.0.1:{free_port()}"
        program = (
            self._plan.library.program("mooncake_client"),
            *self._where(address),
            "--global_segment_size=0",
            "--local_buffer_size=0",
            f"--protocol={member.process.clients[0].protocol.value}",
        )
        _await(self._start(-1, self._base, None, program), "mooncake_client", address)
        self._places[CLIENT] = address

    def _where(self, address: str) -> tuple[str, ...]:
        """What a ``mooncake_client`` is told of its own address and of the master's."""
        return (
            "--host=127.0.0.1",
            f"--port={address.rpartition(':')[2]}",
            "--metadata_server=P2PHANDSHAKE",
            f"--master_server_address={self._places[MASTER]}",
        )

    def placed(self, order: Mapping[str, Any], member: Member) -> dict[str, Any]:
        """``order`` with where things are."""
        places = {**self._places, HOST: f"127.0.0.1:{free_port()}"}
        if order.get("more"):
            places[OFFLOAD] = self._offload_folder(member)

        def place(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: place(inner) for name, inner in value.items()}
            return places.get(value, value) if isinstance(value, str) else value

        return {name: place(value) for name, value in order.items()}


def _await(started: Running, name: str, address: str) -> None:
    """Wait until a program answers at ``address``. Raises RehearsalError with its last words."""
    reply = started.wait_until(lambda: _answers(address), _START_SECONDS)
    if reply.error:
        said = " / ".join(started.last_lines())
        raise RehearsalError(f"{name} did not start: {reply.error}: {said}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0
