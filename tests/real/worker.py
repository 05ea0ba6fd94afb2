"""Runs cases with the real Mooncake library and prints what each took, as JSON.

Started with the wheel on PYTHONPATH; each line of stdin is a case. The library is loaded once, and
each case is a fork of this process under an environment of its own: nothing of the library has run
before. It imports nothing of this project: only the library speaks here.
"""

import glob
import json
import os
import sys

from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator


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
    allocator = MooncakeHostMemAllocator()
    KEPT.append(allocator)
    try:
        for size in case["host_pools_bytes"]:
            KEPT.append(allocator.alloc(size))
        for number, client in enumerate(case["clients"]):
            KEPT.append(MooncakeDistributedStore())
            code = set_up(KEPT[-1], client, case, number)
            if code:
                return str(code)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def set_up(store, client: dict, case: dict, number: int) -> int:
    if client.get("dummy"):
        return store.setup_dummy(500 << 20, client["local_buffer_bytes"], case["real_client"])
    offload = {}
    if client["offload_buffer_bytes"] is not None:
        offload = {"enable_ssd_offload": True, "ssd_offload_path": case["offload_path"]}
    return store.setup(
        f"127.0.0.1:{case['port'] + number}",
        "P2PHANDSHAKE",
        client["segment_bytes"],
        client["local_buffer_bytes"],
        client["protocol"],
        "",
        case["master"],
        **offload,
    )


KEPT: list = []


def answer(case: dict) -> None:
    os.environ.update(case["environment"])
    before = used_pages()
    said = run(case)
    after = used_pages()
    print(json.dumps({"said": said, "pages": {k: after[k] - before[k] for k in after}}), flush=True)
    os._exit(0)  # the kernel frees the pages; closing each client takes seconds


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answer(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("\n" + json.dumps({"ended": code}), flush=True)
