"""Values that SGLang's argument parser takes and the server then refuses, a row each.

The conditions are those of ``ServerArgs`` (server_args.py; from 0.5.19 on arg_groups/*.py), of the
pools that follow from them, and depend on arguments alone. Each message was looked for in each of
the 38 releases from 0.5.2 to 0.5.23, see tests/sglang/test_refusals.py.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from checks.base.unknown import UnknownFactError, known
from checks.releases.sglang import parse_version
from preflight.programs.sglang_argument_tables import known_releases
from preflight.programs.sglang_arguments import ParsedArguments


class Values:
    """The values of arguments; None for one that nobody wrote and that has no default. Raises
    UnknownFactError if a variable decides. An argument that the release lacks is None."""

    def __init__(self, arguments: ParsedArguments) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        return known(self._arguments.value(name)) if name in self._arguments.settings else None

    @property
    def attention_dp(self) -> int:
        """Data-parallel groups inside the tensor-parallel group, however they are spelt."""
        if self.enable_dp_attention and self.attn_dp_size in (None, 1):
            return int(self.dp_size)
        return 1 if self.attn_dp_size is None else int(self.attn_dp_size)

    @property
    def replicas(self) -> int:
        return 1 if self.enable_dp_attention else int(self.dp_size)


class ValueRefusal(NamedTuple):
    """says: what SGLang prints, with values in braces. since, until: its first and last release."""

    says: str
    refused: Callable[[Values], Any]
    since: str = ""
    until: str = ""


# Attention backends that leave --page-size as it is; others make it a multiple of 16.
_KEEP_PAGES = ("triton", "fa3", "flashinfer", "torch_native")


def _unaligned(v: Values) -> bool:
    chunk = v.chunked_prefill_size
    if chunk <= 0 or v.page_size < 1 or v.disaggregation_mode == "decode":
        return False
    chunk //= v.attention_dp
    return bool(chunk % v.page_size and (chunk % 16 or v.attention_backend in _KEEP_PAGES))


def _outside(value: float | None, least: float, most: float) -> bool:
    """Return whether a value is given and is not in (least, most]."""
    return value is not None and not least < value <= most


def _ratio_counts(v: Values) -> bool:
    """Return whether --hicache-ratio decides how large the host pool is."""
    ratio = v.enable_hierarchical_cache and v.hicache_size <= 0
    return bool(ratio and v.disaggregation_mode != "decode")


def _buffer_only(v: Values) -> bool:
    return bool(v.enable_hierarchical_cache and v.hicache_host_memory_mode == "buffer_only")


def _repeats_device(v: Values) -> bool:
    """Return whether _validate_ib_devices (server_args.py) finds a device named twice."""
    transfers = v.disaggregation_mode in ("prefill", "decode")
    of_transfer = transfers and v.disaggregation_transfer_backend == "mooncake"
    names = [name.strip() for name in (v.disaggregation_ib_device or "").split(",")]
    names = list(filter(None, names))
    looks = of_transfer or v.encoder_transfer_backend == "mooncake"
    return bool(looks and len(names) != len(set(names)))


REFUSALS = (
    # Engine._launch_scheduler_processes and DataParallelController take the first rank's answer.
    ValueRefusal(
        "--tp {tp_size}: no rank is started, and the server ends (list index out of range)",
        lambda v: v.tp_size < 1,
    ),
    ValueRefusal(
        "--pp-size {pp_size}: there is no such pipeline to start", lambda v: v.pp_size < 1
    ),
    ValueRefusal(
        "--dp {dp_size}: no replica is started, and the server ends (list index out of range)",
        lambda v: v.dp_size < 1,
    ),
    # entrypoints/engine.py: node_rank // nnodes_per_pp_rank is beyond the last stage.
    ValueRefusal(
        "--node-rank {node_rank} with --nnodes {nnodes}: nodes are counted from 0, so none of the "
        "ranks of this one belongs to the job",
        lambda v: v.ep_join_mode != "scale" and not 0 <= v.node_rank < v.nnodes,
    ),
    ValueRefusal(
        "AssertionError: tp_size must be divisible by number of nodes",
        lambda v: v.ep_join_mode != "scale" and v.tp_size * v.pp_size % v.nnodes,
    ),
    ValueRefusal(
        "AssertionError: multi-node data parallel is not supported unless dp attention!",
        lambda v: v.replicas > 1 and v.nnodes != 1,
        until="0.5.21",
    ),
    ValueRefusal(
        "AssertionError: multi-node data-parallel replicas are not supported; use attention DP "
        "(--attn-dp-size) across nodes",
        lambda v: v.replicas > 1 and v.nnodes != 1,
        since="0.5.22",
    ),
    ValueRefusal(
        "AssertionError: tp_size % dp_size == 0, with --tp {tp_size} and --dp {attention_dp} of "
        "attention",
        lambda v: v.tp_size % v.attention_dp,
    ),
    ValueRefusal(
        "ValueError: --attn-dp-size must be positive (got {attn_dp_size}).",
        lambda v: v.attn_dp_size < 1,
        since="0.5.22",
    ),
    ValueRefusal(
        "ValueError: --dp-size {dp_size} with --attn-dp-size {attn_dp_size}: data-parallel "
        "replicas combined with attention data parallelism are not supported.",
        lambda v: v.attn_dp_size > 1 and v.dp_size > 1,
        since="0.5.22",
    ),
    ValueRefusal(
        "AssertionError: Please enable dp attention when setting enable_dp_lm_head. ",
        lambda v: v.dp_size > 1 and v.enable_dp_lm_head and not v.enable_dp_attention,
        until="0.5.21",
    ),
    ValueRefusal("AssertionError: base_gpu_id must be non-negative", lambda v: v.base_gpu_id < 0),
    ValueRefusal("AssertionError: gpu_id_step must be positive", lambda v: v.gpu_id_step < 1),
    ValueRefusal(
        "AssertionError: moe_dense_tp_size only support 1 and None currently",
        lambda v: v.moe_dense_tp_size not in (None, 1),
        until="0.5.12.post1",
    ),
    ValueRefusal(
        "AssertionError: moe_dense_tp_size only supports None, 1, or tp_size currently",
        lambda v: v.moe_dense_tp_size not in (None, 1, v.tp_size),
        since="0.5.13",
    ),
    ValueRefusal(
        "AssertionError: tp_size must be divisible by attn_cp_size",
        lambda v: v.attn_cp_size > 1 and v.tp_size % v.attn_cp_size,
        since="0.5.9",
    ),
    ValueRefusal(
        "ValueError: Decode context parallel size (--dcp-size / --decode-context-parallel-size) "
        "must be >= 1, but got dcp_size={dcp_size}.",
        lambda v: v.dcp_size < 1,
        since="0.5.15",
    ),
    ValueRefusal(
        "--page-size {page_size}: the KV pool cannot be divided into pages of {page_size} tokens",
        lambda v: _outside(v.page_size, 0, 1e9),
    ),
    ValueRefusal("AssertionError: chunked_prefill_size must be divisible by page_size", _unaligned),
    # KV cache gets what is free less (1 - fraction) of the GPU: more than is free, or nothing.
    ValueRefusal(
        "torch.OutOfMemoryError: CUDA out of memory: --mem-fraction-static {mem_fraction_static:g} "
        "is more than the whole GPU (1.0)",
        lambda v: (
            v.mem_fraction_static > 1
            and v.max_total_tokens is None
            and not v.prefill_only_disable_kv_cache
        ),
    ),
    ValueRefusal(
        "no GPU memory is left for the KV cache with --mem-fraction-static {mem_fraction_static:g}",
        lambda v: v.mem_fraction_static <= 0,
    ),
    ValueRefusal(
        "AssertionError: The host memory should be larger than the device memory with the current "
        "protocol",
        lambda v: _ratio_counts(v) and v.hicache_ratio < 1,
        until="0.5.14",
    ),
    ValueRefusal(
        "--hicache-ratio {hicache_ratio:g}: a host pool of less than nothing cannot be allocated",
        lambda v: _ratio_counts(v) and v.hicache_ratio < 0,
        since="0.5.15",
    ),
    ValueRefusal(
        "ValueError: --hicache-host-memory-mode buffer_only requires a storage backend "
        "(--hicache-storage-backend)",
        lambda v: _buffer_only(v) and v.hicache_storage_backend is None,
        since="0.5.19",
    ),
    ValueRefusal(
        "ValueError: --hicache-host-memory-mode buffer_only is not supported on decode instances",
        lambda v: _buffer_only(v) and v.disaggregation_mode == "decode",
        since="0.5.19",
    ),
    ValueRefusal(
        "ValueError: --enable-unified-cache-external-linker and --enable-hierarchical-cache are "
        "mutually exclusive.",
        lambda v: v.enable_unified_cache_external_linker and v.enable_hierarchical_cache,
        since="0.5.20",
    ),
    ValueRefusal(
        "ValueError: --enable-unified-cache-external-linker does not use "
        "--hicache-storage-backend.",
        lambda v: v.enable_unified_cache_external_linker and v.hicache_storage_backend is not None,
        since="0.5.20",
    ),
    ValueRefusal(
        "ValueError: --enable-unified-cache-external-linker requires the default "
        "UnifiedRadixCache with radix caching enabled.",
        lambda v: (
            v.enable_unified_cache_external_linker
            and (v.disable_radix_cache or v.radix_cache_backend is not None)
        ),
        since="0.5.23",
    ),
    ValueRefusal(
        "ValueError: --enable-lmcache and --enable-hierarchical-cache are mutually exclusive",
        lambda v: v.enable_lmcache and v.enable_hierarchical_cache,
        since="0.5.21",
    ),
    ValueRefusal(
        "ValueError: --enable-lmcache requires radix cache to be enabled",
        lambda v: v.enable_lmcache and v.disable_radix_cache,
        since="0.5.21",
    ),
    ValueRefusal(
        "ValueError: --swa-full-tokens-ratio should be in range (0, 1.0].",
        lambda v: _outside(v.swa_full_tokens_ratio, 0, 1),
        since="0.5.7",
    ),
    ValueRefusal(
        "AssertionError: Cannot set --disaggregation-decode-tp for the decode engine.",
        lambda v: v.disaggregation_mode == "decode" and v.disaggregation_decode_tp is not None,
        until="0.5.9",
    ),
    ValueRefusal(
        "AssertionError: Prefill server does not support 'fake' as the transfer backend",
        lambda v: (
            v.disaggregation_mode == "prefill" and v.disaggregation_transfer_backend == "fake"
        ),
        since="0.5.10",
    ),
    ValueRefusal(
        "ValueError: --disaggregation-decode-retraction-backup=host_pool is only supported on a PD "
        "decode server.",
        lambda v: (
            v.disaggregation_decode_retraction_backup == "host_pool"
            and v.disaggregation_mode != "decode"
        ),
        since="0.5.18",
    ),
    ValueRefusal(
        "ValueError: Cannot set --encoder-only and --language-only together",
        lambda v: v.encoder_only and v.language_only,
        since="0.5.7",
    ),
    ValueRefusal(
        "ValueError: Cannot set --encoder-only and --disaggregation-mode prefill/decode together",
        lambda v: v.encoder_only and v.disaggregation_mode != "null",
        since="0.5.7",
    ),
    ValueRefusal(
        "AssertionError: Pipeline parallelism is not compatible with overlap schedule, speculative "
        "decoding, mixed chunked prefill.",
        lambda v: v.pp_size > 1 and (v.speculative_algorithm or v.enable_mixed_chunk),
        until="0.5.10.post1",
    ),
    ValueRefusal(
        "AssertionError: enable_mixed_chunk is required for speculative decoding",
        lambda v: v.speculative_algorithm and v.enable_mixed_chunk,
        until="0.5.18",
    ),
    ValueRefusal(
        "AssertionError: PD-Multiplexing is only supported with pipeline parallelism disabled "
        "(pp_size=1).",
        lambda v: v.enable_pdmux and v.pp_size != 1,
        since="0.5.3.post2",
    ),
    ValueRefusal(
        "AssertionError: PD-Multiplexing is not compatible with chunked prefill.",
        lambda v: v.enable_pdmux and v.chunked_prefill_size != -1,
        since="0.5.3.post2",
    ),
    ValueRefusal(
        "AssertionError: PD-Multiplexing is not compatible with disaggregation mode.",
        lambda v: v.enable_pdmux and v.disaggregation_mode != "null",
        since="0.5.3.post2",
    ),
    ValueRefusal(
        "AssertionError: To use priority scheduling, schedule_policy must be 'fcfs' or 'lof'. "
        "'{schedule_policy}' is not supported.",
        lambda v: v.enable_priority_scheduling and v.schedule_policy not in ("fcfs", "lof"),
        since="0.5.3",
    ),
    ValueRefusal(
        "AssertionError: schedule_conservativeness must be non-negative",
        lambda v: v.schedule_conservativeness < 0,
        since="0.5.5",
    ),
    ValueRefusal(
        "AssertionError: Tokenizer worker num must >= 1", lambda v: v.tokenizer_worker_num < 1
    ),
    ValueRefusal(
        "AssertionError: max_loras_per_batch must be positive", lambda v: v.max_loras_per_batch < 1
    ),
    ValueRefusal(
        "ValueError: --grpc-port ({grpc_port}) must differ from --port ({port})",
        lambda v: not (v.smg_grpc_mode or v.grpc_mode) and v.grpc_port == v.port,
        since="0.5.16",
    ),
    ValueRefusal(
        "AssertionError: served_model_name cannot contain a colon (':') character. The colon is "
        "reserved for the 'model:adapter' syntax used in LoRA adapter specification.",
        lambda v: ":" in v.served_model_name and "://" not in v.served_model_name,
        since="0.5.5.post1",
    ),
    # Later releases drop the second, and Mooncake looks for each of its devices in the list
    # (topology.cpp, listInfiniBandDevices).
    ValueRefusal(
        "ValueError: Duplicate IB devices specified: {disaggregation_ib_device}",
        _repeats_device,
        since="0.5.9",
        until="0.5.9",
    ),
    ValueRefusal(
        "ValueError: --export-metrics-to-file-dir is required when --export-metrics-to-file is "
        "enabled",
        lambda v: v.export_metrics_to_file and v.export_metrics_to_file_dir is None,
        since="0.5.5.post3",
    ),
)


def refusals(arguments: ParsedArguments, version: str) -> Iterator[str]:
    """Yield the message of each row that the values break; an unknown value breaks none."""
    values = Values(arguments)
    numbers = parse_version(version)
    for row in REFUSALS:
        before = row.since and numbers < parse_version(row.since)
        after = row.until and numbers > parse_version(row.until)
        if not before and not after and _holds(row, values):
            names = {name: getattr(values, name) for name in _named(row.says)}
            yield row.says.format(**names)


def every_release_refuses(arguments: ParsedArguments) -> bool:
    """Return whether no release that is known takes these values."""
    return all(any(refusals(arguments, version)) for version in known_releases())


def _holds(row: ValueRefusal, values: Values) -> bool:
    """Return whether a row's condition holds; an unknown or missing value makes none hold."""
    try:
        return bool(row.refused(values))
    except ZeroDivisionError:
        return True  # and so does SGLang
    except (TypeError, UnknownFactError):  # nothing is given, or by a variable
        return False


def _named(says: str) -> Iterator[str]:
    import string

    return (name for _, name, _, _ in string.Formatter().parse(says) if name)
