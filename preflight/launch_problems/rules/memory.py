"""Rules about memory, which take the model and the versions: its size, registering, pinning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

from checks.framework.problem import Match, Problems
from checks.framework.units import GIB, format_bytes
from checks.framework.unknown import Unknown, require
from checks.framework.written_numbers import leading_integer
from checks.releases.sglang import DraftPool, Indexer
from preflight.engines.sglang.launch import (
    l2_gigabytes,
    own_allocator,
    plain_environment,
    server_ranks,
)
from preflight.engines.sglang.model_geometry import AttentionKind
from preflight.engines.sglang.pools import ServerMemory
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules.rules import Versions
from preflight.processes.processes import LaunchProcess

RULES = Problems("memory.md")
REFUSED = Problems("memory.md")  # told before all others
_REFUSES = "RuntimeError: Failed to register buffer to Mooncake Store, error code: "
_RELAXED = "MC_IB_PCI_RELAXED_ORDERING"
_CHUNK_VARIABLE, _CHUNK_GIB = "SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB", 256
# 16 bytes of the driver's for each 4 KiB page, in one kvzalloc, which Linux caps at INT_MAX.
_DRIVER_CALL_BYTES = 512 * GIB
# MAP_POPULATE of 4 KiB pages by one thread, as the pool's allocator does it, on a two-socket host
# with 2 TiB; 2.6 GB/s on another one.
_POPULATE_BYTES_PER_SECOND = 3.1e9
_LONG_SECONDS = 60


@RULES("indexer-on-top")
def indexer_on_top(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if the indexer's pool needs memory beyond --hicache-size."""
    geometry = require(versions.geometry)
    on_top = geometry.index_layers and versions.sglang.indexer is Indexer.ON_TOP
    if on_top and server.hicache and l2_gigabytes(server) > 0:
        layers = len(geometry.index_layers)
        yield Match(f"{geometry.name}: index keys of {layers} layers come on top")


@RULES("draft-on-top")
def draft_on_top(server: SglangServer, versions: Versions) -> Iterator[Match]:
    algorithm, size = server.value("speculative_algorithm"), l2_gigabytes(server)
    sidecar = versions.sglang.draft is not DraftPool.NONE
    named = isinstance(algorithm, str) and algorithm.upper() in ("EAGLE", "EAGLE3", "STANDALONE")
    if server.hicache and sidecar and named and size > 0:
        yield Match(f"--speculative-algorithm {algorithm} with --hicache-size {size}")


@RULES("mla-copies")
def mla_copies(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if several ranks of an MLA model keep copies of the same L2 pool."""
    geometry, size = require(versions.geometry), l2_gigabytes(server) * 10**9
    copies = require(server.number("tp_size")) // max(1, require(server.attention_dp))
    if geometry.kind is AttentionKind.MLA and server.hicache and copies > 1:
        paid = f": {format_bytes(copies * size)} for {format_bytes(size)} of KV cache"
        yield Match(f"{geometry.name}: {copies} ranks keep the same rows{paid * (size > 0)}")


@RULES("offload-folder-shared")
def offload_folder_shared(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if ranks offload to one folder: those of a server before SGLang 0.5.21, and
    in any release those of replicas, and of a linker's attention groups.
    """
    store, ranks = server.store, require(server_ranks(server))
    folders = {ranks.offload_folder(rank, server.links) for rank in range(ranks.here)}
    newer, apart = versions.sglang.rank_offload_folders, len(folders) == ranks.here
    if store is None or ranks.here == 1 or (newer and apart):
        return
    path, where = store.value("ssd_offload_path"), store.settings["enable_ssd_offload"].origin
    if store.value("enable_ssd_offload") is True and isinstance(path, str):
        way = "take SGLang 0.5.21 or newer, or " if apart else ""
        if ranks.replicas > 1 and (newer or ranks.here == ranks.replicas):
            dp = server.arguments.settings["dp_size"].origin
            way = f"in place of {ranks.replicas} replicas ({dp}) start as many servers, each with "
            way += "an ssd_offload_path of its own, or "
        edit = (
            f"{way}switch enable_ssd_offload off ({where}) and let one mooncake_client "
            "--enable_offload=true have the segment and the SSD of this host"
        )
        number = f"{len(folders)} folders of {path}" if newer and len(folders) > 1 else path
        yield Match(f"{ranks.here} ranks offload to {number}", None, edit)


@RULES("gate-blind-to-hugepages")
def gate_blind_to_hugepages(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if the L2 pool is on huge pages: SGLang's memory check ignores those."""
    allocator = own_allocator(server, versions.sglang, versions.mooncake)
    name, huge = "MC_STORE_USE_HUGEPAGE", "MC_STORE_USE_HUGEPAGE" in server.environment
    if allocator is not None:
        name, huge = "SGLANG_HUGEPAGE_SIZE", allocator.hugepage_bytes is not None
    if server.hicache and huge:
        yield Match(f"{name} puts the L2 pool on huge pages")


@RULES("storage-needs-equal-heads")
def storage_needs_equal_heads(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if K and V differ in width, which the storage backend cannot take."""
    geometry, backend = require(versions.geometry), server.value("hicache_storage_backend")
    heads = geometry.heads
    unequal = geometry.kind is AttentionKind.MHA and heads.head_dim != heads.v_head_dim
    if server.hicache and unequal and backend in ("hf3fs", "nixl", "eic"):
        widths = f"K of {heads.head_dim}, V of {heads.v_head_dim}"
        yield Match(f"{geometry.name}: {widths}, {backend}")


@RULES("heads-not-shared")
def heads_not_shared(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if the ranks cannot share the key/value heads of an MHA model evenly."""
    geometry = require(versions.geometry)
    ranks, uneven = divmod(require(server.number("tp_size")), max(1, require(server.attention_dp)))
    if uneven:  # values-refused
        return
    heads = geometry.heads.kv_heads
    shared = ranks > 0 < heads and max(heads, ranks) % min(heads, ranks) == 0
    if geometry.kind is AttentionKind.MHA and not shared:
        yield Match(f"{geometry.name}: {heads} key/value heads, {ranks} ranks to share them")


@RULES("mooncake-too-old")
def mooncake_too_old(server: SglangServer, versions: Versions) -> Iterator[Match]:
    if server.store is not None and not versions.mooncake.hugepages:
        yield Match("Mooncake is older than 0.3.8.post1")


@RULES("tenant-unsupported")
def tenant_unsupported(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if this Mooncake does not support tenants and tenant_id is not default."""
    if server.store is None or server.store.error or versions.mooncake.tenants:
        return
    tenant, standalone = server.store.value("tenant_id"), server.store.value("standalone_storage")
    named = str(tenant).strip() not in ("", "default", "None")
    if not isinstance(tenant, Unknown) and standalone is False and named:
        origin = server.store.settings["tenant_id"].origin
        yield Match(f"tenant_id is {tenant!r} ({origin}), and Mooncake is older than 0.3.12")


def _halves(
    standalone: bool, certain: bool, server: SglangServer, versions: Versions
) -> Iterator[Match]:
    """Yield a finding if Mooncake refuses to register K and V of L2 one by one.

    Args:
        standalone: Whether to report refusals due to standalone storage, else those due to
            overlapping regions.
        certain: Whether to report refusals that are sure, else those in doubt.
    """
    store, geometry = server.store, versions.geometry
    assumed = "" if standalone else versions.mooncake_assumed
    both = _k_and_v_in_one_tensor(versions)
    doubt = versions.sglang_unsure or assumed or versions.mooncake_newer
    if not doubt and isinstance(both, Unknown):
        doubt = f"the model is not known ({both.reason})"
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    apart = versions.sglang.registers_halves and both is not False
    if store is None or not (server.hicache or offloads) or not apart or certain is bool(doubt):
        return
    whole = versions.mooncake.registers_whole_pool or versions.mooncake_assumed != ""
    mooncakes = own_allocator(server, versions.sglang, versions.mooncake) is None
    overlaps = whole and mooncakes and "MC_STORE_USE_HUGEPAGE" in server.environment
    is_standalone = store.value("standalone_storage") is True
    if is_standalone is not standalone or not (standalone or overlaps):
        return
    model = "a model that is not MLA" if isinstance(geometry, Unknown) else geometry.name
    text = f"{model}: K is registered with the whole pool, V is refused: {_REFUSES}-600 "
    why = "Transfer Engine does not support overlapped memory region"
    if standalone:
        where = store.settings["standalone_storage"].origin
        text = f"{model}, standalone_storage is on ({where}): K is refused: {_REFUSES}-1 "
        why = "Invalid buffer address or size for registration"
    yield Match(f"{doubt}{': ' * bool(doubt)}{text}(Mooncake: {why})")


for _id, _about in {
    "l2-halves-overlap": (False, True),
    "l2-halves-may-overlap": (False, False),
    "standalone-breaks-mha": (True, True),
    "standalone-may-break-mha": (True, False),
}.items():
    RULES(_id)(partial(_halves, *_about))


@RULES("relaxed-ordering-off")
def relaxed_ordering_off(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if RDMA memory is registered without PCIe relaxed ordering.

    Nothing if the release of Mooncake is an assumption.
    """
    environment = plain_environment(server.environment)
    if not _uses_rdma(server) or "MC_FORCE_TCP" in server.environment:
        return
    if versions.mooncake_assumed or not versions.mooncake.reads_relaxed_ordering:
        return
    text = environment.get(_RELAXED)
    if text is None:
        if _RELAXED not in server.environment and not versions.mooncake.relaxed_ordering:
            yield Match(f"{_RELAXED} is not set, and off before Mooncake 0.3.13")
        return
    number = leading_integer(text) or 0  # atoi; what is out of range leaves the default
    if number == 0 or (number not in (1, 2) and not versions.mooncake.relaxed_ordering):
        yield Match(f"{_RELAXED}={text!r} leaves it off", server.environment[_RELAXED].origin)


@RULES("pin-result-ignored")
def pin_result_ignored(server: SglangServer, versions: Versions) -> Iterator[Match]:
    sglang = versions.sglang
    blind = sglang.pins_itself and not sglang.looks_at_pinning
    if _pins(server) and blind and not versions.sglang_unsure:
        yield Match("the L2 pools are pinned by a call whose result nobody reads")


@RULES("pinned-in-one-call")
def pinned_in_one_call(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if one call pins 512 GiB or more of the L2 pool."""
    size, chunk_bytes = l2_gigabytes(server), _chunk_bytes(server, versions)
    call_bytes = size * 10**9 if chunk_bytes is None else min(size * 10**9, chunk_bytes)
    if _pins(server) and versions.sglang.pins_itself and call_bytes >= _DRIVER_CALL_BYTES:
        edit = "write a --hicache-size below 549"
        if versions.sglang.pins_in_chunks:
            edit = f"write --hicache-mem-layout page_first, and leave {_CHUNK_VARIABLE} at 256"
        yield Match(f"--hicache-size {size}: {format_bytes(call_bytes)} in one call", None, edit)


@RULES("populate-takes-long")
def populate_takes_long(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if the L2 pool takes an estimated minute or more to fill with 4 KiB pages."""
    size = l2_gigabytes(server)
    if server.store is None or not server.hicache or "MC_STORE_USE_HUGEPAGE" in server.environment:
        return
    seconds = size * 10**9 / _POPULATE_BYTES_PER_SECOND
    mooncakes = own_allocator(server, versions.sglang, versions.mooncake) is None
    if mooncakes and seconds >= _LONG_SECONDS:
        yield Match(f"--hicache-size {size}: about {seconds:.0f} s, at an estimated 3.1 GB/s")


@REFUSED("host-pools-refused")
def host_pools_refused(
    processes: tuple[LaunchProcess, ...], host_pools: Mapping[int, ServerMemory]
) -> Iterator[Match]:
    """Yield a finding for each server whose host pools SGLang refuses to build."""
    for process in processes:
        pools = host_pools.get(process.number)
        if pools is not None and (why := pools.refused) is not None:
            yield Match(f"{process.command.origin}: {why.reason}", remedy=why.advice)


def _uses_rdma(server: SglangServer) -> bool:
    """Return whether the server's store, or its transfer of prefilled requests, goes over RDMA."""
    mooncakes = server.value("disaggregation_transfer_backend") == "mooncake"
    stores = server.store is not None and server.store.value("protocol") == "rdma"
    return stores or (mooncakes and server.mode in ("prefill", "decode"))


def _k_and_v_in_one_tensor(versions: Versions) -> bool | Unknown:
    """Return whether the model's cache holds K and V in one tensor: MHA, with K and V heads of
    equal width.

    Returns:
        Unknown if the model is not known.
    """
    geometry = versions.geometry
    if isinstance(geometry, Unknown):
        return geometry
    heads = geometry.heads
    return geometry.kind is AttentionKind.MHA and heads.head_dim == heads.v_head_dim


def _pins(server: SglangServer) -> bool:
    return server.hicache and server.value("device") != "cpu"


def _chunk_bytes(server: SglangServer, versions: Versions) -> int | None:
    """Return the most bytes that one call pins; None if one call pins a whole pool."""
    layout = server.value("hicache_mem_layout")
    if not versions.sglang.pins_in_chunks or layout == "layer_first":
        return None
    chunk_gib = _CHUNK_GIB
    with suppress(ValueError):  # SGLang warns and takes its default
        chunk_gib = int(plain_environment(server.environment).get(_CHUNK_VARIABLE) or chunk_gib)
    return max(1, chunk_gib) * GIB
