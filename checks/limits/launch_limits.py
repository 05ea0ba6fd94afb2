"""Who runs a process and what that user may; what setrlimit(2) leaves of a launch's own limits."""

from checks.base.finding import Consequence, Finding
from checks.base.needs import (
    CAPABILITIES,
    Bound,
    ContainerLimits,
    ProcessNeeds,
    RunAs,
    SetLimit,
    is_root,
)
from checks.base.record import NamedTuple
from checks.base.unknown import Unknown, known, or_unknown
from checks.limits.facts import LimitFacts
from checks.limits.runtimes import Limit
from checks.system.facts import SystemFacts

# fs.nr_open as the kernel has it (fs/file.c, sysctl_nr_open): no limit of files goes above it, for
# root neither. systemd raises it at boot.
DEFAULT_NR_OPEN = 1 << 20


class StartLimit(NamedTuple):
    """The limit of a process as it starts. by: the launch's setting that gave the limit, None if no
    setting did.

    refused: a setting of the launch that the kernel refuses, so that the limit before stays."""

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
    """Apply the launch's own limit settings, in order, to ``limit`` (that of the host or
    container), and give what the process starts with. name: of LIMIT_NAMES. Stops at a refused
    setting without which the program is not started (``must``)."""
    state = StartLimit(limit)
    elsewhere = process.container is not None and not system.container.inside
    for asked in process.limits:
        if asked.name != name or (elsewhere and asked.soft is Bound.LOGIN):
            continue  # the image's own files are not seen
        raises = asked.raises or may(
            asked.setter, "SYS_RESOURCE", process.container, limits, system
        )
        state = _after(state, asked, raises, limits)
        if asked.must and state.refused is asked:
            break
    return state


@or_unknown
def may(
    run_as: RunAs,
    name: str,
    container: ContainerLimits | None,
    limits: LimitFacts,
    system: SystemFacts,
) -> bool | Unknown:
    """Tell whether ``run_as`` has a capability in effect, in the initial user namespace. name: of
    CAPABILITIES.

    container: the container of the process, if the launch describes one. If this check does not run
    in it, its user namespace is not looked at."""
    bit = CAPABILITIES[name]
    if container is not None and not system.container.inside:
        return _may_there(run_as, name, container)
    if run_as.user == "":
        return limits.effective(bit)
    if name not in run_as.gained and not (
        known(is_superuser(run_as, limits)) and known(limits.bounding_capabilities) >> bit & 1
    ):
        return False
    return limits.initial_user_namespace


def _may_there(run_as: RunAs, name: str, container: ContainerLimits) -> bool | Unknown:
    """Tell whether a capability acts in a container to come; user namespaces are not looked at."""
    if not container.privileged and not added(container) & {name, "ALL"}:
        return False
    user = container.user if run_as.user == "" else run_as.user
    if user is None:
        return Unknown("which user its image runs as")
    return user if isinstance(user, Unknown) else name in run_as.gained or is_root(user)


def added(container: ContainerLimits) -> set[str]:
    """Return the capabilities that a container is given, as IPC_LOCK."""
    return {each.upper().removeprefix("CAP_") for each in container.capabilities}


@or_unknown
def is_superuser(run_as: RunAs, limits: LimitFacts) -> bool | Unknown:
    """Tell whether a process runs as user 0 of this host; Unknown if its user cannot be told."""
    user = known(run_as.user)
    if user == "":
        return known(limits.euid) == 0
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


def _after(
    before: StartLimit, asked: SetLimit, raises: bool | Unknown, limits: LimitFacts
) -> StartLimit:
    """Return the limit after one setting ``asked`` of the launch. raises: whether its setter may
    raise the hard limit."""
    now = before.limit
    if asked.soft is Bound.SYSTEMD:
        return StartLimit(limits.runtimes.systemd_default(asked.name), asked)
    if asked.soft is Bound.LOGIN:
        login_limit = limits.runtimes.of_login(asked.name, asked.setter.user, now)
        kept = isinstance(login_limit, Limit) and login_limit == now
        return before if kept else StartLimit(login_limit, asked)
    soft, hard = _bound(asked.soft, now, 0), _bound(asked.hard, now, 1)
    if isinstance(soft, Unknown):
        return StartLimit(soft, asked)
    if isinstance(hard, Unknown):
        return StartLimit(hard, asked)
    if isinstance(now, Unknown):
        why = now.of(f"{asked.origin} sets it, upon a limit that is not known: ")
        return StartLimit(Limit(soft, hard) if raises is True else why, asked)
    if _above(soft, hard):
        return before._replace(refused=asked)
    if _above(hard, now.hard):
        files = asked.name == "nofile" and not asked.raises
        if raises is False or (files and hard is None):
            return before._replace(refused=asked)
        if isinstance(raises, Unknown):
            return StartLimit(raises.of(f"{asked.origin} raises it, which only root may: "), asked)
        if files and _above(hard, DEFAULT_NR_OPEN):
            return StartLimit(
                Unknown(f"{asked.origin} raises it: whether fs.nr_open allows that"), asked
            )
    return StartLimit(Limit(soft, hard), asked)


def _bound(
    bound: int | Bound | Unknown | None, now: Limit | Unknown, part: int
) -> int | Unknown | None:
    """Return the soft (``part`` 0) or hard (1) bound that a setting makes of the limit ``now``."""
    if not isinstance(bound, Bound):
        return bound
    if isinstance(now, Unknown):
        return now
    return now[{Bound.SOFT: 0, Bound.HARD: 1}.get(bound, part)]


def _above(bound: int | None, other: int | None) -> bool:
    return other is not None and (bound is None or bound > other)
