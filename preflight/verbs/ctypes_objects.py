"""RDMA objects through ctypes, where pyverbs is not there: a bare container, a carried program."""

from __future__ import annotations

import ctypes
import errno

from checks.rdma.libibverbs import ROOM_BYTES, DeviceAttributes, library
from preflight.verbs.objects import ACCESS, VerbsError


def open_device(name: str) -> CtypesDevice:
    """Open a device. Raises VerbsError; OSError if libibverbs cannot be loaded."""
    return CtypesDevice(_Library(name))


class _Library:
    """libibverbs, whose calls raise VerbsError for ``device`` where they fail."""

    def __init__(self, device: str) -> None:
        """Load libibverbs and declare the types of its calls. Raises OSError if loading fails."""
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
        """Call a function that returns 0 on success. Raises VerbsError for any other result."""
        ctypes.set_errno(0)
        number = getattr(self.loaded, function)(*arguments)
        if number:
            told = ctypes.get_errno() or errno.EINVAL if number == -1 else abs(number)
            raise VerbsError(told, function, self.device)


class CtypesRegion:
    def __init__(self, verbs: _Library, address: int) -> None:
        self._verbs, self._address = verbs, address

    def close(self) -> None:
        self._verbs.do("ibv_dereg_mr", self._address)


class CtypesDevice:
    def __init__(self, verbs: _Library) -> None:
        self._verbs = verbs
        self._context = self._open()
        self._domain = verbs.make("ibv_alloc_pd", self._context)

    def _open(self) -> int:
        """Open the device and return the address of its context. Raises VerbsError."""
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
        made = self._verbs.make("ibv_reg_mr", self._domain, address, size, ACCESS)
        return CtypesRegion(self._verbs, made)

    def close(self) -> None:
        self._verbs.loaded.ibv_dealloc_pd(self._domain)
        self._verbs.loaded.ibv_close_device(self._context)
