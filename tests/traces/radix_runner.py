"""Drives SGLang's real radix cache with a trace, and prints what each request finds in it.

    python -m tests.traces.radix_runner FOLDER [POLICY] < case.json

FOLDER holds one release's unpacked wheel. The case: ``sizes``, in blocks, and ``requests``, lists
of whole numbers, each of which stands for a block. A block is a token of a page of one here, and
memory is a count: the class sees an allocator that frees. With a write policy it is HiRadixCache
(0.5.10), whose L2 is twice as large; copies are there at once.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from array import array
from typing import Any

from tests.sglang.runner import prepare


class Allocator:
    """In place of the one for the GPU."""

    device = "cpu"

    def free(self, _: Any) -> None:
        """Of releases before 0.5.23."""

    def free_segment(self, _: Any, start_pos: int = 0) -> None:
        """The same, by its newer name."""


def hits(size: int, requests: list[list[int]]) -> list[int]:
    torch: Any = importlib.import_module("torch")
    radix: Any = importlib.import_module("sglang.srt.mem_cache.radix_cache")
    base: Any = importlib.import_module("sglang.srt.mem_cache.base_prefix_cache")
    cache = radix.RadixCache.create_simulated(mock_allocator=Allocator(), page_size=1)
    found = []
    for request in requests:
        tokens = array("q", request)
        match = cache.match_prefix(base.MatchPrefixParams(key=radix.RadixKey(tokens, None)))
        length = getattr(match, "device_prefix_len", None)
        found.append(len(match.device_indices) if length is None else length)
        cache.inc_lock_ref(match.last_device_node)
        free = size - cache.evictable_size() - cache.protected_size()
        needed = len(request) - found[-1] - free
        if needed > 0:
            cache.evict(base.EvictParams(num_tokens=needed))
        value = torch.zeros(len(request), dtype=torch.int64)
        cache.insert(base.InsertParams(key=radix.RadixKey(tokens, None), value=value))
        cache.dec_lock_ref(match.last_device_node)
    return found


class Done:
    """The event of a copy that is there."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


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
        self.ack_write_queue.append((None, Done(), [node_id]))
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


def tier_hits(size: int, requests: list[list[int]], policy: str) -> list[tuple[int, int]]:
    """What each finds in L1, and in L2."""
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
        disable=False,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=Allocator(),
        page_size=1,
    )
    radix.RadixCache.__init__(cache, own)
    found = []
    for request in requests:
        match = cache.match_prefix(base.MatchPrefixParams(key=radix.RadixKey(request, None)))
        in_l1, in_l2, last = len(match.device_indices), 0, match.last_device_node
        if match.host_hit_length:
            asked = base.InitLoadBackParams(
                last_host_node=match.last_host_node,
                host_hit_length=match.host_hit_length,
                mem_quota=None,
            )
            loaded, last = cache.init_load_back(asked)
            in_l2 = len(loaded)
        found.append((in_l1, in_l2))
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
    return found


def main() -> None:
    prepare(sys.argv[1])
    case = json.load(sys.stdin)
    requests = case["requests"]
    if len(sys.argv) > 2:
        policy = sys.argv[2]
        json.dump([tier_hits(size, requests, policy) for size in case["sizes"]], sys.stdout)
    else:
        json.dump([hits(size, requests) for size in case["sizes"]], sys.stdout)


if __name__ == "__main__":
    main()
