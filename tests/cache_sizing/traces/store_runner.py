"""Drives SGLang's real cache, host pool and HiCacheController with a stand-in store, on CPU torch.

    python -m tests.cache_sizing.traces.store_runner FOLDER < cases.json

FOLDER holds one release's unpacked wheel. All three are made by their own constructors, and the
controller's threads run; kernels, streams and events are stand-ins, and so is the store: a set of
keys, that counts what is written, asked for and read. A line for each case: its counts.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
import time
import types
from array import array
from typing import Any
from unittest.mock import MagicMock

from tests.cache_sizing.traces.radix_runner import Allocator, Done
from tests.engines.sglang import runner
from tests.engines.sglang.runner import torch

KERNELS = "backup_from_device_all_layer", "load_to_device_per_layer"
PAGES = "get_dummy_flat_data_page", "get_data_page", "set_from_flat_data_page"  # pinned memory
REAL: tuple[str, ...] = ("sglang.srt.managers.cache_controller",)


class RealModules:
    """Finds modules that the runner of host pools replaces."""

    def __init__(self, folder: str) -> None:
        self.files = {name: f"{folder}/{name.replace('.', '/')}.py" for name in REAL}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.files:
            return None
        return importlib.util.spec_from_file_location(name, self.files[name])


class Event(Done):
    """Of a stream that has always done all."""

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class Store:
    """What SGLang talks to in place of a storage backend, by each of its interfaces."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.written: list[str] = []
        self.asked = self.read = 0

    def register_mem_pool_host(self, *_: Any) -> None: ...

    register_mem_host_pool_v2 = on_host_pools_registered = register_mem_pool_host

    def batch_exists(self, keys: list[str], *_: Any) -> int:
        self.asked += len(keys)
        found = 0
        for key in keys:
            if key not in self.keys:
                break
            found += 1
        return found

    def batch_get(self, keys: list[str], targets: Any, *_: Any) -> list[Any]:
        self.read += len(keys)
        return list(targets)

    def batch_set(self, keys: list[str], *_: Any) -> bool:
        self.written += [key for key in keys if key not in self.keys]
        self.keys.update(keys)
        return True

    def get_stats(self) -> None: ...

    def close(self) -> None: ...


class Device(Allocator):
    """L1: its pool, and a count of what is free."""

    def __init__(self, kvcache: Any, size: int, page: int) -> None:
        self.kvcache, self.size, self.page_size = kvcache, size, page
        self.size_full = size
        self.cache: Any = None

    def get_kvcache(self) -> Any:
        return self.kvcache

    def available_size(self) -> int:
        return int(self.size - self.cache.evictable_size() - self.cache.protected_size())

    def mamba_full_cache_donor(self) -> None:
        """There are no states of Mamba here."""

    def set_hicache_transfer_done_event(self, *_: Any) -> None: ...

    def alloc(self, count: int) -> Any:
        if self.available_size() < count:
            return None
        return torch.zeros(count, dtype=torch.int64)


def device(case: dict[str, Any]) -> Device:
    pools: Any = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    own = object.__new__(pools.MHATokenToKVPool)
    page, tokens = case["page_tokens"], case["l1_tokens"]
    ones = "layers kv_heads head_dim v_head_dim kv_lora_rank qk_rope_head_dim kv_cache_dim"
    shape = {**dict.fromkeys([*ones.split(), "index_head_dim"], 1), "item_bytes": 2}
    sizes = {"device_tokens": tokens, "page_tokens": page, "shared_index": ()}
    own.__dict__.update(vars(runner._device_pool({**shape, **sizes})))
    return Device(own, tokens, page)


def configuration(case: dict[str, Any]) -> dict[str, Any]:
    extra = json.dumps({"prefetch_threshold": case["threshold"]})
    return {
        "hicache_ratio": case["ratio"],
        "hicache_size": 0,
        "hicache_write_policy": case["policy"],
        "hicache_io_backend": "kernel",
        "hicache_mem_layout": "layer_first",
        "hicache_storage_backend": "file",
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend_extra_config": extra,
    }


def hiradix(case: dict[str, Any]) -> Any:
    module: Any = importlib.import_module("sglang.srt.mem_cache.hiradix_cache")
    place, given = device(case), configuration(case)
    page = case["page_tokens"]
    try:
        params: Any = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
    except ModuleNotFoundError:  # 0.5.4
        extra = given.pop("hicache_storage_backend_extra_config")
        more = {"enable_metrics": False, "storage_backend_extra_config": extra}
        cache = module.HiRadixCache(MagicMock(), place, None, page, **given, **more)
    else:
        own = params.CacheInitParams(
            disable=False,
            req_to_token_pool=MagicMock(),
            token_to_kv_pool_allocator=place,
            page_size=page,
        )
        more = {"served_model_name": "m", "extra_metric_labels": None, "file_storage_path": None}
        cache = module.HiRadixCache(own, types.SimpleNamespace(**given, **more))
    place.cache = cache
    return cache


class Settings:
    """A bag of SGLang's settings: those that are not given are off."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 1 if name.endswith("_size") else 0 if name.endswith("_rank") else None


def unified(case: dict[str, Any]) -> Any:
    module: Any = importlib.import_module("sglang.srt.mem_cache.unified_radix_cache")
    params: Any = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
    context: Any = importlib.import_module("sglang.srt.runtime_context")
    kinds: Any = importlib.import_module("sglang.srt.mem_cache.unified_cache.component_type")
    bag = Settings(**configuration(case), hicache_host_memory_mode="cache", served_model_name="m")
    context._CONTEXT = types.SimpleNamespace(config_bag=lambda _: bag, parallel=bag)
    context._PARALLEL = bag
    place = device(case)
    pools: Any = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    place.kvcache = pools.MHATokenToKVPool(
        size=case["l1_tokens"],
        page_size=case["page_tokens"],
        dtype=torch.bfloat16,
        head_num=1,
        head_dim=8,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    chooses = "tree_core_backend" in params.CacheInitParams.__dataclass_fields__
    backend = {"tree_core_backend": "python"} if chooses else {}
    own = params.CacheInitParams(
        disable=False,
        req_to_token_pool=MagicMock(),
        token_to_kv_pool_allocator=place,
        page_size=case["page_tokens"],
        tree_components=(kinds.ComponentType.FULL,),
        **backend,
    )
    cache = module.UnifiedRadixCache(own)
    place.cache = cache
    cache.init_hicache(bag, own)
    return cache


def prepare(folder: str) -> None:
    runner.prepare(folder)
    sys.meta_path.insert(0, RealModules(folder))
    for module in (torch.cuda, torch.cpu):
        module.Event = lambda *_, **__: Event()
        module.Stream = MagicMock
        module.stream = lambda _: MagicMock()
        module.current_stream = lambda *_: MagicMock()
    torch.distributed.get_world_size = lambda *_, **__: 1
    torch.distributed.get_rank = lambda *_, **__: 0
    pool = runner.Release().find("MHATokenToKVPoolHost")
    for moves in (*KERNELS, *PAGES):
        setattr(pool, moves, lambda *_, **__: True)
    utils: Any = importlib.import_module("sglang.srt.utils")
    utils.get_device_module = lambda *_: torch.cpu
    try:
        native: Any = importlib.import_module("sglang.srt.mem_cache.cpp_utils.native_hash")
    except ModuleNotFoundError:
        return
    native._load_native_hash_module = NativeHash


class NativeHash:
    """In place of the C++ that hashes pages from 0.5.15 on: as get_hash_str did before."""

    def get_hash(
        self,
        tokens: Any,
        count: int,
        width: int,
        pairs: bool,
        prior: bytes | None,
        page: int | None,
    ) -> Any:
        step = 1 if pairs else width
        size, hashes = page or max(count, 1), []
        for start in range(0, count, size):
            digest = hashlib.sha256(prior or b"")
            for at in range(start, min(start + size, count)):
                for token in tokens[at * step : at * step + width]:
                    digest.update(int(token).to_bytes(4, "little"))
            prior = digest.digest()
            hashes.append(digest.hexdigest())
        return hashes if page else hashes[-1]


class Driver:
    """One cache, asked as SGLang's scheduler asks it (scheduler.py ``_prefetch_kvcache``)."""

    def __init__(self, case: dict[str, Any], store: Store, is_unified: bool) -> None:
        self.case, self.store, self.page = case, store, case["page_tokens"]
        self.cache = (unified if is_unified else hiradix)(case)
        self.cache.load_back_threshold = 1  # of a page; SGLang's own is ten tokens
        self.unified, self.limited = is_unified, 0
        self.controller = self.cache.cache_controller
        self.radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
        self.base: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
        self.old = not hasattr(self.base, "MatchPrefixParams")  # 0.5.4
        own = self.controller.prefetch_rate_limited

        def counted() -> bool:
            self.limited += own()
            return bool(own())

        self.controller.prefetch_rate_limited = counted

    @property
    def l2_tokens(self) -> int:
        return int(self.controller.mem_pool_host.size)

    def key(self, tokens: list[int]) -> Any:
        return self.radix.RadixKey(tokens if self.old else array("q", tokens), None)

    def match(self, tokens: list[int]) -> Any:
        key = self.key(tokens)
        return self.cache.match_prefix(key if self.old else self.base.MatchPrefixParams(key=key))

    def in_l1(self, match: Any) -> int:
        length = getattr(match, "device_prefix_len", None)
        return len(match.device_indices) if length is None else int(length)

    def prefetch(self, name: str, tokens: list[int]) -> Any:
        """Ask L3 for what neither L1 nor L2 has; returns what the request is known by."""
        match, cache = self.match(tokens), self.cache
        node, done = match.last_host_node, self.in_l1(match) + match.host_hit_length
        rest = tokens[done:] if self.old else array("q", tokens[done:])
        if self.unified:
            handle = self.base.CacheRequestHandle(name, 0)
            if cache.is_backuped(node) or cache.is_root(node):
                last = cache.get_last_hash_value(node)
                before = array("q", tokens[:done])
                cache.prefetch_from_storage(
                    handle, node, rest, last, None, matched_prefix_tokens=before
                )
            return handle
        kept = match.last_device_node if self.old else node
        if kept.backuped or kept is cache.root_node:
            cache.prefetch_from_storage(name, node, rest, node.get_last_hash_value(), None)
        return name

    def wait(self, handle: Any) -> None:
        until = time.monotonic() + 20
        while not self.cache.check_prefetch_progress(handle):
            self.cache.check_hicache_events()
            assert time.monotonic() < until, "a prefetch does not end"
            time.sleep(0.0002)
        self.settle()

    def settle(self) -> None:
        """Let all that is on its way arrive."""
        until, cache, own = time.monotonic() + 20, self.cache, self.controller
        while True:
            cache.check_hicache_events()
            busy = cache.ongoing_write_through or cache.ongoing_backup or own.backup_queue.qsize()
            if not busy and not own.host_mem_release_queue.qsize():
                return
            assert time.monotonic() < until, "a write does not end"
            time.sleep(0.0002)

    def serve(self, name: str, tokens: list[int]) -> tuple[int, int]:
        """Serve one request; returns the tokens that L1 has, and L2 with what L3 gave it."""
        cache, base = self.cache, self.base
        self.wait(self.prefetch(name, tokens))
        match = self.match(tokens)
        in_l1, in_l2, last = self.in_l1(match), 0, match.last_device_node
        if match.host_hit_length:
            asking = types.SimpleNamespace(
                last_node=last,
                rid=name,
                kv=types.SimpleNamespace(mamba_pool_idx=None),
                mamba_pool_idx=None,
                swa_host_hit_length=0,
                mamba_host_hit_length=0,
            )
            node = getattr(match, "best_match_node", match.last_host_node)
            if self.old:
                loaded, last = cache.init_load_back(node, match.host_hit_length)
            else:
                asked = base.InitLoadBackParams(node, match.host_hit_length, req=asking)
                loaded, last = cache.init_load_back(asked)
            in_l2 = loaded if isinstance(loaded, int) else len(loaded)
            if self.unified and hasattr(cache, "ready_to_load_host_cache"):
                cache.ready_to_load_host_cache()
        lock = cache.inc_lock_ref(last)
        needed = len(tokens) - 1 - in_l1 - in_l2 - cache.token_to_kv_pool_allocator.available_size()
        if needed > 0:
            cache.evict(needed if self.old else base.EvictParams(num_tokens=needed))
        whole = tokens[: len(tokens) // self.page * self.page]
        value, key = torch.zeros(len(whole), dtype=torch.int64), self.key(whole)
        cache.insert(key, value) if self.old else cache.insert(
            base.InsertParams(key=key, value=value)
        )
        if self.unified:
            cache.dec_lock_ref(last, lock.to_dec_params())
        else:
            cache.dec_lock_ref(last)
            for held in cache.ongoing_load_back.values():
                cache.dec_lock_ref(held)
            cache.ongoing_load_back.clear()
            self.controller.load_queue.clear()
        self.settle()
        return in_l1, in_l2

    def stop(self) -> None:
        own = self.controller
        (getattr(own, "storage_stop_event", None) or own.stop_event).set()


def counts(case: dict[str, Any], storage: Any, is_unified: bool) -> list[dict[str, int]]:
    """Return the counts after each request, or after all of them, asked for at once. 0.5.10.post1
    dies with write_back: a node may leave L2 before what stands behind it (#19212)."""
    store = Store()
    storage.StorageBackendFactory.create_backend = lambda *_, **__: store
    driver, found = Driver(case, store, is_unified), []

    def seen(**more: int) -> None:
        counted = {"written": len(store.written), "asked": store.asked, "read": store.read}
        found.append({**counted, "declined": driver.limited, "l2_tokens": driver.l2_tokens, **more})

    requests = list(enumerate(case["requests"]))
    if case["burst"]:
        page, key_of = case["page_tokens"], driver.controller.get_hash_str
        for (_, tokens), stored in zip(requests, case["stored"], strict=True):
            last: str | None = None
            for start in range(0, stored * page, page):
                own = tokens[start : start + page]
                last = key_of(own if driver.old else array("q", own), last)
                store.keys.add(last)
        for handle in [driver.prefetch(str(at), tokens) for at, tokens in requests]:
            driver.wait(handle)
        seen()
    else:
        try:
            for at, tokens in requests:
                in_l1, in_l2 = driver.serve(str(at), tokens)
                seen(in_l1=in_l1, in_l2=in_l2)
        except AssertionError as failed:
            if "parent does not have child key" not in str(failed):
                raise
    driver.stop()
    return found


def main() -> None:
    prepare(sys.argv[1])
    storage: Any = importlib.import_module("sglang.srt.mem_cache.storage")
    given = json.load(sys.stdin)
    for case in given["cases"]:
        print(json.dumps(counts(case, storage, given["unified"])), flush=True)


if __name__ == "__main__":
    main()
