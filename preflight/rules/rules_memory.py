"""Rules about what a launch's memory comes to, which take the model and the versions to see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.releases.sglang import DraftPool, Indexer
from preflight.processes.processes import LaunchProcess, SglangServer
from preflight.rules.rules import Finding, Rule, RuleSet, Seen, Severity, Versions
from preflight.sglang.launch import own_allocator
from preflight.sglang.model_geometry import AttentionKind
from preflight.sglang.pools import ServerMemory

RULES = RuleSet()
# Found when the pools are computed, not by looking at the launch alone.
POOLS_REFUSED = Rule(
    "host-pools-refused",
    Severity.FAIL,
    "host pools that SGLang refuses to build",
    "the server stops with that error before it serves",
    "do as the message says",
    "SGLang 0.5.23 mem_cache/hicache_auto_size.py, mem_cache/pool_host",
)


def with_refusals(
    found: tuple[Finding, ...],
    processes: Iterable[LaunchProcess],
    memory: Mapping[int, ServerMemory],
) -> tuple[Finding, ...]:
    """``found``, and before it the words with which SGLang stops while it builds its pools."""
    refused = [
        Finding(POOLS_REFUSED, f"{process.command.origin}: {pools.refused}")
        for process in processes
        for pools in (memory.get(process.number),)
        if pools is not None and pools.refused is not None
    ]
    return (*refused, *found)


@RULES.memory(
    "indexer-on-top",
    Severity.WARN,
    "a sparse-attention model with --hicache-size",
    "its indexer's pool comes on top of the size: about 11% with bf16 KV, 20% with fp8",
    "lower --hicache-size by that much",
    "SGLang 0.5.23 hybrid_pool_assembler.py, dsa.py; seen by running the classes",
)
def indexer_on_top(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    geometry, size = versions.geometry, server.value("hicache_size")
    if isinstance(geometry, Unknown) or not server.hicache or not isinstance(size, int):
        return
    if size > 0 and geometry.index_layers and versions.sglang.indexer is Indexer.ON_TOP:
        yield Seen(f"{geometry.name}: index keys of {len(geometry.index_layers)} layers on top")


@RULES.memory(
    "draft-on-top",
    Severity.WARN,
    "speculative decoding with --hicache-size",
    "an EAGLE or STANDALONE draft model's pool comes on top of the size",
    "lower --hicache-size by the draft's share",
    "SGLang 0.5.23 hybrid_pool_assembler.py",
)
def draft_on_top(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    algorithm, size = server.value("speculative_algorithm"), server.value("hicache_size")
    sidecar = versions.sglang.draft is not DraftPool.NONE
    named = isinstance(algorithm, str) and algorithm.upper() in ("EAGLE", "EAGLE3", "STANDALONE")
    if server.hicache and sidecar and named and isinstance(size, int) and size > 0:
        yield Seen(f"--speculative-algorithm {algorithm} with --hicache-size {size}")


@RULES.memory(
    "mla-copies",
    Severity.WARN,
    "an MLA model with tensor parallelism",
    "every rank keeps the same L2 pool whole: the host pays for each, and caches one",
    "use data-parallel attention, or a smaller --hicache-size",
    "SGLang 0.5.23 managers/cache_controller.py; mla_host_dedup.py has no caller",
)
def mla_copies(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    geometry, tp = versions.geometry, server.number("tp_size")
    attention_dp = server.attention_dp
    if isinstance(geometry, Unknown) or isinstance(tp, Unknown):
        return
    if isinstance(attention_dp, Unknown) or geometry.kind is not AttentionKind.MLA:
        return
    copies = tp // max(1, attention_dp)
    if server.hicache and copies > 1:
        size = server.value("hicache_size")
        paid = ""
        if isinstance(size, int) and size > 0:
            paid = f": {format_bytes(copies * size * 10**9)} for {format_bytes(size * 10**9)}"
        yield Seen(f"{geometry.name}: {copies} ranks keep the same rows{paid}")


@RULES.memory(
    "offload-folder-shared",
    Severity.WARN,
    "SSD offload of several ranks into one folder",
    "before SGLang 0.5.21 ranks overwrite each other's files, and read back what is not theirs",
    "upgrade, or give each rank its own folder",
    "SGLang mooncake_store.py of 0.5.20 and 0.5.21; SGLang #24018",
)
def offload_folder_shared(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    store, tp = server.store, server.number("tp_size")
    if store is None or versions.sglang.rank_offload_folders or not isinstance(tp, int):
        return
    path = store.value("ssd_offload_path")
    if store.value("enable_ssd_offload") is True and isinstance(path, str) and tp > 1:
        yield Seen(f"{tp} ranks offload to {path}")


@RULES.memory(
    "gate-blind-to-hugepages",
    Severity.NOTE,
    "an L2 pool on huge pages",
    "SGLang asks for the pool's size in MemAvailable all the same, which huge pages lower",
    "leave it so: the sizing and check name the counts of huge pages for which SGLang starts",
    "SGLang 0.5.23 mem_cache/pool_host/base.py; SGLang #34972, #39010",
)
def gate_blind_to_hugepages(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    if not server.hicache:
        return
    own = own_allocator(server, versions.sglang, versions.mooncake)
    if own is not None and own.hugepage_bytes is not None:
        yield Seen("SGLANG_HUGEPAGE_SIZE puts the L2 pool on huge pages")
    elif own is None and "MC_STORE_USE_HUGEPAGE" in server.environment:
        yield Seen("MC_STORE_USE_HUGEPAGE puts the L2 pool on huge pages")


@RULES.memory(
    "storage-needs-equal-heads",
    Severity.FAIL,
    "a model whose keys and values differ in width, with a storage backend that cannot take it",
    "NotImplementedError at the first page that is stored, not at start",
    "use the mooncake or file backend",
    "SGLang 0.5.23 mem_cache/pool_host/mha.py",
)
def storage_needs_equal_heads(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    geometry, backend = versions.geometry, server.value("hicache_storage_backend")
    if isinstance(geometry, Unknown) or geometry.kind is not AttentionKind.MHA:
        return
    heads = geometry.heads
    unequal = heads.head_dim != heads.v_head_dim
    if server.hicache and unequal and backend in ("hf3fs", "nixl", "eic"):
        widths = f"K of {heads.head_dim}, V of {heads.v_head_dim}"
        yield Seen(f"{geometry.name}: {widths}, {backend}")


@RULES.memory(
    "mooncake-too-old",
    Severity.WARN,
    "a Mooncake without the host memory allocator that SGLang asks for",
    "SGLang warns and takes its own allocator, which MC_STORE_USE_HUGEPAGE does not reach",
    "install Mooncake 0.3.8.post1 or newer",
    "SGLang 0.5.23 mem_cache/pool_host/common.py",
)
def mooncake_too_old(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    if server.store is not None and not versions.mooncake.hugepages:
        yield Seen("Mooncake is older than 0.3.8.post1")


@RULES.memory(
    "tenant-unsupported",
    Severity.FAIL,
    "a tenant_id with a Mooncake whose setup knows none",
    "SGLang ends with RuntimeError: The installed Mooncake version does not support tenant_id",
    "install Mooncake 0.3.12 or newer, or leave tenant_id out",
    "SGLang 0.5.23 mooncake_store.py setup; setup of Mooncake 0.3.11.post1 and 0.3.12",
)
def tenant_unsupported(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    if server.store is None or server.store.error or versions.mooncake.tenants:
        return
    tenant, standalone = server.store.value("tenant_id"), server.store.value("standalone_storage")
    named = str(tenant).strip() not in ("", "default", "None")
    if not isinstance(tenant, Unknown) and standalone is False and named:
        origin = server.store.settings["tenant_id"].origin
        yield Seen(f"tenant_id is {tenant!r} ({origin}), and Mooncake is older than 0.3.12")
