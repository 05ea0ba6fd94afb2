"""Drives SGLang's real radix cache with a trace, and prints what each request finds in it.

    python tests/traces/radix_runner.py FOLDER < case.json

FOLDER holds one release's unpacked wheel. The case: ``sizes``, in blocks, and ``requests``, lists
of whole numbers, each of which stands for a block. A block is a token of a page of one here, and
memory is a count: the class sees an allocator that frees.
"""

from __future__ import annotations

import importlib
import json
import sys
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


def main() -> None:
    prepare(sys.argv[1])
    case = json.load(sys.stdin)
    json.dump([hits(size, case["requests"]) for size in case["sizes"]], sys.stdout)


if __name__ == "__main__":
    main()
