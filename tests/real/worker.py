"""Runs one case with the real Mooncake library and prints what it took, as JSON.

Started as a process of its own, under the case's environment, with the wheel on PYTHONPATH.
It imports nothing of this project: only the library speaks here.
"""

import glob
import json
import os
import sys


def used_pages() -> dict[str, int]:
    pages = {}
    for folder in glob.glob("/sys/kernel/mm/hugepages/hugepages-*kB"):

        def count(name: str, folder: str = folder) -> int:
            with open(f"{folder}/{name}_hugepages") as file:
                return int(file.read())

        used = count("nr") - count("free") + count("resv")
        pages[os.path.basename(folder)[len("hugepages-") :]] = used
    return pages


def run(case: dict) -> str:
    from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

    allocator = MooncakeHostMemAllocator()
    kept = []
    try:
        for size in case["host_pools_bytes"]:
            kept.append(allocator.alloc(size))
        for number, client in enumerate(case["clients"]):
            store = MooncakeDistributedStore()
            kept.append(store)
            code = store.setup(
                f"127.0.0.1:{case['port'] + number}",
                "P2PHANDSHAKE",
                client["segment_bytes"],
                client["local_buffer_bytes"],
                client["protocol"],
                "",
                case["master"],
            )
            if code:
                return str(code)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        KEPT.extend(kept)
    return "ok"


KEPT: list = []

if __name__ == "__main__":
    before = used_pages()
    said = run(json.load(sys.stdin))
    after = used_pages()
    print(json.dumps({"said": said, "pages": {k: after[k] - before[k] for k in after}}))
    sys.stdout.flush()
    os._exit(0)  # the kernel frees the pages; closing each client takes seconds
