"""Drives SGLang's real DecodeKVCacheOffloadManager and HiCacheController, on CPU torch.

    python -m tests.cache_sizing.traces.decode_runner FOLDER < cases.json

As ``store_runner``, with its stand-in store. A line for each case: the keys in the order written,
and the place of the first token of the first of them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import types
from typing import Any
from unittest.mock import MagicMock

from tests.cache_sizing.traces import store_runner
from tests.engines.sglang.runner import psutil, torch

NAMES = "decode_kvcache_offload_manager", "kv_events"
store_runner.REAL = (*store_runner.REAL, *(f"sglang.srt.disaggregation.{name}" for name in NAMES))


class Request:
    """Of a decode server, with its places in L1: one for each token."""

    extra_key = cache_salt = lock = None

    def __init__(self, case: dict[str, Any]) -> None:
        self.rid, self.req_pool_idx = "r", 0
        self.kv = types.SimpleNamespace(
            req_pool_idx=0, cache_protected_len=0, kv_allocated_len=0, mark_kv_released=lambda: None
        )
        self.origin_input_ids, self.output_ids = list(case["prompt"]), list[int]()
        self.prefix_indices: list[int] = []
        self.ended = False

    def finished(self) -> bool:
        return self.ended

    def pop_committed_kv_cache(self) -> int:
        return 0

    def pop_overallocated_kv_cache(self) -> tuple[int, int]:
        return 0, 0


def manager_of(case: dict[str, Any], driver: store_runner.Driver) -> Any:
    """The manager, by its own constructor, with the pool and controller that are there."""
    page, controller = case["page_tokens"], driver.controller
    module: Any = importlib.import_module(f"sglang.srt.disaggregation.{NAMES[0]}")
    vars(module).update(
        HiCacheController=lambda **_: controller,
        **dict.fromkeys(
            ("MHATokenToKVPoolHost", "build_kv_host_pool"),
            lambda *_, **__: controller.mem_pool_host,
        ),
        get_mha_host_pool_cls=lambda _: lambda *_: controller.mem_pool_host,
        get_schedule=lambda: types.SimpleNamespace(page_size=page),
        **dict.fromkeys(("get_memory", "get_serving"), lambda: store_runner.Settings()),
    )
    given = store_runner.Settings(page_size=page)
    os.environ["SGLANG_HICACHE_DECODE_OFFLOAD_STRIDE"] = str(case["stride"])
    own = module.DecodeKVCacheOffloadManager
    asked = own.__init__.__code__.co_varnames[: own.__init__.__code__.co_argcount]
    places = torch.arange(1 << 12).reshape(1, -1)
    pool = MagicMock(req_to_token=places)
    allocator = controller.mem_pool_device_allocator
    settings = [given] if "server_args" in asked else []
    tree = MagicMock(protected_size_=0)
    return own(pool, allocator, MagicMock(), tree, *settings)


def written(case: dict[str, Any], is_unified: bool) -> list[str]:
    """What a request leaves in the store, token by token as the scheduler goes on."""
    store = store_runner.Store()
    storage: Any = importlib.import_module("sglang.srt.mem_cache.storage")
    storage.StorageBackendFactory.create_backend = lambda *_, **__: store
    driver = store_runner.Driver(case, store, is_unified)
    manager, request = manager_of(case, driver), Request(case)
    controller, of_the_end = driver.controller, not hasattr(manager, "offloaded_state")
    for step in case["steps"]:
        request.output_ids += step
        request.ended = step is case["steps"][-1]
        if request.ended == of_the_end:
            manager.offload_kv_cache(request)
        elif request.ended:
            manager.finalize_release_on_finish(request)
        until = time.monotonic() + 20
        while True:
            manager.check_offload_progress()
            if not manager.ongoing_offload and not manager.ongoing_backup:
                break
            assert time.monotonic() < until, "an offload does not end"
            time.sleep(0.0002)
    assert controller.mem_pool_host.available_size() == controller.mem_pool_host.size
    driver.stop()
    return store.written


def main() -> None:
    store_runner.prepare(sys.argv[1])
    psutil.virtual_memory = lambda: types.SimpleNamespace(available=1 << 40, total=1 << 40)
    given = json.load(sys.stdin)
    for case in given["cases"]:
        print(json.dumps(written(case, given["unified"])), flush=True)


if __name__ == "__main__":
    main()
