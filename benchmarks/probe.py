"""How many registrations the probe needs to find a ceiling, against registering until it fails.

The first table is counted on devices that are no more than a number. With --lab both ways run on
soft-RoCE in the virtual machine of tests/lab, as user 1000 under RLIMIT_MEMLOCK, and the second
table has their times and what memory they took. The naive way allocates what it registers, as a
launch does.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import resource
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from preflight.benchmark.probes.measure import (
    OpenDevice,
    Order,
    measure,
    memory_available_bytes,
    search,
)
from tests.lab.guest import run_in_guest
from tests.lab.probe_runner import prepare

MIB, GIB = 1 << 20, 1 << 30
REGION_BYTES = 16 * MIB
CEILINGS_BYTES = (256 * MIB, 4 * GIB, 64 * GIB, 95 * GIB, 2048 * GIB)
# Of one registration: eRDMA's, and what no device refuses.
LONGEST_BYTES = (64 * GIB, 1 << 50)
LAB_LIMITS_BYTES = (256 * MIB, GIB)


def count(ceiling_bytes: int, longest_bytes: int) -> int:
    """Registrations that the search asks for."""
    held = tries = 0

    def register(size: int) -> bool:
        nonlocal held, tries
        tries += 1
        if held + size > ceiling_bytes:
            return False
        held += size
        return True

    search(register, REGION_BYTES, longest_bytes, 1 << 50)
    return tries


def counted() -> None:
    print("ceiling in MiB, longest region in GiB: registrations of the probe, bound, naive")
    for ceiling in CEILINGS_BYTES:
        for longest in LONGEST_BYTES:
            tries = count(ceiling, longest)
            units = ceiling // REGION_BYTES
            bound = 2 * math.log2(units) + 8 + ceiling // longest
            assert tries <= bound
            print(
                f"  {ceiling // MIB:>8} {longest // GIB:>8}: {tries:>4}, {bound:>5.1f}, {units + 1}"
            )


def until_it_fails(_limit_bytes: int) -> dict[str, Any]:
    """Run in the guest, in a process of its own: allocate a region, register it, and so on."""
    device = OpenDevice("rxe0")
    before = memory_available_bytes() or 0
    start = time.monotonic()
    rooms = []
    try:
        while True:
            room = mmap.mmap(-1, REGION_BYTES)
            rooms.append(room)
            address = ctypes.addressof(ctypes.c_char.from_buffer(room))
            device.register(address, REGION_BYTES)
    except OSError:
        pass
    seconds = time.monotonic() - start
    drop = before - (memory_available_bytes() or 0)
    return {"registrations": device.regions + 1, "seconds": seconds, "drop_bytes": drop}


def with_the_probe(limit_bytes: int) -> dict[str, Any]:
    """Run in the guest, in a process of its own."""
    order = Order(
        ("rxe0",), ("rxe",), (0,), True, 4096, REGION_BYTES, 1 << 50, 64 * GIB, 256 * MIB,
        limit_bytes, False,
    )  # fmt: skip
    start = time.monotonic()
    found = measure(order, lambda event: None)
    return {
        "registrations": found.registrations,
        "seconds": time.monotonic() - start,
        "drop_bytes": found.memory_drop_bytes,
    }


def in_guest() -> None:
    """Both ways, each in a fork as user 1000."""
    prepare()
    for limit in LAB_LIMITS_BYTES:
        for way in (until_it_fails, with_the_probe):
            process = os.fork()
            if not process:
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
                os.setgid(1000)
                os.setuid(1000)
                try:
                    answer = {"way": way.__name__, "limit": limit, **way(limit)}
                    print(json.dumps(answer), flush=True)
                except Exception as error:
                    print(f"{way.__name__}: {error!r}", flush=True)
                finally:
                    os._exit(0)
            os.waitpid(process, 0)


def lab() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = shlex.join([sys.executable, str(Path(__file__).resolve()), "--in-guest"])
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        script = f"export PATH={path}\nchmod 755 /root; exec {command} 2>&1\n"
        print("in the virtual machine: way, limit in MiB, registrations, seconds, memory in MiB")
        for line in run_in_guest(script, Path(folder), 300, 3072):
            if not line.startswith('{"way"'):
                print(f"  {line}")
            else:
                row = json.loads(line)
                print(
                    f"  {row['way']:>15} {row['limit'] // MIB:>6} {row['registrations']:>5} "
                    f"{row['seconds']:>7.3f} {row['drop_bytes'] / MIB:>7.0f}"
                )


def main() -> None:
    if "--in-guest" in sys.argv:
        in_guest()
        return
    counted()
    if "--lab" in sys.argv:
        lab()


if __name__ == "__main__":
    main()
