"""Pages, and whose they are: the records that the replay, the fit and the checks share."""
# No annotations from __future__ here: NamedTuple would compile each of them anew at every start.

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Spot(NamedTuple):
    """Where pages come from: one page size, on one NUMA node or (``None``) on any."""

    page_size_bytes: int
    node: int | None
    among: tuple[int, ...] = ()  # on any of these NUMA nodes, if they are several and not all

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the NUMA nodes that may give the pages; () if any node may."""
        return self.among if self.node is None else (self.node,)

    def gives(self, other: "Spot") -> bool:
        """Tell whether pages of ``other`` count as pages of this spot too.

        They do if their size is equal, and this spot is on any node or on exactly the same nodes.
        """
        return (other.page_size_bytes == self.page_size_bytes) and self.nodes in ((), other.nodes)

    @property
    def where(self) -> str:
        """Text that follows a count of pages: ``" on node 1"``, ``" on nodes 0, 2"`` or ""."""
        listed = ", ".join(map(str, self.nodes))
        return f" on node{'s' * (len(self.nodes) > 1)} {listed}" if listed else ""


Pages = Mapping[Spot, int]


class Usage(NamedTuple):
    """What one process takes, in pages."""

    process: str
    mapped: Pages  # with its arena mapped (or with no arena asked for)
    dropped: Pages  # if its arena cannot be mapped, so that each buffer has a mapping
    serves_all: bool  # the arena, once mapped, holds all that would otherwise be mapped directly
    headroom: Pages  # free pages that a node must show for a moment, beyond those kept
    arena: Mapping[Spot, int] = {}  # of mapped, the arena's own mapping, had whole or not at all
    touched: Mapping[Spot, int] = {}  # what it uses if its arena is not filled to its end


def own_allocator(process: str) -> str:
    """Return the name of the ``Usage`` of SGLang's second allocator in a process."""
    return f"{process}, own allocator"


class MemoryKind(str, Enum):
    """The purpose of a piece of a launch's memory; a text with the same name in every answer."""

    HOST_POOL = "L2 host pool"
    HOT_CACHE = "hot cache"
    LOCAL_BUFFER = "local buffer"
    ARENA = "arena"
    SEGMENT = "global segment"
    OFFLOAD_BUFFER = "SSD offload buffer"
    PD_METADATA = "PD metadata"
    CPU_POOL = "CPU pool"

    def __str__(self) -> str:
        return self.value

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)


class ProcessId(NamedTuple):
    """Identifies a process of a launch: the number of its command, and the rank within that."""

    command: int = 0
    rank: int = 0


class Region(NamedTuple):
    """Host memory that is handed to ``ibv_reg_mr`` whole, on every NIC in use."""

    what: str
    bytes: int  # the registered length
    page_bytes: int  # the size of its pages (4096, 2 MiB, 1 GiB)
    offset_bytes: int = 0  # where in a page it begins; if unknown, what takes the most pages
    dontfork: bool = False  # the mapping has MADV_DONTFORK already: libibverbs changes nothing


class Default(str):
    """The origin of a value that nobody wrote: a text that says whose default the value is."""

    __slots__ = ()
