"""What a server asks of a host pool: its request, the GPU pool it follows, its default ratio."""

from enum import Enum
from typing import Any, NamedTuple

from checks.base.unknown import Unknown, UnknownFactError, known, or_unknown
from checks.releases.sglang import BUFFER_ONLY_RATIO, DEFAULT_RATIO, SglangRelease
from preflight.processes.processes import SglangServer
from preflight.sglang.admission_gate import FreeMemory
from preflight.sglang.device_pool import DeviceRequest, Interval, decode_pool_ratio, device_tokens
from preflight.sglang.host_pool_records import PoolRequest, Refusal
from preflight.sglang.launch import Ranks
from preflight.sglang.model import Drafts
from preflight.sglang.model_geometry import ModelGeometry

# --kv-cache-dtype: what one element takes; auto follows the model.
_ITEM_BYTES = {"fp8_e5m2": 1, "fp8_e4m3": 1, "bf16": 2, "bfloat16": 2, "auto": None}
# What sparse attention takes of them: it has no kernels for the rest.
_SPARSE_DTYPES = ("auto", "bf16", "bfloat16", "fp8_e4m3")
# get_req_to_token_extra_context_len (mem_cache/allocation_sizing.py), without drafts.
_ROW_HEADROOM_TOKENS = 4


class GpuKind(Enum):
    """GPUs on which SGLang stores sparse attention's rows in different ways by itself."""

    BEFORE_BLACKWELL = "NVIDIA before Blackwell"
    BLACKWELL = "NVIDIA B200, B300 and their kin"
    AMD = "AMD"


_NO_GPU = Unknown(
    "the size of sparse attention's rows depends on the GPU: give --kv-cache-dtype, and with fp8 "
    "--dsa-prefill-backend and --dsa-decode-backend"
)


class Hardware(NamedTuple):
    """The facts beside a command line that a server's pools depend on.

    gpu_bytes: the memory of the smallest GPU. host: the host's memory as SGLang reads it, for a
    pool sized by that. context_tokens: of the model's config, or None. gpu: read only for models of
    sparse attention. least_weights_bytes: if weights_bytes is not known.
    """

    geometry: ModelGeometry | Unknown
    gpu_bytes: int | Unknown
    weights_bytes: int | Unknown | None
    drafts: Drafts = Drafts()
    context_tokens: int | None = None
    host: FreeMemory | Unknown = Unknown("the host's memory is not read")
    gpu: GpuKind | Unknown = _NO_GPU
    least_weights_bytes: int = 0


class Purpose(Enum):
    """What a pool is for, which decides its ratio and what else is kept in it."""

    PREFIX_CACHE = "hierarchical cache"
    OFFLOAD = "decode offload"
    RETRACTION = "retracted requests (decode, without a flag)"


class SizedServer(NamedTuple):
    """A server with everything that its pools depend on, and which of them is asked about."""

    server: SglangServer
    ranks: Ranks
    hardware: Hardware
    release: SglangRelease
    purpose: Purpose = Purpose.PREFIX_CACHE

    def value(self, name: str) -> Any:
        return self.server.value(name)


@or_unknown
def pool_request(sized: SizedServer) -> PoolRequest:
    """Return the request for the pools of one server. Raises UnknownFactError if unknown."""
    server, ranks, hardware = sized.server, sized.ranks, sized.hardware
    size, ratio = server.value("hicache_size"), server.value("hicache_ratio")
    page, kv_type = server.value("page_size"), server.value("kv_cache_dtype")
    draft_type = server.value("speculative_draft_kv_cache_dtype")
    layout = layout_in_use(server, sized.release)
    for value in (size, ratio, page, kv_type, layout, draft_type):
        known(value)
    dcp = known(server.number("dcp_size"))
    _refuse_sparse_dtype(sized, kv_type)
    if kv_type not in _ITEM_BYTES:
        raise UnknownFactError(Unknown(f"--kv-cache-dtype {kv_type} is not sized here"))
    item_bytes, raw_rows = _row(sized, kv_type)
    word = server.environment.get("SGLANG_PP_LAYER_PARTITION")
    if word is not None and ranks.pp > 1:
        raise UnknownFactError(Unknown(f"{word.text}: SGLANG_PP_LAYER_PARTITION is not read"))
    drafts = Drafts() if sized.purpose is Purpose.OFFLOAD else hardware.drafts
    draft = None if isinstance(drafts.own, Unknown) else drafts.own
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
    """Stop if SGLang does: sparse attention takes bfloat16 or fp8_e4m3 rows alone."""
    geometry, name = sized.hardware.geometry, sized.release.refuses_sparse_dtypes
    if name is None or isinstance(geometry, Unknown) or not geometry.index_layers:
        return
    if kv_type not in _SPARSE_DTYPES:
        words = f"DeepSeek {name} only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype"
        words = f"AssertionError: {words}"
        advice = f"give --kv-cache-dtype fp8_e4m3 or bfloat16 in place of {kv_type}"
        raise UnknownFactError(Refusal(words, advice=advice))


def _row(sized: SizedServer, kv_type: str) -> tuple[int | None, bool]:
    """Return the bytes of an element (None: the model's), and whether fp8 rows are raw.

    Sparse attention takes fp8 by itself on Blackwell alone, and bfloat16 elsewhere, whatever the
    checkpoint says (_dsa_kv_cache_dtype_default, since 0.5.3).
    """
    geometry, gpu = sized.hardware.geometry, sized.hardware.gpu
    if isinstance(geometry, Unknown) or not geometry.index_layers:
        return _ITEM_BYTES[kv_type], False
    if kv_type == "auto":
        kv_type = "fp8_e4m3" if known(gpu) is GpuKind.BLACKWELL else "bfloat16"
    if _ITEM_BYTES[kv_type] == 1:
        return 1, _raw_row(sized, gpu)
    return _ITEM_BYTES[kv_type], False


def _raw_row(sized: SizedServer, gpu: GpuKind | Unknown) -> bool:
    """Return whether rows are raw fp8, as calculate_mla_kv_cache_dim decides."""
    release = sized.release
    prefix = "nsa" if release.indexer_name == "NSA" else "dsa"
    backends = [known(sized.value(f"{prefix}_{phase}_backend")) for phase in ("prefill", "decode")]
    if isinstance(gpu, Unknown):
        answers = {_raw_row(sized, kind) for kind in GpuKind}
        return answers.pop() if len(answers) == 1 else known(gpu)
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
    """Return the layout after SGLang's own changes to it (arg_groups/hicache_hook.py)."""
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
    return known(device_tokens(_device_request(sized, request)))


def _device_request(sized: SizedServer, request: PoolRequest) -> DeviceRequest:
    """Return the request for the pool on the GPU."""
    names = "mem_fraction_static max_total_tokens chunked_prefill_size max_running_requests".split()
    fraction, tokens, chunk, running = (known(sized.value(name)) for name in names)
    hardware, drafts = sized.hardware, sized.hardware.drafts
    # What these leave on the GPU is not the checkpoint's weights.
    other = ("quantization", "torchao_config", "cpu_offload_gb", "moe_dense_tp_size")
    changed = any(sized.value(name) not in (None, 0, "") for name in other)
    weights = None if changed else hardware.weights_bytes
    if drafts.own is not None:
        # The draft's weights take their share of the same GPU.
        drafted = None if drafts.model is None else drafts.model.weights_bytes
        if isinstance(weights, int) and isinstance(drafted, int):
            weights += drafted
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
    )


def default_ratio(sized: SizedServer, request: PoolRequest, tokens: int) -> tuple[float, float]:
    """Return SGLang's default ratio, between two bounds."""
    if sized.purpose is Purpose.RETRACTION:
        return _retraction_ratio(sized, request, tokens)
    buffers = sized.value("hicache_host_memory_mode") == "buffer_only"
    if buffers and sized.release.buffer_only and sized.purpose is Purpose.PREFIX_CACHE:
        return BUFFER_ONLY_RATIO, BUFFER_ONLY_RATIO
    return DEFAULT_RATIO, DEFAULT_RATIO


def _retraction_ratio(sized: SizedServer, request: PoolRequest, tokens: int) -> tuple[float, float]:
    """Return the bounds of the ratio of the pool for retracted requests. It holds at least one
    request of the model's context, which is never longer than the GPU's pool."""
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
