"""A plain loop over Mooncake's engine: what a rate is without any of this project around it.

``serve`` prints its address; else: HOST:PORT, ADDRESS, write or read, bytes, seconds.
"""

import ctypes
import mmap
import sys
import time

from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

SIZE = 160 << 20


def main() -> None:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    room = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    here = ctypes.addressof(ctypes.c_char.from_buffer(room))
    ctypes.memset(here, 1, SIZE)
    assert engine.register_memory(here, SIZE) == 0
    if sys.argv[1] == "serve":
        print("\nserving", engine.get_rpc_port(), here, flush=True)
        sys.stdin.read()
        return
    peer, there, op = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    size, seconds = int(sys.argv[4]), float(sys.argv[5])
    call = getattr(engine, f"transfer_sync_{op}")
    assert call(peer, here, there, size) == 0
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        offset = done % (SIZE // size * size)
        assert call(peer, here + offset, there + offset, size) == 0
        done += size
    print("\nrate", done / (time.perf_counter() - began), flush=True)


main()
