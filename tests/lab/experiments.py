"""What is measured in the guest: one process each, on pools of 2 MiB pages per NUMA node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
BOTH = ("0.3.13.post1", "0.3.14")


@dataclass(frozen=True)
class Experiment:
    """Processes that are all alike, but for where they are bound.

    pools: pages on each node. overcommit: nr_overcommit_hugepages. nic_nodes: of the two devices;
    empty: they have none. bound: per process, the node of its CPUs and its memory, as SGLang binds
    its ranks, or None. cpus: the node of its CPUs alone. at_once: the processes start together;
    else each waits until the one before has allocated. recorded: pages on each node, measured
    before this project existed. disagrees: where the replay is known to say something else than the
    library does, and why."""

    id: str
    release: str
    pools: tuple[int, int] = (100, 100)
    nic_nodes: tuple[int, ...] = (0, 1)
    bound: tuple[int | None, ...] = (None,)
    cpus: int | None = None
    at_once: bool = False
    arena: str = ""
    segment_bytes: int = 80 * MIB
    local_bytes: int = 16 * MIB
    protocol: str = "rdma"
    host_pools_bytes: tuple[int, ...] = ()
    hot_cache_bytes: int = 0
    hugepages: bool = True
    overcommit: int = 0
    recorded: tuple[int, int] | None = None
    disagrees: str = ""

    def environment(self) -> dict[str, str]:
        asked = {"MC_STORE_USE_HUGEPAGE": "1"} if self.hugepages else {}
        if self.arena:
            asked["MC_MMAP_ARENA_POOL_SIZE"] = self.arena
        if self.hot_cache_bytes:
            asked["MC_STORE_LOCAL_HOT_CACHE_SIZE"] = str(self.hot_cache_bytes)
            asked["MC_STORE_LOCAL_HOT_CACHE_USE_SHM"] = "1"
        return asked


def _both(name: str, **more: Any) -> tuple[Experiment, ...]:
    return tuple(Experiment(f"{name}, {release}", release, **more) for release in BOTH)


def _each(name: str, pools: Iterable[tuple[int, int]], **more: Any) -> tuple[Experiment, ...]:
    """The same processes on each of ``pools``."""
    return tuple(
        experiment
        for first, second in pools
        for experiment in _both(f"{name} on {first}/{second}", pools=(first, second), **more)
    )


RANK, TWO, APART = (0,), (0, 0), (0, 1)
LOCAL_ONLY: dict[str, Any] = {"segment_bytes": 0}
SEGMENT_ONLY: dict[str, Any] = {"local_bytes": 0}
POOL_ONLY: dict[str, Any] = {"segment_bytes": 0, "local_bytes": 0, "host_pools_bytes": (40 * MIB,)}
TCP: dict[str, Any] = {"protocol": "tcp"}
ONE_NODE: dict[str, Any] = {"nic_nodes": (0, 0)}
NOT_TOLD = "the replay does not place the pages of a process that is bound nowhere"
NO_SURPLUS = "the kernel adds no surplus pages while another node has free ones"

# No process is bound. Ids in front are those of measurements that precede this project.
UNBOUND = (
    *_both("R1 NICs on no node", nic_nodes=()),
    *_both("R2 NICs on both nodes"),
    *_both("R3 one node short", pools=(60, 4), **SEGMENT_ONLY),
    *_both("R4 arena of 100mb", arena="100mb"),
    *_both("R5 no huge pages", hugepages=False, recorded=(0, 0)),
    *_both("R6 both NICs on one node", nic_nodes=(1, 1), **SEGMENT_ONLY),
    *_both("R7 odd segment", segment_bytes=83886081, recorded=(21, 21), **SEGMENT_ONLY),
    *_both("R9 tcp", **TCP),
    *_each("split, in all", [(23, 24)]),
    *_each("split, pools exact, on node 0", [(28, 20)], cpus=0),
    *_each("split, pools exact, on node 0", [(20, 28)], cpus=0, disagrees=NOT_TOLD),
    *_each("split, either node may bear the rest", [(48, 48)]),
    *_each("host pool before a split", [(30, 100)], cpus=0, host_pools_bytes=(40 * MIB,),
        disagrees=NOT_TOLD),
    *_each("host pool spills over", [(10, 100)], cpus=0, **POOL_ONLY),
    *_each("tcp spills over", [(10, 100)], cpus=0, **TCP),
    *_each("one mapping spills over", [(10, 100)], cpus=0, **ONE_NODE),
)  # fmt: skip

# One process, bound to a node, which may be short while the other is not.
BOUND = (
    *_each("host pool", [(10, 100), (19, 100), (20, 100)], bound=RANK, **POOL_ONLY),
    *_each("local buffer", [(7, 100), (8, 100)], bound=RANK, **LOCAL_ONLY, **TCP),
    *_each("tcp segment", [(39, 100), (40, 100)], bound=RANK, **SEGMENT_ONLY, **TCP),
    *_each("tcp", [(47, 100), (48, 100)], bound=RANK, **TCP),
    *_each("tcp, arena", [(45, 100), (49, 100), (50, 100)], bound=RANK, arena="100mb", **TCP),
    *_each("NICs here", [(39, 100), (40, 100)], bound=RANK, **SEGMENT_ONLY, **ONE_NODE),
    *_each("NICs elsewhere", [(100, 47), (100, 48)], bound=(1,), **ONE_NODE),
    *_each("NICs on both",
        [(19, 100), (20, 100), (30, 100), (39, 100), (40, 100), (100, 0), (100, 19), (100, 20)],
        bound=RANK, **SEGMENT_ONLY),
    *_each("NICs on both, local", [(28, 100), (47, 100), (48, 100), (48, 0)], bound=RANK),
    *_each("NICs on both, bound to 1", [(100, 100)], bound=(1,)),
    *_each("NICs on both, arena", [(100, 100), (50, 0)], bound=RANK, arena="100mb"),
    *_each("NICs on both, small arena", [(84, 0), (85, 0)], bound=RANK, arena="90mb"),
    *_each("NICs on both, odd", [(41, 100), (42, 100)], bound=RANK, segment_bytes=83886081,
        **SEGMENT_ONLY),
    *_each("host pool, then a split", [(59, 100), (60, 100)], bound=RANK,
        host_pools_bytes=(40 * MIB,), **SEGMENT_ONLY),
    *_both("bound, no huge pages", bound=RANK, hugepages=False),
    *_each("hot cache", [(10, 100), (20, 100), (24, 100)], bound=RANK, hot_cache_bytes=32 * MIB,
        **LOCAL_ONLY),
    *_each("overcommit", [(10, 0)], bound=RANK, overcommit=100, **TCP),
    *_each("overcommit", [(10, 100)], bound=RANK, overcommit=100, disagrees=NO_SURPLUS, **TCP),
    *_each("overcommit, split", [(10, 0)], bound=RANK, overcommit=100),
)  # fmt: skip

SEVERAL = (
    *_each("two ranks", [(59, 100), (60, 100), (79, 100), (80, 0), (80, 100)], bound=TWO,
        **SEGMENT_ONLY),
    *_each("two ranks, local", [(75, 100), (76, 100)], bound=TWO),
    *_each("two ranks, tcp", [(95, 100), (96, 0)], bound=TWO, **TCP),
    *_each("two ranks apart", [(39, 39), (40, 40), (40, 59), (40, 60), (59, 60), (60, 60)],
        bound=APART, **SEGMENT_ONLY),
    *_each("two ranks apart, the other first", [(40, 60)], bound=(1, 0), **SEGMENT_ONLY),
    *_each("two ranks apart at once", [(60, 60)], bound=APART, at_once=True, **SEGMENT_ONLY),
    *_each("two ranks at once", [(60, 100), (80, 100)], bound=TWO, at_once=True, **SEGMENT_ONLY),
    *_each("two ranks at once, NICs here", [(95, 20), (96, 0)], bound=TWO, at_once=True,
        **ONE_NODE),
    *_each("bound, then not", [(60, 36), (60, 35)], bound=(0, None), cpus=0, **TCP),
    *_each("not bound, then bound", [(96, 0)], bound=(None, 0), cpus=0, **TCP),
    *_each("not bound, then bound", [(60, 100)], bound=(None, 0), cpus=0, disagrees=NOT_TOLD,
        **TCP),
    *_both("four ranks", bound=(0, 0, 1, 1), segment_bytes=32 * MIB, local_bytes=4 * MIB),
)  # fmt: skip

OLDER = tuple(
    Experiment(f"{name}, {release}", release, **more)
    for release in ("0.3.10.post2", "0.3.11.post1", "0.3.12.post1")
    for name, more in (
        ("NICs on both nodes", {}),
        ("bound", {"bound": RANK}),
        ("arena", {"arena": "100mb"}),
        ("bound, node 0 short of a split", {"bound": RANK, "pools": (47, 100)}),
    )
)

ALL = UNBOUND + BOUND + SEVERAL + OLDER
