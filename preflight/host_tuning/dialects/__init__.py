"""The dialects of a plan: a function each, and a line of ``FORMATS``, which imports nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from preflight.host_tuning.records import Plan

DEFAULT_SERVICE = "sglang"


class ArtefactNames(NamedTuple):
    """What a service ("": as in the launch) and the RDMA resource of an artefact are called."""

    service: str = ""
    rdma_resource: str = "rdma/hca"


class Rendering(NamedTuple):
    """text: the artefact alone, "" if the plan has nothing for it. notes: sentences about it."""

    text: str
    notes: tuple[str, ...] = ()


class PlanFormat(NamedTuple):
    """A format of the plan."""

    says: str
    where: str  # module of this package and function; "" for json, whose object has the exit code
    topics: tuple[str, ...] = ()  # gaps that refuse the format
    launch: bool = False  # nothing can be rendered without a launch
    takes_pages: str = ""  # pages are reserved "now" or at "boot": refused if the host cannot


_PAGES, _CONTAINER = ("pages",), ("devices", "environment")
_POD = (*_PAGES, "memory", *_CONTAINER)
FORMATS: dict[str, PlanFormat] = {
    "text": PlanFormat("for people", "text.text"),
    "sysctl": PlanFormat("drop-in of sysctl.d", "host.sysctl", _PAGES, takes_pages="now"),
    "sysfs": PlanFormat("systemd unit that sets pools", "host.sysfs", _PAGES, True, "now"),
    "cmdline": PlanFormat("kernel command line", "host.cmdline", _PAGES, True, "boot"),
    "limits": PlanFormat("drop-in of limits.d", "host.limits"),
    "systemd": PlanFormat("drop-in of the unit that starts it", "host.systemd"),
    "containerd": PlanFormat("drop-in of containerd.service", "host.containerd"),
    "docker": PlanFormat("options of docker run", "containers.docker", _CONTAINER, True),
    "compose": PlanFormat("compose file to merge", "containers.compose", _CONTAINER, True),
    "k8s": PlanFormat("strategic-merge patch of a Pod", "containers.kubernetes", _POD, True),
    "ansible": PlanFormat("playbook of Ansible", "host.ansible", _PAGES, takes_pages="now"),
    "env": PlanFormat("env file of docker or systemd", "containers.env", ("environment",), True),
    "shell": PlanFormat("exports", "containers.shell", ("environment",), True),
    "json": PlanFormat("one object", ""),
}


def render(plan: Plan, name: str, names: ArtefactNames) -> Rendering:
    """Return the plan in a dialect.

    The caller asks ``missing`` and ``refused`` before.
    """
    module, _, function = FORMATS[name].where.rpartition(".")
    dialect = import_module(f"{__name__}.{module}")
    rendering: Rendering = getattr(dialect, function)(plan, names)
    return rendering


def missing(plan: Plan, name: str) -> tuple[str, ...]:
    """Return the unknown facts, as sentences, without which the dialect is not rendered."""
    form = FORMATS[name]
    gaps = tuple(f"{gap.topic}: {gap.reason}" for gap in plan.gaps if gap.topic in form.topics)
    if form.takes_pages != "now" or not plan.grows:
        return gaps
    reasons = {gap.reason for gap in plan.gaps if gap.topic in form.topics}
    return (*gaps, *(why for why in plan.undecided if why not in reasons))


def refused(plan: Plan, name: str) -> tuple[str, ...]:
    """Return why the host cannot give the pages that the dialect would make it give."""
    when = FORMATS[name].takes_pages
    if not when or not plan.grows:
        return ()
    return plan.impossible if when == "now" else plan.too_large


def service_name(plan: Plan, names: ArtefactNames) -> str:
    """Return the service that a patch is merged into: as named, as in the launch, or a default."""
    return names.service or plan.workload.container or DEFAULT_SERVICE
