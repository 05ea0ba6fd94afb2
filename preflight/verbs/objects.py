"""What RDMA objects can be asked, whichever library makes them, and how Mooncake sets them up."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple, Protocol


class Setup(NamedTuple):
    """How Mooncake registers memory and sets a queue pair up (rdma_endpoint.cpp)."""

    # enum ibv_access_flags: LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ.
    access: int = 1 | 2 | 4
    # Tries of 4.096 us x 2^14 = 67 ms, but for one less than its 7: soft-RoCE (rxe) takes 7 for
    # "never give up", and nothing would ever be heard.
    timeout: int = 14
    retries: int = 6
    rnr_retries: int = 7
    hops: int = 16
    min_rnr_timer: int = 12
    reads: int = 16
    # A queue pair has one write under way at a time.
    send_requests: int = 4
    completions: int = 16


SETUP = Setup()


class VerbsError(OSError):
    """A call of libibverbs failed; ``device`` and ``call`` say where."""

    def __init__(self, number: int, call: str, device: str) -> None:
        super().__init__(number, os.strerror(number))
        self.call = call
        self.device = device


class PortFacts(NamedTuple):
    """What ibv_query_port says of a port. mtu_code: enum ibv_mtu."""

    mtu_code: int
    lid: int


class Peer(NamedTuple):
    """What a queue pair needs to connect: the other one's address, and its own port.

    gid: 16 bytes of the other side. psn: of its first packet. mtu_code: enum ibv_mtu of the path.
    """

    port: int
    gid_index: int
    gid: bytes
    lid: int
    number: int
    psn: int
    mtu_code: int


class RegisteredRegion(Protocol):
    """Registered memory."""

    @property
    def lkey(self) -> int: ...
    @property
    def rkey(self) -> int: ...
    def close(self) -> None: ...


class QueuePair(Protocol):
    """A reliable connection's end with a completion queue of its own."""

    @property
    def number(self) -> int: ...
    def initialize(self, port: int) -> None: ...
    def connect(self, peer: Peer, own_psn: int) -> None: ...
    def write(self, address: int, size: int, lkey: int, to_address: int, rkey: int) -> None: ...
    def poll(self) -> int | None:
        """Return the status of a completion (enum ibv_wc_status), None where none is there."""

    def close(self) -> None: ...


class OpenedDevice(Protocol):
    """An opened device with a protection domain. Whatever fails raises VerbsError."""

    @property
    def largest_bytes(self) -> int:
        """Return max_mr_size, as the device tells it."""

    def register(self, address: int, size: int) -> RegisteredRegion: ...
    def port(self, number: int) -> PortFacts: ...
    def gid(self, port: int, index: int) -> bytes: ...
    def queue_pair(self) -> QueuePair: ...
    def close(self) -> None: ...


@contextmanager
def named(call: str, device: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise a binding's own errors as VerbsError of ``call``."""
    try:
        yield
    except kinds as error:
        number = getattr(error, "error_code", None) or getattr(error, "errno", None)
        raise VerbsError(number if isinstance(number, int) else errno.EIO, call, device) from error


# Preferred first; each has ``open_device(name)``. The last needs nothing but libibverbs.
LIBRARIES: tuple[str, ...] = ("pyverbs_objects", "ctypes_objects")


def open_device(name: str) -> OpenedDevice:
    """Open ``name``. Raises VerbsError; OSError where libibverbs cannot be loaded at all."""
    preferred, last = LIBRARIES
    try:
        library = import_module(f"preflight.verbs.{preferred}")
    except ImportError:
        library = import_module(f"preflight.verbs.{last}")
    opened: OpenedDevice = library.open_device(name)
    return opened
