"""Values that SGLang's argument parser takes and the server then refuses.

What the server prints, and the releases that do, are ``data/sglang_refusals.txt``, a row each; the
conditions stand here. They are those of ``ServerArgs`` (server_args.py; from 0.5.19 on
arg_groups/*.py) and of the pools that follow from them, and depend on arguments alone. Each message
was looked for in each of the releases from 0.5.2 to 0.5.23:
tests/engines/sglang/test_conformance.py.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from checks.framework.unknown import UnknownFactError, require
from checks.releases.sglang import parse_version
from preflight.base.program import data_file
from preflight.engines.programs.sglang_argument_tables import known_releases
from preflight.engines.programs.sglang_arguments import ParsedArguments


class Values:
    """The values of arguments as attributes; None for one that the release lacks, or that nobody
    wrote and that has no default.

    Reading a value that is not known raises UnknownFactError.
    """

    def __init__(self, arguments: ParsedArguments) -> None:
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        return require(self._arguments.value(name)) if name in self._arguments.settings else None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def attention_dp(self) -> int:
        """Data-parallel groups inside the tensor-parallel group, by --attn-dp-size or by --dp-size
        with --enable-dp-attention.
        """
        if self.enable_dp_attention and self.attn_dp_size in (None, 1):
            return int(self.dp_size)
        return 1 if self.attn_dp_size is None else int(self.attn_dp_size)

    @property
    def replicas(self) -> int:
        return 1 if self.enable_dp_attention else int(self.dp_size)

    @property
    def links(self) -> bool:
        return bool(self.enable_unified_cache_external_linker)

    @property
    def decodes(self) -> bool:
        return bool(self.disaggregation_mode == "decode")


# Attention backends that leave --page-size as it is; others make it a multiple of 16.
_KEEP_PAGES = ("triton", "fa3", "flashinfer", "torch_native")


def _unaligned(v: Values) -> bool:
    chunk = v.chunked_prefill_size
    if chunk <= 0 or v.page_size < 1 or v.decodes:
        return False
    chunk //= v.attention_dp
    return bool(chunk % v.page_size and (chunk % 16 or v.attention_backend in _KEEP_PAGES))


def _outside(value: float | None, least: float, most: float) -> bool:
    """Return whether a value is given and is not in (least, most]."""
    return value is not None and not least < value <= most


def _ratio_counts(v: Values) -> bool:
    """Return whether --hicache-ratio decides how large the host pool is."""
    ratio = v.enable_hierarchical_cache and v.hicache_size <= 0
    return bool(ratio and not v.decodes)


def _buffer_only(v: Values) -> bool:
    return bool(v.enable_hierarchical_cache and v.hicache_host_memory_mode == "buffer_only")


def _repeats_device(v: Values) -> bool:
    """Tell whether a device for Mooncake's transfers is named twice (_validate_ib_devices)."""
    transfers = v.disaggregation_mode in ("prefill", "decode")
    of_transfer = transfers and v.disaggregation_transfer_backend == "mooncake"
    names = [name.strip() for name in (v.disaggregation_ib_device or "").split(",")]
    names = list(filter(None, names))
    looks = of_transfer or v.encoder_transfer_backend == "mooncake"
    return bool(looks and len(names) != len(set(names)))


def _beyond_gpu(v: Values) -> bool:
    """Return whether --mem-fraction-static decides the GPU pool, and is more than the GPU."""
    fills = v.max_total_tokens is None and not v.prefill_only_disable_kv_cache
    return bool(fills and v.mem_fraction_static > 1)


_BROKEN: Mapping[str, Callable[[Values], Any]] = {
    # Engine._launch_scheduler_processes and DataParallelController take the first rank's answer.
    "tp-zero": lambda v: v.tp_size < 1,
    "pp-zero": lambda v: v.pp_size < 1,
    "dp-zero": lambda v: v.dp_size < 1,
    # entrypoints/engine.py: node_rank // nnodes_per_pp_rank is beyond the last stage.
    "node-rank": lambda v: v.ep_join_mode != "scale" and not 0 <= v.node_rank < v.nnodes,
    "ranks-by-hosts": lambda v: v.ep_join_mode != "scale" and v.tp_size * v.pp_size % v.nnodes,
    "dp-over-hosts": lambda v: v.replicas > 1 and v.nnodes != 1,
    "ranks-by-dp": lambda v: v.tp_size % v.attention_dp,
    "attn-dp-zero": lambda v: v.attn_dp_size < 1,
    "dp-beside-attn-dp": lambda v: v.attn_dp_size > 1 and v.dp_size > 1,
    "lm-head": lambda v: v.dp_size > 1 and v.enable_dp_lm_head and not v.enable_dp_attention,
    "base-gpu": lambda v: v.base_gpu_id < 0,
    "gpu-step": lambda v: v.gpu_id_step < 1,
    "moe-dense-tp": lambda v: v.moe_dense_tp_size not in (None, 1),
    "moe-dense-tp-own": lambda v: v.moe_dense_tp_size not in (None, 1, v.tp_size),
    "attn-cp": lambda v: v.attn_cp_size > 1 and v.tp_size % v.attn_cp_size,
    "dcp-zero": lambda v: v.dcp_size < 1,
    "page-size": lambda v: _outside(v.page_size, 0, 1e9),
    "unaligned": _unaligned,
    # KV cache gets what is free less (1 - fraction) of the GPU: more than is free, or nothing.
    "whole-gpu": _beyond_gpu,
    "no-gpu": lambda v: v.mem_fraction_static <= 0,
    "ratio-below-1": lambda v: _ratio_counts(v) and v.hicache_ratio < 1,
    "ratio-below-0": lambda v: _ratio_counts(v) and v.hicache_ratio < 0,
    "buffer-only-store": lambda v: _buffer_only(v) and v.hicache_storage_backend is None,
    "buffer-only-decode": lambda v: _buffer_only(v) and v.decodes,
    "linker-hicache": lambda v: v.links and v.enable_hierarchical_cache,
    "linker-store": lambda v: v.links and v.hicache_storage_backend is not None,
    "linker-radix": lambda v: (
        v.links and (v.disable_radix_cache or v.radix_cache_backend is not None)
    ),
    "lmcache-hicache": lambda v: v.enable_lmcache and v.enable_hierarchical_cache,
    "lmcache-radix": lambda v: v.enable_lmcache and v.disable_radix_cache,
    "swa-ratio": lambda v: _outside(v.swa_full_tokens_ratio, 0, 1),
    "decode-tp": lambda v: v.decodes and v.disaggregation_decode_tp is not None,
    "fake-prefill": lambda v: (
        v.disaggregation_mode == "prefill" and v.disaggregation_transfer_backend == "fake"
    ),
    "backup-mode": lambda v: (
        v.disaggregation_decode_retraction_backup == "host_pool" and not v.decodes
    ),
    "encoder-language": lambda v: v.encoder_only and v.language_only,
    "encoder-mode": lambda v: v.encoder_only and v.disaggregation_mode != "null",
    "pp-overlap": lambda v: v.pp_size > 1 and (v.speculative_algorithm or v.enable_mixed_chunk),
    "mixed-chunk": lambda v: v.speculative_algorithm and v.enable_mixed_chunk,
    "pdmux-pp": lambda v: v.enable_pdmux and v.pp_size != 1,
    "pdmux-chunks": lambda v: v.enable_pdmux and v.chunked_prefill_size != -1,
    "pdmux-mode": lambda v: v.enable_pdmux and v.disaggregation_mode != "null",
    "priority-policy": lambda v: (
        v.enable_priority_scheduling and v.schedule_policy not in ("fcfs", "lof")
    ),
    "conservativeness": lambda v: v.schedule_conservativeness < 0,
    "tokenizers": lambda v: v.tokenizer_worker_num < 1,
    "loras": lambda v: v.max_loras_per_batch < 1,
    "grpc-port": lambda v: not (v.smg_grpc_mode or v.grpc_mode) and v.grpc_port == v.port,
    "served-name": lambda v: ":" in v.served_model_name and "://" not in v.served_model_name,
    # Later releases drop the second, and Mooncake looks for each of its devices in the list
    # (topology.cpp, listInfiniBandDevices).
    "ib-device": _repeats_device,
    "metrics-dir": lambda v: v.export_metrics_to_file and v.export_metrics_to_file_dir is None,
}


class ValueRefusal(NamedTuple):
    """A reason to refuse values.

    Attributes:
        says: SGLang's message, with values in braces.
        since, until: The first and last release that refuses, or "".
        broken: Tells if values are refused.
    """

    says: str
    since: str
    until: str
    broken: Callable[[Values], Any]


@cache
def refusal_rows() -> tuple[ValueRefusal, ...]:
    """Return the rows of ``data/sglang_refusals.txt`` in their order, each with its condition."""
    with open(data_file("sglang_refusals.txt"), encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(" ", 3) for line in file if not line.startswith("#")]
    return tuple(
        ValueRefusal(says, since.strip("-"), until.strip("-"), _BROKEN[name])
        for name, since, until, says in rows
    )


def refusals(arguments: ParsedArguments, version: str) -> Iterator[str]:
    """Yield each message with which SGLang ``version`` refuses the values that are known."""
    values = Values(arguments)
    numbers = parse_version(version)
    for row in refusal_rows():
        before = row.since and numbers < parse_version(row.since)
        after = row.until and numbers > parse_version(row.until)
        if not before and not after and _holds(row, values):
            yield row.says.format_map(values)


def every_release_refuses(arguments: ParsedArguments) -> bool:
    """Tell whether each known release of SGLang refuses the values, for any reason."""
    return all(any(refusals(arguments, version)) for version in known_releases())


def _holds(row: ValueRefusal, values: Values) -> bool:
    """Tell whether a row's condition holds; False if a value that it needs is unknown or missing.

    A condition that divides by 0 holds, as SGLang then ends too.
    """
    try:
        return bool(row.broken(values))
    except ZeroDivisionError:
        return True  # and so does SGLang
    except (TypeError, UnknownFactError):  # nothing is given, or by a variable
        return False
