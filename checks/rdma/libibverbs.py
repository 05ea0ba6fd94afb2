"""libibverbs through ctypes: one device's limits and ports, as ``ibv_devinfo -v`` shows them.

The structures are the library's stable interface (``infiniband/verbs.h``, symbol version
IBVERBS_1.1); they have only ever grown at their ends, for which the buffers leave room.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

SONAME = "libibverbs.so.1"
# More than any release writes (ibv_device_attr: 232 bytes, ibv_port_attr: 52).
ROOM_BYTES = 1024
# enum ibv_mtu
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}


def fields(field_type: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    """Return structure fields of one C type.

    Args:
        names: Separated by spaces, in order.
    """
    return [(name, field_type) for name in names.split()]


class DeviceAttributes(ctypes.Structure):
    """struct ibv_device_attr."""

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


LIMITS = ("max_mr_size", "max_mr", "max_qp")
# A device has one or two ports; the library asks the kernel for each.
MOST_PORTS = 4


# ibv_query_device_ex is no function of the library but inline in verbs.h: a pointer of struct
# verbs_context, which lies before the context where abi_compat, its last field, is all ones. Bytes
# from the context, and what the structure's own size has to be for the pointer to be in it.
_ABI_COMPAT, _QUERY_DEVICE_EX, _SIZE, _LEAST_SIZE = 320, -104, -8, 432
# struct ibv_device_attr_ex: odp_caps.general_caps, whose bit 0 is IBV_ODP_SUPPORT.
_ODP_CAPS = 240


def library() -> ctypes.CDLL:
    """Load libibverbs.

    Raises:
        OSError: If it, or a library that it needs, does not exist.
    """
    loaded = ctypes.CDLL(SONAME, use_errno=True)
    for function, result, arguments in (
        ("ibv_get_device_list", ctypes.c_void_p, [ctypes.c_void_p]),
        ("ibv_free_device_list", None, [ctypes.c_void_p]),
        ("ibv_get_device_name", ctypes.c_char_p, [ctypes.c_void_p]),
        ("ibv_open_device", ctypes.c_void_p, [ctypes.c_void_p]),
        ("ibv_close_device", ctypes.c_int, [ctypes.c_void_p]),
        ("ibv_query_device", ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
        ("ibv_query_port", ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]),
    ):
        bound = getattr(loaded, function)
        bound.restype, bound.argtypes = result, arguments
    return loaded


def query(library: ctypes.CDLL, name: str) -> dict[str, Any]:
    """Return libibverbs' view of the device ``name`` as plain data, or why it cannot be opened.

    listed: the library has a provider for the device; else ``error`` says why not. opened: if
    False, errno and error say why; if True, the answer has limits, pages_on_demand, and ports by
    number (active_mtu_bytes, gid_table).
    """
    count = ctypes.c_int(0)
    start = library.ibv_get_device_list(ctypes.byref(count))
    if not start:
        return {"listed": False, "error": os.strerror(ctypes.get_errno())}
    try:
        for device in (ctypes.c_void_p * count.value).from_address(start):
            if library.ibv_get_device_name(device).decode(errors="replace") == name:
                return _open_and_query(library, device or 0)
        return {"listed": False, "error": f"not among the {count.value} devices that it lists"}
    finally:
        library.ibv_free_device_list(start)


def _open_and_query(library: ctypes.CDLL, device: int) -> dict[str, Any]:
    """Open a device, read its limits and ports, and close it; see ``query``.

    Args:
        device: The address of its entry in the library's list.
    """
    ctypes.set_errno(0)
    context = library.ibv_open_device(device)
    if not context:
        number = ctypes.get_errno()
        return {"listed": True, "opened": False, "errno": number, "error": os.strerror(number)}
    try:
        room = ctypes.create_string_buffer(ROOM_BYTES)
        error = library.ibv_query_device(context, room)
        if error:
            text = f"ibv_query_device: {os.strerror(error)}"
            return {"listed": True, "opened": False, "errno": error, "error": text}
        attributes = DeviceAttributes.from_buffer(room)
        return {
            "listed": True,
            "opened": True,
            "limits": {name: getattr(attributes, name) for name in LIMITS},
            "ports": dict(_ports(library, context)),
            "pages_on_demand": _pages_on_demand(context),
        }
    finally:
        library.ibv_close_device(context)


def _pages_on_demand(context: int) -> bool | None:
    """Tell whether the device opened as ``context`` pages on demand, so that memory need not be
    pinned.

    Returns:
        None if the provider does not say.
    """

    def word(offset: int) -> int:
        return ctypes.c_uint64.from_address(context + offset).value

    if word(_ABI_COMPAT) != (1 << 64) - 1 or word(_SIZE) < _LEAST_SIZE:
        return None
    call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_size_t)
    room = ctypes.create_string_buffer(ROOM_BYTES)
    pointer = word(_QUERY_DEVICE_EX)
    if not pointer or call(pointer)(context, None, ctypes.addressof(room), ROOM_BYTES):
        return None
    return bool(ctypes.c_uint64.from_buffer(room, _ODP_CAPS).value & 1)


def _ports(library: ctypes.CDLL, context: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the ports of an open device, MOST_PORTS at most, each with its number as text."""
    for number in range(1, MOST_PORTS + 1):
        room = ctypes.create_string_buffer(ROOM_BYTES)
        if library.ibv_query_port(context, number, room):
            return
        port = PortAttributes.from_buffer(room)
        mtu = MTU_BYTES.get(port.active_mtu)
        yield str(number), {"active_mtu_bytes": mtu, "gid_table": port.gid_tbl_len}
