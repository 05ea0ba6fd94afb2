"""Open pull requests of Mooncake and SGLang that would change an answer, a row each.

No answer counts on one. A release that is newer than the tables may have it, and the user is told;
``tools/add_release.py`` looks for each in the new wheel. What a release has carried becomes a fact
of its row, with the code that reads it, and leaves this table.
"""

from collections.abc import Iterator
from typing import NamedTuple


class OpenChange(NamedTuple):
    """A change of ``program`` that no known release has.

    Attributes:
        changes: What it does, as text.
        pulls: Its pull requests, of which one may be merged.
        fact: The field of a release's row that will tell the change; it may not exist yet.
        marks: Pairs of files in the wheel and a text that they will have with the change, in any
            case; () if no name is known yet.
    """

    program: str
    changes: str
    pulls: tuple[str, ...]
    fact: str
    marks: tuple[tuple[str, str], ...] = ()


_SGLANG, _MOONCAKE = "sgl-project/sglang#{}", "kvcache-ai/Mooncake#{}"
OPEN_CHANGES = (
    OpenChange(
        "mooncake",
        "MC_STORE_USE_SHM_SEGMENT or MC_FORCE_SHM puts the segment into a file of a hugetlbfs",
        (_MOONCAKE.format(4217),),
        "shared_segments",
        (("mooncake/*", "MC_STORE_USE_SHM_SEGMENT"),),
    ),
    OpenChange(
        "mooncake",
        "a segment over RDMA is split into one for each NUMA node without being asked",
        (_MOONCAKE.format(3657),),
        "numa_segments",
    ),
    OpenChange(
        "mooncake",
        "the documented helper reads the free huge pages, not all that are configured",
        (_MOONCAKE.format(3189),),
        "documented_reads_free",
    ),
    OpenChange(
        "mooncake",
        "GPUs read the store's EGM pool (0.3.14: enable_egm_store_pool) over NVLink by themselves",
        (_MOONCAKE.format(2914),),
        "egm_reads_by_gpu",
    ),
    OpenChange(
        "mooncake",
        "objects on SSD are brought back into memory before they are read",
        (_MOONCAKE.format(3417),),
        "prefetches_ssd",
        (("mooncake/*", "enable_prefetch_trigger"),),
    ),
    OpenChange(
        "mooncake",
        "SSD offload by GPUDirect Storage, into one file of fixed size for each client",
        (_MOONCAKE.format(3786),),
        "gds_offload",
    ),
    OpenChange(
        "mooncake",
        "with fabric memory of Ascend the segment is on no huge pages, whatever is asked for",
        (_MOONCAKE.format(3866),),
        "fabric_without_hugepages",
    ),
    OpenChange(
        "sglang",
        "--hicache-size is shrunk so that a draft's host pool fits into it too",
        (_SGLANG.format(35875),),
        "draft",
        (("sglang/srt/mem_cache/kv_cache_builder.py", "_adjust_hicache_size_for_draft"),),
    ),
    OpenChange(
        "sglang",
        "--hicache-mamba-size-gb, or ratios of their own, size the host pools of KV and Mamba",
        tuple(map(_SGLANG.format, (39436, 30199))),
        "hybrid_size",
        tuple(
            ("sglang/srt/**/*.py", name) for name in ("hicache_mamba_size_gb", "kv_hicache_ratio")
        ),
    ),
    OpenChange(
        "sglang",
        "ratios of the hybrid host pools: --hicache-mamba-ratio, or by a variable",
        tuple(map(_SGLANG.format, (39851, 39856))),
        "hybrid_size",
        (("sglang/srt/**/*.py", "hicache_mamba_ratio"),),
    ),
    OpenChange(
        "sglang",
        "host pools of hybrid models have as many states as their tokens need",
        (_SGLANG.format(40680),),
        "hybrid_size",
    ),
    OpenChange(
        "sglang",
        "one host pool of an MLA model for all ranks of a server",
        (_SGLANG.format(26691),),
        "shares_mla_pool",
    ),
    OpenChange(
        "sglang",
        "its check of host memory reads once for all ranks, not after others have taken theirs",
        (_SGLANG.format(38157),),
        "gate_reads_once",
    ),
    OpenChange(
        "sglang",
        "prefixes come back from L2 node by node: --hicache-serialize-load-back",
        (_SGLANG.format(39395),),
        "serializes_load_back",
        (("sglang/srt/**/*.py", "hicache_serialize_load_back"),),
    ),
    OpenChange(
        "sglang",
        "the mode buffer_only of host memory takes hybrid models",
        (_SGLANG.format(36345),),
        "buffer_takes_hybrids",
    ),
    OpenChange(
        "sglang",
        "an external linker's local buffer has a size that can be given",
        (_SGLANG.format(38639),),
        "linker_local_buffer",
        (("sglang/srt/**/*.py", "mooncake_enable_page_wise_load"),),
    ),
    OpenChange(
        "sglang",
        "its check of host memory counts free huge pages for pools that SGLANG_HUGEPAGE_SIZE "
        "puts on them",
        tuple(map(_SGLANG.format, (38208, 35048, 39010, 27267))),
        "gate_counts_hugetlb",
        tuple(
            (f"sglang/srt/mem_cache/{file}", "huge")
            for file in ("host_memory.py", "pool_host/base.py")
        ),
    ),
    OpenChange(
        "sglang",
        "L2 from Mooncake is rounded up to whole huge pages, and pinned whole",
        (_SGLANG.format(32171),),
        "rounds_pools",
        (("sglang/srt/mem_cache/**/*.py", "cuda_registration_nbytes"),),
    ),
)


def open_changes(program: str) -> Iterator[OpenChange]:
    """Yield the changes that no known release of a program carries."""
    return (change for change in OPEN_CHANGES if change.program == program)
