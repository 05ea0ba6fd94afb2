"""What a launch needs of one host, as checks see it: plain records, no launch is read here.

``preflight.needs.launch_needs`` makes them from a launch as it was written. Sizes are bytes; what
could not be resolved is Unknown with the variable's name, and a check that meets it is unknown too.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from checks.framework.pages import ProcessId, Region, Usage
from checks.framework.unknown import Unknown


class RdmaUse(NamedTuple):
    """How a process chooses its NICs."""

    devices: tuple[str, ...] | Unknown  # their names; () if Mooncake discovers them itself
    origin: str  # where the names were written (flag, variable, file:line)
    written_as: str = ""  # the flag or the variable alone; "" if a file or nobody names devices
    by_engine: bool = False  # by SGLang's own engine, which reads no MC_MS_* of the store's client


_ROOT_USERS = ("0", "root")
UNLIMITED = -1  # as ContainerLimits writes it
# Capabilities that decide what a limit means, by their bit (linux/capability.h).
CAPABILITIES = {"IPC_LOCK": 14, "SYS_ADMIN": 21, "SYS_RESOURCE": 24}


class RunAs(NamedTuple):
    """Who runs a process, as its launch says: ``User=``, ``sudo -u``, ``setpriv``."""

    user: str | Unknown = ""  # a name or a number, "" for whoever starts the launch
    gained: tuple[str, ...] = ()  # of CAPABILITIES, those that a user has who is not root
    origin: str = ""  # where it is written, "" if nothing of it is

    def then(self, other: "RunAs") -> "RunAs":
        """Return who runs a program that is started through both, first this one, then ``other``.

        If ``other`` names no user, the user and the capabilities of this one stay.
        """
        if other.user == "":
            other = other._replace(user=self.user, gained=(*self.gained, *other.gained))
        return other._replace(origin=other.origin or self.origin)


class Bound(Enum):
    """A limit that is set relative to the limits in force."""

    STAYS = "stays"
    SOFT = "soft"  # the one in force
    HARD = "hard"
    SYSTEMD = "systemd"  # systemd's default for units that set no limit
    LOGIN = "login"  # what a login of the user gets


class SetLimit(NamedTuple):
    """A limit that a launch itself sets for the programs that it starts, by setrlimit(2)."""

    name: str  # one of LIMIT_NAMES, as in prlimit(1)
    soft: int | Bound | Unknown | None  # bytes or a count, None for no limit
    hard: int | Bound | Unknown | None
    origin: str
    raises: bool = False  # the setter may go above the hard limit (systemd, a container's engine)
    must: bool = False  # the program is not started if the limit is refused
    setter: RunAs = RunAs()  # the user who sets the limit; for Bound.LOGIN, the user who logs in
    where: str = ""  # the systemd unit that sets the limit, or leaves it to systemd


# Of each limit that checks judge: how prlimit and systemd name it.
LIMIT_NAMES = ("memlock", "nofile", "nproc", "as", "data", "fsize", "stack", "cpu")


class NamedNodes(NamedTuple):
    """NUMA nodes that a launch binds to by their numbers: ``numactl --cpunodebind=1``."""

    what: str
    nodes: frozenset[int]
    memory_alone: bool = False  # whether memory lies on these and on no other (``--membind``)


class GpuShare(NamedTuple):
    """The share that a process takes of the memory of its GPUs."""

    indices: tuple[int, ...]  # those GPUs, among the ones that CUDA shows it
    fraction: float | None  # of each, None if nobody says
    of_total: bool = False  # of the whole GPU, free at its start (vLLM); else of what is free then
    fills: bool = True  # whether it certainly takes all of that
    elsewhere_below: int = 0  # with fewer GPUs it may look for others on other hosts; 0 for never


# What device plugins of Kubernetes call whole GPUs, and the PCI vendor id of those that have it.
GPU_RESOURCES = {"nvidia.com/gpu": "0x10de", "amd.com/gpu": "0x1002"}


class GivenGpus(NamedTuple):
    """The GPUs of the host that a container is given."""

    number: int | None = None  # how many, the first ones if ``names`` is empty; None for all
    names: tuple[str, ...] = ()  # their numbers or UUIDs on the host, in CUDA's order
    # Names for Kubernetes' device plugins, the container's first, then the pod's; () for any GPU.
    resources: tuple[str, ...] = ()


class ContainerLimits(NamedTuple):
    """The limits that the launch's container settings give a process; None if not set."""

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
    own_users: bool = False  # it has a user namespace of its own
    # Paths of the host through which it can open RDMA devices, a folder for all in it.
    verbs_nodes: tuple[str, ...] | Unknown = Unknown("not read")
    own_network: bool = False  # it certainly has its own network, into which nothing is moved
    pids: int | None = None  # most processes and threads in it


class LaunchStep(Protocol):
    """A command or process of a launch.

    waited: the next steps begin only once it has ended.
    """

    @property
    def waited(self) -> bool: ...


T = TypeVar("T", bound=LaunchStep)


def running_with_last(steps: Sequence[T]) -> list[T]:
    """Return the last of ``steps``, given in order, with the earlier ones that still run then."""
    return [*(command for command in steps[:-1] if not command.waited), *steps[-1:]]


def is_root(user: str) -> bool:
    """Return whether a user setting (``name[:group]``) is root, as far as the word tells."""
    return user.partition(":")[0].strip() in _ROOT_USERS


class ProcessNeeds(NamedTuple):
    """One process of the launch on this host."""

    name: str
    program: str  # sglang, store_service, mooncake_client, mooncake_master, router, vllm, ...
    environment: Mapping[str, str]  # its variables, as far as they are known
    node: int | None = None  # the NUMA node that its memory is bound to
    gpu: int | None = None  # its GPU's index, None without one
    rdma: RdmaUse | None = None
    regions: tuple[Region, ...] | Unknown = ()  # see ``Region``
    gpu_registered_bytes: int | Unknown = 0  # device memory (prefill/decode transfer)
    regular_bytes: int | Unknown = 0  # memory kept on regular pages
    shm_bytes: int = 0  # certain bytes in /dev/shm
    hugetlb_bytes: int | Unknown = 0  # on huge pages
    memfd_bytes: tuple[int, ...] = ()  # the size of each memfd among them
    uses_uring: bool | Unknown = False
    ring_bytes: int = 0  # the SSD offload's buffer: io_uring pins it for each I/O thread too
    container: ContainerLimits | None = None
    limits: tuple[SetLimit, ...] = ()  # of the launch, upon the container's or the host's
    run_as: RunAs = RunAs()  # the user, inside the container if it has one
    named_nodes: tuple[NamedNodes, ...] = ()  # to which a wrapper or the container binds it
    segment_nodes: tuple[int, ...] | Unknown = ()  # over which Mooncake splits its segment
    bound_bytes: Mapping[int, int] = {}  # what of the segment Mooncake itself binds, by NUMA node
    id: ProcessId = ProcessId()  # the same in the replay of its mappings
    role: str = ""  # its name without the line of the launch that starts it ("rank 3")
    among: tuple[int, ...] = ()  # the NUMA nodes of its memory, if several and not all of the host
    waited: bool = False  # the rest of the launch starts only once it has ended
    turn: int = 0  # how often the launch has ended all earlier processes
    gpu_share: GpuShare | None = None  # the share that it takes of its GPUs, None if unknown
    looked_up: RdmaUse | None = None  # devices that its program looks up; it ends if one is missing
    limit_bytes: int = 0  # the memory limit that its program asks for, for all its processes here
    accelerator: str = ""  # the device in place of a GPU (``npu``), or ""
    transport: str = ""  # how it moves memory if neither by RDMA nor TCP: ``ascend``, ``efa``

    @property
    def runtime(self) -> str:
        """Return who describes its container in the launch, "" if nobody does."""
        return "" if self.container is None else self.container.runtime

    @property
    def registered_bytes(self) -> int | Unknown:
        """Return the bytes of host memory registered with each NIC, or why they are unknown."""
        if isinstance(self.regions, Unknown):
            return self.regions
        return sum(region.bytes for region in self.regions)


# Programs that have a segment; other engines call their own host memory by other names.
_SIZED = ("sglang", "store_service", "mooncake_client")


def sizes_to_lower(processes: Iterable[ProcessNeeds], huge: bool = False) -> str:
    """Name the sizes that a person may lower, as text: ``--hicache-size or the segment``.

    Args:
        huge: The sizes on huge pages, else those on regular pages.
    """
    sizes = ((p.program, p.hugetlb_bytes if huge else p.regular_bytes) for p in processes)
    taking = dict.fromkeys(program for program, size in sizes if size != 0)
    parts = ["--hicache-size"] * ("sglang" in taking)
    parts += ["the segment"] * any(program in _SIZED for program in taking)
    parts += [f"what {program} keeps there" for program in taking if program not in _SIZED]
    return " or ".join(parts) or "what the launch keeps there"


class Service(NamedTuple):
    """Something that the launch talks to.

    Attributes:
        kind: Master, master-admin (its HTTP health), metadata-http, -etcd, -redis, client
            (mooncake_client), worker (a router's server), dist-init, advertised (a store's own
            name).
    """

    kind: str
    host: str | Unknown
    port: int | None
    path: str  # of a URL, "" without
    owner: str
    origin: str
    own: bool = False  # the launch itself starts the service on this host: it need not answer yet
    name: str = ""  # the host as it is written, if its value is unknown here; else ""
    binds: bool = False  # the process of an advertised store listens at the name itself
    bound: tuple[str, ...] = ()  # IP addresses at which the launch itself serves it, () if unknown


class BoundPort(NamedTuple):
    """A port that a process of the launch binds; ``what``: its name in the program."""

    what: str
    port: int | Unknown
    owner: str
    origin: str
    network: str = ""  # the pod or container whose port it is, "" for the host
    waited: bool = False  # the rest of the launch starts only once the process has ended
    turn: int = 0  # as in ``ProcessNeeds``
    pod: str = ""  # two pods of Kubernetes with one port never share a host
    address: str | None = None  # of the host, "" for all, None if the process itself chooses
    inner: bool = False  # for processes of one server: judged against other programs alone
    unless: str = ""  # an unknown word that may hold another port than this default


class Storage(NamedTuple):
    """A path that the launch reads or writes."""

    kind: str  # offload, model, config, draft
    path: str | Unknown
    owner: str
    origin: str
    need_bytes: int = 0  # the most that all users write to the path
    direct_io: bool = False  # files are opened with O_DIRECT
    users: int = 1  # processes that write, each to its own folder or (``shared``) all to one
    shared: bool = False
    created: bool = False  # the process makes the folder itself


class LaunchNeeds(NamedTuple):
    """All needs of a launch that checks ask for."""

    source: str
    processes: tuple[ProcessNeeds, ...]
    usages: tuple[Usage, ...] | Unknown
    services: tuple[Service, ...] = ()
    ports: tuple[BoundPort, ...] = ()
    storage: tuple[Storage, ...] = ()
    hosts: int = 1  # the number of hosts (``--nnodes``)
    default_page_bytes: int = 0
    mooncake_version: str = ""
    sglang_version: str = ""
    # The NICs' NUMA nodes, if the command line states them.
    nic_nodes: tuple[int, ...] | None = None

    @property
    def rdma_processes(self) -> tuple[ProcessNeeds, ...]:
        return tuple(process for process in self.processes if process.rdma is not None)
