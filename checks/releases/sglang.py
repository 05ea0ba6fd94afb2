"""How SGLang's releases differ: one row for each release that changed a fact, in one table.

A new release is a row that names what it changed, and the arguments that
``tools/add_release.py`` writes. Every row was read in the wheel of that version and of the one
before it, and the byte counts of every row were run on the real classes (tests/engines/sglang;
those that are recorded: 0.5.23, 0.5.16, 0.5.11, 0.5.10, 0.5.9, 0.5.4 and 0.5.2); so was the class
that reads the store's configuration, see ``tests/real`` and
``tests/engines/programs/test_store_config_releases.py``.
"""

from collections.abc import Mapping
from enum import Enum
from itertools import accumulate
from typing import Any, NamedTuple

from checks.framework.written_numbers import Numbers, version_numbers


class Indexer(Enum):
    """Where a sparse-attention model's index keys go (DSA: DeepSeek-V3.2, GLM-5)."""

    NONE = "no host pool for the index keys: the latent rows alone are kept"
    INSIDE_PER_LAYER = "inside --hicache-size, one allocation per layer"
    INSIDE = "inside --hicache-size, one allocation (one per layer under layer_first)"
    ON_TOP = "on top of --hicache-size, one allocation"


class HybridSize(Enum):
    """What ``--hicache-size`` means where a model has pools of several kinds."""

    NONE = "no such host pools"
    EACH = "every pool gets the whole size"
    SHARED = "split by the bytes of the pools on the device"


class DraftPool(Enum):
    """The size of the host pool of an EAGLE or STANDALONE draft model."""

    NONE = "no host pool"
    OWN_PAGE = "the target's tokens, rounded as an independent pool"
    EXACT = "exactly the target's tokens"


class SegmentDivisor(Enum):
    """What divides ``global_segment_size`` into one rank's Mooncake segment."""

    ONE = "1"
    TP = "tp"
    TP_PP = "tp * pp"


_SERVER_CHECK = frozenset(("master_metrics_port", "check_server"))
_STANDALONE = frozenset(("standalone_storage", "client_server_address"))
_OFFLOAD = frozenset(("enable_ssd_offload", "ssd_offload_path"))
_TENANT = frozenset(("tenant_id",))
_PREFETCH = frozenset(
    ("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token")
)
_PREFIX = frozenset(("hicache_storage_pass_prefix_keys",))


class StoreReader(NamedTuple):
    """The way in which one release reads the Mooncake store's configuration.

    Attributes:
        absent: Keys that it does not know, in JSON and in the environment.
        config_file: Whether SGLANG_HICACHE_MOONCAKE_CONFIG_PATH is read.
        gigabytes: Whether ``4gb`` is a segment size.
        local_buffer: Whether the extra config's ``local_buffer_size`` counts.
        hostnames: The variables of the local host name, the first one set.
        hostname_first: These variables win over the JSON's host name.
        protocol_from_environment: MOONCAKE_PROTOCOL stands in for one that the JSON leaves out.
        set_counts: A variable that is empty counts as set.
        typed: Keys of HiCache's own in the extra config of which a value of another type is
            refused.
    """

    absent: frozenset[str] = _SERVER_CHECK | _STANDALONE | _OFFLOAD | _TENANT
    config_file: bool = False
    gigabytes: bool = False
    local_buffer: bool = True
    protocol: str = "tcp"
    device: str = "auto"
    hostnames: tuple[str, ...] = ("LOCAL_HOSTNAME",)
    hostname_first: bool = False
    protocol_from_environment: bool = False
    set_counts: bool = False
    typed: frozenset[str] = frozenset()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the keys of which the extra config must name one to be used."""
        both = ("master_server_address", "client_server_address")
        return tuple(key for key in both if key not in self.absent)


_FIRST_BACKEND_PAGES = {
    "flashmla": (64,),
    "cutlass_mla": (128,),
    "trtllm_mla": (32, 64),
    "trtllm_mha": (16, 32, 64),
}
_TOKENSPEED_PAGES = {**_FIRST_BACKEND_PAGES, "tokenspeed_mla": (32, 64)}
_CUTEDSL_PAGES = {**_TOKENSPEED_PAGES, "cutedsl_mla": (32, 64)}
_HPC_PAGES = {**_CUTEDSL_PAGES, "trtllm_mha": (16, 32, 64, 128), "hpc_ops": (64,)}


class SglangRelease(NamedTuple):
    """The facts of one release.

    A field's default is the fact of the oldest release.
    """

    first: Numbers = (0, 5, 2, 0)
    # One page more than fits, even where the size is a whole number of pages; else rounded down.
    extra_page: bool = False
    # torch's pinned allocator: each allocation takes the next power of two of its bytes.
    pinned_power_of_two: bool = True
    # A pool that is not larger than the device's stops the server; later a warning.
    must_exceed_device: bool = True
    ranks_share_memory: bool = False  # the gate divides what is free by the ranks on the host
    cgroup_headroom: bool = False  # the gate looks at the memory cgroup too
    # Size and ratio both unset: the ratio shrinks to what --hicache-host-memory-fraction allows.
    auto_size: bool = False
    default_layout: str = "layer_first"
    # An fp8 row of sparse attention is raw (no scales, an fp8 rotary part) where TensorRT-LLM's
    # kernels read it, and theirs are the default on Blackwell; with some kernels on AMD's GPUs; and
    # with TileLang's on NVIDIA's. The kernels of both phases count, later only those of the role.
    # Source: calculate_mla_kv_cache_dim and what sets dsa_prefill_backend, of each release.
    blackwell_trtllm: bool = False
    raw_on_amd: frozenset[str] = frozenset()  # the kernels that read it
    role_decides_row: bool = False
    raw_for_tilelang: bool = False
    # Sparse attention, as the message names it that refuses a KV cache of any other dtype than
    # bfloat16 and fp8_e4m3 (_dsa_kv_cache_dtype_default); None where nothing refuses one.
    refuses_sparse_dtypes: str | None = None
    page_head: bool = False  # the layout of that name exists
    # Tokens of a page that an attention backend takes; --page-size is changed where it names no
    # such (_mla_backend_page_constraints; before 0.5.15 _handle_attention_backend_compatibility).
    backend_pages: Mapping[str, tuple[int, ...]] = _FIRST_BACKEND_PAGES
    # Tokens of a page with sparse attention (DSA), whatever --page-size says, times the tokens that
    # one index key stands for (index_kpool); 0 where it is as written.
    sparse_page: int = 0
    # The same of models by the start of their architecture's name, and of those that have it as
    # their default alone.
    model_pages: tuple[tuple[str, int], ...] = ()
    default_pages: tuple[tuple[str, int], ...] = ()
    # L2 comes from the storage backend's allocator; else from torch.empty, on regular pages.
    backend_allocates: bool = False
    hugepage_environment: bool = False  # SGLANG_HUGEPAGE_SIZE is read (default allocator only)
    indexer: Indexer = Indexer.NONE
    indexer_name: str = "NSA"  # as the gate's message spells it
    compact_index: bool = False  # layers that share another's index keep no index keys on the host
    # MambaPoolHost takes the layout layer_first; 0.5.14 and 0.5.15 take page_first_direct alone.
    linear_layer_first: bool = True
    sliding_pools: bool = False  # a host pool for sliding-window layers exists
    # mooncake_store.py: a key names the pipeline stage, and has a place for it where there is one
    # stage and no rank: KEY_k of latent rows becomes KEY__k.
    stage_in_keys: bool = False
    hybrid_size: HybridSize = HybridSize.NONE
    # A pool for K and V of different width: two tensors; before, such models had none.
    asymmetric_heads: bool = False
    draft: DraftPool = DraftPool.NONE
    mem_fraction_rules: bool = False  # --mem-fraction-static defaults as in 0.5.23
    draft_indexer: bool = False  # a sparse-attention draft's index keys have a host pool
    packed_drafts: bool = False  # a NEXTN/MTP draft's layers join the target's pool
    # The pipeline stages' fixed-size pools agree on the fewest tokens.
    stages_share_tokens: bool = False
    # Layers that do not divide by the stages: one each to the last stages; else all to the last.
    spread_layers: bool = False
    # The ratio of the pool that a decode server gets with no flag at all; None: no such pool.
    decode_ratio: float | None = None
    # That ratio is raised until one request of the model's full context fits.
    decode_fits_request: bool = False
    segment_divisor: SegmentDivisor = SegmentDivisor.ONE
    # Each rank is started under numactl --membind of its GPU's node, without being asked to.
    binds_numa: bool = False
    # Of a node none of whose CPUs the server may use, a rank goes on unbound; before, automatic
    # binding was off on less than all CPUs of the host (utils/numa_utils.py, #26983).
    binds_within_cpus: bool = False
    # SGLANG_AUTO_NUMA_BIND is read: it can turn that off.
    numa_switch: bool = False
    # K and V are registered as two regions, one after the other in one allocation; else as one.
    registers_halves: bool = False
    # Each rank's SSD offload has a folder of its own, which SGLang makes.
    rank_offload_folders: bool = False
    # It looks up the devices of prefill and decode under /sys/class/infiniband when it reads its
    # arguments, and ends where one is missing (server_args.py _validate_ib_devices).
    looks_up_devices: bool = False
    # Its transfer engine between prefill and decode takes MOONCAKE_PROTOCOL; before, rdma
    # (distributed/device_communicators/mooncake_transfer_engine.py).
    engine_takes_protocol: bool = False
    # It pins host pools with cudaHostRegister itself, looks at what that returns, and calls it once
    # for each chunk of a pool (not of layer_first ones).
    pins_itself: bool = False
    looks_at_pinning: bool = False
    pins_in_chunks: bool = False
    # The decode offload manager takes its host pool from the storage backend's allocator too.
    decode_offload_allocates: bool = False
    buffer_only: bool = False  # --hicache-host-memory-mode buffer_only has a ratio of its own
    # UnifiedRadixCache keeps L1 and L2 of every model; before, HiRadixCache that of most.
    unified_cache: bool = False
    # With write_back, pages reach the storage backend (hiradix_cache.py writing_check; before, only
    # write_through's do).
    write_back_stores: bool = False
    # With EAGLE, L3 is asked for keys of token pairs, as the cache writes them; before, for keys of
    # single tokens, which it never writes (scheduler.py, hicache_storage.py get_hash_str).
    asks_for_pairs: bool = False
    # With EAGLE, models with linear-attention layers hash single tokens (unified_tree_core.py).
    linear_hashes_single: bool = False
    # The storage backend is asked where L2 has the end of what L1 has; from 0.5.10 on always, where
    # L1 alone has that in vain; later where L2 has the end of what is found (scheduler.py).
    asks_l3: str = "loaded"
    partial_prefetch: bool = False  # where L2 has no room for all that is asked for, less is
    # As many tokens may be prefetched at a time as 0.8 x (L2 - L1); later 0.5 x L2
    # (cache_controller.py prefetch_capacity_limit).
    budget_of_difference: bool = True
    budget_below_zero: bool = True  # where L2 is smaller than L1; later 0
    keys_have_adapter: bool = False  # extra_key, with the id of a LoRA adapter, is in L3's keys
    probes_numactl: bool = False  # a rank that numactl cannot bind goes on unbound; else it ends
    store: StoreReader = StoreReader()

    def prefetch_budget(self, device: int, host: int, buffers: bool = False) -> int:
        """Return how many tokens of L3 one cache may have under prefetch at a time.

        Below 0 in some releases if L2 is smaller than L1: callers take that as 0.

        Args:
            device, host: Tokens of its L1 and L2.
            buffers: --hicache-host-memory-mode buffer_only. Once so many tokens are under way, a
                further request is served without the tokens that only L3 has. Source:
                cache_controller.py, prefetch_capacity_limit and prefetch_rate_limited.
        """
        if buffers and self.buffer_only:
            return int(0.9 * host)
        if not self.budget_of_difference:
            return int(0.5 * host)
        budget = int(0.8 * (host - device))
        return budget if self.budget_below_zero else max(0, budget)


def _change(version: str, **facts: Any) -> tuple[str, dict[str, Any]]:
    """Return the facts that a release changed; all others hold as before."""
    return version, facts


def _without(pages: Mapping[str, tuple[int, ...]], *names: str) -> dict[str, tuple[int, ...]]:
    """Return ``pages`` without the backends that a release no longer has."""
    return {name: allowed for name, allowed in pages.items() if name not in names}


# What each release changed, the oldest first: a new one is a line here.
_CHANGES = (
    _change(
        "0.5.3",
        segment_divisor=SegmentDivisor.TP,
        config_file=True,
        typed=_PREFETCH,
        sparse_page=64,
    ),
    _change("0.5.4", gigabytes=True, device="", absent=_STANDALONE | _OFFLOAD | _TENANT),
    _change(
        "0.5.4.post2", pinned_power_of_two=False, pins_itself=True, refuses_sparse_dtypes="NSA"
    ),
    _change("0.5.5.post3", extra_page=True),
    _change(
        "0.5.6",
        spread_layers=True,
        page_head=True,
        local_buffer=False,
        hostnames=("MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"),
        set_counts=True,
    ),
    _change("0.5.7", absent=_OFFLOAD | _TENANT, backend_allocates=True),
    _change("0.5.8", stage_in_keys=True, refuses_sparse_dtypes="DSA"),
    _change(
        "0.5.9",
        write_back_stores=True,
        budget_below_zero=False,
        indexer=Indexer.INSIDE_PER_LAYER,
        looks_up_devices=True,
        typed=_PREFETCH | _PREFIX,
    ),
    _change(
        "0.5.10",
        indexer=Indexer.INSIDE,
        hybrid_size=HybridSize.EACH,
        binds_numa=True,
        blackwell_trtllm=True,
        raw_on_amd=frozenset({"tilelang"}),
        asks_l3="always",
    ),
    _change("0.5.10.post1", asks_for_pairs=True),
    _change("0.5.11", indexer=Indexer.ON_TOP, draft=DraftPool.OWN_PAGE, partial_prefetch=True),
    _change(
        "0.5.12",
        sliding_pools=True,
        backend_pages=_TOKENSPEED_PAGES,
        model_pages=(("DeepseekV4", 256),),
        absent=_TENANT,
        typed=_PREFETCH | _PREFIX | {"prefetch_timeout_max"},
    ),
    _change(
        "0.5.13",
        hugepage_environment=True,
        backend_pages=_CUTEDSL_PAGES,
        indexer_name="DSA",
        looks_at_pinning=True,
        protocol="rdma",
        engine_takes_protocol=True,
    ),
    _change(
        "0.5.14",
        binds_within_cpus=True,
        default_layout="page_first",
        asymmetric_heads=True,
        raw_on_amd=frozenset({"tilelang", "aiter"}),
    ),
    _change(
        "0.5.15",
        must_exceed_device=False,
        stages_share_tokens=True,
        probes_numactl=True,
        budget_of_difference=False,
    ),
    _change(
        "0.5.16",
        mem_fraction_rules=True,
        linear_layer_first=False,
        default_pages=(("MiniMaxM3", 128),),
    ),
    _change(
        "0.5.17",
        hybrid_size=HybridSize.SHARED,
        decode_offload_allocates=True,
        absent=frozenset(),
        backend_pages=_HPC_PAGES,
    ),
    _change(
        "0.5.18",
        draft_indexer=True,
        packed_drafts=True,
        decode_ratio=1.0,
        numa_switch=True,
        linear_hashes_single=True,
    ),
    _change(
        "0.5.19",
        ranks_share_memory=True,
        decode_ratio=0.2,
        segment_divisor=SegmentDivisor.TP_PP,
        pins_in_chunks=True,
        buffer_only=True,
        unified_cache=True,
        asks_l3="copied",
    ),
    _change(
        "0.5.20",
        role_decides_row=True,
        backend_pages=_without(_HPC_PAGES, "cutlass_mla"),
        keys_have_adapter=True,
        raw_on_amd=frozenset({"tilelang", "aiter", "triton"}),
    ),
    _change(
        "0.5.21",
        cgroup_headroom=True,
        auto_size=True,
        decode_fits_request=True,
        registers_halves=True,
        rank_offload_folders=True,
        hostname_first=True,
        typed=_PREFETCH | _PREFIX,
    ),
    _change("0.5.22", compact_index=True, raw_for_tilelang=True),
    _change(
        "0.5.23",
        draft=DraftPool.EXACT,
        protocol_from_environment=True,
        backend_pages=_without(_HPC_PAGES, "cutlass_mla", "tokenspeed_mla"),
    ),
)

# Every release: the host pool of a prefix cache holds twice the device's tokens (a server with
# --hicache-host-memory-mode buffer_only: 1.2 times, since 0.5.19).
DEFAULT_RATIO = 2.0
BUFFER_ONLY_RATIO = 1.2

# What of an answer follows from a release's row, for one that has no row yet.
RESTS_ON = (
    "the bytes of L2 and who admits and maps them, the segment of a rank, flags and their defaults"
)

# The oldest and the newest release that this table was held against.
OLDEST_KNOWN = "0.5.2"
NEWEST_KNOWN = _CHANGES[-1][0]


def parse_version(text: str) -> Numbers:
    """Return ``"0.5.5.post3"`` as ``(0, 5, 5, 3)``.

    Raises:
        ValueError: With the right spelling.
    """
    return version_numbers(text, "an SGLang", "0.5.5.post3 or 0.5.23")


def sglang_release(text: str) -> SglangRelease:
    """Return the facts of a version; ValueError for none and for one older than the table."""
    if older := older_than_known(text):
        raise ValueError(older)
    return _row_of(text)


def older_than_known(text: str) -> str:
    """Return a sentence if ``text`` is a version older than the table, else ""."""
    try:
        known = parse_version(text) >= RELEASES[0].first
    except ValueError:
        known = True  # which release it is cannot be told
    text_ = f"SGLang {text.strip()} is older than {OLDEST_KNOWN}, the oldest whose sizing is known"
    return "" if known else text_


def newer_than_known(text: str) -> bool:
    """Return whether ``text`` is newer than the table.

    Raises:
        ValueError: As ``parse_version``.
    """
    return parse_version(text) > parse_version(NEWEST_KNOWN)


def store_reader(version: str | None) -> StoreReader:
    """Return how ``version`` reads store settings; None: the newest; too old: the oldest known."""
    return (RELEASES[-1] if version is None else _row_of(version)).store


def release_of(text: str) -> SglangRelease | None:
    """Return the facts of a version (the oldest row if it is older), None if the text is none."""
    try:
        return _row_of(text)
    except ValueError:
        return None


def _row_of(text: str) -> SglangRelease:
    """Return the row of a version, the oldest for what is older than the table."""
    version = parse_version(text)
    return next((row for row in reversed(RELEASES) if row.first <= version), RELEASES[0])


def _changed(row: SglangRelease, change: tuple[str, dict[str, Any]]) -> SglangRelease:
    """Return the row of the next release, with the facts that it changed."""
    text, facts = change
    changed = {name: fact for name, fact in facts.items() if name in row._fields}
    of_store = {name: fact for name, fact in facts.items() if name not in changed}
    store = row.store._replace(**of_store)
    return row._replace(first=parse_version(text), store=store, **changed)


RELEASES = tuple(accumulate(_CHANGES, _changed, initial=SglangRelease()))
