"""Puts and gets objects with the real library as it is told, and prints what it saw, as JSON.

Started as a process of its own, with the wheel on PYTHONPATH; it imports nothing of this project.
An order on stdin: the client's setup, and steps, each a list of a verb and its numbers.
"""

import json
import os
import sys
import time
from typing import Any


def on_disk(folder: str) -> int:
    """Bytes that were written below a folder."""
    files = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    return sum(os.path.getsize(one) for one in files)


def content(number: int) -> bytes:
    """What the object of a number begins with, and no other object has."""
    return b"%016d" % number


def put(store: Any, first: int, count: int, size: int, a_second: float) -> dict[str, Any]:
    """Put ``count`` objects at a rate, and say how many were taken and the last refusal."""
    data, taken, refusal, began = os.urandom(size - 16), 0, 0, time.monotonic()
    for at in range(count):
        if a_second:
            time.sleep(max(0.0, began + at / a_second - time.monotonic()))
        code = store.put(f"k{first + at}", content(first + at) + data)
        taken, refusal = taken + (code == 0), code or refusal
    return {"taken": taken, "refusal": refusal, "seconds": time.monotonic() - began}


def present(store: Any, first: int, count: int) -> int:
    return sum(store.is_exist(f"k{first + at}") == 1 for at in range(count))


def read(store: Any, first: int, count: int) -> int:
    return sum(len(store.get(f"k{first + at}")) > 0 for at in range(count))


def wrong(store: Any, first: int, count: int) -> int:
    """Objects that are read, and have other data than was put."""
    read = [(number, store.get(f"k{number}")) for number in range(first, first + count)]
    return sum(bool(data) and data[:16] != content(number) for number, data in read)


def in_memory(store: Any, first: int, count: int) -> list[list[int]]:
    """Numbers of the objects that have a replica in memory, and of those that have one on SSD."""
    found: list[list[int]] = [[], []]
    for at in range(first, first + count):
        replicas = store.get_replica_desc(f"k{at}")
        found[0] += [at] * any(one.is_memory_replica() for one in replicas)
        found[1] += [at] * any(one.is_local_disk_replica() for one in replicas)
    return found


def main() -> None:
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found]

    order = json.loads(sys.stdin.readline())
    store, folder = MooncakeDistributedStore(), order["folder"]
    said: list[Any] = []
    offload = {"enable_ssd_offload": True, "ssd_offload_path": folder} if order["ssd"] else {}
    if order["standalone"]:
        code = store.setup_dummy(64 << 20, 64 << 20, order["standalone"])
    else:
        code = store.setup(
            f"127.0.0.1:{order['port']}", "P2PHANDSHAKE", order["segment"], 64 << 20, "tcp", "",
            order["master"], **offload,
        )  # fmt: skip
    assert code == 0, code
    print("\nready", flush=True)
    for verb, *numbers in order["steps"]:
        if verb == "wait":
            time.sleep(*numbers)
        elif verb == "put":
            said.append(put(store, *numbers))
        elif verb == "disk":
            said.append(on_disk(folder))
        else:
            said.append(
                {"present": present, "read": read, "where": in_memory, "wrong": wrong}[verb](
                    store, *numbers
                )
            )
    print("\nsaid " + json.dumps(said), flush=True)
    for _ in sys.stdin:  # it gives its segment until its input ends
        print(f"said {on_disk(folder)}", flush=True)
    os._exit(0)


main()
