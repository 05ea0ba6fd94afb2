"""Does CAP_IPC_LOCK lift RLIMIT_MEMLOCK here, or only in a user namespace of its own?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.limits.facts import IPC_LOCK_BIT, STATUS, UID_MAP
from checks.limits.runtimes import DOCKER_CONFIG, Limit
from checks.memlock.demand import NO_RDMA, UNLIMITED, declares_ipc_lock, soft_text
from checks.run.facts import Facts

CHECKS = CheckSet()

_NAMESPACE = "memlock.user-namespace"


@CHECKS.declare(_NAMESPACE, "limits")
def user_namespace(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is not None and not needs.rdma_processes:
        yield skip(_NAMESPACE, NO_RDMA)
        return
    limits = facts.limits
    initial, mask = limits.initial_user_namespace, limits.effective_capabilities
    for fact in (initial, mask):
        if isinstance(fact, Unknown):
            yield Finding(_NAMESPACE, Status.UNKNOWN, "host", text=fact.reason)
            return
    assert isinstance(initial, bool)
    assert isinstance(mask, int)
    held = bool(mask >> IPC_LOCK_BIT & 1)
    have = "the initial user namespace" if initial else "a user namespace of its own"
    evidence = (Evidence(UID_MAP, have), Evidence(STATUS, f"CapEff: {mask:016x}"))
    found = Finding(_NAMESPACE, Status.PASS, "host", have, evidence=evidence)
    memlock = limits.memlock
    if not initial and held and not (isinstance(memlock, Limit) and memlock.soft is None):
        found = found._replace(
            status=Status.WARN,
            need="the initial user namespace, or memlock unlimited",
            text="CAP_IPC_LOCK shows in CapEff and does not lift RLIMIT_MEMLOCK for RDMA",
            advice="Start the container with memlock unlimited, or in the host's user namespace.",
            settings=(Setting(Kind.ULIMIT, "memlock", "unlimited", soft_text(memlock)),),
        )
    yield found
    remapped = limits.runtimes.userns_remap
    if isinstance(remapped, str) and remapped:
        yield from fold(_remapped(needs, remapped))


def _remapped(needs: LaunchNeeds | None, remapped: str) -> Iterator[Finding]:
    """Processes that count on a capability which Docker's remapping takes the effect of."""
    for process in needs.rdma_processes if needs is not None else ():
        container = process.container
        if container is None or container.runtime == "kubernetes":
            continue
        if not declares_ipc_lock(container) or container.memlock_bytes == UNLIMITED:
            continue
        yield Finding(
            _NAMESPACE,
            Status.WARN,
            process.name,
            have=f"userns-remap {remapped}",
            need="memlock unlimited",
            text="Docker remaps users, so IPC_LOCK and privileged do not lift RLIMIT_MEMLOCK",
            evidence=(Evidence(DOCKER_CONFIG, f"userns-remap: {remapped}"),),
            advice="Give the container memlock unlimited.",
            settings=(
                Setting(Kind.ULIMIT, "memlock", "unlimited", described_by=container.runtime),
            ),
        )
