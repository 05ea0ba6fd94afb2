"""What a launch needs of one host, as checks see it: plain records, no launch is read here.

``preflight.sizing.launch_needs`` makes them from a launch as it was written. Sizes are bytes; what
could not be resolved is Unknown with the variable's name, and a check that meets it is unknown too.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from checks.base.pages import ProcessId, Region, Usage
from checks.base.unknown import Unknown


class RdmaUse(NamedTuple):
    """How a process chooses its NICs.

    devices: named ones, each as Mooncake will look it up; () for its own discovery.
    origin: where the names were written (flag, variable, file:line). written_as: the flag or the
    variable alone; "" if a file has them, or nobody. by_engine: SGLang's own engine takes them,
    which reads no variable of the store's client (MC_MS_AUTO_DISC, MC_MS_FILTERS).
    """

    devices: tuple[str, ...] | Unknown
    origin: str
    written_as: str = ""
    by_engine: bool = False


_ROOT_USERS = ("0", "root")
UNLIMITED = -1  # as ContainerLimits writes it


# Capabilities that decide what a limit means, by their bit (linux/capability.h).
CAPABILITIES = {"IPC_LOCK": 14, "SYS_ADMIN": 21, "SYS_RESOURCE": 24}


class RunAs(NamedTuple):
    """Who runs a process, as its launch says: ``User=``, ``sudo -u``, ``setpriv``.

    user: a name or a number, "" for whoever starts the launch. gained: of CAPABILITIES, those
    that a user has who is not root. origin: where it is written, "" if nothing of it is.
    """

    user: str | Unknown = ""
    gained: tuple[str, ...] = ()
    origin: str = ""

    def then(self, other: "RunAs") -> "RunAs":
        """Return who runs what is started through both: through this one first, then ``other``."""
        if other.user == "":
            other = other._replace(user=self.user, gained=(*self.gained, *other.gained))
        return other._replace(origin=other.origin or self.origin)


class Bound(Enum):
    """A bound of a limit that stands in what is there when it is set.

    STAYS: itself. SOFT, HARD: that one. SYSTEMD: what a unit has that does not set the limit.
    LOGIN: what a login of the user has.
    """

    STAYS = "stays"
    SOFT = "soft"
    HARD = "hard"
    SYSTEMD = "systemd"
    LOGIN = "login"


class SetLimit(NamedTuple):
    """A limit that a launch itself sets for what it starts: setrlimit(2), in its order.

    name: as prlimit(1) has it, one of LIMIT_NAMES. soft, hard: bytes or a
    count, None for no limit. raises: whether who sets it may go above the hard limit whatever else
    is known of it (systemd, a container's engine). must: whether the program is not started where
    it is refused. setter: who sets it; of LOGIN whose limit it is. where: the unit that sets it or
    leaves it to systemd.
    """

    name: str
    soft: int | Bound | Unknown | None
    hard: int | Bound | Unknown | None
    origin: str
    raises: bool = False
    must: bool = False
    setter: RunAs = RunAs()
    where: str = ""


# Of each limit that checks judge: how prlimit and systemd name it.
LIMIT_NAMES = ("memlock", "nofile", "nproc", "as", "data", "fsize", "stack", "cpu")


class NamedNodes(NamedTuple):
    """NUMA nodes that a launch binds to in so many words: ``numactl --cpunodebind=1``.

    memory_alone: whether memory lies on these and on no other (``--membind``).
    """

    what: str
    nodes: frozenset[int]
    memory_alone: bool = False


class GpuShare(NamedTuple):
    """What a process takes of the memory of its GPUs.

    indices: those GPUs, among the ones that CUDA shows it. fraction: of each, None if nobody
    says. of_total: of the whole GPU, which has to be free when it starts (vLLM); else of what is
    free then (SGLang). fills: whether it certainly takes all of that. elsewhere_below: with fewer
    GPUs than this it may look for others on other hosts; 0 for never.
    """

    indices: tuple[int, ...]
    fraction: float | None
    of_total: bool = False
    fills: bool = True
    elsewhere_below: int = 0


# What device plugins of Kubernetes call whole GPUs, and the PCI vendor id of those that have it.
GPU_RESOURCES = {"nvidia.com/gpu": "0x10de", "amd.com/gpu": "0x1002"}


class GivenGpus(NamedTuple):
    """The GPUs of the host that a container is given.

    number: how many, the first ones where ``names`` is empty; None for all. names: their numbers or
    UUIDs on the host, in the order in which CUDA counts them. resources: what device plugins of
    Kubernetes call them (``amd.com/gpu``), each of one maker alone, its own first, and then what
    its pod asks for beside; () for any GPU.
    """

    number: int | None = None
    names: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class ContainerLimits(NamedTuple):
    """The limits that the launch's container settings give a process; None if not set.

    own_users: whether it has a user namespace of its own. verbs_nodes: paths of the host through
    which it can open RDMA devices, a folder for all in it; () where nothing gives it any.
    own_network: whether it certainly has a network of its own, into which nothing is moved.
    """

    origin: str
    runtime: str  # docker, compose, kubernetes, pyxis (Slurm's)
    memlock_bytes: int | None = None  # -1: unlimited
    nofile: int | None = None
    shm_bytes: int | None = None
    host_ipc: bool = False
    host_network: bool = False
    privileged: bool = False
    user: str | None = None
    capabilities: tuple[str, ...] = ()  # added, without CAP_
    devices: tuple[str, ...] = ()
    security_options: tuple[str, ...] = ()
    memory_bytes: int | None = None
    hugepages_bytes: Mapping[int, int] = {}  # page size -> limit
    gpus: GivenGpus | Unknown | None = None
    own_users: bool = False
    verbs_nodes: tuple[str, ...] | Unknown = Unknown("not read")
    own_network: bool = False


class Started(Protocol):
    """What a launch starts. waited: what follows in it runs only once this has ended."""

    @property
    def waited(self) -> bool: ...


T = TypeVar("T", bound=Started)


def running_with_last(started: Sequence[T]) -> list[T]:
    """Return the last of what is started in this order, with what still runs beside it."""
    return [*(command for command in started[:-1] if not command.waited), *started[-1:]]


def is_root(user: str) -> bool:
    """Return whether a user setting (``name[:group]``) is root, as far as the word tells."""
    return user.partition(":")[0].strip() in _ROOT_USERS


class ProcessNeeds(NamedTuple):
    """One process of the launch on this host.

    id: which one; the replay of what it maps has the same. role: its name without the line of the
    launch that starts it ("rank 3"). program: sglang, store_service, mooncake_client,
    mooncake_master, metadata_server, router, or another engine's worker (vllm, lmcache).
    environment: the variables that it will run with, those resolved. node: the NUMA node that its
    memory is bound to. among: those nodes, where they are several and not all. gpu: its GPU's
    index, None without one. regions: see ``Region``. gpu_registered_bytes: device memory registered
    (prefill/decode transfer), 0 for none. segment_nodes: the NUMA nodes to which Mooncake binds
    shares of its segment, () for one mapping. regular_bytes: memory on regular pages that it takes
    and keeps. bound_bytes: of that, what Mooncake itself binds, NUMA node -> bytes, wherever the
    process is bound. shm_bytes: what it certainly puts into /dev/shm. hugetlb_bytes: on huge pages.
    memfd_bytes: of that, the size of each memfd. ring_bytes: the SSD offload's buffer, which
    io_uring pins besides all that is registered, once at start and once more for each later I/O
    thread. waited: what follows in the launch runs only once it has ended. turn: how often the
    launch has ended all that ran before it. gpu_share: what it takes of its GPUs,
    None if that is not known. limits: what the launch itself sets, upon those that its container
    or its host gives it. run_as: who runs it, in its container where it has one. named_nodes: to
    which a wrapper or its container binds it. looked_up: devices that its program looks up as
    it starts, and ends where one is missing. limit_bytes: of a memory limit, what its program
    itself asks for before it starts, for all its processes here.
    accelerator: what it computes on in place of a GPU, "" if that is none: ``npu``.
    transport: by which it moves memory where that is neither RDMA nor TCP: ``ascend``, ``efa``.
    """

    name: str
    program: str
    environment: Mapping[str, str]
    node: int | None = None
    gpu: int | None = None
    rdma: RdmaUse | None = None
    regions: tuple[Region, ...] | Unknown = ()
    gpu_registered_bytes: int | Unknown = 0
    regular_bytes: int | Unknown = 0
    shm_bytes: int = 0
    hugetlb_bytes: int | Unknown = 0
    memfd_bytes: tuple[int, ...] = ()
    uses_uring: bool | Unknown = False
    ring_bytes: int = 0
    container: ContainerLimits | None = None
    limits: tuple[SetLimit, ...] = ()
    run_as: RunAs = RunAs()
    named_nodes: tuple[NamedNodes, ...] = ()
    segment_nodes: tuple[int, ...] | Unknown = ()
    bound_bytes: Mapping[int, int] = {}
    id: ProcessId = ProcessId()
    role: str = ""
    among: tuple[int, ...] = ()
    waited: bool = False
    turn: int = 0
    gpu_share: GpuShare | None = None
    looked_up: RdmaUse | None = None
    limit_bytes: int = 0
    accelerator: str = ""
    transport: str = ""

    @property
    def runtime(self) -> str:
        """Return who describes its container in the launch, "" if nobody does."""
        return "" if self.container is None else self.container.runtime

    @property
    def registered_bytes(self) -> int | Unknown:
        """Host memory registered with each NIC; Unknown if the launch's sizes are."""
        if isinstance(self.regions, Unknown):
            return self.regions
        return sum(region.bytes for region in self.regions)


# Programs that have a segment; other engines call their own host memory by other names.
_SIZED = ("sglang", "store_service", "mooncake_client")


def sizes_taken(processes: Iterable[ProcessNeeds], huge: bool = False) -> str:
    """Return the sizes of a launch that may be lowered, as a person calls them.

    huge: those of its memory on huge pages, else on regular ones.
    """
    sizes = (
        (each.program, each.hugetlb_bytes if huge else each.regular_bytes) for each in processes
    )
    taking = dict.fromkeys(program for program, size in sizes if size != 0)
    parts = [f"what {program} keeps there" for program in taking if program not in _SIZED]
    if any(program in _SIZED for program in taking):
        parts.insert(0, "the segment")
    if "sglang" in taking:
        parts.insert(0, "--hicache-size")
    return " or ".join(parts) or "what the launch keeps there"


class Service(NamedTuple):
    """Something that the launch talks to.

    kind: master, master-admin (its HTTP health), metadata-http, metadata-etcd, metadata-redis,
    client (mooncake_client), worker (a router's SGLang server), dist-init (rank 0's rendezvous),
    advertised (no service: the name under which a store of the launch registers itself).
    own: the launch itself starts it on this host, so it need not answer yet. name: the host as it
    is written, where what it stands for is unknown here; "" if that is not known either.
    binds: of an advertised name: its store's process listens there itself.
    """

    kind: str
    host: str | Unknown
    port: int | None
    path: str  # of a URL, "" without
    owner: str
    origin: str
    own: bool
    name: str = ""
    binds: bool = False


class BoundPort(NamedTuple):
    """A port that a process of the launch binds; ``what`` as the program calls it.

    network: where it binds it, "" on the host itself, else the pod or container. waited: what
    follows in the launch runs only once the process has ended. turn: as in ``ProcessNeeds``. pod:
    two of Kubernetes with one port never share a host.
    address: of the host, "" for all of them, None for what the process itself binds. inner: for the
    processes of one server among themselves: judged against the rest of the launch alone.
    unless: the word, not known, that may hold another port than this one, which is the default.
    """

    what: str
    port: int | Unknown
    owner: str
    origin: str
    network: str = ""
    waited: bool = False
    turn: int = 0
    pod: str = ""
    address: str | None = None
    inner: bool = False
    unless: str = ""


class Storage(NamedTuple):
    """A path of the launch.

    kind: offload, model, config, draft. need_bytes: what may be written there by all its users.
    direct_io: it is opened with O_DIRECT. users: processes that write there, each its own folder
    or (``shared``) all the same one. created: the process makes the folder itself.
    """

    kind: str
    path: str | Unknown
    owner: str
    origin: str
    need_bytes: int = 0
    direct_io: bool = False
    users: int = 1
    shared: bool = False
    created: bool = False


class LaunchNeeds(NamedTuple):
    """Everything that checks ask of a launch. hosts: over how many it runs (``--nnodes``).

    nic_nodes: the NUMA nodes of the NICs, where the command line states them in place of the host.
    """

    source: str
    processes: tuple[ProcessNeeds, ...]
    usages: tuple[Usage, ...] | Unknown
    services: tuple[Service, ...] = ()
    ports: tuple[BoundPort, ...] = ()
    storage: tuple[Storage, ...] = ()
    hosts: int = 1
    default_page_bytes: int = 0
    mooncake_version: str = ""
    sglang_version: str = ""
    nic_nodes: tuple[int, ...] | None = None

    @property
    def rdma_processes(self) -> tuple[ProcessNeeds, ...]:
        return tuple(process for process in self.processes if process.rdma is not None)
