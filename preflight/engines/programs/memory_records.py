"""What will run on one host, as plain records: processes, and the memory that each asks for.

Nothing here reads a machine or a command line; sizes are bytes as asked for, before any rounding.
"""

from enum import Enum
from typing import NamedTuple

from checks.framework.pages import ProcessId
from checks.framework.units import GIB, MIB
from checks.releases.mooncake import MooncakeRelease

# SGLang's DEFAULT_LOCAL_BUFFER_SIZE (mem_cache/storage/mooncake_store/mooncake_store.py), fixed
# since 0.5.6; MOONCAKE_LOCAL_BUFFER_SIZE does not change it.
SGLANG_LOCAL_BUFFER_BYTES = 16 * MIB


class Protocol(Enum):
    RDMA = "rdma"
    TCP = "tcp"


class HotCache(NamedTuple):
    """Mooncake's local hot cache: the whole blocks in ``bytes``, of shared memory or of malloc."""

    bytes: int
    block_bytes: int
    shared_memory: bool


# Mooncake's own (utils.cpp DEFINE_uint64 mmap_arena_pool_size).
DEFAULT_ARENA_BYTES = 8 * GIB


class ArenaFlags(NamedTuple):
    """The arena by mooncake_client's flags ``--use_mmap_arena_allocator`` (``on``) and
    ``--mmap_arena_pool_size``.

    A readable MC_MMAP_ARENA_POOL_SIZE wins over the flags, an unreadable one leaves their size
    (utils.cpp; seen on 0.3.13.post1 and 0.3.14).
    """

    on: bool = False
    pool_bytes: int = DEFAULT_ARENA_BYTES


NO_ARENA_FLAGS = ArenaFlags()


class StoreSettings(NamedTuple):
    """The memory settings that an environment gives; the replay tells which a release follows."""

    hugepages: bool
    hugepage_bytes: int
    arena_bytes: int | None = None  # None: no arena is asked for
    arena_disabled: bool = False  # MC_DISABLE_MMAP_ARENA
    hot_cache: HotCache | None = None
    hca_segments: bool = False  # MC_STORE_HCA_AFFINITY and MC_STORE_HCA_NUMA_SEGMENTS


class StoreClient(NamedTuple):
    """One Mooncake store client: ``MooncakeDistributedStore.setup`` or ``mooncake_client``.

    Attributes:
        dummy: Its segment lives in a ``mooncake_client`` process; it maps only a local buffer, as
            shared memory.
        nic_nodes: The NUMA nodes of this client's NICs; None if they are the launch's.
        offload_buffer_bytes: As Mooncake reads the number, even if it is 0 or less; None without
            offload.
        offload_folder: Tells if two clients offload to the same folder; "" if not known.
    """

    segment_bytes: int
    local_buffer_bytes: int
    protocol: Protocol
    offload_buffer_bytes: int | None = None
    dummy: bool = False
    nic_nodes: tuple[int, ...] | None = None
    offload_folder: str = ""


class OwnAllocator(NamedTuple):
    """SGLang's own allocator of host pools: an anonymous mapping for each tensor.

    Attributes:
        hugepage_bytes: Of SGLANG_HUGEPAGE_SIZE; None for regular pages. A tensor whose huge pages
            are missing takes regular ones, with a line in the log
            (mem_cache/storage/mmap/mmap_allocator.py, since 0.5.13).
    """

    hugepage_bytes: int | None = None


class OwnPool(NamedTuple):
    """Host memory that a program beside SGLang maps itself, whatever Mooncake's variables say.

    Attributes:
        least_bytes: The least use, if the model decides how much of ``bytes`` is used.
        registered: With the NICs of its store.
        shared_memory: A file in /dev/shm.
        hugepage_bytes: Of huge pages, without which the program ends with ``error``; None for
            regular pages.
    """

    bytes: int
    least_bytes: int
    registered: bool = False
    shared_memory: bool = False
    hugepage_bytes: int | None = None
    error: str = ""


class MappedProcess(NamedTuple):
    """One process, with its mappings in the order in which it asks for them.

    Attributes:
        id: Of the process in the launch.
        node: The NUMA node of its memory (SGLang starts each rank under ``numactl --membind`` with
            its GPU's node), or None.
        among: The NUMA nodes of its memory, if several and not all.
        own_allocator: Of the host pools; None if Mooncake's allocator maps them, as shared memory.
        metadata_bytes: Plain memory that prefill/decode transfer registers with the NICs.
        split_pools: For each host pool, True if SGLang registers K and V as two halves; a pool
            beyond the end is registered whole.
        own_pools: Mapped before the clients.
    """

    name: str
    settings: StoreSettings
    host_pools_bytes: tuple[int, ...] = ()
    clients: tuple[StoreClient, ...] = ()
    node: int | None = None
    own_allocator: OwnAllocator | None = None
    metadata_bytes: int = 0
    metadata_registered: bool = False
    split_pools: tuple[bool, ...] = ()
    id: ProcessId = ProcessId()
    own_pools: tuple[OwnPool, ...] = ()
    among: tuple[int, ...] = ()


class Launch(NamedTuple):
    """All processes of one host, and the facts of the host that decide how they map memory.

    Attributes:
        nic_nodes: The NUMA nodes of the NICs in use, () if they have none; a client's ``nic_nodes``
            replaces them.
        default_page_bytes: The kernel's default huge page size.
    """

    processes: tuple[MappedProcess, ...]
    release: MooncakeRelease
    nic_nodes: tuple[int, ...] = ()
    default_page_bytes: int = 2 * MIB

    def without_arenas(self) -> "Launch":
        """Return the same launch, in which no process asks for an arena."""
        processes = tuple(
            process._replace(settings=process.settings._replace(arena_bytes=None))
            for process in self.processes
        )
        return self._replace(processes=processes)
