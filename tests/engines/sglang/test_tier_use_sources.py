"""SGLang's own functions behind the rules of preflight/launch_problems/rules/tier_use.md, run
release by release.

They are read in the wheels, and run with stand-ins for what they use.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from sglang_wheels import unpacked

from checks.releases.sglang import sglang_release
from tests.engines.sglang.source_functions import functions
from tests.tables import each_row

pytestmark = pytest.mark.sglang
RELEASES = "0.5.4 0.5.8 0.5.9 0.5.10.post1 0.5.14 0.5.15 0.5.20 0.5.23".split()


class Ack(NamedTuple):
    """As a tuple up to 0.5.9 and by its names later."""

    start_event: Any
    finish_event: Any
    node_ids: list[int]


def radix_cache(version: str) -> Path:
    unified = sglang_release(version).unified_cache
    name = "unified_radix" if unified else "hiradix"
    return unpacked(version) / f"sglang/srt/mem_cache/{name}_cache.py"


def written_state(version: str) -> Any:
    """What one write under way is kept as: a node, or what is to be published after it."""
    source = radix_cache(version).read_text()
    if "lock_node_id, lock_params, publish_node_ids" in source:
        return (7, None, [7])
    if "lock_node, backup_len, publish_nodes" in source:
        return (MagicMock(), 64, [])
    return MagicMock()


@each_row("version", RELEASES)
def test_write_back_stores_from_a_release_on(version: str) -> None:
    """An acknowledged write of an evicted node: whether it then goes to the storage backend."""
    cache = MagicMock(enable_storage=True, buffer_pipeline=None)
    cache.ongoing_write_through = {7: written_state(version)}
    cache.cache_controller.ack_write_queue = [Ack(MagicMock(), MagicMock(), [7])]
    own = functions(
        radix_cache(version),
        ("writing_check", "_finish_write_through_ack"),
        StorageMedium=MagicMock(),
    )
    for name, function in own.items():
        setattr(cache, name, MethodType(function, cache))
    own["writing_check"](cache, write_back=True)
    assert not cache.ongoing_write_through
    assert cache.write_backup_storage.called == sglang_release(version).write_back_stores


@each_row("version", RELEASES)
def test_what_l3_is_asked_for_with_eagle(version: str) -> None:
    """Pairs since 0.5.10.post1: before, the pairs that were written are never read."""
    (asks,) = (
        node
        for node in ast.walk(ast.parse(radix_cache(version).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "prefetch_from_storage"
    )
    pairs = any(name in ast.unparse(asks) for name in ("convert_to_bigram_key(", "is_bigram=self."))
    assert pairs == sglang_release(version).asks_for_pairs


@each_row("version", RELEASES)
def test_decode_offload_hashes_single_tokens(version: str) -> None:
    """In every release: what changed is what prefill asks for."""
    file = unpacked(version) / "sglang/srt/disaggregation/decode_kvcache_offload_manager.py"
    seen: list[list[int]] = []

    def hash_of(tokens: list[int], prior: str | None) -> str:
        seen.append(tokens)
        return f"{prior}-{tokens}"

    own = functions(file, ["_compute_prefix_hash"], storage_namespace_seed=lambda *_: None)
    manager = SimpleNamespace(page_size=4, cache_controller=SimpleNamespace(get_hash_str=hash_of))
    request = [MagicMock()] if "storage_namespace_seed" in file.read_text() else []
    hashes = own["_compute_prefix_hash"](manager, *request, list(range(8)))
    assert len(set(hashes)) == 2
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("version", ["0.5.4", "0.5.8", "0.5.9"])
def test_eagles_pairs_have_keys_of_their_own(version: str) -> None:
    """Of which 0.5.4 has none: it does not hash pairs at all."""
    folder = unpacked(version) / "sglang/srt/mem_cache"
    of_file = functions(folder / "hicache_storage.py", ["get_hash_str"], hashlib=hashlib)
    hash_of = of_file["get_hash_str"]
    if version == "0.5.4":
        with pytest.raises(AttributeError):
            hash_of([(1, 2), (2, 3)], "")
    else:
        assert hash_of([(1, 2), (2, 3)], "") != hash_of([1, 2], "")


def named_by(source: str, path: str) -> set[str]:
    """Return the arguments of what ``path`` tells Mooncake's store of its rank."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    made = [call for call in calls if ast.unparse(call.func) == "HiCacheStorageConfig"]
    assert len(made) == 1, path
    return {str(keyword.arg) for keyword in made[0].keywords}


@each_row("version", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_the_ssd_folder_of_a_rank_is_named_by_its_attention_group(version: str) -> None:
    """Its dp is that of attention alone, so replicas have 0; and a linker's is never given."""
    folder = unpacked(version) / "sglang/srt"
    store = (folder / "mem_cache/storage/mooncake_store/mooncake_store.py").read_text()
    numbered = sglang_release(version).rank_offload_folders
    assert ('f"rank_{storage_config.dp_rank}"' in store) == numbered
    if numbered:
        controller = (folder / "managers/cache_controller.py").read_text()
        assert "dp_rank" in named_by(controller, "a host pool")
        assert re.search(r"dp_rank = \S*attn_dp_rank|dp_rank = get_attention_dp_rank", controller)
    linker = (folder / "mem_cache/storage/mooncake_store/mooncake_direct_linker.py").read_text()
    assert "dp_rank" not in named_by(linker, "a linker")
