"""Opening devices and registering memory through libibverbs, in the probe's child process alone."""

from __future__ import annotations

import ctypes
import os

from checks.rdma.libibverbs import ROOM_BYTES, DeviceAttributes, library

# enum ibv_access_flags, as Mooncake asks for them: LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ.
ACCESS = 1 | 2 | 4


class VerbsError(OSError):
    """A call of libibverbs failed; ``device`` and ``call`` say where."""

    def __init__(self, number: int, call: str, device: str) -> None:
        super().__init__(number, os.strerror(number))
        self.call = call
        self.device = device


def probe_library() -> ctypes.CDLL:
    """libibverbs with what registering takes. Raises OSError where it cannot be loaded."""
    loaded = library()
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for function, result, arguments in (
        ("ibv_alloc_pd", pointer, [pointer]),
        ("ibv_dealloc_pd", ctypes.c_int, [pointer]),
        ("ibv_reg_mr", pointer, [pointer, pointer, size, ctypes.c_int]),
        ("ibv_dereg_mr", ctypes.c_int, [pointer]),
    ):
        bound = getattr(loaded, function)
        bound.restype, bound.argtypes = result, arguments
    return loaded


class OpenDevice:
    """A device with a protection domain, and what is registered with it."""

    def __init__(self, loaded: ctypes.CDLL, name: str) -> None:
        """Raises VerbsError."""
        self.name = name
        self._library = loaded
        self._regions: list[int] = []
        self._context = self._open(name)
        self._domain = self._call("ibv_alloc_pd", self._context)

    def _open(self, name: str) -> int:
        count = ctypes.c_int(0)
        start = self._library.ibv_get_device_list(ctypes.byref(count))
        if not start:
            raise VerbsError(ctypes.get_errno(), "ibv_get_device_list", name)
        try:
            for device in (ctypes.c_void_p * count.value).from_address(start):
                if self._library.ibv_get_device_name(device).decode(errors="replace") == name:
                    return self._call("ibv_open_device", device)
        finally:
            self._library.ibv_free_device_list(start)
        import errno

        raise VerbsError(errno.ENODEV, "ibv_get_device_list", name)

    def _call(self, function: str, *arguments: object) -> int:
        ctypes.set_errno(0)
        result = getattr(self._library, function)(*arguments)
        if not result:
            raise VerbsError(ctypes.get_errno(), function, self.name)
        return int(result)

    @property
    def largest_bytes(self) -> int:
        """max_mr_size, as the device tells it."""
        room = ctypes.create_string_buffer(ROOM_BYTES)
        number = self._library.ibv_query_device(self._context, room)
        if number:
            raise VerbsError(number, "ibv_query_device", self.name)
        return int(DeviceAttributes.from_buffer(room).max_mr_size)

    @property
    def regions(self) -> int:
        return len(self._regions)

    def register(self, address: int, size: int) -> None:
        """Raises VerbsError, and then nothing is registered."""
        self._regions.append(self._call("ibv_reg_mr", self._domain, address, size, ACCESS))

    def take_back(self) -> None:
        """Deregister what was registered last."""
        number = self._library.ibv_dereg_mr(self._regions[-1])
        if number:
            raise VerbsError(number, "ibv_dereg_mr", self.name)
        self._regions.pop()

    def close(self) -> None:
        """Give everything back; the end of the process would do as well."""
        while self._regions:
            self.take_back()
        self._library.ibv_dealloc_pd(self._domain)
        self._library.ibv_close_device(self._context)
