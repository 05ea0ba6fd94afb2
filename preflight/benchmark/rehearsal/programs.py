"""Starts the processes of a rehearsal, gives them orders, and ends them by their ids."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from preflight.benchmark.rehearsal.plan import environment_of
from preflight.benchmark.rehearsal.records import Member, RehearsalPlan

CHILD = Path(__file__).with_name("child.py")
# How often memory is looked at while a step runs: at 10 GB/s, 200 MB come in meanwhile.
LOOK_SECONDS = 0.02
_LOG_BYTES = 65536
_MOST_LINES = 4
_MOST_COLUMNS = 300


class ProgramReply(NamedTuple):
    """The reply of a process to one order.

    Attributes:
        error: The call and its message, or how the process ended; "" if it succeeded.
        ended: The exit code of the process, or minus the signal; None while it lives.
        measured: The result of an order that measures.
    """

    error: str
    seconds: float
    ended: int | None = None
    measured: Mapping[str, Any] = {}


LATE = "it took more than"


class StoppedError(Exception):
    """A step was broken off, perhaps in the middle; the reason is a sentence."""


Look = Callable[[], None]


def _no_look() -> None:
    """Do nothing."""


class Running:
    """One process of the rehearsal, its orders, its answers, and what its library wrote."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        log: Path,
        numa_node: int | None = None,
        program: Sequence[str] = (),
        more_orders: str = "",
    ) -> None:
        """Start a process that takes orders, or ``program`` instead, which takes none.

        Raises OSError.

        Args:
            python: The interpreter.
            log: The file for all that the process writes.
            numa_node: Where it is bound, None for anywhere.
            more_orders: A Python file of further orders, "" for none.
        """
        self.log = log
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._unread = b""
        order: dict[str, Any] = {"parent": os.getpid(), "node": numa_node, "program": list(program)}
        order |= {"more": more_orders, "orders": orders, "answers": answers}
        # What becomes a program needs no packages, and starts in half the time without them.
        flags = ["-I", "-S"] if program else []
        try:
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    [python, *flags, str(CHILD), json.dumps(order)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=dict(environment),
                    pass_fds=() if program else (orders, answers),
                )
        except BaseException:
            os.close(self._orders)
            os.close(self._answers)
            raise
        finally:
            os.close(orders)
            os.close(answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self, order: Mapping[str, Any], limit_seconds: float, look: Look = _no_look
    ) -> ProgramReply:
        """Send an order and return the reply.

        Raises StoppedError.

        Args:
            look: Called while waiting.
        """
        self.order(order)
        return self.answer(limit_seconds, look)

    def order(self, order: Mapping[str, Any]) -> None:
        """Send an order; ``answer`` returns the reply, or tells that the process is gone."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, f"{json.dumps(order)}\n".encode())

    def answer(self, limit_seconds: float, look: Look = _no_look) -> ProgramReply:
        """Return the reply to the oldest order without one, or how the process ended.

        Args:
            look: Called again and again while waiting.

        Raises:
            StoppedError: After ``limit_seconds``.
        """
        began = time.monotonic()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], LOOK_SECONDS)
            if ready:
                more = os.read(self._answers, 65536)
                if not more:
                    return self._ended_reply(began)
                self._unread += more
            look()
            if time.monotonic() - began > limit_seconds:
                raise StoppedError(f"{LATE} {limit_seconds:.3g} s")
        line, _, self._unread = self._unread.partition(b"\n")
        answer = json.loads(line)
        return ProgramReply(answer["error"], answer["seconds"], measured=answer["measured"])

    def wait_until(
        self, ready: Callable[[], bool], limit_seconds: float, look: Look = _no_look
    ) -> ProgramReply:
        """Wait until ``ready`` is true, and return a reply without error; or how the program ended.

        Args:
            look: Called again and again while waiting.

        Raises:
            StoppedError: After ``limit_seconds``.
        """
        began = time.monotonic()
        while True:
            if self._process.poll() is not None:
                return self._ended_reply(began)
            if ready():
                return ProgramReply("", time.monotonic() - began)
            look()
            if time.monotonic() - began > limit_seconds:
                raise StoppedError(f"{LATE} {limit_seconds:.3g} s")
            time.sleep(LOOK_SECONDS)

    def _ended_reply(self, began: float) -> ProgramReply:
        """Return how the process ended: ``SIGBUS (exit code 135)``, or ``exit code 1``."""
        code, seconds = self._process.wait(), time.monotonic() - began
        if code >= 0:
            return ProgramReply(f"exit code {code}", seconds, code)
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        return ProgramReply(f"{name} (exit code {128 - code})", seconds, code)

    def last_lines(self) -> tuple[str, ...]:
        """Return at most four lines of the log that best say why the process failed; () if the log
        cannot be read.
        """
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            return worst_lines(file.read().decode(errors="replace"))
        return ()

    def end(self) -> None:
        """Kill the process and wait until it is gone, with all its memory.

        Can be called again.
        """
        for descriptor in (self._orders, self._answers):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._orders = self._answers = -1
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def worst_lines(text: str) -> tuple[str, ...]:
    """Pick the lines of a log that best say why a program ended: the last four errors of glog (E,
    F); in a log without errors the last warnings (W), without warnings the last lines.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if is_error(line)]
    warned = [line for line in lines if line[:1] == "W" and line[1:5].isdigit()]
    chosen = errors or warned or lines
    return tuple(line[:_MOST_COLUMNS] for line in chosen[-_MOST_LINES:])


def is_error(line: str) -> bool:
    """Tell whether a line is one that glog wrote as an error (E) or fatal (F)."""
    return line[:1] in ("E", "F") and line[1:5].isdigit()


# What of this program's own environment a process needs where the launch does not say it.
BASE_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "USER")
_START_SECONDS = 60


class RehearsalError(Exception):
    """Nothing could be rehearsed: the library does not load, its master does not start."""


class Programs:
    """The processes of a rehearsal, and the addresses at which they listen.

    players: the process of each member, by the member's number.
    """

    def __init__(self, plan: RehearsalPlan, folder: Path, limit_seconds: float) -> None:
        """Prepare to run the plan; nothing is started yet.

        Args:
            folder: For logs and offloaded data.
        """
        self._plan, self._folder, self.limit_seconds = plan, folder, limit_seconds
        self.players: dict[int, Running] = {}
        self._running: list[Running] = []
        self._loaded: set[int] = set()
        self._master: Running | None = None
        self._master_is_up = False
        self._master_address = self._client_address = ""
        self._base = {name: os.environ[name] for name in BASE_VARIABLES if name in os.environ}

    @contextlib.contextmanager
    def ended_at_exit(self) -> Iterator[None]:
        """End all processes at the end of the ``with`` block."""
        try:
            yield
        finally:
            for process in reversed(self._running):
                process.end()

    def begin(self) -> None:
        """Start the master, if a store client needs one, and each member but mooncake_client.

        All load the library at the same time, as that takes long.
        """
        if any(member.process.clients for member in self._plan.members):
            self._start_master()
        for member in self._plan.members:
            if member.program != "mooncake_client":
                player = self._start_member(member)
                player.order({"do": "load", "folder": self._plan.library.folder})

    def player(self, member: Member) -> Running:
        """Wait until the member's process, started before, has loaded the library; return that
        process.

        Raises:
            RehearsalError: If it cannot load.
        """
        player = self.players[member.number]
        if member.number not in self._loaded:
            answer = player.answer(_START_SECONDS)
            if answer.error:
                why = " / ".join((answer.error, *player.last_lines()))
                raise RehearsalError(f"{self._plan.library.name} cannot be loaded: {why}")
            self._loaded.add(member.number)
        return player

    def _start_member(self, member: Member, program: tuple[str, ...] = ()) -> Running:
        environment = environment_of(member, self._plan.scale, self._base)
        environment["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] = self._offload_folder(member)
        started = self._start(environment, member.process.node, program)
        self.players[member.number] = started
        return started

    def _start(
        self, environment: Mapping[str, str], numa_node: int | None, program: tuple[str, ...]
    ) -> Running:
        """Start a process with a new log file.

        Args:
            numa_node: Where it is bound, None for anywhere.
        """
        log = self._folder / f"process-{len(self._running)}.log"
        started = Running(self._plan.library.python, environment, log, numa_node, program)
        self._running.append(started)
        return started

    def _offload_folder(self, member: Member) -> str:
        folder = self._folder / f"offload-{member.number}"
        folder.mkdir(exist_ok=True)
        return str(folder)

    def _start_master(self) -> None:
        """Start a mooncake_master on free ports, with offload if a client of the plan offloads."""
        port = free_port()
        arguments = [f"--rpc_port={port}", f"--metrics_port={free_port()}"]
        clients = [client for member in self._plan.members for client in member.process.clients]
        if any(client.offload_buffer_bytes is not None for client in clients):
            arguments.append("--enable_offload=true")
        program = (self._plan.library.program("mooncake_master"), *arguments)
        self._master = self._start(self._base, None, program)
        self._master_address = f"127.0.0.1:{port}"

    def await_master(self) -> None:
        master = self._master
        if master is not None and not self._master_is_up:
            await_answer(master, "mooncake_master", self._master_address)
            self._master_is_up = True

    def start_client(self, member: Member, look: Callable[[], None]) -> ProgramReply:
        """Start a member's mooncake_client, with the launch's flags and local addresses, and wait
        for it.

        Returns a reply without error once it answers, or how it ended.

        Args:
            look: Called again and again while waiting.

        Raises:
            StoppedError: After the limit of a step.
        """
        client = member.process.clients[0]
        address = f"127.0.0.1:{free_port()}"
        arguments = [*member.arguments, *self._address_flags(address)]
        if any("enable_http_server" in word for word in member.arguments):
            arguments.append("--enable_http_server=false")
        if self._plan.scale > 1:
            arguments.append(f"--global_segment_size={client.segment_bytes}")
            arguments.append(f"--local_buffer_size={client.local_buffer_bytes}")
        program = (self._plan.library.program("mooncake_client"), *arguments)
        started = self._start_member(member, program)
        answer = started.wait_until(lambda: _answers(address), self.limit_seconds, look)
        self._client_address = address
        return answer

    def ensure_client(self, member: Member) -> None:
        """Start a ``mooncake_client`` without memory, unless one runs already.

        Args:
            member: A dummy client, whose protocol is used.
        """
        if self._client_address:
            return
        address = f"127.0.0.1:{free_port()}"
        addresses = self._address_flags(address)
        arguments = [*addresses, "--global_segment_size=0", "--local_buffer_size=0"]
        arguments.append(f"--protocol={member.process.clients[0].protocol.value}")
        program = (self._plan.library.program("mooncake_client"), *arguments)
        await_answer(self._start(self._base, None, program), "mooncake_client", address)
        self._client_address = address

    def _address_flags(self, address: str) -> tuple[str, ...]:
        """Return the flags that give a mooncake_client its address and that of the master."""
        port, master = address.rpartition(":")[2], f"--master_server_address={self._master_address}"
        return "--host=127.0.0.1", f"--port={port}", "--metadata_server=P2PHANDSHAKE", master

    def with_addresses(self, order: Mapping[str, Any], member: Member) -> dict[str, Any]:
        """Return the order; if it sets up a client, with this rehearsal's addresses and folder."""
        if order["do"] == "dummy":
            return {**order, "client": self._client_address}
        if order["do"] != "setup":
            return {**order}
        more = {**order["more"]}
        if more:
            more["ssd_offload_path"] = self._offload_folder(member)
        host = f"127.0.0.1:{free_port()}"
        return {**order, "host": host, "master": self._master_address, "more": more}


def await_answer(started: Running, name: str, address: str) -> None:
    """Wait until a program answers at ``address``.

    Raises:
        RehearsalError: With the last lines of its log, if it ends before; StoppedError after 60 s.
    """
    reply = started.wait_until(lambda: _answers(address), _START_SECONDS)
    if reply.error:
        why = " / ".join(started.last_lines())
        raise RehearsalError(f"{name} did not start: {reply.error}: {why}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, int(port))) == 0
