"""Configurations that both the model and the real Mooncake library are run on.

``recorded`` are pages that were measured before this project existed (2 MiB pages, 1 GiB pages),
with the id of the measurement; a case without a record is predicted first and measured after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20
GIB = 1 << 30
ON = {"MC_STORE_USE_HUGEPAGE": "1"}
ON_1G = {**ON, "MC_STORE_HUGEPAGE_SIZE": "1GB"}


@dataclass(frozen=True)
class Client:
    segment_bytes: int = 80 * MIB
    local_buffer_bytes: int = 16 * MIB
    protocol: str = "tcp"
    # What MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES comes to; None: no SSD offload.
    offload_buffer_bytes: int | None = None


@dataclass(frozen=True)
class Case:
    """One process: its environment, what it allocates, and the pages that are free before it."""

    id: str
    environment: Mapping[str, str] = field(default_factory=lambda: dict(ON))
    host_pools_bytes: tuple[int, ...] = ()
    clients: tuple[Client, ...] = (Client(),)
    pages_2m: int = 600
    pages_1g: int = 0
    overcommit_2m: int = 0
    recorded: tuple[int, int] | None = None
    fails: str | None = None  # what the library says


def arena(size: str, **more: str) -> dict[str, str]:
    return {**ON, "MC_MMAP_ARENA_POOL_SIZE": size, **more}


def client(segment: int, local: int = 16 * MIB, **more: object) -> tuple[Client, ...]:
    return (Client(segment, local, **more),)  # type: ignore[arg-type]


def hot(size: str, shared: str = "1", **more: str) -> dict[str, str]:
    """Return the variables of a hot cache in shared memory."""
    return {
        **ON,
        "MC_STORE_LOCAL_HOT_CACHE_SIZE": size,
        "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": shared,
        **more,
    }


MAP_FAILED = "Failed to map shared memory: Cannot allocate memory"
REFUSED = "-600"
NO_MEMORY = "MemoryError"

RECORDED = (
    Case("A1 no huge pages", {}, recorded=(0, 0)),
    Case("A2 huge pages", recorded=(48, 0)),
    Case("A3 odd sizes", clients=client(83886081, 16777217), recorded=(50, 0)),
    Case("A4 host pool", host_pools_bytes=(640_000_000,), recorded=(354, 0)),
    Case("A5 four host pools", host_pools_bytes=(1, 2097152, 2097153, 5000000),
        recorded=(7 + 48, 0)),
    Case("B1 arena serves both", arena("200mb"), recorded=(100, 0)),
    Case("B2 arena fits exactly", arena("96MB"), recorded=(48, 0)),
    Case("B3 arena too small", arena("90mb"), recorded=(85, 0)),
    Case("B4 odd local", arena("97MB"), clients=client(80 * MIB, 16777217), recorded=(49, 0)),
    Case("B5 arena over the pool, host pool", arena("1100MB"), (200 * MIB,), recorded=(148, 0)),
    Case("B6 arena over the pool", arena("2gb"), recorded=(48, 0)),
    Case("B7 arena abc", arena("abc"), recorded=(48, 0)),
    Case("B8 arena 0", arena("0"), recorded=(48, 0)),
    Case("B9 arena empty", arena(""), recorded=(48, 0)),
    Case("B10 arena 200MiB", arena("200MiB"), recorded=(48, 0)),
    Case("B11 arena, no huge pages", {"MC_MMAP_ARENA_POOL_SIZE": "200mb"}, recorded=(0, 0)),
    Case("B12 arena disabled", arena("200mb", MC_DISABLE_MMAP_ARENA="1"), recorded=(48, 0)),
    Case("B13 disable maybe", arena("200mb", MC_DISABLE_MMAP_ARENA="maybe"), recorded=(100, 0)),
    Case("B14 arena 3mb", arena("3mb"), recorded=(50, 0)),
    Case("B15 arena -5", arena("-5"), recorded=(48, 0)),
    Case("B16 arena in hexadecimal", arena("0x8000000"), recorded=(64, 0)),
    Case("B17 MC_STORE_USE_HUGEPAGE=0", {"MC_STORE_USE_HUGEPAGE": "0"}, recorded=(48, 0)),
    Case("B18 MC_STORE_USE_HUGEPAGE empty", {"MC_STORE_USE_HUGEPAGE": ""}, recorded=(48, 0)),
    Case("B19 arena infinite", arena("infinite"), recorded=(48, 0)),
    Case("C1 segment short", pages_2m=40, recorded=(8, 0), fails=REFUSED),
    Case("C2 local buffer short", pages_2m=5, recorded=(0, 0), fails=NO_MEMORY),
    Case("C3 host pool short", host_pools_bytes=(20_000_000,), pages_2m=5, recorded=(0, 0),
        fails=MAP_FAILED),
    Case("C5 rdma without a NIC", clients=client(80 * MIB, protocol="rdma"), pages_2m=60,
        recorded=(48, 0)),
    Case("C6 arena starves", arena("90mb"), pages_2m=60, recorded=(45, 0), fails=REFUSED),
    Case("C7 no local buffer", clients=client(80 * MIB, 0), recorded=(40, 0)),
    Case("C8 no segment", clients=client(0), recorded=(8, 0)),
    Case("C9 neither", clients=client(0, 0), recorded=(0, 0)),
    Case("C10 segment 4 MiB", clients=client(4 * MIB, 0), recorded=(2, 0)),
    Case("C13 segment 5000 B", clients=client(5000, 0), recorded=(1, 0)),
    Case("C11 segment 4 MiB, no huge pages", {}, clients=client(4 * MIB, 0), fails=REFUSED),
    Case("D1 1 GiB pages", ON_1G, pages_1g=2, recorded=(0, 2)),
    Case("D2 1 GiB pages, host pool", ON_1G, (640_000_000,), (), pages_1g=2, recorded=(0, 1)),
    Case("D5 4MB pages", {**ON, "MC_STORE_HUGEPAGE_SIZE": "4MB"}, recorded=(48, 0)),
    Case("D6 2MiB pages", {**ON, "MC_STORE_HUGEPAGE_SIZE": "2MiB"}, recorded=(48, 0)),
    Case("D9 one 1 GiB page", ON_1G, pages_1g=1, recorded=(0, 1), fails=REFUSED),
    Case("D10 1 GiB pages, arena 64mb", {**ON_1G, "MC_MMAP_ARENA_POOL_SIZE": "64mb"}, pages_1g=2,
        recorded=(32, 1)),
    Case("D11 1 GiB pages, arena 1900mb", {**ON_1G, "MC_MMAP_ARENA_POOL_SIZE": "1900mb"},
        pages_2m=1000, pages_1g=2, recorded=(950, 1)),
    Case("D12 1 GiB pages, arena 1100mb, no local", {**ON_1G, "MC_MMAP_ARENA_POOL_SIZE": "1100mb"},
        clients=client(80 * MIB, 0), pages_1g=2, recorded=(550, 0)),
    Case("F1 hot cache", {**ON, "MC_STORE_LOCAL_HOT_CACHE_SIZE": "100000000"}, recorded=(48, 0)),
    Case("F2 hot cache in shared memory", hot("100000000"), recorded=(88, 0)),
    Case("F3 hot cache of 4GB, read as 4 bytes",
        {**ON, "MC_STORE_LOCAL_HOT_CACHE_SIZE": "4GB", "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": "1"},
        recorded=(48, 0)),
    Case("F7 shared memory 'true', read as off", hot("33554432", "true"), recorded=(48, 0)),
    Case("F8 hot cache, no huge pages",
        {"MC_STORE_LOCAL_HOT_CACHE_SIZE": "33554432", "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": "1"},
        recorded=(0, 0)),
    Case("F10 hot cache in blocks of 3e6",
        hot("30000000", MC_STORE_LOCAL_HOT_BLOCK_SIZE="3000000"), recorded=(15 + 48, 0)),
    Case("E1 SSD offload, its default buffer",
        clients=client(80 * MIB, offload_buffer_bytes=1280 * MIB), recorded=(48, 0)),
    Case("E2 SSD offload of 100 MiB",
        {**ON, "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(100 * MIB)},
        clients=client(80 * MIB, offload_buffer_bytes=100 * MIB), recorded=(48, 0)),
    Case("Z1 overcommit alone", pages_2m=0, overcommit_2m=60, recorded=(48, 0)),
)  # fmt: skip

# Three clients in one process, one arena: the cursor goes on.
THREE = (Client(32 * MIB), Client(32 * MIB), Client(32 * MIB))

# Half a page, a page, odd bytes, whole pages.
_SEGMENTS = (0, 1, 5_000_000, 32 * MIB, 50_000_001, 64 * MIB)
_ARENAS = ("", "40mb", "48mb", "3gb")


def _grid() -> tuple[Case, ...]:
    """Every segment with every arena size, host pool and local buffer going round."""
    pools = ((), (1,), (3 * MIB, 7), (10_000_000,))
    locals_ = (16 * MIB, 0, 1, 16777217)
    cases: list[Case] = []
    for segment in _SEGMENTS:
        for size in _ARENAS:
            turn = len(cases)
            pool, local = pools[turn % len(pools)], locals_[turn % len(locals_)]
            name = f"segment {segment}, arena {size or 'unset'}, local {local}, pools {pool}"
            environment = arena(size) if size else dict(ON)
            cases.append(Case(name, environment, pool, client(segment, local), pages_2m=200))
    return tuple(cases)


MORE = (
    Case("three clients, one arena", arena("100mb"), clients=THREE, recorded=(74, 0)),
    Case("three clients, no arena", clients=THREE),
    Case("three clients, arena of one", arena("48mb"), clients=THREE),
    Case("exact pool", host_pools_bytes=(20 * MIB,), pages_2m=58),
    Case("one page less", host_pools_bytes=(20 * MIB,), pages_2m=57, fails=REFUSED),
    Case("arena fits, pool exact", arena("96mb"), pages_2m=48),
    Case("arena of all pages falls back", arena("100mb"), pages_2m=49),
    Case("arena maps in the last page", arena("100mb"), pages_2m=50),
    Case("arena takes all, segment starves", arena("90mb"), pages_2m=84, fails=REFUSED),
    Case("arena and segment beside it", arena("90mb"), pages_2m=85),
    Case("arena larger than the pool, pool short", arena("1gb"), pages_2m=47, fails=REFUSED),
    Case("a hot cache that comes last falls back", hot("33554432"), (1,), client(0, 0),
        pages_2m=15),
    Case("unreadable arena, large pool", arena("abc"), pages_2m=4200),
    Case("arena as a float", arena("0.1gb")),
    Case("arena as 1e8", arena("1e8")),
    Case("arena with blanks", arena("  64 mb ")),
    Case("arena nan", arena("nan")),
    Case("disabled with on", arena("200mb", MC_DISABLE_MMAP_ARENA=" ON ")),
    Case("not disabled with off", arena("200mb", MC_DISABLE_MMAP_ARENA="off")),
    Case("page size 2097152", {**ON, "MC_STORE_HUGEPAGE_SIZE": "2097152"}),
    Case("page size 0.5gb", {**ON, "MC_STORE_HUGEPAGE_SIZE": "0.25gb"}),
    Case("page size empty", {**ON, "MC_STORE_HUGEPAGE_SIZE": ""}),
    Case("1 GiB pages, arena 2gb", {**ON_1G, "MC_MMAP_ARENA_POOL_SIZE": "2gb"}, pages_2m=1100,
        pages_1g=2),
    Case("1 GiB pages, arena over the 2 MiB pool", {**ON_1G, "MC_MMAP_ARENA_POOL_SIZE": "2gb"},
        pages_2m=100, pages_1g=2),
    Case("segment of 16 MiB less a byte, no huge pages", {}, (), client(16 * MIB - 1),
        fails="-600"),
    Case("segment of 16 MiB, no huge pages", {}, clients=client(16 * MIB)),
    Case("hot cache short of pages is dropped", hot(str(128 * MIB)), pages_2m=60),
    Case("checksums turn the hot cache off", hot("33554432", MOONCAKE_STORE_CHECKSUM="true")),
    Case("hot cache of -5 behind a blank", {**ON, "MC_STORE_LOCAL_HOT_CACHE_SIZE": " -5"},
        fails=NO_MEMORY),
    Case("arena on other pages than all else, and not there",
        {**ON_1G, "MC_MMAP_ARENA_POOL_SIZE": "16mb"}, pages_2m=7, pages_1g=2),
    Case("overcommit on top", pages_2m=20, overcommit_2m=30),
    Case("overcommit too small", pages_2m=20, overcommit_2m=27, fails=REFUSED),
)  # fmt: skip
GRID = _grid()

# What tells one row of the release table from the next, over TCP.
RELEASE_CASES = (
    Case("host pools", host_pools_bytes=(1, 5_000_000), clients=()),
    Case("odd sizes", clients=client(83886081, 16777217)),
    Case("arena that holds all", arena("200mb")),
    Case("arena that holds the local buffer", arena("90mb")),
    Case("no huge pages", {}),
    Case("short", pages_2m=20, fails=REFUSED),
    # The hot cache came with 0.3.10; 0.3.13 is the first to know the word and the checksums.
    Case("words and switches that not all know", arena("90mb", MC_DISABLE_MMAP_ARENA="enable",
        MOONCAKE_STORE_CHECKSUM="1", MC_STORE_LOCAL_HOT_CACHE_SIZE="33554432",
        MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1")),
)  # fmt: skip
