"""An SGLang server as processes with memory: its ranks on this host, their L2 pools and segments.

Where a variable that is not set decides a number, there is no launch, and the reason names the
variable.

To /dev/shm the first rank of a tensor-parallel group writes a ring buffer (24 MiB, a sparse file),
and zeroes the flags at its end: one page. What else lies in /dev/shm depends on what only a start
tells: the ring's chunks on what is sent, NCCL's segments on which GPUs reach each other, torch's on
the model. Host pools do not: they are memfd or anonymous memory. Source: shm_broadcast.py
ShmRingBuffer and parallel_state.py, 0.5.2 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.framework.pages import ProcessId
from checks.framework.regex import regex
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown, UnknownFactError, or_unknown, require
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SegmentDivisor, SglangRelease
from preflight.engines.programs.memory_records import (
    SGLANG_LOCAL_BUFFER_BYTES,
    MappedProcess,
    OwnAllocator,
    Protocol,
    StoreClient,
)
from preflight.engines.programs.store_environment import Note, read_store_settings
from preflight.engines.programs.store_processes import offload_buffer_bytes
from preflight.engines.programs.store_service_config import sglang_segment_bytes
from preflight.engines.sglang.admission_gate import ranks_per_host
from preflight.engines.sglang.model import Drafts
from preflight.engines.sglang.model_geometry import LayerKind, ModelGeometry
from preflight.engines.sglang.server import SglangServer
from preflight.launches.source import Word
from preflight.launches.variables import matching

# SGLANG_HUGEPAGE_SIZE after strip and upper; anything else is a warning and 4 KiB pages.
_HUGEPAGE_SIZES = {"2MB": 2 * MIB, "1GB": GIB}
# These bring an allocator of their own, or share memory through /dev/shm: no huge pages of these.
_OTHER_ALLOCATORS = ("shm", "mori", "tensorcast")
# SpeculativeAlgorithm.is_eagle: the radix cache and its keys are of pairs of tokens.
EAGLE_DRAFTS = frozenset(("EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"))


def segment_per_rank(size: int, ranks: Ranks, release: SglangRelease) -> int:
    """Return the share of ``global_segment_size`` (``size`` bytes) that one rank contributes."""
    if release.segment_divisor is SegmentDivisor.ONE:
        return size
    group = ranks.tp // ranks.attention_dp
    if release.segment_divisor is SegmentDivisor.TP_PP:
        group *= ranks.pp
    return size // max(1, group)


def configured_segment(server: SglangServer) -> int | None:
    """Return ``global_segment_size`` in bytes; None without a store, or if it cannot be read."""
    value = server.store.value("global_segment_size") if server.store else None
    try:
        return None if value is None or isinstance(value, Unknown) else sglang_segment_bytes(value)
    except ValueError:
        return None


def l2_gigabytes(server: SglangServer) -> int:
    """Return a positive ``--hicache-size`` (10^9 bytes a rank); 0 if it is unset or not known."""
    size = server.value("hicache_size")
    return max(0, size) if isinstance(size, int) else 0


def hashes_pairs(
    server: SglangServer, release: SglangRelease, geometry: ModelGeometry | Unknown
) -> bool | Unknown:
    """Return whether the server's cache hashes pairs of tokens (with an EAGLE draft), or Unknown.

    From 0.5.18 on models with linear attention hash single tokens, with a draft too
    (unified_tree_core.py). What decode offload writes is hashed from single tokens in each release
    (decode_kvcache_offload_manager.py), and not meant here.
    """
    draft = server.value("speculative_algorithm")
    if isinstance(draft, Unknown) or str(draft).upper() not in EAGLE_DRAFTS:
        return draft if isinstance(draft, Unknown) else False
    if not release.linear_hashes_single:
        return True
    if isinstance(geometry, Unknown):
        return Unknown(f"whether it has linear attention: {geometry.reason}")
    return LayerKind.LINEAR not in geometry.layers


@or_unknown
def server_client(server: SglangServer, ranks: Ranks, release: SglangRelease) -> StoreClient | None:
    """Return the store client of one rank; None without the Mooncake store.

    Returns:
        Unknown if a setting of the store is unknown.
    """
    store = server.store
    if store is None:
        return None
    names = ("global_segment_size", "protocol", "enable_ssd_offload", "standalone_storage")
    size, protocol, offload, standalone = (require(store.value(name)) for name in names)
    transport = Protocol.TCP if protocol == "tcp" else Protocol.RDMA
    if standalone:
        return StoreClient(0, SGLANG_LOCAL_BUFFER_BYTES, transport, dummy=True)
    try:
        segment = max(0, segment_per_rank(sglang_segment_bytes(size), ranks, release))
    except ValueError as error:
        raise UnknownFactError(Unknown(f"global_segment_size {size!r}: {error}")) from None
    buffer = offload_buffer_bytes(server.environment) if offload else None
    local = SGLANG_LOCAL_BUFFER_BYTES
    if release.store.local_buffer:
        # Up to 0.5.5 the extra config could ask for another, and it was divided as the segment is.
        asked = store.local_buffer_bytes
        local = segment_per_rank(local if asked is None else asked, ranks, release)
    return StoreClient(segment, local, transport, buffer)


def own_allocator(
    server: SglangServer, release: SglangRelease, mooncake: MooncakeRelease
) -> OwnAllocator | None:
    """Return SGLang's own allocator of host pools; None if Mooncake's allocator makes the pools.

    Mooncake has an allocator since 0.3.8.post1. With an older Mooncake, SGLang warns and takes
    SGLang's (``get_allocator_from_storage``, mem_cache/pool_host/common.py). SGLang asks for
    Mooncake's since 0.5.7 (memory_pool_host.py), for decode offload since 0.5.17.
    """
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    alone = offloads and not server.hicache and not release.decode_offload_allocates
    asks = release.backend_allocates and not alone
    if server.store is not None and mooncake.hugepages and asks:
        return None
    word = server.environment.get("SGLANG_HUGEPAGE_SIZE")
    other = server.value("hicache_storage_backend") in _OTHER_ALLOCATORS
    if word is None or word.unresolved or other or not release.hugepage_environment:
        return OwnAllocator()
    return OwnAllocator(_HUGEPAGE_SIZES.get(word.text.strip().upper()))


def server_processes(
    number: int,
    server: SglangServer,
    clients: Sequence[StoreClient | None],
    numa_nodes: tuple[int | None, ...],
    mooncake: MooncakeRelease,
    allocator: OwnAllocator | None,
    metadata: Metadata,
) -> tuple[tuple[MappedProcess, ...], tuple[Note, ...]]:
    """Return the ranks of process ``number``, without host pools, and notes.

    Args:
        clients, numa_nodes: Of each rank; None for a rank without a store, or bound to no node.
    """
    settings, notes = read_store_settings(plain_environment(server.environment), mooncake)
    if server.store is None:
        # Nothing of Mooncake's is mapped: the page size in question is that of SGLang's allocator.
        settings = settings._replace(hugepages=False)
        if allocator is not None and allocator.hugepage_bytes is not None:
            settings = settings._replace(hugepage_bytes=allocator.hugepage_bytes)
    processes = tuple(
        MappedProcess(
            f"{server.command.origin} rank {rank}",
            settings,
            clients=() if client is None else (client,),
            node=numa_node,
            own_allocator=allocator,
            metadata_bytes=metadata.bytes,
            metadata_registered=metadata.registered,
            id=ProcessId(number, rank),
        )
        for rank, (client, numa_node) in enumerate(zip(clients, numa_nodes, strict=True))
    )
    return processes, (*notes, *metadata.notes)


_ANY = regex("")


def plain_environment(environment: Mapping[str, Word]) -> dict[str, str]:
    """Return variables as text, without those that hold an unresolved variable."""
    variables = matching(environment, _ANY)
    return {name: word.text for name, word in variables if not word.unresolved}


class Ranks(NamedTuple):
    """The ranks of a server, a process each.

    Attributes:
        replicas: Data-parallel copies of the server.
        attention_dp: Groups of data-parallel attention.
        here: Ranks on this host, which is node ``node_rank`` of ``nnodes``.
    """

    tp: int
    pp: int
    replicas: int
    attention_dp: int
    here: int
    nnodes: int = 1
    node_rank: int = 0

    @property
    def sharing(self) -> int:
        """The ranks among which SGLang divides this host's memory."""
        return ranks_per_host(self.tp, self.pp, self.nnodes)

    def stage(self, index: int) -> int:
        """Return the pipeline stage of this host's ``index``-th process."""
        return self._model_rank(index) // self.tp % self.pp

    def _model_rank(self, index: int) -> int:
        each = max(1, self.tp * self.pp // self.nnodes)
        return self.node_rank * each + index % each

    def store_rank(self, index: int) -> int:
        """Return the rank within its attention group of this host's ``index``-th process.

        Mooncake's store looks up a list of devices by it (mooncake_store.py).
        """
        return self._model_rank(index) % self.tp % max(1, self.tp // self.attention_dp)

    def offload_folder(self, index: int, links: bool) -> str:
        """Return the last part of the SSD folder of this host's ``index``-th process; processes
        with equal parts share a folder.

        SGLang 0.5.21 to 0.5.23 (mooncake_store.py) puts the numbers of the attention group, the
        rank in it and the stage behind the path. Replicas have equal numbers. For a linker
        (``links``) the group is always 0 (mooncake_direct_linker.py).
        """
        group = self._model_rank(index) % self.tp // max(1, self.tp // self.attention_dp)
        return f"rank_{0 if links else group}_{self.store_rank(index)}_{self.stage(index)}"


@or_unknown
def server_ranks(server: SglangServer) -> Ranks:
    """Return the ranks of ``server``; Unknown if one of its sizes is not known, or less than 1."""
    tp, pp = require(server.number("tp_size")), require(server.number("pp_size"))
    replicas, attention_dp = require(server.replicas), require(server.attention_dp)
    nodes = require(server.number("nnodes"))
    if min(tp, pp, replicas, attention_dp, nodes) < 1:
        raise UnknownFactError(Unknown("tp, pp, dp and nnodes must be 1 or more"))
    here = max(1, tp * pp * replicas // nodes)
    node_rank = server.value("node_rank")
    first_rank = node_rank if isinstance(node_rank, int) else 0
    return Ranks(tp, pp, replicas, attention_dp, here, nodes, max(0, first_rank))


# A tmpfs gives out pages of the kernel's size, the smallest of which this is.
PAGE_BYTES = 4096
_SWITCH = "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"
# True to every release: environ.py EnvBool, and before 0.5.11 get_bool_env_var, which takes no
# other word. Where it is on for newer ones alone, less is counted than is written.
_ON = ("true", "1")


def least_shm_bytes(ranks: Ranks, environment: Mapping[str, str]) -> int:
    """Return the least bytes that the first rank here writes to /dev/shm; 0: no ring buffer."""
    alone = ranks.tp < 2 or ranks.here < 2 or ranks.node_rank != 0
    on = environment.get(_SWITCH, "true").lower() in _ON
    return PAGE_BYTES if on and not alone else 0


# Per slot: output_ids, cached_tokens, two of log probabilities, output_topk_p (16 x 4 bytes each),
# output_topk_index (16 x 8), the two of top log probabilities (128 x 4) and bootstrap_room (8 x 8).
_SLOT_BYTES = 5 * 64 + 128 + 2 * 512 + 64
# output_hidden_states without a draft that continues from them: 16 x 4 bytes.
_NO_HIDDEN_BYTES = 64
# resolve_max_num_reqs (mem_cache/kv_cache_configurator.py): the most requests where none is said.
_MOST_REQUESTS = 4096
_CHECKSUM_BYTES = 64
# Slots for each request; a decode server of MiniMax's sparse models has 8 (scheduler.py).
_SLOTS_PER_REQUEST = 2


class Metadata(NamedTuple):
    """The buffers of one rank through which prefill hands a request's metadata to decode, at most.

    Plain memory, registered with the NICs like the cache itself (``MetadataBuffers`` of
    disaggregation/utils.py, alike in 0.5.9 to 0.5.23).

    Attributes:
        notes: Parts that are not known.
    """

    bytes: int = 0
    registered: bool = False
    notes: tuple[Note, ...] = ()


def pd_metadata(server: SglangServer, ranks: Ranks, drafts: Drafts) -> Metadata:
    """Return the largest buffers of one rank for prefill or decode.

    No bytes for other servers, nor (then with a note) if ``--max-running-requests`` is unknown.
    """
    if server.mode not in ("prefill", "decode"):
        return Metadata()
    notes, lead = [], f"the PD metadata of {server.command.origin} is"
    requests = server.value("max_running_requests")
    if isinstance(requests, Unknown):
        note = Note("pd-metadata-unknown", f"{lead} left out: {requests.reason}")
        return Metadata(notes=(note,))
    set_here = isinstance(requests, int) and requests > 0
    requests = max(1, requests // ranks.attention_dp) if set_here else _MOST_REQUESTS
    hidden, model = _NO_HIDDEN_BYTES, drafts.model
    if not drafts.sends_hidden_states:
        pass
    elif model is None or model.hidden_size is None or isinstance(model.geometry, Unknown):
        name = "the draft model" if model is None else model.name
        without = "counted without the hidden states that its draft continues from"
        text = f"{lead} {without}: the hidden_size of {name} is not known"
        notes.append(Note("pd-metadata-unknown", text))
    else:
        hidden = model.hidden_size * model.geometry.dtype_bytes
    checksum = server.value("disaggregation_enable_kv_checksum") is True
    slot = _SLOT_BYTES + hidden + checksum * _CHECKSUM_BYTES
    registered = server.value("disaggregation_transfer_backend") not in ("mooncake_tcp", "fake")
    return Metadata(_SLOTS_PER_REQUEST * requests * slot, registered, tuple(notes))
