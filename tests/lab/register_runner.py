"""Registers memory with a real RDMA device, beside what the check says; run in a container.

One line of JSON per limit of memlock and size: what the check says and needs, and what registering
as much says.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import json
import mmap
import resource
import sys

from tests.rows import in_texts

# Limits of memlock in bytes, each below the one before, since lowering needs no privilege; and the
# megabytes of a segment under it.
TRIED = ((None, 16), (8 << 20, 4), (8 << 20, 16), (64 << 10, 4))
DEVICE = "rxe0"


def said(megabytes: int) -> dict[str, str]:
    """The finding of memlock.limit about a client with a segment of this size."""
    from preflight.cli.main import main

    words = "mooncake-preflight check --json --timeout 120 --only memlock.limit -- mooncake_client"
    words += f" --protocol=rdma --device_names={DEVICE} --global_segment_size={megabytes}MB"
    sys.argv = words.split()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main()
    (found,) = json.loads(output.getvalue())["findings"]
    said = in_texts(found)
    return {name: said[name] for name in ("status", "have", "need", "text")}


class Device:
    """An open device, its name as the kernel has it."""

    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        for function in ("get_device_list", "get_device_name", "open_device", "alloc_pd", "reg_mr"):
            getattr(self._library, f"ibv_{function}").restype = ctypes.c_void_p
        listed = self._library.ibv_get_device_list(None)
        devices = ctypes.cast(listed, ctypes.POINTER(ctypes.c_void_p))
        for number in itertools.count():
            device = devices[number]
            if device is None:
                raise OSError(f"no {name}")
            called = self._library.ibv_get_device_name(ctypes.c_void_p(device))
            if ctypes.string_at(called).decode() == name:
                break
        context = self._library.ibv_open_device(ctypes.c_void_p(device))
        self._domain = self._library.ibv_alloc_pd(ctypes.c_void_p(context))
        if not self._domain:
            raise OSError(ctypes.get_errno(), "ibv_alloc_pd")

    def register(self, size: int) -> int:
        """The errno of registering so much memory, which is given back."""
        memory = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        ctypes.set_errno(0)
        region = self._library.ibv_reg_mr(
            ctypes.c_void_p(self._domain), ctypes.c_void_p(address), ctypes.c_size_t(size), 7
        )
        if not region:
            return ctypes.get_errno()
        self._library.ibv_dereg_mr(ctypes.c_void_p(region))
        return 0


def main() -> None:
    device = Device(DEVICE)
    for limit, megabytes in TRIED:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        found = said(megabytes)
        number, unit = found["need"].split()
        needed = int(float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit])
        answer = {"limit": limit, "megabytes": megabytes, **found}
        print(json.dumps({**answer, "errno": device.register(needed)}), flush=True)


if __name__ == "__main__":
    main()
