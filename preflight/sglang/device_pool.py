"""How many tokens one rank's GPU pool (L1) will hold: bounds, for a pool that follows a ratio.

Exact where ``--max-total-tokens`` binds, which SGLang says only at start: a value above what fits
is reduced with a warning. Without it the pool is what the GPU has left after the weights, and only
a run tells how much that is.
Source: ``arg_groups/memory_hook.py``, ``mem_cache/kv_cache_configurator.py`` and
``model_executor/pool_configurator.py`` of SGLang 0.5.23.
"""

from typing import NamedTuple

from checks.base.units import GIB, MIB, round_up
from checks.base.unknown import Unknown, UnknownFactError, known, or_unknown
from checks.releases.sglang import SglangRelease
from preflight.sglang.host_pool_records import PoolRequest, RowBytes, index_key_bytes, stage_rows
from preflight.sglang.model_geometry import AttentionKind, ModelGeometry

# The bounds below are estimates, not rules: what a rank finds used on an idle GPU before it loads
# weights (CUDA context, NCCL), and how resident weights differ from their files (replicated
# layers, repacked quantisation). Wide on purpose.
_LEAST_CONTEXT_BYTES = GIB // 2
_MOST_CONTEXT_BYTES = 2 * GIB
_LEAST_WEIGHTS = 0.98
_MOST_WEIGHTS = 1.05

# (below this many MiB, --chunked-prefill-size, decode graph batch at tp below 4, at tp from 4)
_GPU_CLASSES = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
)
_LARGEST_CLASS = (16384, 512, 512)
# The prefill graph's sizes (generate_prefill_cuda_graph_batch_sizes), the chunk apart: 8 MiB are
# reserved for each. Above 4096 there is one every 512 tokens.
_PREFILL_SIZES = (
    *range(4, 33, 4),
    *range(48, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1280, 4097, 256),
)
# A GPU above this keeps at least this much back.
_LARGE_GPU_MIB = 60 * 1024
_LARGE_RESERVE_MIB = 10 * 1024


BY_GPU_WITH_DCP = Unknown("decode context parallelism with a pool that is sized by the GPU's")


class Interval(NamedTuple):
    """Both ends included; ``reason`` says where they come from."""

    least: int
    most: int
    reason: str


class DeviceRequest(NamedTuple):
    """What decides a rank's L1 pool, the host pools' request apart.

    gpu_bytes: the memory of the host's smallest GPU. mem_fraction: ``--mem-fraction-static``;
    None takes SGLang's default. weights_bytes: the checkpoint's, of all ranks together.
    max_total_tokens: ``--max-total-tokens``. role: "" for a plain server, "prefill" or "decode".
    speculative: speculative decoding, which lowers the default fraction by what is not computed.
    least_weights_bytes: where weights_bytes is not known.
    """

    pools: PoolRequest
    gpu_bytes: int | Unknown
    mem_fraction: float | None = None
    weights_bytes: int | Unknown | None = None
    max_total_tokens: int | None = None
    chunked_prefill: int | None = None
    max_running: int | None = None
    role: str = ""
    speculative: bool = False
    least_weights_bytes: int = 0


@or_unknown
def default_mem_fraction(request: DeviceRequest) -> float:
    """Return the default of ``--mem-fraction-static``, by the heuristics of 0.5.23. Graphs on, no
    speculative decoding, no DeepEP, no vision tower; those lower it further."""
    gpu_mib = known(request.gpu_bytes) / MIB
    pools = request.pools
    if not pools.release.mem_fraction_rules:
        why = "the default --mem-fraction-static of this release is not computed"
        raise UnknownFactError(Unknown(why))
    chunk, small_batch, large_batch = next(
        (sizes for below, *sizes in _GPU_CLASSES if gpu_mib < below), _LARGEST_CLASS
    )
    batch = small_batch if pools.tp < 4 else large_batch
    chunk = request.chunked_prefill or chunk
    tokens = max(chunk, 2048)
    if request.role == "decode":
        tokens = max(request.max_running or batch, 2048)
    reserved = 512 + tokens * 1.5 + pools.tp * pools.pp / 8 * 1024
    if request.role != "prefill":
        reserved += batch * 2
        if pools.attention_dp:
            reserved += batch * pools.dp * (4.5 if batch > 300 else 3)
    if request.role != "decode":
        geometry = pools.geometry
        latent = isinstance(geometry, ModelGeometry) and geometry.kind is AttentionKind.MLA
        graphs = sum(size <= chunk for size in _PREFILL_SIZES) + max(0, (chunk - 4096) // 512)
        reserved += 1536 if latent else 8 * graphs
    if gpu_mib > _LARGE_GPU_MIB:
        reserved = max(reserved, _LARGE_RESERVE_MIB)
    return round((gpu_mib - reserved) / gpu_mib, 3)


def device_tokens(request: DeviceRequest) -> Interval | Unknown:
    """Return the tokens of one rank's L1 pool: the least of all pipeline stages.

    With ``max_total_tokens`` the upper end is that number, and the lower end is too where nothing
    better is known of the GPU: then it is exact if it binds.
    """
    page = request.pools.page_tokens
    asked = request.max_total_tokens
    profiled = _profiled(request)
    if asked is None:
        return profiled
    most = asked // page * page
    if isinstance(profiled, Unknown):
        return Interval(most, most, f"--max-total-tokens {asked}, if as many fit the GPU")
    least = min(most, profiled.least)
    bound = f"{asked} at most; {profiled.reason}"
    why = f"--max-total-tokens {asked}" if least == most else bound
    return Interval(least, min(most, profiled.most), why)


@or_unknown
def _profiled(request: DeviceRequest) -> Interval:
    """Return the number of tokens that fit the GPU, between the bounds of the estimate."""
    pools = request.pools
    geometry, gpu_bytes = known(pools.geometry), known(request.gpu_bytes)
    fraction = request.mem_fraction or default_mem_fraction(request)
    widest = max(_cell_bytes(pools, geometry, row) for row in stage_rows(pools))
    if not widest:
        raise UnknownFactError(Unknown("a token takes no memory on the GPU"))
    least, most, why = _budget(request, gpu_bytes, fraction)
    page = pools.page_tokens
    least, most = (max(0, end) // widest // page * page for end in (least, most))
    return Interval(least, most, f"estimated: {why}, {widest} bytes per token")


def _budget(
    request: DeviceRequest, gpu_bytes: int, fraction: float | Unknown
) -> tuple[int, int, str]:
    """Return the least and most bytes left for the KV cache, and why."""
    if isinstance(fraction, Unknown):
        return 0, gpu_bytes, f"at most the whole GPU, for {fraction.reason}"
    weights, ranks = request.weights_bytes, request.pools.tp * request.pools.pp
    if weights is None or isinstance(weights, Unknown):
        left = int(gpu_bytes * fraction - request.least_weights_bytes / ranks)
        return 0, left, f"at most {fraction:g} of the GPU, weights not known"
    per_rank = weights / ranks
    if request.speculative and request.mem_fraction is None:
        why = f"at most {fraction:g} of the GPU, which speculative decoding lowers"
        return 0, int((gpu_bytes - _LEAST_CONTEXT_BYTES) * fraction), why
    least = (gpu_bytes - _MOST_CONTEXT_BYTES) * fraction - per_rank * _MOST_WEIGHTS
    most = (gpu_bytes - _LEAST_CONTEXT_BYTES) * fraction - per_rank * _LEAST_WEIGHTS
    return int(least), int(most), f"{fraction:g} of the GPU less its share of the weights"


def _cell_bytes(pools: PoolRequest, geometry: ModelGeometry, row: RowBytes) -> int:
    """Return the bytes of one token on the device. They are the host's row, with index keys and the
    share of the sliding layers."""
    if row.layers.linear:
        why = "the device keeps linear states beside the tokens, of unknown number"
        raise UnknownFactError(Unknown(why))
    cell = sum(row.parts) + int(row.sliding * pools.swa_ratio)
    cell += index_key_bytes(geometry) * row.layers.index_keys
    if pools.draft is not None:
        # The budget takes each of the draft's layers for one of the target's.
        cell += cell * len(pools.draft.layers) // len(geometry.layers)
    return cell


@or_unknown
def mirrored_bytes(pools: PoolRequest, tokens: int) -> int:
    """Return the GPU bytes of ``tokens`` tokens that a ratio of 1 mirrors on the host.

    The widest of the pipeline's stages, whose ratio all take. The device's pools have a page of
    padding each (``mem_cache/hicache_auto_size.py``).
    """
    geometry = known(pools.geometry)
    if pools.dcp > 1:
        raise UnknownFactError(BY_GPU_WITH_DCP)
    stages = [_mirrored(pools, geometry, row, tokens) for row in stage_rows(pools)]
    if pools.draft is not None:
        alone = pools.of_draft()
        stages[-1] += sum(_mirrored(alone, pools.draft, row, tokens) for row in stage_rows(alone))
    return max(stages)


def _mirrored(pools: PoolRequest, geometry: ModelGeometry, row: RowBytes, tokens: int) -> int:
    """Return the host bytes that mirror so many tokens of the device's pools."""
    if row.layers.linear:
        raise UnknownFactError(Unknown("linear states are mirrored too, of unknown number"))
    page = pools.page_tokens
    sliding = int(tokens * pools.swa_ratio) // page * page
    mirrored = (tokens + page) * sum(row.parts)
    if row.sliding:
        mirrored += (sliding + page) * row.sliding
    if row.layers.index_keys:
        pages = (tokens + page + 1) // page
        mirrored += pages * page * index_key_bytes(geometry) * row.layers.index_keys
    return mirrored


def decode_pool_ratio(
    release: SglangRelease, device_tokens: int, page_tokens: int, context_tokens: int | Unknown
) -> float | Unknown | None:
    """Return the ratio of a decode server's pool for retracted requests.

    None in a release without such a pool. It exists for MHA and sliding-window models alone, and
    not with a prefix cache on the decode server, offloading or priority preemption.
    """
    ratio = release.decode_ratio
    if ratio is None or not release.decode_fits_request:
        return ratio
    if isinstance(context_tokens, Unknown):
        return context_tokens
    request_tokens = round_up(min(context_tokens - 1, device_tokens), page_tokens)
    return max(ratio, request_tokens / device_tokens)
