"""A plan as data: what is to be set where, what it is now, why, and whether a reboot keeps it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.base.finding import Kind, Setting
from checks.base.units import KIB, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.boot import PoolWriter
from checks.hugetlb.pools import POOLS
from checks.numa.nodes import NODES
from preflight.settings.commands import Context

if TYPE_CHECKING:
    from preflight.processes.processes import LaunchProcess


class Scope(Enum):
    """Who sets it, in the order in which a plan is shown."""

    FLAG = "launch flag"
    ENVIRONMENT = "environment"
    CONTAINER = "container"
    RUNTIME = "runtime"
    NODE = "node"
    BOOT = "boot"


class Reason(NamedTuple):
    """Why: the id of the check that asks for it ("" for the launch itself), and a sentence."""

    check: str
    text: str


class Wish(NamedTuple):
    """One value that somebody asks for. change: it is known not to be so now."""

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
    how: str  # by what a reboot keeps it


class PoolTarget(NamedTuple):
    """A HugeTLB pool, or one node of it. pages: to set, those that others hold included."""

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
        pool = {"page_size_bytes": self.page_bytes, "numa_node": self.node}
        return {**pool, "pages": self.pages, "now_pages": now}


TOPICS = ("pages", "memory", "devices", "environment")


class Gap(NamedTuple):
    """What the plan cannot say. topic: one of ``TOPICS``."""

    topic: str
    reason: str


class Workload(NamedTuple):
    """The manifest or Compose service that describes the launch's container; "" without one."""

    kind: str = ""  # Deployment and others of Kubernetes, or ""
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

    def value(self, kind: Kind, name: str) -> str | None:
        """Return the wanted value of a setting; None if the plan has no such setting."""
        return next((s.wanted for s in self.of(kind) if s.name == name), None)
