"""Is an IPC_LOCK that was added in effect for the user that the process runs as?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, passed, skip
from checks.base.fold import fold
from checks.base.needs import UNLIMITED, LaunchNeeds, ProcessNeeds, is_root
from checks.limits.facts import IPC_LOCK_BIT, STATUS, LimitFacts
from checks.limits.runtimes import Limit
from checks.memlock.demand import declares_ipc_lock, registering_or_host, soft_text
from checks.system.facts import SystemFacts

CHECKS = CheckSet()


@CHECKS.check("memlock.inert-capability", registering_or_host)
def inert_capability(
    needs: LaunchNeeds | None, limits: LimitFacts, system: SystemFacts
) -> Iterator[Finding]:
    contained = needs.rdma_processes if needs is not None else ()
    declared = [process for process in contained if process.container is not None]
    if declared:
        yield from fold(_declared(process) for process in declared)
        return
    if system.container.kind == "none":
        # Outside of containers every user's bounding set is full, which says nothing.
        yield skip("this is no container, and the launch describes none")
        return
    yield _inert_here(limits)


def _declared(process: ProcessNeeds) -> Finding:
    container = process.container
    assert container is not None
    found = passed(process.name, "no IPC_LOCK added")
    if not declares_ipc_lock(container):
        return found
    user = "the image's own user" if container.user is None else f"user {container.user}"
    what = "privileged" if container.privileged else "IPC_LOCK added"
    evidence = (Evidence(container.origin, f"{what}, {user}"),)
    found = found._replace(have=f"{what}, {user}", evidence=evidence)
    if container.user is None or is_root(container.user) or container.memlock_bytes == UNLIMITED:
        return found
    now = "" if container.memlock_bytes is None else str(container.memlock_bytes)
    return found.warned(
        "the capability is not in effect for this user, so RLIMIT_MEMLOCK counts",
        "Give the container memlock unlimited, or run it as user 0.",
        (Setting(Kind.ULIMIT, "memlock", "unlimited", now, described_by=container.runtime),),
        need="user 0, or memlock unlimited",
    )


def _inert_here(limits: LimitFacts) -> Finding:
    here = passed("this container")
    effective = here.known(limits.effective_capabilities)
    bounding = here.known(limits.bounding_capabilities)
    evidence = (
        Evidence(STATUS, f"CapEff: {effective:016x}"),
        Evidence(STATUS, f"CapBnd: {bounding:016x}"),
    )
    held, allowed = (bool(mask >> IPC_LOCK_BIT & 1) for mask in (effective, bounding))
    have = "in effect" if held else "allowed, not in effect" if allowed else "not added"
    found = passed("this container", f"IPC_LOCK {have}", evidence=evidence)
    unlimited = isinstance(limits.memlock, Limit) and limits.memlock.soft is None
    if held or not allowed or unlimited:
        return found
    return found.warned(
        "the capability is not in effect for this user, so RLIMIT_MEMLOCK counts",
        "Give the container memlock unlimited, or run it as user 0.",
        (Setting(Kind.ULIMIT, "memlock", "unlimited", soft_text(limits.memlock)),),
        need="user 0, or memlock unlimited",
    )
