"""Which registrations of a rehearsal are predicted to be refused, and what stays mapped then.

Measured on soft-RoCE with rdma-core 44: setup returns -600 with what it has mapped so far still
there, until the process ends; a hot cache is given back, and setup goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.needs import Region
from checks.rdma.fork import DROPPED, VARIABLE, Forking, bad_end
from preflight.mooncake.allocations import Allocation, Backing, Outcome, mappings, regions_of, whole

_CODE = "-600"


def refusal(region: Region, forking: Forking | None) -> str:
    """Why ``region`` is refused, "" where it is not, or where that is not known."""
    found = "" if forking is None else bad_end(region, forking)
    if not isinstance(found, str) or not found:
        return ""
    return f"{found}, which libibverbs refuses (set {VARIABLE}=1)"


def is_dropped(region: Region, forking: Forking | None) -> bool:
    """Whether it is refused, and Mooncake does without it."""
    return region.what == DROPPED and bool(refusal(region, forking))


def until_refused(
    allocations: Iterable[Allocation], forking: Forking | None
) -> tuple[tuple[Allocation, ...], str]:
    """What one store client maps until a registration is refused, and why that is; "" for none.

    Each is registered before the next is mapped.
    """
    done: list[Allocation] = []
    for shares in mappings(allocations):
        mapped = whole(shares)
        why = next(filter(None, (refusal(part, forking) for part in regions_of(mapped))), "")
        if not why or mapped.outcome is not Outcome.TAKEN:
            done += shares
        elif mapped.what == DROPPED:
            error = f"it is given back: {why}"
            done.append(_without_pages(mapped)._replace(outcome=Outcome.FELL_BACK, error=error))
        else:
            error = f"setup returns {_CODE}: {why}"
            done += shares[:-1]
            done.append(shares[-1]._replace(outcome=Outcome.FAILED, error=error))
            return tuple(done), why
    return tuple(done), ""


def refused_registration(
    pool: Allocation, part: int, size_bytes: int, forking: Forking | None, whole_pools: bool
) -> tuple[tuple[Allocation, ...], str]:
    """The same for a host pool that is there already, or for the ``part``-th of its halves.

    ``whole_pools``: Mooncake registers all of a pool, whatever part of it is handed over.
    """
    parts = list(regions_of(pool))
    why = refusal(parts[part], forking) if part < len(parts) else ""
    if part and whole_pools and pool.backing is Backing.MEMFD_HUGETLB:
        why = "Mooncake registered the whole pool for K, and refuses V, which lies in it"
    if not why:
        return (), ""
    error = f"register_buffer of {size_bytes} bytes returns {_CODE}"
    return (_without_pages(pool)._replace(outcome=Outcome.FAILED, error=error),), why


def _without_pages(mapped: Allocation) -> Allocation:
    return mapped._replace(backing=Backing.NONE, pages=0)
