"""Rules about how SGLang fills its host pools and pins them for the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.units import GIB, format_bytes
from preflight.processes.processes import SglangServer
from preflight.rules.rules import RuleSet, Seen, Severity, Versions
from preflight.sglang.launch import own_allocator, plain_environment

RULES = RuleSet()
_PINS = "SGLang mem_cache/pool_host/common.py _cuda_host_register and its forerunners, every wheel"
_CHUNK_VARIABLE, _CHUNK_GIB = "SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB", 256
# 16 bytes of the driver's for each 4 KiB page, in one kvzalloc, which Linux caps at INT_MAX.
_DRIVER_CALL_BYTES = 512 * GIB
# MAP_POPULATE of 4 KiB pages by one thread, as the pool's allocator does it, on a two-socket host
# with 2 TiB; 2.6 GB/s on another one.
_POPULATE_BYTES_PER_SECOND = 3.1e9
_LONG_SECONDS = 60


@RULES.memory(
    "pin-result-ignored",
    Severity.NOTE,
    "an SGLang that does not look at whether its host pools were pinned",
    "before 0.5.13 the result of cudaHostRegister is ignored: where the driver refuses, the pool "
    "is not pinned, nobody is told, and transfers may bring stale data",
    "take SGLang 0.5.13 or newer, which stops with cudaHostRegister failed",
    f"{_PINS}: 0.5.4.post2 to 0.5.12.post1; SGLang #26301",
)
def pin_result_ignored(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    sglang = versions.sglang
    blind = sglang.pins_itself and not sglang.looks_at_pinning
    if _pins(server) and blind and not versions.sglang_unsure:
        yield Seen("the L2 pools are pinned by a call whose result nobody reads")


@RULES.memory(
    "pinned-in-one-call",
    Severity.WARN,
    "an L2 pool of 512 GiB or more that is pinned in one call",
    "NVIDIA drivers from 580 on refuse it: one call's page table would be 2 GiB, more than the "
    "kernel gives (NVRM: failed to allocate page table); SGLang then stops with cudaHostRegister "
    "failed, before 0.5.13 without a word",
    "a smaller --hicache-size; from SGLang 0.5.19 on a page_first layout, with "
    f"{_CHUNK_VARIABLE} at {_CHUNK_GIB}, its default, or less",
    f"{_PINS}; NVIDIA open-gpu-kernel-modules #1234, LMCache #5177: 510 GiB pass, 512 do not",
)
def pinned_in_one_call(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    size = server.value("hicache_size")
    if not _pins(server) or not versions.sglang.pins_itself or not isinstance(size, int):
        return
    whole_bytes, chunk_bytes = size * 10**9, _chunk_bytes(server, versions)
    call_bytes = whole_bytes if chunk_bytes is None else min(whole_bytes, chunk_bytes)
    if call_bytes >= _DRIVER_CALL_BYTES:
        yield Seen(f"--hicache-size {size}: {format_bytes(call_bytes)} in one call")


@RULES.memory(
    "populate-takes-long",
    Severity.NOTE,
    "an L2 pool on 4 KiB pages that takes a minute and more to fill",
    "each rank fills its pool with one thread before it serves: a probe or a timeout that does not "
    "wait for that ends the server",
    "give probes and timeouts the time, or put L2 on huge pages, which fill about three times as "
    "fast",
    "Mooncake shm_helper.cpp (MAP_POPULATE); the rates are estimates, of other people's hosts: 3.1 "
    "GB/s in Mooncake #3939, 2.6 in #3563; on 2 MiB pages 9.7 in #2838",
)
def populate_takes_long(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    size = server.value("hicache_size")
    if server.store is None or not server.hicache or not isinstance(size, int):
        return
    own = own_allocator(server, versions.sglang, versions.mooncake)
    if own is not None or "MC_STORE_USE_HUGEPAGE" in server.environment:
        return
    seconds = size * 10**9 / _POPULATE_BYTES_PER_SECOND
    if seconds >= _LONG_SECONDS:
        yield Seen(f"--hicache-size {size}: about {seconds:.0f} s, at an estimated 3.1 GB/s")


def _pins(server: SglangServer) -> bool:
    return server.hicache and server.value("device") != "cpu"


def _chunk_bytes(server: SglangServer, versions: Versions) -> int | None:
    """The most that one call pins; None for a whole pool."""
    layout = server.value("hicache_mem_layout")
    if not versions.sglang.pins_in_chunks or layout == "layer_first":
        return None
    text = plain_environment(server.environment).get(_CHUNK_VARIABLE, "")
    try:
        chunk_gib = int(text) if text else _CHUNK_GIB
    except ValueError:  # SGLang warns and takes its default
        chunk_gib = _CHUNK_GIB
    return max(1, chunk_gib) * GIB
