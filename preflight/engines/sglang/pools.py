"""The host pools of one rank of a server: the prefix cache's, and those of a decode server.

Each lies between two bounds, over the pipeline's stages, with and without a draft; if a model's
geometry is unknown a pool is a bound and says so. Where no size is given, by a ratio, by the
default one, or by the host's free memory: a pool that SGLang sizes by the host
(``mem_cache/hicache_auto_size.py``, since 0.5.21) lies between what is free now and what is left
once the server itself has started.
"""

from typing import NamedTuple

from checks.framework.units import GIB, format_bytes
from checks.framework.unknown import Unknown, or_unknown, require
from checks.releases.sglang import Indexer, SglangRelease
from preflight.engines.sglang.admission_gate import FreeMemory, auto_budget_bytes
from preflight.engines.sglang.host_pool_records import (
    HostBytes,
    HostPool,
    HostPools,
    PoolKind,
    PoolRequest,
    Refusal,
)
from preflight.engines.sglang.host_pools import MOST_TOKEN_BYTES, host_pools
from preflight.engines.sglang.launch import Ranks
from preflight.engines.sglang.model_geometry import (
    AttentionKind,
    LayerKind,
    ModelGeometry,
    OwnPools,
)
from preflight.engines.sglang.pool_request import (
    BY_GPU_WITH_DCP,
    GpuKind,
    Hardware,
    Interval,
    Purpose,
    SizedServer,
    default_ratio,
    mirrored_bytes,
    pool_request,
    ratio_tokens,
)
from preflight.engines.sglang.server import SglangServer


class ServerMemory(NamedTuple):
    """The host pools of one rank, between two bounds that are equal if exact.

    Attributes:
        why: How the bounds come about.
        pools: One by one at the upper bound, if they can be named.
        refused: Why SGLang stops when it makes them, or None.
        budget_bytes: The memory that pools are booked against, if SGLang sizes them.
        missing: The unknown fact without which the pools cannot be named.
        least_by_stage, most_by_stage: Of a rank of each pipeline stage, if they differ.
    """

    least_pools_bytes: tuple[int, ...]
    most_pools_bytes: tuple[int, ...] | Unknown
    why: str
    pools: tuple[HostPool, ...] = ()
    refused: Refusal | None = None
    budget_bytes: int | None = None
    missing: Unknown | None = None
    least_by_stage: tuple[tuple[int, ...], ...] = ()
    most_by_stage: tuple[tuple[int, ...], ...] = ()

    def of_stage(self, stage: int, most: bool) -> tuple[int, ...]:
        """Return the allocations of a rank of one pipeline stage, at the lower or upper bound."""
        stages = self.most_by_stage if most else self.least_by_stage
        if stages:
            return stages[stage]
        return require(self.most_pools_bytes) if most else self.least_pools_bytes


def _unsized(why: Unknown, lead: str = "") -> ServerMemory:
    refused = why if isinstance(why, Refusal) else None
    return ServerMemory((), why, f"{lead}{why.reason}", (), refused, missing=why)


def server_memory(
    server: SglangServer, ranks: Ranks, hardware: Hardware, release: SglangRelease
) -> ServerMemory:
    """Return all host pools of one rank of ``server``, between two bounds; no pools if the server
    keeps no KV cache on the host.
    """
    sized = SizedServer(server, ranks, hardware, release)
    pools = [_pools_for_purpose(sized._replace(purpose=purpose)) for purpose in _purposes(sized)]
    if not pools:
        return ServerMemory((), (), "no hierarchical cache")
    if len(pools) == 1:
        return pools[0]
    named = all(part.pools for part in pools)
    together = ServerMemory(
        tuple(size for part in pools for size in part.least_pools_bytes),
        _together([part.most_pools_bytes for part in pools]),
        "; ".join(part.why for part in pools),
        tuple(host_pool for part in pools for host_pool in part.pools) if named else (),
        next((part.refused for part in pools if part.refused is not None), None),
    )
    if not any(part.least_by_stage or part.most_by_stage for part in pools):
        return together
    known_most = not isinstance(together.most_pools_bytes, Unknown)
    least, most = (
        tuple(tuple(s for p in pools for s in p.of_stage(stage, end)) for stage in range(ranks.pp))
        for end in (False, known_most)
    )
    return together._replace(least_by_stage=least, most_by_stage=most if known_most else ())


@or_unknown
def _together(parts: list[tuple[int, ...] | Unknown]) -> tuple[int, ...]:
    return tuple(size for part in parts for size in require(part))


def _purposes(sized: SizedServer) -> list[Purpose]:
    """Return the purposes for which a server has host pools."""
    server = sized.server
    purposes = [Purpose.PREFIX_CACHE] if server.hicache else []
    if server.mode != "decode":
        return purposes
    if sized.value("disaggregation_decode_enable_offload_kvcache") is True:
        return [*purposes, Purpose.OFFLOAD]
    if not purposes and _keeps_retracted_requests(sized):
        purposes.append(Purpose.RETRACTION)
    return purposes


def _keeps_retracted_requests(sized: SizedServer) -> bool:
    """Tell whether a decode server keeps retracted requests on the host (kv_cache_builder.py)."""
    backup = sized.value("disaggregation_decode_retraction_backup")
    if sized.release.decode_ratio is None or backup in ("cpu_tensor", "none"):
        return False
    if backup == "host_pool":
        return True
    preempts = sized.value("enable_priority_scheduling") is True
    preempts = preempts and sized.value("disable_priority_preemption") is not True
    dcp, cached = sized.value("dcp_size"), "disaggregation_decode_enable_radix_cache"
    if preempts or (isinstance(dcp, int) and dcp > 1) or sized.value(cached) is True:
        return False
    geometry = sized.hardware.geometry
    if isinstance(geometry, Unknown):
        return True  # its model may be one that has the pool: a bound
    if sized.value("enable_unified_memory") is True and geometry.sliding is not None:
        return False
    mha = geometry.kind is AttentionKind.MHA and LayerKind.LINEAR not in geometry.layers
    return mha and LayerKind.FULL in geometry.layers


def _pools_for_purpose(sized: SizedServer) -> ServerMemory:
    """Return the host pools for ``sized.purpose``.

    If the pools depend on a GPU kind that is not known, the bounds cover every kind of GPU.
    """
    geometry, gpu = sized.hardware.geometry, sized.hardware.gpu
    unfit = _refused_model(sized, geometry)
    memory = _pools_by_size(sized) if unfit is None else _unsized(unfit)
    if memory.missing is not None and memory.missing is gpu:
        memory = _over_all_gpus(sized, gpu)
    if sized.purpose is Purpose.RETRACTION and isinstance(geometry, Unknown):
        # A model of another kind has no such pool.
        memory = memory._replace(least_pools_bytes=(), least_by_stage=(), pools=())
    if sized.purpose is Purpose.PREFIX_CACHE:
        return memory
    return memory._replace(why=f"{sized.purpose.value}: {memory.why}")


def _over_all_gpus(sized: SizedServer, why: Unknown) -> ServerMemory:
    """Return the bounds over all GPU kinds.

    Args:
        why: The reason why the GPU is not known.
    """
    hardware = (sized.hardware._replace(gpu=gpu_kind) for gpu_kind in GpuKind)
    bounds = [_pools_by_size(sized._replace(hardware=each)) for each in hardware]
    least = min(bounds, key=lambda memory: sum(memory.least_pools_bytes))
    most = max(bounds, key=_most_bytes)
    memory = _between(least, most, most.why)
    if least.least_pools_bytes != memory.most_pools_bytes:
        message = f"between kinds of GPU: {why.reason}; at most {most.why}"
        memory = memory._replace(missing=why, why=message)
    return memory


def _refused_model(sized: SizedServer, geometry: ModelGeometry | Unknown) -> Refusal | None:
    """Return SGLang's refusal of this pool for this model; None without one."""
    if isinstance(geometry, Unknown):
        size = sized.value("hicache_size")
        by_size = isinstance(size, int) and size > 0 and sized.release.sliding_pools
        dsv4 = isinstance(geometry, OwnPools) and geometry.architecture.startswith("DeepseekV4")
        return _NO_V4_SIZE if by_size and dsv4 and sized.purpose is Purpose.PREFIX_CACHE else None
    linear = LayerKind.LINEAR in geometry.layers
    if sized.purpose is Purpose.OFFLOAD and (linear or LayerKind.SLIDING in geometry.layers):
        if sized.value("enable_unified_memory") is True and geometry.sliding is not None:
            return None
        return Refusal(
            "ValueError: Unsupported KV cache type for decode offload",
            advice="leave out --disaggregation-decode-enable-offload-kvcache: this model has none",
        )
    if sized.purpose is Purpose.RETRACTION and (geometry.kind is AttentionKind.MLA or linear):
        return Refusal(
            "ValueError: --disaggregation-decode-retraction-backup=host_pool requires an MHA or "
            "hybrid-SWA HiCache host stack.",
            advice="leave out --disaggregation-decode-retraction-backup: this model has none",
        )
    return None


def _pools_by_size(sized: SizedServer) -> ServerMemory:
    """Return the pools by --hicache-size, else the ratio, the host's memory or the default."""
    request = pool_request(sized)
    if isinstance(request, Unknown):
        return _unsized(request)
    tokens = ratio_tokens(sized, request)
    if isinstance(tokens, Interval) and tokens.most == 0:
        return _unsized(_no_gpu_memory(sized.hardware, request.tp * request.pp))
    if request.size_gb > 0:
        return _bounds(sized, request, f"--hicache-size {request.size_gb}")
    if request.dcp > 1:
        return _unsized(BY_GPU_WITH_DCP)
    by_host = sized.release.auto_size and sized.purpose is not Purpose.OFFLOAD
    if request.ratio is None and by_host:
        return _by_host(sized, request, tokens)
    return _by_ratio(sized, request, tokens)


def _bounds(sized: SizedServer, request: PoolRequest, origin: str) -> ServerMemory:
    """Return the bounds of the pools of ``request``, a draft's pool included.

    Args:
        origin: What the size follows from, in words.
    """
    memory = _widest_stage(sized, request, origin)
    draft = sized.hardware.drafts.separate
    if isinstance(draft, Unknown) and sized.purpose is not Purpose.OFFLOAD:
        if isinstance(memory.most_pools_bytes, Unknown):
            return memory
        why = f"{memory.why}; a draft's pool on top: {draft.reason}"
        return memory._replace(most_pools_bytes=draft, why=why, pools=())
    if isinstance(memory.most_pools_bytes, Unknown) and (request.draft or request.packed_drafts):
        # Without its draft the target's own pool may be known: the least there will be.
        plain = request._replace(draft=None, packed_drafts=0)
        return _between(_widest_stage(sized, plain, origin), memory, "")
    return memory


def _widest_stage(sized: SizedServer, request: PoolRequest, origin: str) -> ServerMemory:
    """Return the bounds of one rank's bytes over all pipeline stages.

    Args:
        origin: As in ``_bounds``.
    """
    stages = []
    for stage in range(request.pp):
        draft = request.draft if stage == request.pp - 1 else None
        pools = host_pools(request._replace(stage=stage, draft=draft))
        if sized.purpose is Purpose.OFFLOAD and isinstance(pools, HostPools):
            # The offload manager mirrors keys and values alone.
            kept = [each for each in pools.pools if each.kind is not PoolKind.INDEXER]
            whole = len(kept) == len(pools.pools) or sized.release.indexer is Indexer.ON_TOP
            pools = HostPools(tuple(kept)) if whole else _NO_OFFLOAD_POOL
        stages.append(_stage_bounds(pools, origin))
    least = min(stages, key=lambda stage: sum(stage.least_pools_bytes))
    most = max(stages, key=_most_bytes)
    refused = next((stage.refused for stage in stages if stage.refused is not None), None)
    memory = _between(least, most, most.why)._replace(refused=refused)
    if len({stage.least_pools_bytes for stage in stages}) > 1:
        least_by_stage = tuple(stage.least_pools_bytes for stage in stages)
        why = f"{memory.why}, by pipeline stage"
        memory = memory._replace(why=why, least_by_stage=least_by_stage)
    if isinstance(memory.most_pools_bytes, Unknown):
        return memory
    by_stage = tuple(require(stage.most_pools_bytes) for stage in stages)
    return memory._replace(most_by_stage=by_stage) if len(set(by_stage)) > 1 else memory


def _most_bytes(memory: ServerMemory) -> float:
    most = memory.most_pools_bytes
    return float("inf") if isinstance(most, Unknown) else sum(most)


def _stage_bounds(pools: HostPools | HostBytes | Unknown, origin: str) -> ServerMemory:
    """Return the pools of one pipeline stage as bounds.

    Args:
        origin: What the size follows from.
    """
    lead = f"{origin}: " if origin else ""
    if isinstance(pools, HostPools):
        sizes = pools.allocations_bytes
        return ServerMemory(sizes, sizes, f"{origin}, exact", pools.pools)
    if isinstance(pools, Unknown):
        return _unsized(pools, lead)
    most = pools.most_bytes if isinstance(pools.most_bytes, Unknown) else (pools.most_bytes,)
    message = f"{lead}{pools.reason}"
    return ServerMemory((pools.least_bytes,), most, message, missing=pools.missing)


def _between(least: ServerMemory, most: ServerMemory, why: str) -> ServerMemory:
    """Return bounds from the least of ``least`` to the most of ``most``; refused if both are."""
    if isinstance(most.most_pools_bytes, Unknown):
        why = most.why
    # What only one end is refused for may not come to pass.
    refused = None if least.refused is None else most.refused
    bytes_, by_stage = least.least_pools_bytes, least.least_by_stage
    low = most._replace(least_pools_bytes=bytes_, least_by_stage=by_stage)
    return low._replace(why=why, refused=refused)


# An estimate, not a rule: what a rank takes of the host before it sizes its pools (Python, CUDA's
# context, NCCL, staging). Wide on purpose.
_MOST_PROCESS_BYTES = 8 * GIB
_UNSET = "neither --hicache-size nor --hicache-ratio"
# --hicache-host-memory-fraction.
_DEFAULT_FRACTION = 0.8
# _ALLOCATION_SLACK_FRACTION (mem_cache/hicache_auto_size.py).
_AUTO_SHARE = 1 - 0.05
_NO_MEMORY_LEFT = Refusal(
    "ValueError: No host memory is left for HiCache after the 10 GiB reserve; set --hicache-ratio "
    "or --hicache-size explicitly.",
    advice="free memory of the host, or give --hicache-size a size that fits (fit says which)",
)
_NO_OFFLOAD_POOL = Unknown("this release's offload pool of sparse attention is not computed")
_NO_GPU_MEMORY = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static"
# _deepseek_v4_num_host_pages (hybrid_pool_assembler.py), since 0.5.12 has such host pools.
_NO_V4_SIZE = Refusal(
    "ValueError: DeepSeek V4 HiCache currently does not support --hicache-size; use "
    "--hicache-ratio instead.",
    advice="give --hicache-ratio in place of --hicache-size",
)
_NO_CGROUP = Refusal(
    "RuntimeError: Cannot automatically size HiCache host memory; set --hicache-size explicitly "
    "(GB per rank), leaving room for other memory use within the container limit.",
    advice="give --hicache-size",
)
_BAD_FRACTION = Refusal(
    "ValueError: --hicache-host-memory-fraction must be in (0, 1].",
    advice="give --hicache-host-memory-fraction a number above 0, at most 1",
)


def _no_gpu_memory(hardware: Hardware, ranks: int) -> Refusal:
    """Return SGLang's refusal for lack of GPU memory, or that weights / ``ranks`` exceed a GPU."""
    weights, gpu_bytes = hardware.weights_bytes, hardware.gpu_bytes
    share = (weights if isinstance(weights, int) else hardware.least_weights_bytes) // ranks
    if isinstance(gpu_bytes, Unknown) or share < gpu_bytes:
        advice = "raise --mem-fraction-static, or take more GPUs (--tp)"
        return Refusal(_NO_GPU_MEMORY, advice=advice)
    return Refusal(
        f"the weights take {format_bytes(share)} of each GPU, which has {format_bytes(gpu_bytes)}: "
        f"no --mem-fraction-static helps, though SGLang asks for it ({_NO_GPU_MEMORY})",
        advice="take more GPUs (--tp), or a smaller checkpoint",
    )


def _by_ratio(sized: SizedServer, request: PoolRequest, tokens: Interval | Unknown) -> ServerMemory:
    """Return a pool of the tokens on the GPU times --hicache-ratio, or SGLang's default ratio."""
    least = most = request.ratio
    message = _UNSET if least is None else f"--hicache-ratio {least:g}"
    if isinstance(tokens, Unknown):
        return _unsized(tokens, f"{message}: ")
    if least is None or most is None:
        least = default_ratio(sized, request, tokens.least)[0]
        most = default_ratio(sized, request, tokens.most)[1]
        span = f"{most:g}" if least == most else f"{least:g} to {most:g}"
        message = f"the default ratio {span}"
    first, last = (
        _bounds(sized, request._replace(device_tokens=count, ratio=ratio), f"of {count} tokens")
        for count, ratio in ((tokens.least, least), (tokens.most, most))
    )
    return _between(first, last, f"{message} of {tokens.most} tokens on the GPU; {tokens.reason}")


def _by_host(sized: SizedServer, request: PoolRequest, tokens: Interval | Unknown) -> ServerMemory:
    """Return the default ratio's pools, lowered until they fit the host's memory.

    Args:
        tokens: Of the pool on the GPU.
    """
    fraction = sized.value("hicache_host_memory_fraction")
    fraction = _DEFAULT_FRACTION if fraction is None else fraction
    if isinstance(fraction, Unknown):
        return _unsized(fraction, f"{_UNSET}: ")
    if not 0 < fraction <= 1:
        return _unsized(_BAD_FRACTION)
    budgets = _budgets(sized, fraction)
    if isinstance(budgets, Refusal):
        return _unsized(budgets)
    if isinstance(budgets, Unknown):
        top = _by_ratio(sized, request, tokens)
        if isinstance(top.most_pools_bytes, Unknown):
            return top
        why = f"{_UNSET}: at most {top.why}; {budgets.reason}"
        return top._replace(least_pools_bytes=(), why=why, pools=())
    least_budget, most_budget = budgets
    message = (
        f"{_UNSET}: at most {_AUTO_SHARE:.0%} of {format_bytes(most_budget)} of host memory for "
        f"each rank (fraction {fraction:g}, as free now)"
    )
    draft = sized.hardware.drafts.separate
    if isinstance(request.geometry, Unknown):
        # All that the host can give would be a bound, and a need that follows from no model.
        return _unsized(request.geometry, f"{_UNSET}: ")
    missing = tokens if isinstance(tokens, Unknown) else draft
    if isinstance(tokens, Unknown) or isinstance(missing, Unknown):
        # Whatever the GPU holds, the pools share the budget; each may round up by a page.
        most = int(most_budget * _AUTO_SHARE) + request.page_tokens * MOST_TOKEN_BYTES
        missing = missing if isinstance(missing, Unknown) else None
        why = "" if missing is None else missing.reason
        return ServerMemory((), (most,), f"{message}; {why}", (), None, most_budget, missing)
    ends: list[ServerMemory] = []
    ratio = 0.0
    for count, budget, end in ((tokens.least, least_budget, 0), (tokens.most, most_budget, 1)):
        asked = request._replace(device_tokens=count)
        mirrored = mirrored_bytes(asked, count)
        if isinstance(mirrored, Unknown):
            return _unsized(mirrored, f"{message}; ")
        ratio = default_ratio(sized, asked, count)[end]
        if count and mirrored:
            ratio = min(ratio, budget * _AUTO_SHARE / mirrored)
        nothing = ServerMemory((), (), "nothing left")
        ends.append(_bounds(sized, asked._replace(ratio=ratio), "") if ratio > 0 else nothing)
    why = f"a ratio of {ratio:.4g} of {tokens.most} tokens on the GPU; {tokens.reason}"
    return _between(ends[0], ends[1], f"{message}: {why}")._replace(budget_bytes=most_budget)


def _budgets(sized: SizedServer, fraction: float) -> tuple[int, int] | Unknown:
    """Return the least and the most bytes that a rank's pools may take: ``fraction`` of the memory
    free once all ranks run, and free now.

    A Refusal if SGLang stops for lack of memory; Unknown if the free memory is unknown.
    """
    host, ranks = sized.hardware.host, sized.ranks
    if isinstance(host, Unknown):
        return host
    if isinstance(host.headroom_bytes, Unknown):
        return _NO_CGROUP
    most = auto_budget_bytes(host, ranks.sharing, sized.release, fraction)
    if most <= 0:
        return _NO_MEMORY_LEFT
    taken = ranks.here * _MOST_PROCESS_BYTES
    headroom = None if host.headroom_bytes is None else host.headroom_bytes - taken
    later = FreeMemory(host.available_bytes - taken, headroom)
    return max(0, auto_budget_bytes(later, ranks.sharing, sized.release, fraction)), most
