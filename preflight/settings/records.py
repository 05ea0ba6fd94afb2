"""A plan as data: what is to be set where, what it is now, why, and whether a reboot keeps it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.base.finding import Kind, Setting
from checks.base.unknown import Unknown
from checks.hugetlb.boot import PoolWriter
from preflight.settings.commands import Context, pool_file, pool_name

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
    """One setting of the plan, with who sets it and why.

    change: the host is known to differ. lasts, how: whether a reboot keeps it, and by what.
    """

    setting: Setting
    scope: Scope
    change: bool
    reasons: tuple[Reason, ...]
    lasts: bool
    how: str

    @property
    def kind(self) -> Kind:
        return self.setting.kind

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def wanted(self) -> str:
        return self.setting.wanted

    @property
    def now(self) -> str:
        return self.setting.now


class PoolTarget(NamedTuple):
    """A HugeTLB pool, or one node of it. pages: to set, those that others hold included."""

    page_bytes: int
    node: int | None
    pages: int
    now_pages: int | None

    @property
    def file(self) -> str:
        return pool_file(self.page_bytes, self.node)

    @property
    def name(self) -> str:
        return pool_name(self.page_bytes, self.node)

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
    """The manifest or Compose service that describes the launch's container; "" without one.

    kind: Deployment and others of Kubernetes, or "". container: the name of the container, or of
    the service. The rest is what the description has already: capabilities, GPUs enough for its
    ranks, device files of RDMA.
    """

    kind: str = ""
    container: str = ""
    capabilities: tuple[str, ...] = ()
    has_gpus: bool = False
    has_rdma: bool = False


class Plan(NamedTuple):
    """All settings of a launch on a host, with those that are made already.

    source: the launch's name, or "". default_page_bytes: the kernel's. pool_nodes: NUMA nodes with
    memory. writers: those that set the pools at boot, in order. conflicts: two wanted values, and
    the one taken. left_out: variables that are not shown. impossible: why the missing pages cannot
    be had now, or help nobody. too_large: why not after a boot either. undecided: unread facts that
    decide whether pages may be taken. workload: the description that a patch is merged into.
    unread: parts of the launch without a setting. processes: of the launch.
    """

    source: str
    settings: tuple[Planned, ...]
    pools: tuple[PoolTarget, ...]
    default_page_bytes: int | Unknown
    pool_nodes: tuple[int, ...]
    writers: tuple[PoolWriter, ...]
    kernel: tuple[int, int] | Unknown
    gaps: tuple[Gap, ...]
    conflicts: tuple[str, ...]
    left_out: tuple[str, ...]
    impossible: tuple[str, ...]
    undecided: tuple[str, ...]
    context: Context
    workload: Workload = Workload()
    too_large: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    processes: tuple[LaunchProcess, ...] = ()

    @property
    def grows(self) -> bool:
        """Return whether a pool must take pages that the host has not given it yet."""
        return any(target.grows for target in self.pools)

    def of(self, *kinds: Kind) -> tuple[Planned, ...]:
        return tuple(setting for setting in self.settings if setting.kind in kinds)

    def value(self, kind: Kind, name: str) -> str | None:
        """Return the wanted value of a setting; None if the plan has no such setting."""
        return next((s.wanted for s in self.of(kind) if s.name == name), None)
