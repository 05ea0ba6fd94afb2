"""One process of a rehearsal: carries out orders with the real library, and reports each result.

Run by the Python that has the library, which may have nothing of this program: standard library and
``mooncake`` alone. Orders come as lines of JSON on one descriptor, answers go out on another; what
the library itself writes goes to standard output and error, which are a file. ``measure`` starts it
with a file of more orders (``preflight/benchmark/measuring/orders.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_MPOL_BIND = 2  # linux/mempolicy.h
# set_mempolicy(2), by machine.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MAP_POPULATE, _MAP_HUGETLB, _SIZE_SHIFT = 0x08000, 0x40000, 26
_MADV_POPULATE_WRITE = 23  # Linux 5.14


def prepare_process(order: dict[str, Any]) -> None:
    """Prepare this process: it ends with its parent, and is killed first if memory runs out.

    Binds it to the order's NUMA node, if one is named. Exits at once if the parent is gone.

    Raises:
        OSError: If it cannot be bound.
    """
    # Ctrl-C reaches the command alone, which then ends this process. A session of its own would do
    # it too, and is scheduled as a group of its own: on a busy machine two such processes exchange
    # 1 MiB three times as slowly (CONFIG_SCHED_AUTOGROUP).
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != order["parent"]:
        os._exit(1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    if order["node"] is not None:
        bind(order["node"])


def bind(numa_node: int) -> None:
    """Bind this process to the CPUs and the memory of a NUMA node; SGLang binds a rank in the same
    way.

    Does the same as ``numactl --cpunodebind --membind``. Raises OSError.
    """
    with open(f"/sys/devices/system/node/node{numa_node}/cpulist") as file:
        cpus = cpus_of(file.read())
    allowed = cpus & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (numa_node // bits + 1))()
    mask[numa_node // bits] = 1 << numa_node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        raise OSError(0, f"no binding to a node on {os.uname().machine}")
    # The kernel reads one bit less than it is told.
    if libc.syscall(number, _MPOL_BIND, mask, bits * len(mask) + 1):
        raise OSError(ctypes.get_errno(), "set_mempolicy")


def cpus_of(text: str) -> set[int]:
    """Parse a list of CPUs as the kernel writes it, such as ``0-3,8``."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


class Player:
    """Carries out orders, one after another; all memory stays allocated until the process ends."""

    def __init__(self, more: dict[str, Callable[..., Any]]) -> None:
        """Begin without memory.

        Args:
            more: Further orders by name, each a function (player, order).
        """
        self._more = more
        self._kept: list[Any] = []
        self._pools: list[int] = []
        self._store: Any = None

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order and return the reply; no error is raised.

        The reply has ``error`` (the call and its message, "" if it succeeded), ``seconds``, and
        ``measured``: the result of an order that measures, else {}.
        """
        measured: dict[str, Any] = {}
        began = time.monotonic()
        try:
            if order["do"] in self._more:
                measured, error = self._more[order["do"]](self, order), ""
            else:
                what: Callable[[dict[str, Any]], str | None] = getattr(self, f"_{order['do']}")
                error = what(order) or ""
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            if order["do"] in self._more:
                error = str(raised) or error
            if order["do"] in ("setup", "dummy"):
                error = f"setup raises {error}"
        return {"error": error, "seconds": time.monotonic() - began, "measured": measured}

    def _load(self, order: dict[str, Any]) -> str:
        """Import Mooncake's store, from the order's folder if any; return the error, or ""."""
        if order["folder"] is not None:
            sys.path.insert(0, order["folder"])
        try:
            # What the library reads at load it finds in the launch's environment.
            from mooncake import store  # type: ignore[import-not-found]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        self._library = store
        return ""

    def _pool(self, order: dict[str, Any]) -> None:
        allocator = self._library.MooncakeHostMemAllocator()
        self._kept.append(allocator)
        self._pools.append(allocator.alloc(order["bytes"]))

    def _own_pool(self, order: dict[str, Any]) -> str:
        """Map a pool as SGLang's own allocator does: on regular pages if huge pages are too few.
        page_bytes of the order: 0 for regular pages.

        Raises:
            OSError: If memory cannot be mapped.
        """
        import mmap

        size, page = order["bytes"], order["page_bytes"]
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
        room: mmap.mmap | None = None
        if page:
            huge = _MAP_POPULATE | _MAP_HUGETLB | (page.bit_length() - 1) << _SIZE_SHIFT
            with contextlib.suppress(OSError):  # there are not enough
                room = mmap.mmap(-1, -(-size // page) * page, flags | huge)
        if room is None:
            room = mmap.mmap(-1, max(1, size), flags)
            try:
                room.madvise(_MADV_POPULATE_WRITE)
            except OSError:  # an older kernel: each page is written to
                for offset in range(0, len(room), mmap.PAGESIZE):
                    room[offset] = 0
        self._kept.append(room)
        self._pools.append(ctypes.addressof(ctypes.c_char.from_buffer(room)))
        return ""

    def _setup(self, order: dict[str, Any]) -> str:
        """Set up one more store client; return the error, "" if it succeeds."""
        self._kept.append(self._store)  # of several all stay
        self._store = self._library.MooncakeDistributedStore()
        sizes = order["segment_bytes"], order["local_buffer_bytes"]
        where = order["protocol"], order["devices"], order["master"]
        host, metadata = order["host"], order["metadata"]
        code = self._store.setup(host, metadata, *sizes, *where, **order["more"])
        return f"setup returns {code}" if code else ""

    def _dummy(self, order: dict[str, Any]) -> str:
        self._store = self._library.MooncakeDistributedStore()
        sizes = order["pool_bytes"], order["local_buffer_bytes"]
        code = self._store.setup_dummy(*sizes, order["client"])
        return f"setup_dummy returns {code}" if code else ""

    def _register(self, order: dict[str, Any]) -> str:
        address = self._pools[order["pool"]] + order["offset"]
        code = self._store.register_buffer(address, order["bytes"])
        return f"register_buffer of {order['bytes']} bytes returns {code}" if code else ""

    def _put(self, order: dict[str, Any]) -> str:
        code = self._store.put(order["key"], bytes_of_key(order))
        return f"put of {order['bytes']} bytes returns {code}" if code else ""

    def _get(self, order: dict[str, Any]) -> str:
        value = self._store.get(order["key"])
        if value == bytes_of_key(order):
            return ""
        return f"get returns {len(value)} bytes, and not the {order['bytes']} that were put"


def bytes_of_key(order: dict[str, Any]) -> bytes:
    """Return the bytes to put: random, but the same for a key in each process."""
    import random

    return random.Random(order["key"]).randbytes(order["bytes"])


def play(orders: int, answers: int, more: str) -> None:
    """Answer orders (lines of JSON) until the input ends.

    Args:
        orders, answers: File descriptors.
        more: A Python file of further orders, or "".
    """
    player = Player(runpy.run_path(more) if more else {})
    with os.fdopen(orders, encoding="utf-8") as lines:
        for line in lines:
            answer = json.dumps(player.do(json.loads(line)))
            os.write(answers, f"{answer}\n".encode())


def main() -> None:
    """Replace this process by the order's program, or carry out orders until the input ends, and
    exit.

    The exit code after an OSError is 127.
    """
    del sys.path[0]  # this file's own folder, which is no place to import from
    order = json.loads(sys.argv[1])
    try:
        prepare_process(order)
        if order["program"]:
            os.execvp(order["program"][0], order["program"])
        play(order["orders"], order["answers"], order["more"])
    except OSError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    os._exit(0)  # closing a client takes seconds; the kernel takes all back at once


if __name__ == "__main__":
    main()
