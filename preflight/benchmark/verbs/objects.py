"""RDMA devices and memory registrations by pyverbs, or by ctypes in a bare container.

Memory is registered as Mooncake does.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from checks.rdma.libibverbs import ROOM_BYTES, DeviceAttributes, library

# enum ibv_access_flags LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, as Mooncake registers memory.
_ACCESS = 1 | 2 | 4


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
    """An opened device with a protection domain.

    Whatever fails raises VerbsError.
    """

    @property
    def largest_bytes(self) -> int:
        """The longest region that the device takes, by its max_mr_size."""

    def register(self, address: int, size: int) -> RegisteredRegion: ...
    def close(self) -> None: ...


def open_device(name: str) -> OpenedDevice:
    """Open the device ``name``.

    Raises VerbsError; OSError if libibverbs cannot be loaded.
    """
    try:
        return PyverbsDevice(name)
    except ImportError:
        return CtypesDevice(name)


@contextmanager
def _as_verbs_error(call: str, device: str) -> Iterator[None]:
    """Turn an error of pyverbs in the ``with`` block into VerbsError of ``call`` on ``device``."""
    from pyverbs.pyverbs_error import PyverbsError

    try:
        yield
    except PyverbsError as error:
        number = getattr(error, "error_code", None) or getattr(error, "errno", None)
        raise VerbsError(number if isinstance(number, int) else errno.EIO, call, device) from error


class PyverbsDevice:
    """A device through pyverbs, rdma-core's own binding."""

    def __init__(self, name: str) -> None:
        """Open the device and make a protection domain.

        Raises VerbsError; ImportError without pyverbs.
        """
        from pyverbs.device import Context, get_device_list
        from pyverbs.pd import PD

        self._name = name
        with _as_verbs_error("ibv_get_device_list", name):
            names = [device.name.decode(errors="replace") for device in get_device_list()]
        if name not in names:
            raise VerbsError(errno.ENODEV, "ibv_get_device_list", name)
        with _as_verbs_error("ibv_open_device", name):
            self._context = Context(name=name)
        with _as_verbs_error("ibv_alloc_pd", name):
            self._domain = PD(self._context)

    @property
    def largest_bytes(self) -> int:
        with _as_verbs_error("ibv_query_device", self._name):
            return int(self._context.query_device().max_mr_size)

    def register(self, address: int, size: int) -> Any:
        from pyverbs.mr import MR

        with _as_verbs_error("ibv_reg_mr", self._name):
            return MR(self._domain, size, _ACCESS, address)

    def close(self) -> None:
        self._domain.close()
        self._context.close()


class _Library:
    """The loaded libibverbs for one device; a call that fails raises VerbsError."""

    def __init__(self, device: str) -> None:
        """Load libibverbs and declare the types of its calls.

        Raises:
            OSError: If loading fails.
        """
        self.device = device
        self.loaded = library()
        pointer, number = ctypes.c_void_p, ctypes.c_int
        for function, result, arguments in (
            ("ibv_alloc_pd", pointer, [pointer]),
            ("ibv_dealloc_pd", number, [pointer]),
            ("ibv_reg_mr", pointer, [pointer, pointer, ctypes.c_size_t, number]),
            ("ibv_dereg_mr", number, [pointer]),
        ):
            bound = getattr(self.loaded, function)
            bound.restype, bound.argtypes = result, arguments

    def make(self, function: str, *arguments: object) -> int:
        """Call a function that returns an object's address; NULL raises VerbsError."""
        ctypes.set_errno(0)
        made = getattr(self.loaded, function)(*arguments)
        if not made:
            raise VerbsError(ctypes.get_errno(), function, self.device)
        return int(made)

    def do(self, function: str, *arguments: object) -> None:
        """Call a function that returns 0 on success.

        Raises:
            VerbsError: For any other result.
        """
        ctypes.set_errno(0)
        number = getattr(self.loaded, function)(*arguments)
        if number:
            failure = ctypes.get_errno() or errno.EINVAL if number == -1 else abs(number)
            raise VerbsError(failure, function, self.device)


class CtypesRegion:
    def __init__(self, verbs: _Library, address: int) -> None:
        self._verbs, self._address = verbs, address

    def close(self) -> None:
        self._verbs.do("ibv_dereg_mr", self._address)


class CtypesDevice:
    """A device through ctypes, which needs nothing but libibverbs."""

    def __init__(self, name: str) -> None:
        """Open the device.

        Raises VerbsError; OSError if libibverbs cannot be loaded.
        """
        self._verbs = _Library(name)
        self._context = self._open()
        self._domain = self._verbs.make("ibv_alloc_pd", self._context)

    def _open(self) -> int:
        """Open the device and return the address of its context.

        Raises VerbsError; ENODEV if libibverbs lists no device of this name.
        """
        loaded, name = self._verbs.loaded, self._verbs.device
        count = ctypes.c_int(0)
        start = self._verbs.make("ibv_get_device_list", ctypes.byref(count))
        try:
            for device in (ctypes.c_void_p * count.value).from_address(start):
                if loaded.ibv_get_device_name(device).decode(errors="replace") == name:
                    return self._verbs.make("ibv_open_device", device)
        finally:
            loaded.ibv_free_device_list(start)
        raise VerbsError(errno.ENODEV, "ibv_get_device_list", name)

    @property
    def largest_bytes(self) -> int:
        room = ctypes.create_string_buffer(ROOM_BYTES)
        self._verbs.do("ibv_query_device", self._context, room)
        return int(DeviceAttributes.from_buffer(room).max_mr_size)

    def register(self, address: int, size: int) -> CtypesRegion:
        made = self._verbs.make("ibv_reg_mr", self._domain, address, size, _ACCESS)
        return CtypesRegion(self._verbs, made)

    def close(self) -> None:
        self._verbs.loaded.ibv_dealloc_pd(self._domain)
        self._verbs.loaded.ibv_close_device(self._context)
