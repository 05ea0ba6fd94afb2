"""Is an IPC_LOCK that was added in effect for the user that the process runs as?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.limits.facts import IPC_LOCK_BIT, STATUS
from checks.limits.runtimes import Limit
from checks.memlock.demand import NO_RDMA, UNLIMITED, declares_ipc_lock, is_root, soft_text
from checks.run.facts import Facts

CHECKS = CheckSet()

_INERT = "memlock.inert-capability"


@CHECKS.declare(_INERT, "limits", "system")
def inert_capability(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is not None and not needs.rdma_processes:
        yield skip(_INERT, NO_RDMA)
        return
    contained = needs.rdma_processes if needs is not None else ()
    declared = [process for process in contained if process.container is not None]
    if declared:
        yield from fold(_declared(process) for process in declared)
        return
    if facts.system.container.kind == "none":
        # Outside of containers every user's bounding set is full, which says nothing.
        yield skip(_INERT, "this is no container, and the launch describes none")
        return
    yield _inert_here(facts)


def _declared(process: ProcessNeeds) -> Finding:
    container = process.container
    assert container is not None
    found = Finding(_INERT, Status.PASS, process.name, "no IPC_LOCK added")
    if not declares_ipc_lock(container):
        return found
    user = "the image's own user" if container.user is None else f"user {container.user}"
    what = "privileged" if container.privileged else "IPC_LOCK added"
    evidence = (Evidence(container.origin, f"{what}, {user}"),)
    found = found._replace(have=f"{what}, {user}", evidence=evidence)
    if container.user is None or is_root(container.user) or container.memlock_bytes == UNLIMITED:
        return found
    now = "" if container.memlock_bytes is None else str(container.memlock_bytes)
    return found._replace(
        status=Status.WARN,
        need="user 0, or memlock unlimited",
        text="the capability is not in effect for this user, so RLIMIT_MEMLOCK counts",
        advice="Give the container memlock unlimited, or run it as user 0.",
        settings=(
            Setting(Kind.ULIMIT, "memlock", "unlimited", now, described_by=container.runtime),
        ),
    )


def _inert_here(facts: Facts) -> Finding:
    limits = facts.limits
    effective, bounding = limits.effective_capabilities, limits.bounding_capabilities
    for fact in (effective, bounding):
        if isinstance(fact, Unknown):
            return Finding(_INERT, Status.UNKNOWN, "this container", text=fact.reason)
    assert isinstance(effective, int)
    assert isinstance(bounding, int)
    evidence = (
        Evidence(STATUS, f"CapEff: {effective:016x}"),
        Evidence(STATUS, f"CapBnd: {bounding:016x}"),
    )
    held, allowed = (bool(mask >> IPC_LOCK_BIT & 1) for mask in (effective, bounding))
    have = "in effect" if held else "allowed, not in effect" if allowed else "not added"
    found = Finding(_INERT, Status.PASS, "this container", f"IPC_LOCK {have}", evidence=evidence)
    unlimited = isinstance(limits.memlock, Limit) and limits.memlock.soft is None
    if held or not allowed or unlimited:
        return found
    return found._replace(
        status=Status.WARN,
        need="user 0, or memlock unlimited",
        text="the capability is not in effect for this user, so RLIMIT_MEMLOCK counts",
        advice="Give the container memlock unlimited, or run it as user 0.",
        settings=(Setting(Kind.ULIMIT, "memlock", "unlimited", soft_text(limits.memlock)),),
    )
