"""Who runs a process and what that user may; what setrlimit(2) leaves of a launch's own limits."""

from typing import NamedTuple

from checks.framework.finding import Consequence, Finding
from checks.framework.needs import (
    CAPABILITIES,
    Bound,
    ContainerLimits,
    ProcessNeeds,
    RunAs,
    SetLimit,
    is_root,
)
from checks.framework.unknown import Unknown, or_unknown, require
from checks.limits.facts import LimitFacts
from checks.limits.runtimes import Limit
from checks.system.facts import SystemFacts

# fs.nr_open as the kernel has it (fs/file.c, sysctl_nr_open): no limit of files goes above it, for
# root neither. systemd raises it at boot.
DEFAULT_NR_OPEN = 1 << 20


class StartLimit(NamedTuple):
    """The limit of a process as it starts.

    Attributes:
        by: The launch's setting that gave the limit, None if no setting did.
        refused: A setting of the launch that the kernel refuses, so that the limit before stays.
    """

    limit: Limit | Unknown
    by: SetLimit | None = None
    refused: SetLimit | None = None


def start_limit(
    name: str,
    limit: Limit | Unknown,
    process: ProcessNeeds,
    limits: LimitFacts,
    system: SystemFacts,
) -> StartLimit:
    """Return the limit ``name`` (of LIMIT_NAMES) that a process starts with.

    Args:
        limit: That of the host or container. The launch's own settings are applied to it in order,
            up to a refused one with ``must``: the program is then not started.
    """
    state = StartLimit(limit)
    elsewhere = process.container is not None and not system.container.inside
    for setting in process.limits:
        if setting.name != name or (elsewhere and setting.soft is Bound.LOGIN):
            continue  # the image's own files are not seen
        raises = setting.raises or has_capability(
            setting.setter, "SYS_RESOURCE", process.container, limits, system
        )
        state = _apply_setting(state, setting, raises, limits)
        if setting.must and state.refused is setting:
            break
    return state


@or_unknown
def has_capability(
    run_as: RunAs,
    capability: str,
    container: ContainerLimits | None,
    limits: LimitFacts,
    system: SystemFacts,
) -> bool | Unknown:
    """Tell whether ``run_as`` has a capability that acts on the host (in the initial user
    namespace).

    Args:
        capability: Of CAPABILITIES.
        container: That of the process, None without one. If this check does not run in that
            container, its settings tell the answer, and its user namespace is ignored.
    """
    bit = CAPABILITIES[capability]
    if container is not None and not system.container.inside:
        return _has_in_container(run_as, capability, container)
    if run_as.user == "":
        return limits.effective(bit)
    if capability not in run_as.gained and not (
        require(is_superuser(run_as, limits)) and require(limits.bounding_capabilities) >> bit & 1
    ):
        return False
    return limits.initial_user_namespace


def _has_in_container(run_as: RunAs, capability: str, container: ContainerLimits) -> bool | Unknown:
    """Tell whether ``run_as`` has a capability in a container that this check does not run in.

    User namespaces are ignored.

    Returns:
        Unknown if only the image says which user runs.
    """
    if not container.privileged and not added_capabilities(container) & {capability, "ALL"}:
        return False
    user = container.user if run_as.user == "" else run_as.user
    if user is None:
        return Unknown("which user its image runs as")
    return user if isinstance(user, Unknown) else capability in run_as.gained or is_root(user)


def added_capabilities(container: ContainerLimits) -> set[str]:
    """Return the capabilities that a container is given, as IPC_LOCK."""
    return {each.upper().removeprefix("CAP_") for each in container.capabilities}


@or_unknown
def is_superuser(run_as: RunAs, limits: LimitFacts) -> bool | Unknown:
    """Tell whether a process runs as user 0 of this host; Unknown if its user cannot be told."""
    user = require(run_as.user)
    if user == "":
        return require(limits.euid) == 0
    if is_root(user) or user.isdecimal():
        return is_root(user)
    names = limits.root_names
    return names.of(f"user {user}: ") if isinstance(names, Unknown) else user in names


def not_started(finding: Finding, refused: SetLimit) -> Finding:
    """Return a failure: a limit is refused, and so the program is not started."""
    return finding.failed(
        f"{refused.origin} raises {refused.name} above the hard limit: Operation not permitted, "
        "and the program is not started",
        "raise the hard limit first, or leave it there",
        consequence=Consequence.WILL_NOT_START,
    )


def _apply_setting(
    before: StartLimit, setting: SetLimit, raises: bool | Unknown, limits: LimitFacts
) -> StartLimit:
    """Return the limit after one setting of the launch is applied to ``before``.

    Args:
        raises: Whether the setter may raise the hard limit.
    """
    now = before.limit
    if setting.soft is Bound.SYSTEMD:
        return StartLimit(limits.runtimes.systemd_default(setting.name), setting)
    if setting.soft is Bound.LOGIN:
        login_limit = limits.runtimes.login_limit(setting.name, setting.setter.user, now)
        kept = isinstance(login_limit, Limit) and login_limit == now
        return before if kept else StartLimit(login_limit, setting)
    soft, hard = _bound_value(setting.soft, now, 0), _bound_value(setting.hard, now, 1)
    if isinstance(soft, Unknown):
        return StartLimit(soft, setting)
    if isinstance(hard, Unknown):
        return StartLimit(hard, setting)
    if isinstance(now, Unknown):
        why = now.of(f"{setting.origin} sets it, upon a limit that is not known: ")
        return StartLimit(Limit(soft, hard) if raises is True else why, setting)
    if _above(soft, hard):
        return before._replace(refused=setting)
    if _above(hard, now.hard):
        files = setting.name == "nofile" and not setting.raises
        if raises is False or (files and hard is None):
            return before._replace(refused=setting)
        if isinstance(raises, Unknown):
            return StartLimit(
                raises.of(f"{setting.origin} raises it, which only root may: "), setting
            )
        if files and _above(hard, DEFAULT_NR_OPEN):
            return StartLimit(
                Unknown(f"{setting.origin} raises it: whether fs.nr_open allows that"), setting
            )
    return StartLimit(Limit(soft, hard), setting)


def _bound_value(
    bound: int | Bound | Unknown | None, now: Limit | Unknown, part: int
) -> int | Unknown | None:
    """Return the soft (``part`` 0) or hard (1) value of a setting.

    A value that is relative is taken from ``now``, the limit in force.
    """
    if not isinstance(bound, Bound):
        return bound
    if isinstance(now, Unknown):
        return now
    return now[{Bound.SOFT: 0, Bound.HARD: 1}.get(bound, part)]


def _above(bound: int | None, other: int | None) -> bool:
    return other is not None and (bound is None or bound > other)
