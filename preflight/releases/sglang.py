"""How SGLang's releases differ in what they allocate on the host: one table.

Every row was read in the wheel of that version and of the one before it; the byte counts of 0.5.23,
0.5.16, 0.5.11, 0.5.10, 0.5.9, 0.5.4 and 0.5.2 were also run, see ``tests/sglang``.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from checks.base.version_text import version_numbers


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
    """What an EAGLE or STANDALONE draft model's own pool gets."""

    NONE = "no host pool"
    OWN_PAGE = "the target's tokens, rounded as an independent pool"
    EXACT = "exactly the target's tokens"


class SegmentDivisor(Enum):
    """What divides ``global_segment_size`` into one rank's Mooncake segment."""

    ONE = "1"
    TP = "tp"
    TP_PP = "tp * pp"


class SglangRelease(NamedTuple):
    """The sizing of one release; each field holds until a later row changes it."""

    first: tuple[int, int, int, int]
    # One page more than fits, even where the size is a whole number of pages; else rounded down.
    extra_page: bool
    # torch's pinned allocator: each allocation takes the next power of two of its bytes.
    pinned_power_of_two: bool
    # A pool that is not larger than the device's stops the server; later a warning.
    must_exceed_device: bool
    ranks_share_memory: bool  # the gate divides what is free by the ranks on the host
    cgroup_headroom: bool  # the gate looks at the memory cgroup too
    # Size and ratio both unset: the ratio shrinks to what --hicache-host-memory-fraction allows.
    auto_size: bool
    default_layout: str
    hugepage_environment: bool  # SGLANG_HUGEPAGE_SIZE is read (default allocator only)
    indexer: Indexer
    indexer_name: str  # as the gate's message spells it
    compact_index: bool  # layers that share another's index keep no index keys on the host
    sliding_pools: bool  # a host pool for sliding-window layers exists
    hybrid_size: HybridSize
    # A pool for K and V of different width: two tensors; before, such models had none.
    asymmetric_heads: bool
    draft: DraftPool
    mem_fraction_rules: bool  # --mem-fraction-static defaults as in 0.5.23
    draft_indexer: bool  # a sparse-attention draft's index keys have a host pool
    packed_drafts: bool  # a NEXTN/MTP draft's layers join the target's pool
    # The pipeline stages' fixed-size pools agree on the fewest tokens.
    stages_share_tokens: bool
    # Layers that do not divide by the stages: one each to the last stages; else all to the last.
    spread_layers: bool
    # The ratio of the pool that a decode server gets with no flag at all; None: no such pool.
    decode_ratio: float | None
    # That ratio is raised until one request of the model's full context fits.
    decode_fits_request: bool
    segment_divisor: SegmentDivisor
    default_protocol: str
    # Each rank is started under numactl --membind of its GPU's node, without being asked to.
    binds_numa: bool
    # SGLANG_AUTO_NUMA_BIND is read: it can turn that off.
    numa_switch: bool
    # K and V are registered as two regions, one after the other in one allocation; else as one.
    registers_halves: bool
    # Each rank's SSD offload has a folder of its own, which SGLang makes.
    rank_offload_folders: bool


_0_5_2 = SglangRelease(
    first=(0, 5, 2, 0),
    extra_page=False,
    pinned_power_of_two=True,
    must_exceed_device=True,
    ranks_share_memory=False,
    cgroup_headroom=False,
    auto_size=False,
    default_layout="layer_first",
    hugepage_environment=False,
    indexer=Indexer.NONE,
    indexer_name="NSA",
    compact_index=False,
    sliding_pools=False,
    hybrid_size=HybridSize.NONE,
    asymmetric_heads=False,
    draft=DraftPool.NONE,
    mem_fraction_rules=False,
    draft_indexer=False,
    packed_drafts=False,
    stages_share_tokens=False,
    spread_layers=False,
    decode_ratio=None,
    decode_fits_request=False,
    segment_divisor=SegmentDivisor.ONE,
    default_protocol="tcp",
    binds_numa=False,
    numa_switch=False,
    registers_halves=False,
    rank_offload_folders=False,
)
_0_5_3 = _0_5_2._replace(first=(0, 5, 3, 0), segment_divisor=SegmentDivisor.TP)
_0_5_4_POST2 = _0_5_3._replace(first=(0, 5, 4, 2), pinned_power_of_two=False)
_0_5_5_POST3 = _0_5_4_POST2._replace(first=(0, 5, 5, 3), extra_page=True)
_0_5_6 = _0_5_5_POST3._replace(first=(0, 5, 6, 0), spread_layers=True)
_0_5_9 = _0_5_6._replace(first=(0, 5, 9, 0), indexer=Indexer.INSIDE_PER_LAYER)
_0_5_10 = _0_5_9._replace(
    first=(0, 5, 10, 0), indexer=Indexer.INSIDE, hybrid_size=HybridSize.EACH, binds_numa=True
)
_0_5_11 = _0_5_10._replace(first=(0, 5, 11, 0), indexer=Indexer.ON_TOP, draft=DraftPool.OWN_PAGE)
_0_5_12 = _0_5_11._replace(first=(0, 5, 12, 0), sliding_pools=True)
_0_5_13 = _0_5_12._replace(
    first=(0, 5, 13, 0), hugepage_environment=True, default_protocol="rdma", indexer_name="DSA"
)
_0_5_14 = _0_5_13._replace(first=(0, 5, 14, 0), default_layout="page_first", asymmetric_heads=True)
_0_5_15 = _0_5_14._replace(first=(0, 5, 15, 0), must_exceed_device=False, stages_share_tokens=True)
_0_5_16 = _0_5_15._replace(first=(0, 5, 16, 0), mem_fraction_rules=True)
_0_5_17 = _0_5_16._replace(first=(0, 5, 17, 0), hybrid_size=HybridSize.SHARED)
_0_5_18 = _0_5_17._replace(
    first=(0, 5, 18, 0), draft_indexer=True, packed_drafts=True, decode_ratio=1.0, numa_switch=True
)
_0_5_19 = _0_5_18._replace(
    first=(0, 5, 19, 0),
    ranks_share_memory=True,
    decode_ratio=0.2,
    segment_divisor=SegmentDivisor.TP_PP,
)
_0_5_21 = _0_5_19._replace(
    first=(0, 5, 21, 0),
    cgroup_headroom=True,
    auto_size=True,
    decode_fits_request=True,
    registers_halves=True,
    rank_offload_folders=True,
)
_0_5_22 = _0_5_21._replace(first=(0, 5, 22, 0), compact_index=True)
_0_5_23 = _0_5_22._replace(first=(0, 5, 23, 0), draft=DraftPool.EXACT)

RELEASES = (
    _0_5_2,
    _0_5_3,
    _0_5_4_POST2,
    _0_5_5_POST3,
    _0_5_6,
    _0_5_9,
    _0_5_10,
    _0_5_11,
    _0_5_12,
    _0_5_13,
    _0_5_14,
    _0_5_15,
    _0_5_16,
    _0_5_17,
    _0_5_18,
    _0_5_19,
    _0_5_21,
    _0_5_22,
    _0_5_23,
)

# Every release: the host pool of a prefix cache holds twice the device's tokens (a server with
# --hicache-host-memory-mode buffer_only: 1.2 times, since 0.5.19).
DEFAULT_RATIO = 2.0
BUFFER_ONLY_RATIO = 1.2

# The oldest and the newest release that this table was held against.
OLDEST_KNOWN = "0.5.2"
NEWEST_KNOWN = "0.5.23"


def parse_version(text: str) -> tuple[int, int, int, int]:
    """``"0.5.5.post3"`` as ``(0, 5, 5, 3)``. Raises ValueError with the right spelling."""
    return version_numbers(text, "an SGLang", "0.5.5.post3 or 0.5.23")


def sglang_release(text: str) -> SglangRelease:
    """The sizing of the version ``text``.

    Raises ValueError as ``parse_version`` does, and for a version older than the table.
    """
    version = parse_version(text)
    for row in reversed(RELEASES):
        if row.first <= version:
            return row
    raise ValueError(
        f"SGLang {text.strip()} is older than {OLDEST_KNOWN}, the oldest whose sizing is known"
    )


def newer_than_known(text: str) -> bool:
    """Whether ``text`` is newer than the table. Raises ValueError as ``parse_version`` does."""
    return parse_version(text) > parse_version(NEWEST_KNOWN)
