"""RDMA devices and memory registered with them: the one way to libibverbs.

Where Python finds pyverbs, rdma-core's own binding, pyverbs is asked. In a bare container the
library is called through ctypes: only functions and the beginnings of structures that are its
stable interface (``infiniband/verbs.h``, symbol version IBVERBS_1.1). What is no function of the
library but inline in that header (ibv_query_device_ex) only pyverbs can tell.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

SONAME = "libibverbs.so.1"
# More than any release writes (ibv_device_attr: 232 bytes, ibv_port_attr: 52): the structures have
# only ever grown at their ends.
ROOM_BYTES = 1024
# enum ibv_mtu
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
LIMITS = ("max_mr_size", "max_mr", "max_qp")
# A device has one or two ports; the library asks the kernel for each.
MOST_PORTS = 4
# enum ibv_access_flags LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, as Mooncake registers memory.
ACCESS = 1 | 2 | 4
# enum ibv_odp_general_caps
ODP_SUPPORT = 1


class VerbsError(OSError):
    """A call of libibverbs failed; ``device`` and ``call`` say where."""

    def __init__(self, number: int, call: str, device: str, text: str = "") -> None:
        super().__init__(number, text or os.strerror(number))
        self.call = call
        self.device = device


class Device(Protocol):
    """An opened device.

    Whatever fails raises VerbsError.
    """

    def query_device(self) -> Any:
        """Return the limits, named as in struct ibv_device_attr."""

    def query_port(self, number: int) -> Any:
        """Return the port, with the names of struct ibv_port_attr."""

    def paging(self) -> dict[str, bool | None]:
        """Return ``pages_on_demand``: memory need not be pinned; None if the provider does not say.

        Returns:
            Empty if this binding cannot ask.
        """

    def allocate(self) -> None:
        """Make the protection domain that ``register`` needs."""

    def register(self, address: int, size: int) -> Callable[[], None]:
        """Register a range of memory, and return the function that takes it back."""

    def close(self) -> None:
        """Close the device, and its protection domain."""


def has_pyverbs() -> bool:
    """Return whether pyverbs can be imported and calls this system's libibverbs.

    The wheel of pyverbs 56.0rc1 brings another copy in the folder ``pyverbs.libs``.
    """
    try:
        import pyverbs.device
    except ImportError:
        return False
    folder = os.path.dirname(pyverbs.device.__file__)
    return not os.path.isdir(f"{os.path.dirname(folder)}/pyverbs.libs")


def open_device(name: str) -> Device:
    """Open the device ``name``.

    Raises VerbsError; OSError if libibverbs cannot be loaded.
    """
    return PyverbsDevice(name) if has_pyverbs() else CtypesDevice(name)


def query(name: str) -> dict[str, Any]:
    """Return libibverbs' view of the device ``name`` as plain data, or why it cannot be opened.

    listed: the library has a provider for the device; else ``error`` says why not. opened: if
    False, errno and error say why; if True, the answer has limits, ports by number
    (active_mtu_bytes, gid_table), and pages_on_demand if pyverbs was asked.
    """
    try:
        device = open_device(name)
    except VerbsError as error:
        if error.call == "ibv_get_device_list":
            return {"listed": False, "error": error.strerror}
        return {"listed": True, "opened": False, "errno": error.errno, "error": error.strerror}
    except OSError as error:
        return {"listed": False, "error": f"{SONAME} cannot be loaded: {error}"}
    try:
        attributes = device.query_device()
        limits = {limit: getattr(attributes, limit) for limit in LIMITS}
        answer = {"listed": True, "opened": True, "limits": limits, "ports": dict(_ports(device))}
        return {**answer, **device.paging()}
    except VerbsError as error:
        why = f"{error.call}: {error.strerror}"
        return {"listed": True, "opened": False, "errno": error.errno, "error": why}
    finally:
        device.close()


def _ports(device: Device) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the ports of a device, MOST_PORTS at most, each with its number as text."""
    with suppress(VerbsError):
        for number in range(1, MOST_PORTS + 1):
            port = device.query_port(number)
            mtu = MTU_BYTES.get(port.active_mtu)
            yield str(number), {"active_mtu_bytes": mtu, "gid_table": port.gid_tbl_len}


def _not_listed(name: str, count: int) -> VerbsError:
    text = f"not among the {count} devices that it lists"
    return VerbsError(errno.ENODEV, "ibv_get_device_list", name, text)


class PyverbsDevice:
    """A device through pyverbs."""

    def __init__(self, name: str) -> None:
        """Open the device.

        Raises VerbsError.
        """
        from pyverbs.device import Context, get_device_list

        self._name = name
        names = [each.name.decode(errors="replace") for each in self._made(get_device_list)]
        if name not in names:
            raise _not_listed(name, len(names))
        self._context = self._made(Context, name=name)
        self._domain: Any = None

    def _made(self, make: Callable[..., Any], *arguments: object, **named: object) -> Any:
        """Call pyverbs.

        Raises:
            VerbsError: With the name of the call of libibverbs behind it.
        """
        from pyverbs.pyverbs_error import PyverbsError

        try:
            return make(*arguments, **named)
        except PyverbsError as error:
            code, call = getattr(error, "error_code", None), _CALLS[make.__name__]
            if isinstance(code, int) and code > 0:
                raise VerbsError(code, call, self._name) from error
            # pyverbs does not keep the number of this call's error.
            raise VerbsError(errno.EIO, call, self._name, str(error)) from error

    def query_device(self) -> Any:
        return self._made(self._context.query_device)

    def query_port(self, number: int) -> Any:
        return self._made(self._context.query_port, number)

    def paging(self) -> dict[str, bool | None]:
        try:
            capabilities = self._made(self._context.query_device_ex).odp_caps.general_caps
        except VerbsError:
            return {"pages_on_demand": None}
        return {"pages_on_demand": bool(capabilities & ODP_SUPPORT)}

    def allocate(self) -> None:
        from pyverbs.pd import PD

        self._domain = self._made(PD, self._context)

    def register(self, address: int, size: int) -> Callable[[], None]:
        from pyverbs.mr import MR

        close: Callable[[], None] = self._made(MR, self._domain, size, ACCESS, address).close
        return close

    def close(self) -> None:
        self._context.close()  # and all that was made of it


# What pyverbs calls behind its own names.
_CALLS = {
    "get_device_list": "ibv_get_device_list",
    "Context": "ibv_open_device",
    "query_device": "ibv_query_device",
    "query_device_ex": "ibv_query_device_ex",
    "query_port": "ibv_query_port",
    "PD": "ibv_alloc_pd",
    "MR": "ibv_reg_mr",
}


def fields(field_type: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    """Return structure fields of one C type.

    Args:
        names: Separated by spaces, in order.
    """
    return [(name, field_type) for name in names.split()]


class DeviceAttributes(ctypes.Structure):
    """The beginning of struct ibv_device_attr."""

    _fields_ = (
        ("fw_ver", ctypes.c_char * 64),
        *fields(ctypes.c_uint64, "node_guid sys_image_guid max_mr_size page_size_cap"),
        *fields(ctypes.c_uint32, "vendor_id vendor_part_id hw_ver"),
        *fields(ctypes.c_int, "max_qp max_qp_wr"),
        ("device_cap_flags", ctypes.c_uint),
        *fields(ctypes.c_int, "max_sge max_sge_rd max_cq max_cqe max_mr max_pd"),
    )


class PortAttributes(ctypes.Structure):
    """The beginning of struct ibv_port_attr."""

    _fields_ = (*fields(ctypes.c_int, "state max_mtu active_mtu gid_tbl_len"),)


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int
# What each function returns, and takes.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ibv_get_device_list": (_POINTER, _POINTER),
    "ibv_free_device_list": (None, _POINTER),
    "ibv_get_device_name": (ctypes.c_char_p, _POINTER),
    "ibv_open_device": (_POINTER, _POINTER),
    "ibv_close_device": (_NUMBER, _POINTER),
    "ibv_query_device": (_NUMBER, _POINTER, _POINTER),
    "ibv_query_port": (_NUMBER, _POINTER, ctypes.c_uint8, _POINTER),
    "ibv_alloc_pd": (_POINTER, _POINTER),
    "ibv_dealloc_pd": (_NUMBER, _POINTER),
    "ibv_reg_mr": (_POINTER, _POINTER, _POINTER, ctypes.c_size_t, _NUMBER),
    "ibv_dereg_mr": (_NUMBER, _POINTER),
}


class CtypesDevice:
    """A device through ctypes, which needs nothing but libibverbs."""

    def __init__(self, name: str) -> None:
        """Open the device.

        Raises VerbsError; OSError if libibverbs cannot be loaded.
        """
        self._name = name
        self._library = ctypes.CDLL(SONAME, use_errno=True)
        for function, (result, *arguments) in _FUNCTIONS.items():
            bound = getattr(self._library, function)
            bound.restype, bound.argtypes = result, arguments
        self._context = self._open()
        self._domain = 0

    def _open(self) -> int:
        """Open the device and return the address of its context.

        Raises VerbsError.
        """
        count = ctypes.c_int(0)
        start = self._made("ibv_get_device_list", ctypes.byref(count))
        try:
            for device in (ctypes.c_void_p * count.value).from_address(start):
                name: bytes = self._library.ibv_get_device_name(device)
                if name.decode(errors="replace") == self._name:
                    return self._made("ibv_open_device", device)
        finally:
            self._library.ibv_free_device_list(start)
        raise _not_listed(self._name, count.value)

    def _made(self, function: str, *arguments: object) -> int:
        """Call a function that returns an object's address; NULL raises VerbsError."""
        ctypes.set_errno(0)
        made = getattr(self._library, function)(*arguments)
        if not made:
            raise VerbsError(ctypes.get_errno(), function, self._name)
        return int(made)

    def _done(self, function: str, *arguments: object) -> None:
        """Call a function that returns 0 on success.

        Raises:
            VerbsError: For any other result.
        """
        ctypes.set_errno(0)
        number = getattr(self._library, function)(*arguments)
        if number:
            failure = ctypes.get_errno() or errno.EINVAL if number == -1 else abs(number)
            raise VerbsError(failure, function, self._name)

    def query_device(self) -> DeviceAttributes:
        room = ctypes.create_string_buffer(ROOM_BYTES)
        self._done("ibv_query_device", self._context, room)
        return DeviceAttributes.from_buffer(room)

    def query_port(self, number: int) -> PortAttributes:
        room = ctypes.create_string_buffer(ROOM_BYTES)
        self._done("ibv_query_port", self._context, number, room)
        return PortAttributes.from_buffer(room)

    def paging(self) -> dict[str, bool | None]:
        return {}

    def allocate(self) -> None:
        self._domain = self._made("ibv_alloc_pd", self._context)

    def register(self, address: int, size: int) -> Callable[[], None]:
        made = self._made("ibv_reg_mr", self._domain, address, size, ACCESS)
        return partial(self._done, "ibv_dereg_mr", made)

    def close(self) -> None:
        if self._domain:
            self._library.ibv_dealloc_pd(self._domain)
        self._library.ibv_close_device(self._context)
