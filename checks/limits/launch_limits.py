"""What is left of a limit after those that a launch itself sets, as setrlimit(2) takes them."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.finding import Consequence, Finding
from checks.base.needs import SYSTEMD, ContainerLimits, ProcessNeeds, SetLimit, is_root
from checks.base.unknown import Unknown
from checks.limits.facts import SYS_RESOURCE_BIT, LimitFacts
from checks.limits.runtimes import SYSTEMD_MEMLOCK, Limit
from checks.system.facts import SystemFacts

# fs.nr_open as the kernel has it (fs/file.c, sysctl_nr_open): no limit of files goes above it, for
# root neither. systemd raises it at boot.
LEAST_MOST_FILES = 1 << 20


class Held(NamedTuple):
    """limit: what holds in the end. by: who of the launch set that, None where none of it did.

    refused: what of the launch is refused, so that the limit stays.
    """

    limit: Limit | Unknown
    by: SetLimit | None = None
    refused: SetLimit | None = None


def held(
    name: str,
    limit: Limit | Unknown,
    process: ProcessNeeds,
    limits: LimitFacts,
    system: SystemFacts,
) -> Held:
    """Return what ``limit``, which its host or container gives a process, is when it runs."""
    found = Held(limit)
    mine = [one for one in process.limits if one.name == name]
    raises = _raises(process.container, limits, system) if mine else False
    default = limits.runtimes.systemd_default
    unit_memlock = SYSTEMD_MEMLOCK if default is None else default
    for one in mine:
        found = _after(found, one, True if one.raises else raises, unit_memlock)
        if one.must and found.refused is one:
            break
    return found


def not_started(found: Finding, refused: SetLimit) -> Finding:
    """Say that what starts the program gives up over a limit."""
    return found.failed(
        f"{refused.origin} raises {refused.name} above the hard limit: Operation not permitted, "
        "and the program is not started",
        "Raise the hard limit first, or leave it there.",
        consequence=Consequence.WILL_NOT_START,
    )


def _after(
    before: Held, one: SetLimit, raises: bool | Unknown, unit_memlock: Limit | Unknown
) -> Held:
    now = before.limit
    if one.soft == SYSTEMD:
        return Held(unit_memlock, one)
    soft, hard = _bound(one.soft, now, 0), _bound(one.hard, now, 1)
    if isinstance(soft, Unknown):
        return Held(soft, one)
    if isinstance(hard, Unknown):
        return Held(hard, one)
    if isinstance(now, Unknown):
        why = now.of(f"{one.origin} sets it, upon a limit that is not known: ")
        return Held(Limit(soft, hard) if raises is True else why, one)
    if _above(soft, hard):
        return before._replace(refused=one)
    if _above(hard, now.hard):
        files = one.name == "nofile" and not one.raises
        if raises is False or (files and hard is None):
            return before._replace(refused=one)
        if isinstance(raises, Unknown):
            return Held(raises.of(f"{one.origin} raises it, which only root may: "), one)
        if files and _above(hard, LEAST_MOST_FILES):
            return Held(Unknown(f"{one.origin} raises it: whether fs.nr_open allows that"), one)
    return Held(Limit(soft, hard), one)


def _bound(
    bound: int | str | Unknown | None, now: Limit | Unknown, kept: int
) -> int | Unknown | None:
    if not isinstance(bound, str):
        return bound
    if isinstance(now, Unknown):
        return now
    return now[("soft", "hard").index(bound) if bound else kept]


def _above(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)


def _raises(
    container: ContainerLimits | None, limits: LimitFacts, system: SystemFacts
) -> bool | Unknown:
    """Whether the process itself may go above a hard limit: CAP_SYS_RESOURCE."""
    if container is None or system.container.inside:
        return limits.effective(SYS_RESOURCE_BIT)
    added = {name.upper().removeprefix("CAP_") for name in container.capabilities}
    if not container.privileged and not added & {"SYS_RESOURCE", "ALL"}:
        return False
    if container.user is None:
        return Unknown("which user its image runs as")
    return is_root(container.user)
