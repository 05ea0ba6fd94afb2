"""Drives SGLang's real radix cache with a trace, and prints what each request finds in it.

    python -m tests.cache_sizing.traces.radix_runner FOLDER < case.json

FOLDER holds one release's unpacked wheel. The case: ``sizes``, in blocks, and ``requests``, lists
of whole numbers, each of which stands for a block. A block is a token of a page of one here, and
memory is a count: the class sees an allocator that frees. With a write policy, ``policy``, it is
HiRadixCache or what replaced it in 0.5.19, UnifiedRadixCache; L2 is twice as large as L1, and
copies are there at once. A line for each size: what each request finds in L1, and in L2.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.engines.sglang.runner import prepare


class Allocator:
    """In place of the one for the GPU."""

    device = "cpu"

    def free(self, _: Any) -> None:
        """Of releases before 0.5.23."""

    def free_segment(self, _: Any, start_pos: int = 0) -> None:
        """The same, by its newer name."""


def hits(size: int, requests: list[list[int]]) -> Iterator[tuple[int, int]]:
    """What each finds in L1 without an L2."""
    torch: Any = importlib.import_module("torch")
    radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
    base: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
    cache = radix.RadixCache.create_simulated(mock_allocator=Allocator(), page_size=1)
    for request in requests:
        tokens = array("q", request)
        match = cache.match_prefix(base.MatchPrefixParams(key=radix.RadixKey(tokens, None)))
        length = getattr(match, "device_prefix_len", None)
        found = len(match.device_indices) if length is None else length
        yield found, 0
        cache.inc_lock_ref(match.last_device_node)
        free = size - cache.evictable_size() - cache.protected_size()
        needed = len(request) - found - free
        if needed > 0:
            cache.evict(base.EvictParams(num_tokens=needed))
        value = torch.zeros(len(request), dtype=torch.int64)
        cache.insert(base.InsertParams(key=radix.RadixKey(tokens, None), value=value))
        cache.dec_lock_ref(match.last_device_node)


class Done:
    """The event of a copy that is there."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Ack(NamedTuple):
    """A copy that is there, by its place and by its name, as releases take it."""

    start_event: None
    finish_event: Done
    node_ids: list[int]


class Controller:
    """In place of HiCacheController: counts what L1 and L2 have left."""

    def __init__(self, size: int, host: int, policy: str) -> None:
        self.size, self.host, self.write_policy = size, host, policy
        self.mem_pool_device_allocator = Allocator()
        self.cache: Any = None
        self.reset()

    def reset(self) -> None:
        self.ack_write_queue: list[Any] = []

    def _memory(self, count: int) -> Any:
        torch: Any = importlib.import_module("torch")
        return torch.zeros(count, dtype=torch.int64)

    def write(self, device_indices: Any, node_id: int) -> Any:
        count = len(device_indices)
        if self.host < count:
            return None
        self.host -= count
        self.ack_write_queue.append(Ack(None, Done(), [node_id]))
        return self._memory(count)

    def load(self, host_indices: Any, node_id: int) -> Any:
        count, cache = len(host_indices), self.cache
        free = self.size - cache.evictable_size_ - cache.protected_size_
        return self._memory(count) if free >= count else None

    def evict_device(self, values: Any) -> int:
        return len(values)

    def evict_host(self, values: Any) -> int:
        self.host += len(values)
        return len(values)


def tier_hits(size: int, requests: list[list[int]], policy: str) -> Iterator[tuple[int, int]]:
    """What each finds in L1, and in L2, by HiRadixCache."""
    torch: Any = importlib.import_module("torch")
    radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
    base: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
    params: Any = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
    hierarchical: Any = importlib.import_module("sglang.srt.mem_cache.hiradix_cache")
    controller = Controller(size, 2 * size, policy)
    # Its own constructor wants GPU pools: what it sets of itself is set here.
    cache = hierarchical.HiRadixCache.__new__(hierarchical.HiRadixCache)
    controller.cache = cache
    cache.__dict__.update(
        page_size=1,
        enable_storage=False,
        enable_storage_metrics=False,
        tp_world_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_group=None,
        attn_tp_group=None,
        work_list=[],
        ongoing_write_through={},
        ongoing_load_back={},
        ongoing_prefetch={},
        ongoing_backup={},
        prefetch_loaded_tokens_by_reqid={},
        write_through_threshold=1 if policy == "write_through" else 2,
        load_back_threshold=1,
        evictable_host_leaves=set(),
        cache_controller=controller,
        token_to_kv_pool_host=types.SimpleNamespace(clear=lambda: None),
        _enable_metrics_flag=False,
    )
    own = params.CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=Allocator(), page_size=1
    )
    radix.RadixCache.__init__(cache, own)
    for request in requests:
        match = cache.match_prefix(base.MatchPrefixParams(key=radix.RadixKey(request, None)))
        in_l1, in_l2, last = len(match.device_indices), 0, match.last_device_node
        if match.host_hit_length:
            # The first has another name in each release.
            asked = base.InitLoadBackParams(match.last_host_node, match.host_hit_length)
            loaded, last = cache.init_load_back(asked)
            in_l2 = len(loaded)
        yield in_l1, in_l2
        cache.inc_lock_ref(last)
        free = size - cache.evictable_size_ - cache.protected_size_
        needed = len(request) - in_l1 - in_l2 - free
        if needed > 0:
            cache.evict(base.EvictParams(num_tokens=needed))
        value = torch.zeros(len(request), dtype=torch.int64)
        cache.insert(base.InsertParams(key=radix.RadixKey(request, None), value=value))
        cache.dec_lock_ref(last)
        for node in cache.ongoing_load_back.values():
            cache.dec_lock_ref(node)
        cache.ongoing_load_back.clear()
        cache.writing_check()


class TreeAllocator(Allocator):
    """The same for UnifiedRadixCache: what is free is what the tree does not hold."""

    page_size = 1
    page_shard_size = None
    tree: Any = None

    def __init__(self, size: int, full: Any) -> None:
        self.size, self.full = size, full

    def available_size(self) -> int:
        held = self.tree.component_evictable_size_, self.tree.component_protected_size_
        return int(self.size - sum(each[self.full] for each in held))

    def mamba_full_cache_donor(self) -> None:
        """There are no states of Mamba here."""

    def __getattr__(self, name: str) -> None:
        """Parts that other kinds of attention have."""
        if name.startswith("__"):
            raise AttributeError(name)


class Host:
    """In place of L2's pool."""

    shared_allocation_domain = host_evict_fn = None

    def __init__(self, size: int) -> None:
        self.left = size
        self.host_pool = self.anchor_entry = self

    def available_size(self) -> int:
        return self.left

    def free(self, values: Any, pool: Any = None) -> None:
        self.left += len(values)

    def clear(self) -> None:
        """Nothing but a count."""


class UnifiedController:
    """In place of HybridCacheController."""

    enable_storage = False

    def __init__(self, allocator: TreeAllocator, host: Host, policy: str) -> None:
        self.allocator, self.mem_pool_host, self.write_policy = allocator, host, policy
        self.reset()

    def reset(self) -> None:
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []

    def start_writing(self) -> None:
        """All is written already."""

    def write(self, values: Any, node_id: int, extra_pools: Any, flush: bool) -> Any:
        if self.mem_pool_host.left < len(values):
            return None
        self.mem_pool_host.left -= len(values)
        return self._moved(self.ack_write_queue, len(values), node_id)

    def load(self, host_indices: Any, node_id: int, extra_pools: Any) -> Any:
        if self.allocator.available_size() < len(host_indices):
            return None
        return self._moved(self.ack_load_queue, len(host_indices), node_id)

    def _moved(self, queue: list[Any], count: int, node_id: int) -> Any:
        torch: Any = importlib.import_module("torch")
        queue.append(Ack(None, Done(), [node_id]))
        return torch.zeros(count, dtype=torch.int64)


def unified_tier_hits(
    size: int, requests: list[list[int]], policy: str
) -> Iterator[tuple[int, int]]:
    """The same by UnifiedRadixCache."""
    torch: Any = importlib.import_module("torch")
    radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
    base: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
    params: Any = importlib.import_module("sglang.srt.mem_cache.cache_init_params")
    unified: Any = importlib.import_module("sglang.srt.mem_cache.unified_radix_cache")
    kinds: Any = importlib.import_module("sglang.srt.mem_cache.unified_cache.component_type")
    full = kinds.ComponentType.FULL
    allocator, host = TreeAllocator(size, full), Host(2 * size)
    cache = unified.UnifiedRadixCache(
        params.CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=allocator,
            page_size=1,
            tree_components=(full,),
            tree_core_backend="python",
        )
    )
    # init_hicache wants GPU pools: what it sets is set here.
    allocator.tree = tree = cache.tree_core
    cache.cache_controller, cache.host_pool_group = UnifiedController(allocator, host, policy), host
    cache.components[full]._full_kv_pool_host = host
    tree.set_hicache_enabled()
    cache.is_write_back = tree.is_write_back = policy == "write_back"
    threshold = 1 if policy == "write_through" else 2
    cache.write_through_threshold = tree.write_through_threshold = threshold
    cache.load_back_threshold = 1
    for request in requests:
        key = radix.RadixKey(array("q", request), None)
        match = cache.match_prefix(base.MatchPrefixParams(key=key))
        in_l1, in_l2, last = match.device_prefix_len, 0, match.last_device_node
        if match.host_hit_length:
            asking = types.SimpleNamespace(
                last_node=last,
                kv=types.SimpleNamespace(mamba_pool_idx=None),
                swa_host_hit_length=0,
                mamba_host_hit_length=0,
            )
            asked = base.InitLoadBackParams(
                best_match_node=match.best_match_node,
                host_hit_length=match.host_hit_length,
                req=asking,
            )
            in_l2, last = cache.init_load_back(asked)
        yield in_l1, in_l2
        lock = cache.inc_lock_ref(last)
        needed = len(request) - in_l1 - in_l2 - allocator.available_size()
        if needed > 0:
            cache.evict(base.EvictParams(num_tokens=needed))
        value = torch.zeros(len(request), dtype=torch.int64)
        again = radix.RadixKey(array("q", request), None)
        cache.insert(base.InsertParams(key=again, value=value))
        cache.dec_lock_ref(last, lock.to_dec_params())
        cache.loading_check()
        cache.writing_check()


def until_it_fails(results: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """0.5.10 dies with write_back: a node may leave L2 before what stands behind it (#19212)."""
    found: list[tuple[int, int]] = []
    try:
        found.extend(results)
    except AssertionError as failed:
        if "parent does not have child key" not in str(failed):
            raise
    return found


def main() -> None:
    prepare(sys.argv[1])
    case = json.load(sys.stdin)
    policy = case["policy"]
    for size in case["sizes"]:
        if not policy:
            results = hits(size, case["requests"])
        elif case["unified"]:
            results = unified_tier_hits(size, case["requests"], policy)
        else:
            results = tier_hits(size, case["requests"], policy)
        print(json.dumps(until_it_fails(results)))


if __name__ == "__main__":
    main()
