"""SGLang's own check of host memory, replayed, and the huge page counts that it lets pass.

Each rank compares each pool, before it allocates it, with
``(min(MemAvailable, cgroup headroom) - 10 GiB) // ranks on the host`` and stops where the pool is
larger. The gate does not know what a pool is backed by: memory reserved as huge pages has left
MemAvailable, so a pool that would fit in huge pages to the byte can still be refused.
Source: ``mem_cache/pool_host/base.py`` and ``mem_cache/host_memory.py`` of SGLang 0.5.23.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from checks.framework.units import GIB, format_bytes, format_need, format_page_size
from checks.framework.unknown import Unknown
from checks.releases.sglang import SglangRelease
from preflight.engines.sglang.host_pool_records import HostPool, PoolKind

# What SGLang leaves to the rest of the host (HICACHE_HOST_MEMORY_RESERVE_BYTES; every release).
RESERVE_BYTES = 10 * GIB

_INDEXER_POOLS = (PoolKind.INDEXER, PoolKind.DRAFT_INDEXER)
_INDEXER_WORDS = (
    "Not enough host memory for {name} indexer hierarchical cache. Requesting {requested} GB but "
    "only have {free} GB free."
)
_KV_WORDS = (
    "Not enough host memory available. Requesting {requested} GB but only have {free} GB free. "
    "Please reduce the size of the hierarchical cache."
)


class FreeMemory(NamedTuple):
    """The free memory that the gate reads.

    Attributes:
        headroom_bytes: Of the memory cgroup; None: no limit.
    """

    available_bytes: int
    headroom_bytes: int | Unknown | None = None


def in_container(memory: FreeMemory, limit_bytes: object) -> FreeMemory:
    """Return the free memory as a container with this limit reads it.

    None, Unknown: no limit.
    """
    if not isinstance(limit_bytes, int):
        return memory
    left = memory.headroom_bytes
    least = min(left, limit_bytes) if isinstance(left, int) else limit_bytes
    return memory._replace(headroom_bytes=least)


class GateAnswer(NamedTuple):
    """The gate's answer for one pool of one rank.

    Attributes:
        free_bytes: The memory that the pool is compared with.
        message: The error that the server prints; None if the pool is admitted.
    """

    kind: PoolKind
    requested_bytes: int
    free_bytes: int
    message: str | None


def ranks_per_host(tp: int, pp: int, nnodes: int) -> int:
    """Return the ranks that share a host's memory to SGLang: without data-parallel replicas."""
    return max(tp * pp // max(nnodes, 1), 1)


def free_bytes(memory: FreeMemory, ranks: int, release: SglangRelease) -> int:
    """Return the memory that one pool is compared with; negative below SGLang's reserve.

    A headroom that is Unknown is ignored: SGLang warns and goes by the host's memory.

    Args:
        ranks: On the host.
    """
    free = memory.available_bytes
    if release.cgroup_headroom and isinstance(memory.headroom_bytes, int):
        free = min(free, memory.headroom_bytes)
    free -= RESERVE_BYTES
    return free // ranks if release.ranks_share_memory else free


def least_free_bytes(
    pools: Sequence[HostPool], ranks: int, release: SglangRelease
) -> tuple[int, str] | None:
    """Return the least free memory with which the gate admits each pool, and its formula as text.

    Args:
        ranks: How many share the host's memory.

    Returns:
        None if no pool is checked.
    """
    requested = [each.requested_bytes for each in pools if each.requested_bytes is not None]
    if not requested:
        return None
    shares, largest = ranks if release.ranks_share_memory else 1, max(requested)
    formula = f"{largest} bytes x {shares} + 10 GiB" if shares > 1 else f"{largest} bytes + 10 GiB"
    return largest * shares + RESERVE_BYTES, formula


def auto_budget_bytes(
    memory: FreeMemory, ranks: int, release: SglangRelease, fraction: float
) -> int:
    """Return the bytes that a rank may book if SGLang sizes its pools; 0 or less: it stops."""
    return int(free_bytes(memory, ranks, release) * fraction)


def gate_booked(
    pools: Sequence[HostPool], budget_bytes: int, release: SglangRelease
) -> tuple[GateAnswer, ...]:
    """Return the gate's answers for pools that SGLang has sized by the host's memory.

    Huge and regular pages get the same answers. No memory is read anew: each pool that is admitted
    is taken off the budget (``host_memory_budget_scope``).
    """

    def booked(each: HostPool) -> int:
        return each.requested_bytes or 0

    return _answers(pools, release, lambda taken: budget_bytes - taken, booked)


def gate(
    pools: Sequence[HostPool],
    memory: FreeMemory,
    ranks: int,
    release: SglangRelease,
    earlier_regular_bytes: int = 0,
    *,
    on_hugepages: bool = False,
) -> tuple[GateAnswer, ...]:
    """Return the gate's answers for one rank's pools, up to the first refusal.

    Memory is read anew for each pool, when the rank's earlier pools are in place already:
    ``earlier_regular_bytes`` is what else has been taken since ``memory`` was read (the pools of
    ranks that were faster). Pools on huge pages take nothing more from MemAvailable.
    """

    def free(taken: int) -> int:
        taken += earlier_regular_bytes
        headroom = memory.headroom_bytes
        left = headroom - taken if isinstance(headroom, int) else headroom
        return free_bytes(FreeMemory(memory.available_bytes - taken, left), ranks, release)

    return _answers(pools, release, free, lambda each: 0 if on_hugepages else each.taken_bytes)


def _answers(
    pools: Sequence[HostPool],
    release: SglangRelease,
    free: Callable[[int], int],
    takes: Callable[[HostPool], int],
) -> tuple[GateAnswer, ...]:
    """Return the gate's answer for each pool, in their order, up to the first refusal.

    Args:
        free: Called with the bytes taken so far, returns the bytes that the next pool is compared
            with.
        takes: The bytes that a pool takes.
    """
    answers, taken = [], 0
    for each in pools:
        if each.requested_bytes is not None:
            left = free(taken)
            refused = each.requested_bytes > left
            message = _refusal(each.kind, each.requested_bytes, left, release) if refused else None
            answers.append(GateAnswer(each.kind, each.requested_bytes, left, message))
            if refused:
                break
        taken += takes(each)
    return tuple(answers)


def _refusal(what: PoolKind, requested_bytes: int, free_bytes: int, release: SglangRelease) -> str:
    """Return the ValueError's text that stops the server."""
    message = _INDEXER_WORDS if what in _INDEXER_POOLS else _KV_WORDS
    requested, free = (f"{size / 1e9:.2f}" for size in (requested_bytes, free_bytes))
    return message.format(name=release.indexer_name, requested=requested, free=free)


class FeasiblePages(NamedTuple):
    """The huge page counts of one size that cover the need and pass the gate.

    ``most`` is None if nothing bounds it from above; empty if ``most < least``.
    """

    page_size_bytes: int
    least: int
    most: int | None
    reason: str

    @property
    def empty(self) -> bool:
        return self.most is not None and self.most < self.least

    @property
    def span(self) -> str:
        """As a person reads it: ``14306 to 20000``, ``14306 to any`` or ``no number``."""
        most = "any" if self.most is None else str(self.most)
        return "no number" if self.empty else f"{self.least} to {most}"


def feasible_hugepages(
    ranks_pools: Sequence[Sequence[HostPool]],
    memory: FreeMemory,
    ranks: int,
    release: SglangRelease,
    *,
    page_size_bytes: int,
    current_pages: int,
    least_pages: int,
) -> FeasiblePages:
    """Return the numbers of huge pages with which a server starts, all its pools on huge pages.

    Args:
        ranks_pools: The pools of each rank.
        ranks: How many share the host's memory.
        memory: As read while ``current_pages`` of that size are reserved; each further page takes
            its size from MemAvailable.
        least_pages: Those that the whole host needs. The cgroup's headroom does not change with the
            pool, for reserved pages are not charged to a memory cgroup.
    """
    asked = least_free_bytes([each for pools in ranks_pools for each in pools], ranks, release)
    if asked is None:
        return FeasiblePages(page_size_bytes, least_pages, None, "no pool is checked at start")
    needed, formula = asked
    headroom = memory.headroom_bytes
    most = current_pages + (memory.available_bytes - needed) // page_size_bytes
    asks = f"SGLang asks for {format_bytes(needed)} of available memory ({formula})"
    page = format_page_size(page_size_bytes)
    reason = f"{asks}; pages of {page}"
    if release.cgroup_headroom and isinstance(headroom, int) and headroom < needed:
        asks = f"SGLang asks for {format_need(needed, headroom)} ({formula})"
        leaves = f"the memory cgroup leaves {format_bytes(headroom)}"
        most, reason = -1, f"{leaves}, {asks} whatever backs the pools"
    elif most < least_pages:
        room = f"leaves room for {max(most, 0)} pages of {page} at most"
        reason = f"{asks}, which {room}: {least_pages} are needed"
    return FeasiblePages(page_size_bytes, least_pages, max(most, -1), reason)
