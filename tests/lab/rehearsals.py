"""Launches that are rehearsed in the guest, on pools of 2 MiB pages per NUMA node; and one for fit.

``fit`` sizes the last in the guest, under a limit that nothing can lift there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.lab.rehearse_staged import Staged
from tests.real import rehearse_launches
from tests.real.rehearse_launches import LLAMA, TCP, server, standalone

ODD = "83886081"
SPLIT = ("--nic-numa-nodes", "0,1")
NOWHERE = ("--nic-numa-nodes", "none")
HUNDREDTH = ("--scale", "100")
# Within one process a value goes by a copy. Between processes it goes over soft-RoCE, which on an
# emulated machine that is busy takes longer than a rehearsal waits.
COPY: dict[str, Any] = {"MC_STORE_MEMCPY": "1"}
ARENA: dict[str, Any] = {"MC_MMAP_ARENA_POOL_SIZE": "100mb"}


@dataclass(frozen=True)
class Rehearsal:
    """One launch and what it is rehearsed on.

    pools: pages on each node. nic_nodes: of the two devices; empty: they have none. words: beside
    the launch. recorded: pages on each node, and pinned_mib pinned, measured before this program
    existed. memlock_kib: RLIMIT_MEMLOCK, as user 1000. error: what the step that ends it says.
    processes: what is rehearsed in place of a script. processors: that are online. huge_pages_safe:
    RDMAV_HUGEPAGES_SAFE is set; the guest's rdma-core is older than what does without. why: what
    the answer says of the failure besides. steps_mib: pinned after each step, by all processes."""

    id: str
    script: str
    pools: tuple[int, int] = (100, 100)
    nic_nodes: tuple[int, ...] = (0, 1)
    words: tuple[str, ...] = SPLIT
    status: str = "starts"
    recorded: tuple[int, int] | None = None
    pages: int | None = None
    pinned_mib: float | None = None
    memlock_kib: int | None = None
    error: str = ""
    release: str = "0.3.13.post1"
    processes: tuple[Staged, ...] = ()
    processors: int = 2
    huge_pages_safe: bool = True
    why: str = ""
    steps_mib: tuple[float, ...] = ()


def store(segment: str = "80mb", local: str = "16mb", **more: Any) -> str:
    return rehearse_launches.store(segment, local, **COPY, **more)


def ranks(*nodes: int, **more: Any) -> dict[str, Any]:
    """A server whose ranks are bound to ``nodes``, a hundredth of its size."""
    bound = ",".join(str(node) for node in nodes) or "none"
    words = (*SPLIT, *HUNDREDTH, "--rank-numa-nodes", bound)
    return {"script": server(tp=len(nodes) or 1, **COPY, **more), "words": words}


SIGBUS, REFUSED = "SIGBUS (exit code 135)", "setup returns -600"
NO_POOL = "RuntimeError: Failed to map shared memory: Cannot allocate memory"
# Rows that were measured before this program existed; pages of a bound share are told by node.
RECORDED = (
    Rehearsal("R1 NICs on no node", store(), nic_nodes=(), words=NOWHERE, pages=48, pinned_mib=192),
    Rehearsal("R2 NICs on both nodes", store(), pages=48, pinned_mib=192),
    Rehearsal("R3 one node short", store(local="0"), (60, 4), status="fails", error=SIGBUS),
    Rehearsal("R4 arena of 100mb", store(**ARENA), pages=90, pinned_mib=192),
    Rehearsal("R5 no huge pages", store(huge=""), recorded=(0, 0), pinned_mib=192),
    Rehearsal("R6 one NIC, on node 1", store(local="0", MOONCAKE_DEVICE="rxe1"),
        words=("--nic-numa-nodes", "1"), pages=40, pinned_mib=80),
    Rehearsal("R7 odd segment", store(ODD, "0"), recorded=(21, 21), pinned_mib=168),
    Rehearsal("R8 pieces of 32 MiB", store(local="0", MC_MAX_MR_SIZE=str(32 << 20)),
        recorded=(20, 20), pinned_mib=160),
    Rehearsal("R9 tcp", store(local="0", protocol=TCP), pages=40, pinned_mib=0),
    Rehearsal("T5 SSD offload", store("32mb", "0", MOONCAKE_OFFLOAD_ENABLED="1",
        MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES="100000001"), recorded=(8, 8), pinned_mib=254.7),
    Rehearsal("T6 hot cache", store("32mb", "0", MC_STORE_LOCAL_HOT_CACHE_SIZE=str(64 << 20)),
        recorded=(8, 8), pinned_mib=192),
    Rehearsal("T7 hot cache in shared memory", store("32mb", "0",
        MC_STORE_LOCAL_HOT_CACHE_SIZE=str(64 << 20), MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1"),
        pages=48, pinned_mib=192),
    Rehearsal("R12 arena and no local buffer", store(local="0", **ARENA), recorded=(20, 20),
        pinned_mib=160),
)  # fmt: skip
BOUND = (
    Rehearsal("a rank on node 0", **ranks(0)),
    Rehearsal("a rank on node 1", **ranks(1)),
    Rehearsal("two ranks on node 0", pools=(190, 60), **ranks(0, 0, segment="4gb")),
    Rehearsal("two ranks apart", pools=(120, 120), **ranks(0, 1)),
    Rehearsal("two ranks apart, an arena", pools=(200, 200),
        **ranks(0, 1, MC_MMAP_ARENA_POOL_SIZE="9gb")),
    Rehearsal("two ranks apart, no huge pages", **ranks(0, 1, hicache=5, huge="")),
    Rehearsal("four ranks", pools=(160, 160), **ranks(0, 0, 1, 1, hicache=5)),
    Rehearsal("a hot cache", pools=(180, 100), **ranks(0, MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1",
        MC_STORE_LOCAL_HOT_CACHE_SIZE="6400000000")),
    Rehearsal("a rank, one NIC here", **{**ranks(0, MOONCAKE_DEVICE="rxe0"),
        "words": ("--nic-numa-nodes", "0", *HUNDREDTH, "--rank-numa-nodes", "0")}),
    Rehearsal("a rank, the NIC elsewhere", **{**ranks(0, MOONCAKE_DEVICE="rxe1"),
        "words": ("--nic-numa-nodes", "1", *HUNDREDTH, "--rank-numa-nodes", "0")}),
    Rehearsal("a rank with tcp", **ranks(1, protocol=TCP)),
    Rehearsal("a rank of one latent row", **ranks(0, model=rehearse_launches.DEEPSEEK)),
    Rehearsal("a rank's pool short on its node", pools=(47, 100), status="fails", error=NO_POOL,
        **ranks(0)),
    Rehearsal("a rank's local buffer short", pools=(48, 100), status="fails",
        error="setup raises MemoryError: std::bad_alloc", **ranks(0)),
    Rehearsal("a rank's segment short at once", pools=(70, 100), status="fails", error=REFUSED,
        **ranks(0)),
    Rehearsal("a rank's segment short elsewhere", pools=(120, 10), status="fails", error=SIGBUS,
        **ranks(0)),
    Rehearsal("the second rank short", pools=(120, 69), status="fails", error=REFUSED,
        **ranks(0, 1)),
    Rehearsal("a rank with tcp short", pools=(60, 100), status="fails", error=REFUSED,
        **ranks(0, protocol=TCP)),
)  # fmt: skip
MIB32 = str(32 << 20)
UNBOUND = (
    Rehearsal("a host pool, no huge pages", **ranks(hicache=6, huge="", segment="3gb")),
    Rehearsal("mooncake_client and a rank", standalone(5, "3200MB", "0"),
        words=(*SPLIT, *HUNDREDTH)),
    Rehearsal("arena beside a split", store(MC_MMAP_ARENA_POOL_SIZE="16mb"), pages=48),
    Rehearsal("arena unreadable", store(MC_MMAP_ARENA_POOL_SIZE="200MiB"), status="warns",
        pages=48),
    Rehearsal("tcp, arena", store(protocol=TCP, **ARENA), pages=50, pinned_mib=0),
    Rehearsal("one NIC", store(MOONCAKE_DEVICE="rxe0"), words=("--nic-numa-nodes", "0"), pages=48,
        pinned_mib=96),
    Rehearsal("SSD offload, no huge pages", store(MIB32, huge="", MOONCAKE_OFFLOAD_ENABLED="1",
        MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=MIB32), recorded=(0, 0), pinned_mib=160),
    Rehearsal("in all short", store(), (23, 24), status="fails", error=REFUSED),
    Rehearsal("a segment of regular pages too small", store("8mb", huge="", protocol=TCP),
        status="fails", error=REFUSED),
    # No value gets from a store with RDMA to one with TCP.
    Rehearsal("two stores", store("40mb").replace("exec ", "").replace("5081\n",
        "5081 &\n") + store("24mb", "8mb", protocol=TCP), status="warns", pages=8 + 20 + 4 + 12),
    Rehearsal("a client alone", "export MC_STORE_USE_HUGEPAGE=1\nmooncake_client --protocol=rdma "
        "--global_segment_size=80MB --local_buffer_size=16MB --master_server_address=10.0.0.1:1\n",
        pages=48, pinned_mib=192),
    Rehearsal("a rank beside a client, halves", standalone(5, "3200MB", "0", model=LLAMA),
        words=(*SPLIT, *HUNDREDTH, "--sglang-version", "0.5.20")),
)  # fmt: skip
# Limits, as user 1000, who has no CAP_IPC_LOCK. A process pins 192 MiB.
MEMLOCK = tuple(
    Rehearsal(
        f"memlock {kib} KiB", store(), status="fails" if kib < 196608 else "starts",
        memlock_kib=kib, error=REFUSED if kib < 196608 else "",
    )
    for kib in (90000, 196607, 196608)
)  # fmt: skip
# A local buffer on regular pages begins inside a page: two NICs count two pages more.
HEAP = tuple(
    Rehearsal(
        f"memlock {kib} KiB, no huge pages", store(huge=""), status=status, memlock_kib=kib,
        error=REFUSED if status == "fails" else "",
    )
    for kib, status in ((196615, "fails"), (196616, "starts"))
)  # fmt: skip
# 2 x (16 + 32 + 32) MiB for the NICs, and 32 MiB for io_uring; up to 4 MiB more where its buffer
# has a part of a transparent huge page.
RING = tuple(
    Rehearsal(
        f"memlock {kib} KiB, io_uring", store(MIB32, MOONCAKE_OFFLOAD_ENABLED="1",
        MOONCAKE_OFFLOAD_USE_URING="1", MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=MIB32),
        status=status, memlock_kib=kib, error="setup returns" if status == "fails" else "",
    )
    for kib, status in ((196607, "fails"), (204800, "starts"))
)  # fmt: skip
HUGE = {"MC_STORE_USE_HUGEPAGE": "1"}
# libibverbs may look at the size of the pages.
SAFE = {"RDMAV_HUGEPAGES_SAFE": "1"}
MIB = 1 << 20
NEWEST = "0.3.14"


def pooled(name: str, pool_bytes: int, environment: dict[str, str], **more: Any) -> Rehearsal:
    """A rank whose store has 16 + 32 MiB, and one host pool; nothing says how huge pages end."""
    clients = ((32 * MIB, 16 * MIB),)
    rank = Staged(
        "rank", pools_bytes=(pool_bytes,), clients=clients,
        environment=tuple({**COPY, **environment}.items()),
    )  # fmt: skip
    return Rehearsal(name, "", processes=(rank,), huge_pages_safe=False, **more)


def unsafe(name: str, script: str, **more: Any) -> Rehearsal:
    return Rehearsal(name, script, huge_pages_safe=False, **more)


NOT_REGISTERED = "register_buffer of 64000000 bytes returns -600"
INSIDE = "no whole number of 2 MiB pages, which libibverbs refuses"
# Measured before: what ends inside a huge page is not registered, by an rdma-core older than 51.
FORKING = (
    pooled("T1b host pool of 64e6", 64_000_000, HUGE, pages=55, status="fails",
        error=NOT_REGISTERED, why=INSIDE),
    pooled("T1c and libibverbs looks", 64_000_000, {**HUGE, **SAFE}, pages=55, pinned_mib=218.1),
    pooled("T1d whole huge pages", 62 * MIB, HUGE, pages=55, pinned_mib=220),
    unsafe("T1e odd local buffer", store(local="16777217"), pages=9, status="fails", error=REFUSED,
        why=INSIDE),
    pooled("T2 host pool, no huge pages", 64_000_000, {}, recorded=(0, 0), pinned_mib=218.1,
        steps_mib=(0, 96, 218.1)),
    pooled("T1 the newest takes it whole", 64_000_000, HUGE, pages=55, pinned_mib=220,
        release=NEWEST),
    unsafe("W6 odd local buffer, the newest", store(local="16777217"), pages=9, status="fails",
        error=REFUSED, why=INSIDE, release=NEWEST),
    unsafe("a hot cache of odd blocks is dropped", store("32mb", "0",
        MC_STORE_LOCAL_HOT_CACHE_SIZE="30000000", MC_STORE_LOCAL_HOT_BLOCK_SIZE="3000000",
        MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1"), pages=16, pinned_mib=64, status="warns"),
    # Its mapping is not inherited already, so there is nothing to refuse.
    unsafe("an odd local buffer in an arena", store(local="16777217", **ARENA), pages=90),
    Rehearsal("T8 mooncake_client of 32 MB and a rank", "", pages=16 + 10 + 24, pinned_mib=200,
        steps_mib=(0, 64, 104, 200), processes=(Staged("client", "mooncake_client",
        clients=((32 * MIB, 0),), environment=tuple(HUGE.items()),
        arguments=("--protocol=rdma", "--global_segment_size=32MB")), Staged("rank",
        pools_bytes=(50_000_000,), clients=((0, 20_000_000),), dummy=True,
        environment=tuple({**COPY, **HUGE}.items())))),
    Rehearsal("K and V apart, the newest", pools=(120, 100), status="fails", release=NEWEST,
        error="register_buffer", why="overlapped memory region", **ranks(0)),
)  # fmt: skip
SIX: dict[str, Any] = {"nic_nodes": (), "words": NOWHERE, "pools": (1060, 1060), "processors": 6}
# From 4 GiB on a segment is registered in a block for each processor first, up to 0.3.13.
TOUCHED = (
    unsafe("X1 4 GiB and six processors", store(str(4096 * MIB), "0"), pages=2048, status="fails",
        error=REFUSED, why="first registered in 6 blocks of 715827882 B", **SIX),
    unsafe("X2 and libibverbs looks", store(str(4096 * MIB), "0", **SAFE), pages=2048,
        pinned_mib=8192, **SIX),
    unsafe("X3 6 x 704 MiB", store(str(6 * 704 * MIB), "0"), pages=2112, pinned_mib=8448, **SIX),
    unsafe("X4 4 GiB, the newest", store(str(4096 * MIB), "0"), pages=2048, pinned_mib=8192,
        release=NEWEST, **SIX),
)  # fmt: skip
# A segment for each node, of whole slabs of 16 MiB: 80 MiB is 48 on one node and 32 on the other.
BOTH_HCA = {"MC_STORE_HCA_AFFINITY": "1", "MC_STORE_HCA_NUMA_SEGMENTS": "1"}
SLABS = (
    Rehearsal("W5b a segment for each node", store(local="0", **BOTH_HCA), recorded=(24, 16),
        release=NEWEST),
    Rehearsal("W5 one of its variables alone", store(local="0", MC_STORE_HCA_NUMA_SEGMENTS="1"),
        recorded=(20, 20), release=NEWEST),
)  # fmt: skip
ALL = RECORDED + BOUND + UNBOUND + MEMLOCK + HEAP + RING + FORKING + TOUCHED + SLABS


@dataclass(frozen=True)
class Fitting:
    """One launch, sized with ``fit --goal pool --write``, then rehearsed as written and one more.

    binds: the check that stops one step more. segment_mib: what fit is to find. words: beside the
    launch. nic_nodes: of the two devices. memlock_kib: RLIMIT_MEMLOCK, as user 1000, who has no
    CAP_IPC_LOCK; None: as root. hugetlb_mib: of a cgroup, ``hugetlb.2MB.rsvd.max``. error: what one
    step more dies of. why: what rehearse says of it."""

    id: str
    script: str
    binds: str
    segment_mib: int
    nic_nodes: tuple[int, ...] = (0, 1)
    words: tuple[str, ...] = SPLIT
    memlock_kib: int | None = None
    hugetlb_mib: int | None = None
    error: str = "setup returns -600"
    why: str = "as predicted: memlock.limit"


def mib(number: int) -> int:
    """In KiB, and less than one page of 2 MiB or one step of 1 MiB more."""
    return 1024 * number + 300


# fit goes on past a limit of locked memory, which a plan lifts; that of a cgroup stops it.
FITTINGS = (
    # No limit of pinned memory: 96 MiB of huge pages, of which the local buffer takes 16.
    Fitting("hugetlb cgroup", store(), "hugetlb.cgroup-limit", 80, hugetlb_mib=97,
        why="Failed to allocate segment memory"),
)  # fmt: skip
