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
    """How a process chooses its NICs. devices: their names; () if Mooncake discovers them
    itself.

    origin: where the names were written (flag, variable, file:line). written_as: the flag or the
    variable alone; "" if a file or nobody names devices. by_engine: SGLang's own engine takes
    the devices, and reads no variable of the store's client (MC_MS_AUTO_DISC, MC_MS_FILTERS).
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
    """A limit that is set relative to the limits in force.

    STAYS: unchanged. SOFT, HARD: the one in force. SYSTEMD: systemd's default for units that set
    no limit. LOGIN: what a login of the user gets.
    """

    STAYS = "stays"
    SOFT = "soft"
    HARD = "hard"
    SYSTEMD = "systemd"
    LOGIN = "login"


class SetLimit(NamedTuple):
    """A limit that a launch itself sets for the programs that it starts, by setrlimit(2).

    name: one of LIMIT_NAMES, as in prlimit(1). soft, hard: bytes or a count, None for no limit.
    setter: the user who sets the limit; of LOGIN the user whose limit it is. raises: the setter
    may go above the hard limit (systemd, a container's engine). must: the program is not started
    if the limit is refused. where: the systemd unit that sets the limit, or leaves it to
    systemd.
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

    number: how many, the first ones if ``names`` is empty; None for all. names: their numbers or
    UUIDs on the host, in CUDA's order. resources: their names for Kubernetes' device plugins
    (``amd.com/gpu``), each of one maker alone: the container's first, then those of the rest of
    the pod; () for any GPU.
    """

    number: int | None = None
    names: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class ContainerLimits(NamedTuple):
    """The limits that the launch's container settings give a process; None if not set.

    own_users: the container has a user namespace of its own. verbs_nodes: paths of the host
    through which it can open RDMA devices, a folder for all in it; () if none is given.
    own_network: the container certainly has its own network, into which nothing is moved.
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

    Its identity. id: the same in the replay of its mappings. role: its name without the line of
    the launch that starts it ("rank 3"). program: sglang, store_service, mooncake_client,
    mooncake_master, metadata_server, router, or another engine's worker (vllm, lmcache).
    environment: its variables, as far as they are known. run_as: the user, inside the container
    if it has one. waited: the rest of the launch starts only once it has ended. turn: how often
    the launch has ended all earlier processes.

    Its place. node: the NUMA node that its memory is bound to; among: those nodes, if they are
    several and not all; named_nodes: the nodes to which a wrapper or the container binds it.
    gpu: its GPU's index, None without one; gpu_share: the share that it takes of its GPUs, None
    if unknown. accelerator: the device in place of a GPU (``npu``), or "".

    Its memory. regions: see ``Region``. gpu_registered_bytes: registered device memory
    (prefill/decode transfer), 0 for none. segment_nodes: the NUMA nodes over which Mooncake
    splits its segment, () for one mapping. regular_bytes: memory kept on regular pages;
    bound_bytes: the part of it that Mooncake itself binds, NUMA node -> bytes. shm_bytes:
    certain bytes in /dev/shm. hugetlb_bytes: on huge pages; memfd_bytes: the size of each memfd
    among them. ring_bytes: the SSD offload's buffer, which io_uring pins too, once at start and
    once more for each later I/O thread.

    Its limits and devices. limits: those that the launch sets, upon the container's or the
    host's. limit_bytes: the memory limit that its program asks for before it starts, for all its
    processes on this host. looked_up: devices that its program looks up as it starts, and ends
    if one is missing. transport: how it moves memory if neither by RDMA nor TCP: ``ascend``,
    ``efa``.
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
    """Name the sizes that a person may lower: those on huge pages if ``huge``, else regular."""
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
    advertised (no service: the name under which a store of the launch registers itself). own:
    the launch itself starts the service on this host, so it need not answer yet. name: the host
    as it is written, if its value is unknown here; else "". binds: the process of an advertised
    store listens at the name itself.
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
    """A port that a process of the launch binds; ``what``: its name in the program.

    network: the pod or container whose port it is, "" for the host. waited: the rest of the
    launch starts only once the process has ended. turn: as in ``ProcessNeeds``. pod: two pods of
    Kubernetes with one port never share a host. address: of the host, "" for all, None if the
    process itself chooses. inner: the port is for processes of one server, and judged against
    other programs alone. unless: an unknown word that may hold another port than this default.
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
    """A path of the launch. kind: offload, model, config, draft.

    need_bytes: the most that all users write to the path. direct_io: files are opened with
    O_DIRECT. users: the number of processes that write, each to its own folder or (``shared``)
    all to one. created: the process makes the folder itself.
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
    """All needs of a launch that checks ask for.

    hosts: the number of hosts (``--nnodes``). nic_nodes: the NUMA nodes of the NICs, if the
    command line states them in place of the host.
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
