"""What is measured within a budget of time and memory: which part gets how much, in which sizes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from checks.base.units import GIB, KIB, MIB, format_page_size, round_up
from preflight.measuring.orders import HEAD_BYTES

# In the order in which they are measured, each with its share of the time.
SHARES = {"memory": 2, "transfer": 5, "store": 4, "registration": 2, "storage": 3}
PARTS = tuple(SHARES)
LEAST_BUDGET_SECONDS, LEAST_SPEND_BYTES = 5.0, 64 * MIB
DEFAULT_SPEND_BYTES = 2048 * MIB
# An object of the store where no launch says its size; and how many SGLang hands over in one call.
USUAL_OBJECT_BYTES, TOGETHER = MIB, 16
# No rate changes any more behind so many calls.
MOST_CALLS = 20_000
_TRANSFERRED = (64 * KIB, MIB, 16 * MIB, 64 * MIB)
# A smaller segment is refused on regular pages; a client's own buffer.
_LEAST_SEGMENT_BYTES, LOCAL_BUFFER_BYTES = 32 * MIB, 16 * MIB


def deadlines(parts: Sequence[str], budget_seconds: float) -> dict[str, float]:
    """Return, for each part, the seconds from the start at which it has to end."""
    ends = [sum(SHARES[each] for each in parts[: number + 1]) for number in range(len(parts))]
    return {part: budget_seconds * end / ends[-1] for part, end in zip(parts, ends, strict=True)}


def slice_seconds(left_seconds: float, items: int) -> float:
    """Return an equal share of the time that is left, in seconds, but at least 0.05."""
    return max(0.05, left_seconds / max(1, items))


class Populating(NamedTuple):
    """Memory of one page size (0: regular) on one node (None: anywhere), piece by piece."""

    page_bytes: int
    node: int | None
    bytes: int
    chunk_bytes: int

    @property
    def what(self) -> str:
        return pages_text(self.page_bytes) + ("" if self.node is None else f", node {self.node}")


def pages_text(page_bytes: int) -> str:
    """Return ``2 MiB pages``, or ``regular pages`` for 0."""
    return f"{format_page_size(page_bytes) if page_bytes else 'regular'} pages"


def populating(
    free_bytes: Mapping[tuple[int, int | None], int], spend_bytes: int
) -> list[Populating]:
    """Choose the memory to populate. free_bytes: what may be taken, by page size and node.

    Half of the free huge pages are left for processes that start meanwhile.
    """
    found = []
    for (page, node), free in free_bytes.items():
        size = min(spend_bytes, free // 2 if page else free)
        chunk = min(size, max(page, 64 * MIB))
        chunk -= chunk % page if page else 0
        if chunk > 0:
            found.append(Populating(page, node, size // chunk * chunk, chunk))
    return found


def transfer_sizes(object_bytes: int | None, spend_bytes: int) -> list[int]:
    """Return the sizes to transfer, small enough that two buffers fit in ``spend_bytes``."""
    wanted = {*_TRANSFERRED, object_bytes or MIB}
    return sorted(size for size in wanted if 2 * (size + HEAD_BYTES) <= spend_bytes)


def transfer_buffer_bytes(sizes: Sequence[int], spend_bytes: int) -> int:
    """Return a buffer size for two of the largest transfers, at most half of ``spend_bytes``."""
    return min(round_up(2 * max(sizes) + HEAD_BYTES, MIB), spend_bytes // 2 // MIB * MIB)


class StorePlan(NamedTuple):
    """together: objects in one call, beside one by one. most_objects: before any is evicted."""

    object_bytes: int
    segment_bytes: int
    together: int
    most_objects: int


def store_plan(object_bytes: int | None, spend_bytes: int) -> StorePlan | None:
    """Plan a store within ``spend_bytes``; None if the objects are too large for it."""
    size = object_bytes or USUAL_OBJECT_BYTES
    together = max(1, min(TOGETHER, spend_bytes // 8 // size))
    segment = min(GIB, spend_bytes - together * size - LOCAL_BUFFER_BYTES) // MIB * MIB
    # The master evicts from 95 % on (eviction_high_watermark_ratio); bins round objects up.
    most = int(segment * 0.7) // size
    fits = segment >= _LEAST_SEGMENT_BYTES and most >= 2 * together
    return StorePlan(size, segment, together, most) if fits else None
