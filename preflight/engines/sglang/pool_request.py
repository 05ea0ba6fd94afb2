"""What a server asks of a host pool: its request, the GPU pool (L1) it follows, its default ratio.

The tokens of a GPU pool are bounds. They are exact where ``--max-total-tokens`` binds, which SGLang
says only at start: a value above what fits is reduced with a warning. Without it the pool is what
the GPU has left after the weights, and only a run tells how much that is.
Source: ``arg_groups/memory_hook.py``, ``mem_cache/kv_cache_configurator.py`` and
``model_executor/pool_configurator.py`` of SGLang 0.5.23.
"""

from enum import Enum
from typing import Any, NamedTuple

from checks.framework.units import GIB, MIB, round_up
from checks.framework.unknown import Unknown, UnknownFactError, or_unknown, require
from checks.releases.sglang import BUFFER_ONLY_RATIO, DEFAULT_RATIO, SglangRelease
from preflight.engines.sglang.admission_gate import FreeMemory
from preflight.engines.sglang.host_pool_records import (
    PoolRequest,
    Refusal,
    RowBytes,
    index_key_bytes,
    stage_rows,
)
from preflight.engines.sglang.launch import Ranks
from preflight.engines.sglang.model import Drafts
from preflight.engines.sglang.model_geometry import AttentionKind, ModelGeometry
from preflight.engines.sglang.server import SglangServer

# The bounds below are estimates, not rules: what a rank finds used on an idle GPU before it loads
# weights (CUDA context, NCCL), and how resident weights differ from their files (replicated
# layers, repacked quantisation). Wide on purpose.
_LEAST_CONTEXT_BYTES = GIB // 2
_MOST_CONTEXT_BYTES = 2 * GIB
_LEAST_WEIGHTS = 0.98
_MOST_WEIGHTS = 1.05

# On B200 the kernels of experts keep more than the weights: of what their files hold, GLM-4.6 takes
# 1.33 and Mistral-Large-3 1.58 (tokens in SGLang's memory_thresholds.json of July 2026).
_LARGE_GPU_BYTES = 160 * GIB
_MOST_LARGE_GPU_WEIGHTS = 1.65
# How far a vision tower lowers the default fraction at most (memory_hook.py 440 to 462).
_LEAST_OF_VISION = 0.76

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
    """A number of tokens between two bounds, both included; ``reason`` says how they come about."""

    least: int
    most: int
    reason: str


class DeviceRequest(NamedTuple):
    """What decides a rank's L1 pool, beside the request for its host pools.

    Attributes:
        gpu_bytes: The memory of the host's smallest GPU.
        mem_fraction: ``--mem-fraction-static``; None takes SGLang's default.
        weights_bytes: The checkpoint's, of all ranks together.
        max_total_tokens: ``--max-total-tokens``.
        role: "" for a plain server, "prefill" or "decode".
        speculative: Speculative decoding, which lowers the default fraction by what is not
            computed.
        least_weights_bytes: A lower bound, if weights_bytes is not known.
        most_weights_bytes: An upper bound; None if none is known.
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
    most_weights_bytes: int | None = None


@or_unknown
def default_mem_fraction(request: DeviceRequest) -> float:
    """Return the default of ``--mem-fraction-static`` by the rules of 0.5.23, with graphs on;
    Unknown for a release with other rules.

    Speculative decoding, DeepEP and a vision tower lower the default further, which is not
    computed.
    """
    gpu_mib = require(request.gpu_bytes) / MIB
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

    ``max_total_tokens`` bounds the tokens from above. If the tokens that fit the GPU are not known,
    both bounds are ``max_total_tokens``; Unknown if that is None too.
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
    """Return the tokens that fit the GPU, between the bounds of the estimate, or Unknown."""
    pools = request.pools
    geometry, gpu_bytes = require(pools.geometry), require(request.gpu_bytes)
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
    """Return the least and most bytes left for the KV cache, and why.

    Args:
        fraction: Of the GPU.
    """
    if isinstance(fraction, Unknown):
        return 0, gpu_bytes, f"at most the whole GPU, for {fraction.reason}"
    weights, ranks = request.weights_bytes, request.pools.tp * request.pools.pp
    geometry = request.pools.geometry
    sees = isinstance(geometry, ModelGeometry) and geometry.vision and request.mem_fraction is None
    vision = _LEAST_OF_VISION if sees else 1.0
    if weights is None or isinstance(weights, Unknown):
        left = int(gpu_bytes * fraction - request.least_weights_bytes / ranks)
        # What attention that each group repeats adds is not computed, nor by how much speculative
        # decoding lowers the default fraction.
        lowered = request.speculative and request.mem_fraction is None
        if request.most_weights_bytes is None or request.pools.attention_dp or lowered:
            return 0, left, f"at most {fraction:g} of the GPU, weights not known"
        copies = _MOST_WEIGHTS if gpu_bytes <= _LARGE_GPU_BYTES else _MOST_LARGE_GPU_WEIGHTS
        resident = request.most_weights_bytes / ranks * copies
        room = (gpu_bytes - _MOST_CONTEXT_BYTES) * fraction * vision - resident
        why = f"{fraction:g} of the GPU less its share of the weights, by the model's name"
        return int(room), left, why
    per_rank = weights / ranks
    if request.speculative and request.mem_fraction is None:
        why = f"at most {fraction:g} of the GPU, which speculative decoding lowers"
        return 0, int((gpu_bytes - _LEAST_CONTEXT_BYTES) * fraction), why
    least = (gpu_bytes - _MOST_CONTEXT_BYTES) * fraction * vision - per_rank * _MOST_WEIGHTS
    most = (gpu_bytes - _LEAST_CONTEXT_BYTES) * fraction - per_rank * _LEAST_WEIGHTS
    return int(least), int(most), f"{fraction:g} of the GPU less its share of the weights"


def _cell_bytes(pools: PoolRequest, geometry: ModelGeometry, row: RowBytes) -> int:
    """Return the GPU bytes of one token on one rank: row, index keys, part of the sliding layers,
    and the draft model's layers.

    Raises:
        UnknownFactError: For a model with linear layers.
    """
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

    The bytes are those of the widest pipeline stage, whose ratio all stages take. Each pool of the
    GPU has a page of padding (``mem_cache/hicache_auto_size.py``).

    Returns:
        Unknown for linear layers.
    """
    geometry = require(pools.geometry)
    if pools.dcp > 1:
        raise UnknownFactError(BY_GPU_WITH_DCP)
    stages = [_copy_bytes(pools, geometry, row, tokens) for row in stage_rows(pools)]
    if pools.draft is not None:
        alone = pools.of_draft()
        stages[-1] += sum(_copy_bytes(alone, pools.draft, row, tokens) for row in stage_rows(alone))
    return max(stages)


def _copy_bytes(pools: PoolRequest, geometry: ModelGeometry, row: RowBytes, tokens: int) -> int:
    """Return the bytes that mirror ``tokens`` of one stage on the host.

    Raises:
        UnknownFactError: If a fact that it needs is not known.
    """
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

    None in a release without the pool. Only MHA and sliding-window models have the pool, and not
    with a prefix cache on the decode server, offloading or priority preemption.

    Returns:
        Unknown if ``context_tokens`` is.
    """
    ratio = release.decode_ratio
    if ratio is None or not release.decode_fits_request:
        return ratio
    if isinstance(context_tokens, Unknown):
        return context_tokens
    request_tokens = round_up(min(context_tokens - 1, device_tokens), page_tokens)
    return max(ratio, request_tokens / device_tokens)


# --kv-cache-dtype: what one element takes; auto follows the model.
_ITEM_BYTES = {"fp8_e5m2": 1, "fp8_e4m3": 1, "bf16": 2, "bfloat16": 2, "auto": None}
# What sparse attention takes of them: it has no kernels for the rest.
_SPARSE_DTYPES = ("auto", "bf16", "bfloat16", "fp8_e4m3")
# get_req_to_token_extra_context_len (mem_cache/allocation_sizing.py), without drafts.
_ROW_HEADROOM_TOKENS = 4


class GpuKind(Enum):
    """GPUs on which SGLang stores the rows of sparse attention in different ways by default."""

    BEFORE_BLACKWELL = "NVIDIA before Blackwell"
    BLACKWELL = "NVIDIA B200, B300 and their kin"
    AMD = "AMD"


_NO_GPU = Unknown(
    "the size of sparse attention's rows depends on the GPU: give --kv-cache-dtype, and with fp8 "
    "--dsa-prefill-backend and --dsa-decode-backend"
)


class Hardware(NamedTuple):
    """The facts beside a command line that a server's pools depend on.

    Attributes:
        gpu_bytes: The memory of the smallest GPU.
        host: The host's memory as SGLang reads it, for a pool sized by that.
        context_tokens: Of the model's config, or None.
        gpu: Read only for models of sparse attention.
        least_weights_bytes: A lower bound, if weights_bytes is not known.
        most_weights_bytes: An upper bound; None if none is known.
    """

    geometry: ModelGeometry | Unknown
    gpu_bytes: int | Unknown
    weights_bytes: int | Unknown | None
    drafts: Drafts = Drafts()
    context_tokens: int | None = None
    host: FreeMemory | Unknown = Unknown("the host's memory is not read")
    gpu: GpuKind | Unknown = _NO_GPU
    least_weights_bytes: int = 0
    most_weights_bytes: int | None = None


class Purpose(Enum):
    """What a pool is for, which decides its ratio and what else is kept in it."""

    PREFIX_CACHE = "hierarchical cache"
    OFFLOAD = "decode offload"
    RETRACTION = "retracted requests (decode, without a flag)"


class SizedServer(NamedTuple):
    """A server with everything that its pools depend on.

    Attributes:
        purpose: Of the pools in question.
    """

    server: SglangServer
    ranks: Ranks
    hardware: Hardware
    release: SglangRelease
    purpose: Purpose = Purpose.PREFIX_CACHE

    def value(self, name: str) -> Any:
        return self.server.value(name)


@or_unknown
def pool_request(sized: SizedServer) -> PoolRequest:
    """Return the request for a server's pools; Unknown if an argument is unknown or not sized."""
    server, ranks, hardware = sized.server, sized.ranks, sized.hardware
    size, ratio = server.value("hicache_size"), server.value("hicache_ratio")
    page, kv_type = server.value("page_size"), server.value("kv_cache_dtype")
    draft_type = server.value("speculative_draft_kv_cache_dtype")
    layout = layout_in_use(server, sized.release)
    for value in (size, ratio, page, kv_type, layout, draft_type):
        require(value)
    dcp = require(server.number("dcp_size"))
    _refuse_sparse_dtype(sized, kv_type)
    if kv_type not in _ITEM_BYTES:
        raise UnknownFactError(Unknown(f"--kv-cache-dtype {kv_type} is not sized here"))
    item_bytes, raw_rows = _cache_element(sized, kv_type)
    word = server.environment.get("SGLANG_PP_LAYER_PARTITION")
    if word is not None and ranks.pp > 1:
        raise UnknownFactError(Unknown(f"{word.text}: SGLANG_PP_LAYER_PARTITION is not read"))
    drafts = Drafts() if sized.purpose is Purpose.OFFLOAD else hardware.drafts
    draft = None if isinstance(drafts.separate, Unknown) else drafts.separate
    draft_bytes = None
    if draft is not None and draft_type is not None:
        draft_bytes = _ITEM_BYTES.get(draft_type) or draft.dtype_bytes
    return PoolRequest(
        geometry=hardware.geometry,
        release=sized.release,
        page_tokens=max(1, page or 1) * max(1, dcp),
        layout=layout,
        size_gb=max(0, size or 0),
        ratio=ratio,
        tp=ranks.tp,
        pp=ranks.pp,
        dp=ranks.attention_dp,
        attention_dp=ranks.attention_dp > 1,
        dcp=max(1, dcp),
        kv_item_bytes=item_bytes,
        raw_fp8_rows=raw_rows,
        packed_drafts=drafts.packed,
        draft=draft,
        draft_item_bytes=draft_bytes,
    )


def _refuse_sparse_dtype(sized: SizedServer, kv_type: str) -> None:
    """Raise UnknownFactError if SGLang refuses ``--kv-cache-dtype`` for sparse attention."""
    geometry, name = sized.hardware.geometry, sized.release.refuses_sparse_dtypes
    if name is None or isinstance(geometry, Unknown) or not geometry.index_layers:
        return
    if kv_type not in _SPARSE_DTYPES:
        only = f"DeepSeek {name} only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype"
        advice = f"give --kv-cache-dtype fp8_e4m3 or bfloat16 in place of {kv_type}"
        raise UnknownFactError(Refusal(f"AssertionError: {only}", advice=advice))


def _cache_element(sized: SizedServer, kv_type: str) -> tuple[int | None, bool]:
    """Return (bytes of one cache element, whether fp8 rows have no scales).

    Bytes of None take the model's.

    For ``auto``, sparse attention takes fp8 on Blackwell and bfloat16 on every other GPU, whatever
    the checkpoint says (_dsa_kv_cache_dtype_default, since 0.5.3).

    Args:
        kv_type: ``--kv-cache-dtype``.

    Raises:
        UnknownFactError: If the GPU must be known.
    """
    geometry, gpu = sized.hardware.geometry, sized.hardware.gpu
    if isinstance(geometry, Unknown) or not geometry.index_layers:
        return _ITEM_BYTES[kv_type], False
    if kv_type == "auto":
        kv_type = "fp8_e4m3" if require(gpu) is GpuKind.BLACKWELL else "bfloat16"
    item_bytes = _ITEM_BYTES[kv_type]
    return item_bytes, item_bytes == 1 and _rows_without_scales(sized, gpu)


def _rows_without_scales(sized: SizedServer, gpu: GpuKind | Unknown) -> bool:
    """Return whether fp8 rows have no scales, as in calculate_mla_kv_cache_dim.

    Raises:
        UnknownFactError: If the answer depends on a GPU that is not known.
    """
    release = sized.release
    prefix = "nsa" if release.indexer_name == "NSA" else "dsa"
    backends = [
        require(sized.value(f"{prefix}_{phase}_backend")) for phase in ("prefill", "decode")
    ]
    if isinstance(gpu, Unknown):
        answers = {_rows_without_scales(sized, gpu_kind) for gpu_kind in GpuKind}
        return answers.pop() if len(answers) == 1 else require(gpu)
    hisparse = sized.value("enable_hisparse") is True
    default = "flashmla_kv"
    if gpu is GpuKind.AMD:
        default = "tilelang"
    elif gpu is GpuKind.BLACKWELL and release.blackwell_trtllm and not hisparse:
        default = "trtllm"
    prefill, decode = (backend or default for backend in backends)
    roles = {"prefill": (prefill,), "decode": (decode,)}
    deciding = roles.get(sized.server.mode, ()) if release.role_decides_row else ()
    if "trtllm" in (deciding or (prefill, decode)):
        return True
    if gpu is GpuKind.AMD and release.raw_on_amd & {prefill, decode}:
        return True
    return release.raw_for_tilelang and prefill == decode == "tilelang"


def layout_in_use(server: SglangServer, release: SglangRelease) -> Any:
    """Return the layout (or Unknown) after SGLang's own changes (arg_groups/hicache_hook.py)."""
    layout, backend = server.value("hicache_mem_layout"), server.value("hicache_io_backend")
    if not server.arguments.given("hicache_mem_layout"):
        layout = release.default_layout
    if layout == "page_first" and backend == "direct":
        return "page_first_direct"
    dcp = server.value("dcp_size")
    stored = server.value("hicache_storage_backend") in ("mooncake", "npu_memcache")
    if layout != "layer_first" or not stored or (isinstance(dcp, int) and dcp > 1):
        return layout
    return {"direct": "page_first_direct", "kernel": "page_first"}.get(backend, layout)


@or_unknown
def ratio_tokens(sized: SizedServer, request: PoolRequest) -> Interval:
    return require(device_tokens(_device_request(sized, request)))


def _device_request(sized: SizedServer, request: PoolRequest) -> DeviceRequest:
    """Return the request for the pool on the GPU.

    Raises:
        UnknownFactError: If a fact that it needs is not known.
    """
    names = "mem_fraction_static max_total_tokens chunked_prefill_size max_running_requests".split()
    fraction, tokens, chunk, running = (require(sized.value(name)) for name in names)
    hardware, drafts = sized.hardware, sized.hardware.drafts
    # What these leave on the GPU is not the checkpoint's weights.
    other = ("quantization", "torchao_config", "cpu_offload_gb", "moe_dense_tp_size")
    changed = any(sized.value(name) not in (None, 0, "") for name in other)
    weights = None if changed else hardware.weights_bytes
    beside = drafts.separate is not None and drafts.weights_bytes != 0
    if drafts.separate is not None:
        # The draft's weights take their share of the same GPU.
        if isinstance(weights, int) and isinstance(drafts.weights_bytes, int):
            weights += drafts.weights_bytes
        else:
            weights = None
    return DeviceRequest(
        request,
        hardware.gpu_bytes,
        fraction,
        weights,
        tokens,
        chunk,
        running,
        "" if sized.server.mode == "null" else sized.server.mode,
        bool(drafts.algorithm),
        0 if changed else hardware.least_weights_bytes,
        None if changed or beside else hardware.most_weights_bytes,
    )


def default_ratio(sized: SizedServer, request: PoolRequest, tokens: int) -> tuple[float, float]:
    """Return the bounds of SGLang's default ratio.

    Args:
        tokens: Of the pool on the GPU.
    """
    if sized.purpose is Purpose.RETRACTION:
        return _retraction_ratio(sized, request, tokens)
    buffers = sized.value("hicache_host_memory_mode") == "buffer_only"
    if buffers and sized.release.buffer_only and sized.purpose is Purpose.PREFIX_CACHE:
        return BUFFER_ONLY_RATIO, BUFFER_ONLY_RATIO
    return DEFAULT_RATIO, DEFAULT_RATIO


def _retraction_ratio(sized: SizedServer, request: PoolRequest, tokens: int) -> tuple[float, float]:
    """Return the bounds of the ratio of the pool for retracted requests.

    The pool holds at least one request of the model's context, which is never longer than the GPU's
    pool of ``tokens``.
    """
    floor = sized.release.decode_ratio or 0.0
    most = max(floor, 1.0) if sized.release.decode_fits_request else floor
    context = sized.value("context_length")
    context = sized.hardware.context_tokens if context is None else context
    if tokens <= 0 or not isinstance(context, int):
        return floor, most
    longest = context + _ROW_HEADROOM_TOKENS
    ratio = decode_pool_ratio(sized.release, tokens, request.page_tokens, longest)
    least = ratio if isinstance(ratio, float) else floor
    # Drafts lengthen a request by what their settings come to.
    return least, most if sized.hardware.drafts.algorithm else least
