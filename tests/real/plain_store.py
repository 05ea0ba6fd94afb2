"""A plain loop over Mooncake's store: what put and get take without any of this project.

MASTER, HOST:PORT, bytes of an object; then a line for each measurement: put or get, the number of
the first object, and how many. It prints bytes a second.
"""

import ctypes
import mmap
import sys
import time

from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]


def main() -> None:
    master, host, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = MooncakeDistributedStore()
    assert store.setup(host, "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master) == 0
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    here = ctypes.addressof(ctypes.c_char.from_buffer(room))
    ctypes.memset(here, 1, size)
    assert store.register_buffer(here, size) == 0
    for line in sys.stdin:
        op, first, count = line.split()
        began = time.perf_counter()
        for number in range(int(first), int(first) + int(count)):
            if op == "put":
                assert store.batch_put_from([f"plain-{number}"], [here], [size]) == [0]
            else:
                assert store.batch_get_into([f"plain-{number}"], [here], [size]) == [size]
        print("\nrate", int(count) * size / (time.perf_counter() - began), flush=True)


main()
