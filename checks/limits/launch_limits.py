"""Who runs a process and what that user may; and what is left of a limit after those that a launch
itself sets, as setrlimit(2) takes them.
"""

from typing import NamedTuple

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
from checks.base.unknown import Unknown
from checks.limits.facts import LimitFacts
from checks.limits.runtimes import Limit
from checks.system.facts import SystemFacts

# fs.nr_open as the kernel has it (fs/file.c, sysctl_nr_open): no limit of files goes above it, for
# root neither. systemd raises it at boot.
DEFAULT_NR_OPEN = 1 << 20


class StartLimit(NamedTuple):
    """limit: what holds in the end. by: who of the launch set that, None if none of it did.

    refused: what of the launch is refused, so that the limit stays.
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
    """Return the limit that a process runs with; ``limit``: of its host or container."""
    found = StartLimit(limit)
    elsewhere = process.container is not None and not system.container.inside
    for one in process.limits:
        if one.name != name or (elsewhere and one.soft is Bound.LOGIN):
            continue  # the image's own files are not seen
        raises = one.raises or may(one.setter, "SYS_RESOURCE", process.container, limits, system)
        found = _after(found, one, raises, limits)
        if one.must and found.refused is one:
            break
    return found


def may(
    run_as: RunAs,
    name: str,
    container: ContainerLimits | None,
    limits: LimitFacts,
    system: SystemFacts,
) -> bool | Unknown:
    """Return whether who runs something has a capability in effect, in the initial namespace.

    name: of CAPABILITIES. container: the one that it runs in, where the launch describes it.
    """
    bit = CAPABILITIES[name]
    if container is not None and not system.container.inside:
        return _may_there(run_as, name, container)
    if run_as.user == "":
        return limits.effective(bit)
    if name not in run_as.gained:
        root = is_superuser(run_as, limits)
        if isinstance(root, Unknown) or not root:
            return root
        bounding = limits.bounding_capabilities
        if isinstance(bounding, Unknown):
            return bounding
        if not bounding >> bit & 1:
            return False
    return limits.initial_user_namespace


def _may_there(run_as: RunAs, name: str, container: ContainerLimits) -> bool | Unknown:
    """Return whether the capability is in effect in a container that the engine makes.

    The container's user namespace is not looked at.
    """
    added = {each.upper().removeprefix("CAP_") for each in container.capabilities}
    if not container.privileged and not added & {name, "ALL"}:
        return False
    user = container.user if run_as.user == "" else run_as.user
    if user is None:
        return Unknown("which user its image runs as")
    return user if isinstance(user, Unknown) else name in run_as.gained or is_root(user)


def is_superuser(run_as: RunAs, limits: LimitFacts) -> bool | Unknown:
    """Return whether it is user 0 that runs something on this host."""
    user = run_as.user
    if user == "":
        return limits.euid if isinstance(limits.euid, Unknown) else limits.euid == 0
    if isinstance(user, Unknown) or is_root(user):
        return user if isinstance(user, Unknown) else True
    if user.isdecimal():
        return False
    names = limits.root_names
    return names.of(f"user {user}: ") if isinstance(names, Unknown) else user in names


def not_started(found: Finding, refused: SetLimit) -> Finding:
    """Return the finding that what starts the program gives up over a limit."""
    return found.failed(
        f"{refused.origin} raises {refused.name} above the hard limit: Operation not permitted, "
        "and the program is not started",
        "raise the hard limit first, or leave it there",
        consequence=Consequence.WILL_NOT_START,
    )


def _after(
    before: StartLimit, one: SetLimit, raises: bool | Unknown, limits: LimitFacts
) -> StartLimit:
    now = before.limit
    if one.soft is Bound.SYSTEMD:
        return StartLimit(limits.runtimes.systemd_default(one.name), one)
    if one.soft is Bound.LOGIN:
        given = limits.runtimes.of_login(one.name, one.setter.user, now)
        return before if isinstance(given, Limit) and given == now else StartLimit(given, one)
    soft, hard = _bound(one.soft, now, 0), _bound(one.hard, now, 1)
    if isinstance(soft, Unknown):
        return StartLimit(soft, one)
    if isinstance(hard, Unknown):
        return StartLimit(hard, one)
    if isinstance(now, Unknown):
        why = now.of(f"{one.origin} sets it, upon a limit that is not known: ")
        return StartLimit(Limit(soft, hard) if raises is True else why, one)
    if _above(soft, hard):
        return before._replace(refused=one)
    if _above(hard, now.hard):
        files = one.name == "nofile" and not one.raises
        if raises is False or (files and hard is None):
            return before._replace(refused=one)
        if isinstance(raises, Unknown):
            return StartLimit(raises.of(f"{one.origin} raises it, which only root may: "), one)
        if files and _above(hard, DEFAULT_NR_OPEN):
            return StartLimit(
                Unknown(f"{one.origin} raises it: whether fs.nr_open allows that"), one
            )
    return StartLimit(Limit(soft, hard), one)


def _bound(
    bound: int | Bound | Unknown | None, now: Limit | Unknown, own: int
) -> int | Unknown | None:
    """Return the soft (``own`` 0) or hard (1) bound that is set where ``now`` is the limit."""
    if not isinstance(bound, Bound):
        return bound
    if isinstance(now, Unknown):
        return now
    return now[{Bound.SOFT: 0, Bound.HARD: 1}.get(bound, own)]


def _above(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)
