"""A plan as data, and what a launch asks of its host in full, whether or not it is already so."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.framework.finding import Kind, Setting
from checks.framework.fold import fold_alike
from checks.framework.needs import ContainerLimits, LaunchNeeds, ProcessNeeds
from checks.framework.pages import Spot, own_allocator
from checks.framework.regex import regex
from checks.framework.units import GIB, KIB, MIB, format_bytes, format_page_size, round_up
from checks.framework.unknown import Unknown
from checks.gpu.hardware_use import splits_segment
from checks.host_snapshot.secrets import is_secret, public
from checks.hugetlb.boot import PoolWriter
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pool_checks import PageNeed, page_terms
from checks.hugetlb.pools import POOLS
from checks.hugetlb.targets import all_targets, reserve_settings
from checks.limits.runtimes import Limit
from checks.memlock.demand import grant
from checks.memory.facts import SHM
from checks.memory.judge import RESERVE_BYTES, USUAL_MAP_COUNT, regular_bytes, shm_wanted_bytes
from checks.numa.nodes import NODES
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import Cause, devices_in_use
from checks.rdma.verbs import NODES as DEVICE_NODES
from checks.rdma.verbs import DeviceNode
from checks.releases.mooncake import release_of
from checks.run_checks.facts import Facts
from preflight.host_tuning.commands import Context

if TYPE_CHECKING:
    from preflight.processes.processes import LaunchProcess


class Scope(Enum):
    """Who makes a setting, in the order in which a plan is shown."""

    FLAG = "launch flag"
    ENVIRONMENT = "environment"
    CONTAINER = "container"
    RUNTIME = "runtime"
    NODE = "node"
    BOOT = "boot"


class Reason(NamedTuple):
    """Why somebody asks for a value.

    Attributes:
        check: The check that does; "" for the launch itself.
    """

    check: str
    text: str


class Wish(NamedTuple):
    """One value that somebody asks for.

    Attributes:
        change: The host is known to have another value now.
    """

    setting: Setting
    change: bool
    reason: Reason


class Planned(NamedTuple):
    """One setting of the plan, with who sets it and why."""

    setting: Setting
    scope: Scope
    change: bool  # the host is known to differ
    reasons: tuple[Reason, ...]
    lasts: bool  # a reboot keeps it
    how: str  # what keeps it over a reboot, or how long it lasts


class PoolTarget(NamedTuple):
    """A HugeTLB pool, or the share of one NUMA node.

    Attributes:
        pages: The number to set, with the pages that other programs hold.
        now_pages: None if the pool was not read.
    """

    page_bytes: int
    node: int | None
    pages: int
    now_pages: int | None

    @property
    def file(self) -> str:
        """Return the file that sets the pool, or the share of one NUMA node."""
        folder = POOLS if self.node is None else f"{NODES}/node{self.node}/hugepages"
        return f"{folder}/hugepages-{self.page_bytes // KIB}kB/nr_hugepages"

    @property
    def name(self) -> str:
        """Return ``2 MiB pages on node 0``."""
        where = "" if self.node is None else f" on node {self.node}"
        return f"{format_page_size(self.page_bytes)} pages{where}"

    @property
    def grows(self) -> bool:
        return self.now_pages is None or self.pages > self.now_pages

    @property
    def kept_pages(self) -> int:
        """Return the pages for a file that states the whole pool: never fewer than it has now."""
        return max(self.pages, self.now_pages or 0)

    def as_object(self) -> dict[str, Any]:
        """Return the target's fields, for JSON."""
        now = Unknown("this pool was not read") if self.now_pages is None else self.now_pages
        target = {"page_size_bytes": self.page_bytes, "numa_node": self.node}
        return {**target, "pages": self.pages, "now_pages": now}


TOPICS = ("pages", "memory", "devices", "environment")


class Gap(NamedTuple):
    """Something that the plan cannot tell, and why.

    Attributes:
        topic: One of ``TOPICS``.
    """

    topic: str
    reason: str


class Workload(NamedTuple):
    """The manifest or Compose service that describes the launch's container; "" without one."""

    manifest: str = ""  # its kind: Deployment and others of Kubernetes, or ""
    container: str = ""  # the name of the container, or of the service
    capabilities: tuple[str, ...] = ()  # those that the description has already
    has_gpus: bool = False  # the description has GPUs enough for the ranks
    has_rdma: bool = False  # the description has device files of RDMA


class Plan(NamedTuple):
    """All settings of a launch on a host, with those that are made already."""

    source: str  # the launch's name, or ""
    settings: tuple[Planned, ...]
    pools: tuple[PoolTarget, ...]
    default_page_bytes: int | Unknown  # the kernel's
    pool_nodes: tuple[int, ...]  # NUMA nodes with memory
    writers: tuple[PoolWriter, ...]  # those that set the pools at boot, in order
    kernel: tuple[int, int] | Unknown
    gaps: tuple[Gap, ...]
    conflicts: tuple[str, ...]  # two wanted values, and the one taken
    left_out: tuple[str, ...]  # variables that are not shown
    impossible: tuple[str, ...]  # why the missing pages cannot be had now, or help nobody
    undecided: tuple[str, ...]  # unread facts that decide whether pages may be taken
    context: Context
    workload: Workload = Workload()  # the description that a patch is merged into
    too_large: tuple[str, ...] = ()  # why not after a boot either
    unread: tuple[str, ...] = ()  # parts of the launch without a setting
    processes: tuple[LaunchProcess, ...] = ()  # of the launch

    @property
    def grows(self) -> bool:
        """Return whether a pool must take pages that the host has not given it yet."""
        return any(target.grows for target in self.pools)

    def of(self, *kinds: Kind) -> tuple[Setting, ...]:
        return tuple(each.setting for each in self.planned(*kinds))

    def planned(self, *kinds: Kind) -> tuple[Planned, ...]:
        return tuple(each for each in self.settings if each.setting.kind in kinds)

    def value(self, setting_kind: Kind, name: str) -> str | None:
        """Return the wanted value of a setting; None if the plan has no such setting."""
        return next((s.wanted for s in self.of(setting_kind) if s.name == name), None)


# Variables that the launch's programs read; the rest of the caller's environment is not a plan's.
_READ = regex(
    r"(?!MOONCAKE_PREFLIGHT_)(MC|MOONCAKE|SGLANG|SGL|RDMAV|IBV|MLX\d?|NCCL|CUDA|UCX|GLOO)_"
    r"|(WITH_NVIDIA_PEERMEM|LD_LIBRARY_PATH)$"
)


def pools(
    needs: LaunchNeeds | None, hugetlb: HugetlbFacts | Unknown
) -> tuple[tuple[PoolTarget, ...], list[Wish], list[Gap]]:
    """Return (pools that the launch takes pages from, a wish for each pool, gaps for unknown
    facts).

    All are empty if the launch takes no huge pages.
    """
    if needs is None:
        return (), [], []
    if isinstance(needs.usages, Unknown):
        return (), [], [Gap("pages", needs.usages.reason)]
    wanted = PageNeed(needs)
    if not any(wanted.everything.values()):
        return (), [], []
    if isinstance(hugetlb, Unknown):
        return (), [], [Gap("pages", hugetlb.reason)]
    targets = all_targets(hugetlb.hugetlb, wanted.everything)
    gaps = []
    for size in sorted({spot.page_size_bytes for spot in targets}):
        hugepage_pool = hugetlb.hugetlb.pool(size)
        if isinstance(hugepage_pool, Unknown):
            gaps.append(Gap("pages", f"{format_page_size(size)} pages: {hugepage_pool.reason}"))
        else:
            here = f"below {NODES}: this host has no such node, or hides it"
            gaps += [
                Gap("pages", f"{format_page_size(size)} pages: no pool of node {spot.node} {here}")
                for spot, target in targets.items()
                if spot.page_size_bytes == size and target.now_pages is None
            ]
    wishes = []
    settings = reserve_settings(targets, hugetlb.hugetlb.default_page_size_bytes)
    for (spot, target), setting in zip(targets.items(), settings, strict=True):
        change = target.now_pages is None or target.pages > target.now_pages
        pages = f"{target.own_pages} pages of {format_page_size(spot.page_size_bytes)}"
        terms = page_terms(needs, spot)
        text = f"the launch takes {pages}" + (f" ({terms})" if terms and terms != pages else "")
        if target.held_pages:
            text += f", others hold {target.held_pages}"
        wishes.append(Wish(setting, change, Reason("", text)))
    pool_targets = tuple(
        PoolTarget(spot.page_size_bytes, spot.node, target.pages, target.now_pages)
        for spot, target in targets.items()
    )
    return pool_targets, wishes, gaps


def wishes(needs: LaunchNeeds | None, facts: Facts) -> Iterator[Wish | Gap]:
    """Yield the wishes beyond pools and environment; without a launch, only vm.max_map_count."""
    memory = facts.topic("memory")
    count = memory if isinstance(memory, Unknown) else memory.max_map_count
    if isinstance(count, int):
        reason = Reason("memory.max-map-count", "processes with many buffers need many mappings")
        low = count < USUAL_MAP_COUNT
        wanted, now = str(max(USUAL_MAP_COUNT, count)), str(count)
        yield Wish(Setting(Kind.SYSCTL, "vm.max_map_count", wanted, now), low, reason)
    if needs is None:
        return
    container = main_container(needs)
    needs = of_container(needs, container)
    if needs.rdma_processes or any(process.uses_uring is True for process in needs.processes):
        yield from _locking(facts, container, needs)
    yield from _binding(needs, container)
    if needs.rdma_processes:
        yield from _devices(needs, facts, container)
        reason = Reason("", "RoCE addresses belong to the host's network interfaces")
        now = "host" if container is not None and container.host_network else ""
        yield Wish(Setting(Kind.NETWORK, "network", "host", now), False, reason)
    yield from _shared_memory(needs, facts, container)
    yield from _gpus(needs)
    yield from _amounts(needs, container)


def main_container(needs: LaunchNeeds) -> ContainerLimits | None:
    """Return the container that a plan is for: that of a process with a GPU, else of one with RDMA,
    else any.

    Returns:
        None if no process runs in a container.
    """
    inside = [process for process in needs.processes if process.container is not None]
    inside.sort(key=lambda process: (process.gpu is None, process.rdma is None))
    return inside[0].container if inside else None


def of_container(needs: LaunchNeeds, container: ContainerLimits | None) -> LaunchNeeds:
    """Return the needs of the processes in ``container``; all needs if ``container`` is None."""
    if container is None:
        return needs
    inside, elsewhere = [], set[str]()
    for process in needs.processes:
        if process.container is not None and process.container.origin == container.origin:
            inside.append(process)
        else:
            elsewhere |= {process.name, own_allocator(process.name)}
    usages = needs.usages
    if not isinstance(usages, Unknown):
        usages = tuple(usage for usage in usages if usage.process not in elsewhere)
    return needs._replace(processes=tuple(inside), usages=usages)


def _locking(facts: Facts, container: ContainerLimits | None, needs: LaunchNeeds) -> Iterator[Wish]:
    """Yield the memlock limit, and the capability that replaces it: memory for a NIC or for
    io_uring is locked.
    """
    limits = facts.topic("limits")
    now = ""
    if container is not None:
        now = {None: "", -1: "unlimited"}.get(container.memlock_bytes, str(container.memlock_bytes))
    elif not isinstance(limits, Unknown) and not isinstance(limits.memlock, Unknown):
        soft = limits.memlock.soft
        now = "unlimited" if soft is None else str(soft)
    system = facts.topic("system")
    locking = [p for p in needs.processes if p.rdma is not None or p.uses_uring is True]
    grants = []
    if not isinstance(limits, Unknown) and not isinstance(system, Unknown):
        grants = [grant(system, limits, process) for process in locking]
    none = Limit(None, None)
    if grants and all(granted.by_launch and granted.limit == none for granted in grants):
        now = "unlimited"
    reason = Reason("memlock.limit", "memory that is registered with a NIC or a ring is locked")
    yield Wish(Setting(Kind.ULIMIT, "memlock", "unlimited", now), False, reason)
    reason = Reason("memlock.limit", "lifts memlock where nothing can set it (Kubernetes)")
    now = _added(container, "IPC_LOCK")
    yield Wish(Setting(Kind.CAPABILITY, "IPC_LOCK", "added", now), False, reason)


def _binding(needs: LaunchNeeds, container: ContainerLimits | None) -> Iterator[Wish]:
    """Yield the capability to bind memory to NUMA nodes, if a process binds its memory."""
    for process in needs.processes:
        binds = process.program == "sglang" and process.node is not None
        splits = splits_segment(process)
        if binds or isinstance(splits, Unknown) or splits:
            text = "memory is bound to NUMA nodes, which seccomp refuses without it"
            reason = Reason("numa.policy-refused", text)
            now = _added(container, "SYS_NICE")
            yield Wish(Setting(Kind.CAPABILITY, "SYS_NICE", "added", now), False, reason)
            return


def _added(container: ContainerLimits | None, name: str) -> str:
    if container is None:
        return ""
    names = {text.upper().removeprefix("CAP_") for text in container.capabilities}
    return "added" if container.privileged or names & {name, "ALL"} else ""


def _devices(
    needs: LaunchNeeds, facts: Facts, container: ContainerLimits | None
) -> Iterator[Wish | Gap]:
    """Yield the device files of the NICs that the launch uses; a gap if the NICs are not known."""
    rdma: RdmaFacts | Unknown = facts.topic("rdma")
    if isinstance(rdma, Unknown):
        yield Gap("devices", rdma.reason)
        return
    release = release_of(needs.mooncake_version)
    names: list[str] = []
    for process in needs.rdma_processes:
        use = devices_in_use(rdma, process, release)
        if isinstance(use.names, Unknown):
            yield Gap("devices", f"the NICs of {process.name}: {use.names.reason}")
            return
        # A device that is not passed on to this container is wanted all the same.
        outside = (lost.name for lost in use.lost if lost.cause is Cause.UVERBS)
        names += [*use.names, *outside]
    passed_on = () if container is None else container.devices
    nics = [nic for nic in rdma.present if nic.name in names]
    for nic in nics:
        if nic.uverbs is not None:
            path = f"{DEVICE_NODES}/{nic.uverbs}"
            reason = Reason("rdma.uverbs-permission", f"the launch uses {nic.name}")
            now = path if path in passed_on else ""
            yield Wish(Setting(Kind.DEVICE, path, path, now), False, reason)
    if nics and isinstance(rdma.connection_manager, DeviceNode):
        path = f"{DEVICE_NODES}/rdma_cm"
        reason = Reason("", "libraries that connect by address open it")
        now = path if path in passed_on else ""
        yield Wish(Setting(Kind.DEVICE, path, path, now), False, reason)


def _shared_memory(
    needs: LaunchNeeds, facts: Facts, container: ContainerLimits | None
) -> Iterator[Wish]:
    """Yield the size of /dev/shm, or the host's IPC if the container has this.

    Nothing if the launch has no GPU and needs no shared memory, or if a pod has enough.
    """
    need_bytes = sum(process.shm_bytes for process in needs.processes)
    if not need_bytes and not any(process.gpu is not None for process in needs.processes):
        return
    reason = Reason("shm.space", "NCCL and torch share memory there")
    if container is not None and container.host_ipc:
        yield Wish(Setting(Kind.IPC, "ipc", "host", "host"), False, reason)
        return
    memory = facts.topic("memory")
    size = memory if isinstance(memory, Unknown) else memory.shm_size_bytes
    now = "" if isinstance(size, Unknown) else str(size)
    wanted = shm_wanted_bytes(need_bytes)
    if container is not None:
        now = "" if container.shm_bytes is None else str(container.shm_bytes)
        if container.runtime == "kubernetes" and (container.shm_bytes or 0) >= wanted:
            return  # the pod's own volume stays, whatever its size
        wanted = max(wanted, container.shm_bytes or 0)  # what was given more is not lowered
    yield Wish(Setting(Kind.SHM_SIZE, SHM, str(wanted), now), False, reason)


def _gpus(needs: LaunchNeeds) -> Iterator[Wish]:
    """Yield the number of GPUs that a container needs: from 0 to the highest number that a rank
    takes.

    Nothing without GPUs.
    """
    indices = [process.gpu for process in needs.processes if process.gpu is not None]
    if indices:
        reason = Reason("gpu.count", f"the highest number that a rank takes is {max(indices)}")
        yield Wish(Setting(Kind.GPUS, "gpus", str(max(indices) + 1), ""), False, reason)


def _amounts(needs: LaunchNeeds, container: ContainerLimits | None) -> Iterator[Wish | Gap]:
    """Yield the bytes of huge pages and of memory that a pod of Kubernetes is to ask for.

    A gap comes in place of the memory if it is not known.
    """
    if not isinstance(needs.usages, Unknown):
        taken = PageNeed(needs).taken
        asked = {} if container is None else container.hugepages_bytes
        for spot, pages in taken.items():
            size = spot.page_size_bytes
            if spot.node is None and pages:
                now = asked.get(size)
                short = container is not None and container.runtime == "kubernetes"
                short = short and (now or 0) < pages * size
                reason = Reason("hugetlb.cgroup-limit", page_terms(needs, Spot(size, None)))
                name = f"{size // GIB}Gi" if size >= GIB else f"{size // MIB}Mi"
                amounts = str(pages * size), "" if now is None else str(now)
                yield Wish(Setting(Kind.HUGEPAGES, name, *amounts), short, reason)
    known = regular_bytes(needs)
    if isinstance(known, Unknown):
        yield Gap("memory", known.reason)
        return
    ranks = sum(1 for process in needs.processes if process.program == "sglang")
    # What a rank's interpreter, torch, NCCL and the loading of weights take is not known before a
    # start: what SGLang itself keeps clear for the system, per rank, is the allowance.
    now = container.memory_bytes if container is not None else None
    gate_bytes = max((process.limit_bytes for process in needs.processes), default=0)
    least = max(known, gate_bytes)
    wanted = max(round_up(least + max(1, ranks) * RESERVE_BYTES, GIB), now or 0)
    what = f"{format_bytes(known)} that the launch maps on regular pages"
    if gate_bytes > known:
        wants = "that SGLang's own check wants free, whatever backs the pools"
        what = f"{format_bytes(gate_bytes)} {wants}"
    allowance = f"{format_bytes(RESERVE_BYTES)} for each of {max(1, ranks)} processes"
    reason = Reason("memory.cgroup", f"{what}, and an allowance of {allowance}")
    short = now is not None and now < least
    yield Wish(Setting(Kind.MEMORY, "memory", str(wanted), str(now or "")), short, reason)


def is_read(name: str) -> bool:
    """Return whether a variable is one that the launch's programs read, and no secret."""
    return _READ.match(name) is not None and not is_secret(name)


def environment(needs: LaunchNeeds | None) -> tuple[list[Wish], list[str], list[str]]:
    """Return (wishes for the main container's variables that programs of the launch read, conflicts
    as sentences, names left out as secrets).

    Of two values for a name the first is taken.
    """
    values: dict[str, dict[str, ProcessNeeds]] = {}
    needs_inside = None if needs is None else of_container(needs, main_container(needs))
    processes = () if needs_inside is None else needs_inside.processes
    for process in processes:
        for name, value in process.environment.items():
            if _READ.match(name):
                values.setdefault(name, {}).setdefault(value, process)
    wishes, conflicts, secrets = [], [], []
    everything = () if needs is None else needs.processes
    elsewhere = [process for process in everything if process not in processes]
    if processes and elsewhere:
        others = fold_alike([process.name for process in elsewhere], 2)
        text = f"what a container is given is that of {processes[0].name}; {others}"
        conflicts.append(f"{text}: in containers of their own, and not in it")
    for name, owners in sorted(values.items()):
        if is_secret(name) or any(public(value) != value for value in owners):
            secrets.append(name)
            continue
        value, process = next(iter(owners.items()))
        for other, owner in list(owners.items())[1:]:
            text = f"{name}: {process.name} has {value!r} and {owner.name} has {other!r}"
            taken = "the first is taken, so start them with an environment of their own"
            conflicts.append(f"{text}: {taken}")
        reason = Reason("", f"the launch sets it for {process.name}")
        wishes.append(Wish(Setting(Kind.ENVIRONMENT, name, value, value), False, reason))
    return wishes, conflicts, secrets
