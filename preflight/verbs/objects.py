"""What an RDMA device can be asked, whichever library opens it, and how Mooncake registers."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol

# enum ibv_access_flags LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, as Mooncake registers memory.
ACCESS = 1 | 2 | 4


class VerbsError(OSError):
    """A call of libibverbs failed; ``device`` and ``call`` say where."""

    def __init__(self, number: int, call: str, device: str) -> None:
        super().__init__(number, os.strerror(number))
        self.call = call
        self.device = device


class RegisteredRegion(Protocol):
    """Registered memory."""

    def close(self) -> None: ...


class OpenedDevice(Protocol):
    """An opened device with a protection domain. Whatever fails raises VerbsError."""

    @property
    def largest_bytes(self) -> int:
        """Return max_mr_size, as the device tells it."""

    def register(self, address: int, size: int) -> RegisteredRegion: ...
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
    """Open the device ``name``. Raises VerbsError; OSError if libibverbs cannot be loaded."""
    preferred, last = LIBRARIES
    try:
        library = import_module(f"preflight.verbs.{preferred}")
    except ImportError:
        library = import_module(f"preflight.verbs.{last}")
    opened: OpenedDevice = library.open_device(name)
    return opened
