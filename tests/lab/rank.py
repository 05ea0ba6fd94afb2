"""One process of an experiment: allocates with the real library, and says how that went.

It reads the experiment from standard input. It imports nothing of this project: only the library
speaks here.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

KEPT: list[Any] = []


def run(order: dict[str, Any]) -> str:
    from mooncake.store import (  # type: ignore[import-not-found]
        MooncakeDistributedStore,
        MooncakeHostMemAllocator,
    )

    allocator = MooncakeHostMemAllocator()
    KEPT.append(allocator)
    try:
        for size in order["host_pools_bytes"]:
            KEPT.append(allocator.alloc(size))
        if order["segment_bytes"] or order["local_bytes"]:
            store = MooncakeDistributedStore()
            KEPT.append(store)
            code = store.setup(
                f"127.0.0.1:{order['port']}",
                "P2PHANDSHAKE",
                order["segment_bytes"],
                order["local_bytes"],
                order["protocol"],
                "",
                order["master"],
            )
            if code:
                return str(code)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


if __name__ == "__main__":
    said = run(json.loads(sys.stdin.readline()))
    print(f"\n{json.dumps({'said': said})}", flush=True)
    sys.stdin.read()  # until all processes of the experiment have answered
    os._exit(0)  # the kernel frees the pages; closing a client takes seconds
