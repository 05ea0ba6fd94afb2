"""Rules about disaggregation: prefill, decode and encoder servers, and the pools that they keep."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.processes.processes import SglangServer
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_ENGINE = "SGLang 0.5.23 distributed/device_communicators/mooncake_transfer_engine.py"


@RULES.server(
    "hicache-with-radix-disabled",
    Severity.FAIL,
    "hierarchical cache where SGLang turns the radix cache off",
    "the server refuses to start",
    "drop --disable-radix-cache; on a decode server add --disaggregation-decode-enable-radix-cache",
    "SGLang 0.5.23 arg_groups/kv_cache_hook.py, pd_disaggregation_hook.py",
)
def hicache_with_radix_disabled(server: SglangServer) -> Iterator[Seen]:
    if not server.hicache:
        return
    if server.value("disable_radix_cache") is True:
        yield Seen("--enable-hierarchical-cache with --disable-radix-cache")
    decode_radix = server.value("disaggregation_decode_enable_radix_cache")
    if server.mode == "decode" and decode_radix is not True:
        yield Seen(
            "--enable-hierarchical-cache on a decode server, whose radix cache is off without "
            "--disaggregation-decode-enable-radix-cache"
        )


@RULES.server(
    "decode-offload-misplaced",
    Severity.FAIL,
    "--disaggregation-decode-enable-offload-kvcache where SGLang does not allow it",
    "the server refuses to start",
    "use it with --disaggregation-mode decode and a --hicache-storage-backend",
    "SGLang 0.5.23 arg_groups/kv_cache_hook.py",
)
def decode_offload_misplaced(server: SglangServer) -> Iterator[Seen]:
    if server.value("disaggregation_decode_enable_offload_kvcache") is not True:
        return
    if server.mode != "decode":
        yield Seen(f"decode offload with --disaggregation-mode {server.mode}")
    elif server.value("hicache_storage_backend") is None:
        yield Seen("decode offload without --hicache-storage-backend")
    extra = server.value("hicache_storage_backend_extra_config")
    if isinstance(extra, str) and extra.startswith("@"):
        yield Seen(f"decode offload reads the extra config as JSON alone: {extra!r} is refused")


@RULES.server(
    "decode-host-pool",
    Severity.NOTE,
    "a decode server, which keeps a host pool without any HiCache flag",
    "about a fifth of its KV cache is pinned in host memory (SGLang 0.5.18: all of it)",
    "count it; --hicache-ratio and --hicache-size set it",
    "SGLang 0.5.23 mem_cache/kv_cache_builder.py",
)
def decode_host_pool(server: SglangServer) -> Iterator[Seen]:
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    if server.mode == "decode" and not server.hicache and not offloads:
        yield Seen("--disaggregation-mode decode keeps a retraction pool in host memory")


@RULES.server(
    "ib-device-unchecked",
    Severity.NOTE,
    "--disaggregation-ib-device on a server without disaggregation",
    "SGLang checks the names only with prefill, decode or an encoder; here a wrong one goes unseen",
    "check them against ibv_devices",
    "SGLang 0.5.23 arg_groups/pd_disaggregation_hook.py",
)
def ib_device_unchecked(server: SglangServer) -> Iterator[Seen]:
    device = server.value("disaggregation_ib_device")
    if device is not None and server.store and server.mode == "null":
        yield Seen("--disaggregation-ib-device is not checked without --disaggregation-mode")


@RULES.server(
    "pd-registration-silent",
    Severity.NOTE,
    "disaggregation over Mooncake",
    "a KV buffer that cannot be registered is only a debug line: the server starts, transfers fail",
    "start once with --log-level debug and look for 'Mooncake memory registration'",
    _ENGINE,
)
def pd_registration_silent(server: SglangServer) -> Iterator[Seen]:
    backend = server.value("disaggregation_transfer_backend")
    if server.mode in ("prefill", "decode") and backend == "mooncake":
        yield Seen(f"--disaggregation-mode {server.mode} with the transfer backend mooncake")


@RULES.server(
    "embedding-store-per-process",
    Severity.WARN,
    "--enable-mm-global-cache on an encoder over Mooncake",
    "each encoder process contributes global_segment_size in full: it is divided by no rank",
    "divide global_segment_size by the processes, or set it to 0 and start a store service",
    "SGLang 0.5.23 mem_cache/storage/mooncake_store/mooncake_embedding_store.py, encoder/server.py",
)
def embedding_store_per_process(server: SglangServer) -> Iterator[Seen]:
    cached = server.value("enable_mm_global_cache") is True
    backend = server.value("mm_global_cache_backend")
    if not cached or server.value("encoder_only") is not True or backend != "mooncake":
        return
    word, ranks = server.environment.get("MOONCAKE_GLOBAL_SEGMENT_SIZE"), server.number("tp_size")
    size = "4gb, SGLang's default," if word is None else word.text
    if size != "0":
        count = ranks if isinstance(ranks, int) else "several"
        yield Seen(f"global_segment_size {size} for each of {count} encoder processes")
