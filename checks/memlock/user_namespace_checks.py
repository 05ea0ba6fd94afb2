"""Does CAP_IPC_LOCK lift RLIMIT_MEMLOCK here, or only in a user namespace of its own?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, passed
from checks.base.fold import fold
from checks.base.needs import UNLIMITED, LaunchNeeds
from checks.base.unknown import known
from checks.limits.facts import IPC_LOCK_BIT, STATUS, UID_MAP, LimitFacts
from checks.limits.runtimes import DOCKER_CONFIG, Limit
from checks.memlock.demand import declares_ipc_lock, registering_or_host, soft_text

CHECKS = CheckSet()


@CHECKS.check("memlock.user-namespace", registering_or_host)
def user_namespace(needs: LaunchNeeds | None, limits: LimitFacts) -> Iterator[Finding]:
    initial, mask = known(limits.initial_user_namespace), known(limits.effective_capabilities)
    held = bool(mask >> IPC_LOCK_BIT & 1)
    have = "the initial user namespace" if initial else "a user namespace of its own"
    evidence = (Evidence(UID_MAP, have), Evidence(STATUS, f"CapEff: {mask:016x}"))
    found = passed("host", have, evidence=evidence)
    memlock = limits.memlock
    if not initial and held and not (isinstance(memlock, Limit) and memlock.soft is None):
        found = found.warned(
            "CAP_IPC_LOCK shows in CapEff and does not lift RLIMIT_MEMLOCK for RDMA",
            "Start the container with memlock unlimited, or in the host's user namespace.",
            (Setting(Kind.ULIMIT, "memlock", "unlimited", soft_text(memlock)),),
            need="the initial user namespace, or memlock unlimited",
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
        yield passed(
            process.name,
            f"userns-remap {remapped}",
            "memlock unlimited",
            evidence=(Evidence(DOCKER_CONFIG, f"userns-remap: {remapped}"),),
        ).warned(
            "Docker remaps users, so IPC_LOCK and privileged do not lift RLIMIT_MEMLOCK",
            "Give the container memlock unlimited.",
            (Setting(Kind.ULIMIT, "memlock", "unlimited", described_by=container.runtime),),
        )
