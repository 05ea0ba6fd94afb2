"""In the guest: registrations of a device through each binding."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import resource
import sys
from importlib import import_module

from checks.rdma import libibverbs
from preflight.benchmark.probes.measure import OpenDevice
from preflight.benchmark.verbs.objects import VerbsError, open_device

DEVICE = "rxe0"
MIB = 1 << 20
LATE_SECONDS = 120  # all of it takes some 20 s, emulated


def tried(library: str) -> dict[str, object]:
    """What came of it. Raises VerbsError, and ImportError where the binding is not installed."""
    found: dict[str, object] = {}
    if library != "PyverbsDevice":  # as where it is not installed
        sys.modules["pyverbs.device"] = None  # type: ignore[assignment]
    found["kind"] = type(open_device(DEVICE)).__name__
    try:
        OpenDevice("no0")
    except VerbsError as error:
        found["absent"] = [error.call, error.errno]
    device = OpenDevice(DEVICE)
    found["largest"] = device.largest_bytes > MIB
    memory = mmap.mmap(-1, MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    device.register(address, MIB)
    found["regions"] = device.regions
    device.take_back()
    try:
        device.register(0x1000, MIB)
    except VerbsError as error:
        found["refused"] = [error.call, error.errno]
    device.close()
    found["pages"] = pages_on_demand(library)
    return found


def pages_on_demand(library: str) -> object:
    """Ask pyverbs, which is compiled against verbs.h; for the other binding ask our own reader."""
    if library != "PyverbsDevice":
        return libibverbs.query(libibverbs.library(), DEVICE)["pages_on_demand"]
    context = import_module("pyverbs.device").Context(name=DEVICE)
    return bool(context.query_device_ex().odp_caps.general_caps & 1)


def main() -> None:
    faulthandler.dump_traceback_later(LATE_SECONDS)  # to the console, which a failure shows
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * MIB, 64 * MIB))
    for library in sys.argv[1:]:
        try:
            answer = tried(library)
        except Exception as error:
            call = getattr(error, "call", "")
            answer = {"error": f"{type(error).__name__}: {call} {error}"}
        print(json.dumps({"library": library, **answer}), flush=True)


if __name__ == "__main__":
    main()
