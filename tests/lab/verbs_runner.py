"""In the guest: registrations of a device through each binding."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import resource
import sys

from checks.rdma import calls
from checks.rdma.libibverbs import VerbsError, open_device
from preflight.benchmark.probes.measure import OpenDevice

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
    found["check"] = calls.verbs(DEVICE)
    found["absent one"] = calls.verbs("no0")
    return found


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
