"""In the guest: processes that call Mooncake as engines' workers do, and what the kernel pins.

Started with the path of a file of orders; writes a line of JSON for each. The library is loaded
once, and each order is a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

from tests.lab.supervisor import ALL_PAGES, Masters, bring_up_nics

HUGE_PAGE_BYTES = 2 << 20
MAP_HUGETLB_2M = 0x40000 | (21 << 26)  # linux/mman.h
PAGES = 400


def pinned_bytes() -> int:
    """VmPin of this process: what it has registered, once for each device."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPin:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmPin")


def run(order: dict[str, Any], master: str) -> dict[str, Any]:
    """LMCache maps its pool, sets up each store, and then registers the pool with the last."""
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

    os.environ.update(order["environment"])
    size, memory, said, stores = order["pool_bytes"], None, [], []
    if size:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if order["pool_huge"]:
            size = -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            flags |= MAP_HUGETLB_2M
        memory = mmap.mmap(-1, size, flags)
    for setup in order["setups"]:
        stores.append(MooncakeDistributedStore())
        if isinstance(setup, dict):
            said.append(stores[-1].setup({**setup, "master_server_addr": master}))
        else:
            said.append(stores[-1].setup(*setup, master))
    if memory is not None and order["registers"]:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        # As many bytes as were asked for, however many are mapped.
        said.append(stores[-1].register_buffer(address, order["pool_bytes"]))
    return {"said": said, "pinned_bytes": pinned_bytes()}


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    if not Path("/sys/class/infiniband/rxe1").exists():
        bring_up_nics()
    ALL_PAGES.write_text(str(PAGES))
    master = Masters(first_port=50500).address(orders["library"])
    __import__("mooncake.store")
    for order in orders["engines"]:
        child = os.fork()
        if child == 0:
            try:
                answer = run(order, master)
            except Exception as error:
                answer = {"said": [f"{type(error).__name__}: {error}"], "pinned_bytes": -1}
            os.write(1, f"\n{json.dumps({'engine': order['id'], **answer})}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)
    ALL_PAGES.write_text("0")


if __name__ == "__main__":
    main()
