"""Rules about disaggregation: prefill, decode and encoder servers, their pools and threads."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.processes.processes import SglangServer
from preflight.rules.rules import RuleSet, Seen

RULES = RuleSet("disaggregation")
_POOL, _QUEUES = "SGLANG_DISAGGREGATION_THREAD_POOL_SIZE", "SGLANG_DISAGGREGATION_QUEUE_SIZE"
# environ.py; conn.py, without the variable: min(max(4, CPUs / 2 // 8), 12).
DEFAULT_QUEUES, MOST_THREADS = 4, 12


@RULES.server("hicache-with-radix-disabled")
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


@RULES.server("decode-offload-misplaced")
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


@RULES.server("decode-host-pool")
def decode_host_pool(server: SglangServer) -> Iterator[Seen]:
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    if server.mode == "decode" and not server.hicache and not offloads:
        yield Seen("--disaggregation-mode decode keeps a retraction pool in host memory")


@RULES.server("ib-device-unchecked")
def ib_device_unchecked(server: SglangServer) -> Iterator[Seen]:
    device = server.value("disaggregation_ib_device")
    if device is not None and server.store and server.mode == "null":
        yield Seen("--disaggregation-ib-device is not checked without --disaggregation-mode")


@RULES.server("pd-registration-silent")
def pd_registration_silent(server: SglangServer) -> Iterator[Seen]:
    backend = server.value("disaggregation_transfer_backend")
    if server.mode in ("prefill", "decode") and backend == "mooncake":
        yield Seen(f"--disaggregation-mode {server.mode} with the transfer backend mooncake")


@RULES.server("embedding-store-per-process")
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


@RULES.server("transfer-threads-too-few")
def transfer_threads_too_few(server: SglangServer) -> Iterator[Seen]:
    if server.mode != "prefill" or server.value("disaggregation_transfer_backend") != "mooncake":
        return
    written = server.environment.get(_POOL) or server.environment.get(_QUEUES)
    if written is None:
        return
    queues = _number(server, _QUEUES, DEFAULT_QUEUES)
    threads = _number(server, _POOL, MOST_THREADS)
    if queues is not None and threads is not None and threads < queues:
        least = "" if _POOL in server.environment else f" at most, as {_POOL} is not set"
        count = f"{threads} thread{'s' * (threads != 1)}{least}"
        yield Seen(f"{count}, for {queues} queues", written.origin)


def _number(server: SglangServer, name: str, default: int) -> int | None:
    """What SGLang makes of a variable; None where it cannot be told here."""
    word = server.environment.get(name)
    if word is None or word.text == "":
        return default if word is None else None
    text = word.text.strip()
    return int(text) if not word.unresolved and text.isdecimal() and len(text) < 10 else None
