"""Checks of what limits mappings: /dev/shm, their number, and the overcommit policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, skip, unknown
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import GIB, MIB, format_bytes
from checks.base.unknown import Unknown
from checks.memory.facts import MAX_MAP_COUNT, OVERCOMMIT, SHM
from checks.memory.judge import regular_bytes
from checks.run.facts import Facts

CHECKS = CheckSet()

# What a container runtime gives /dev/shm when nobody says otherwise (docker, containerd).
RUNTIME_SHM_BYTES = 64 * MIB
# The kernel's default is 65530; distributions that run large services set it to 262144 and more.
USUAL_MAP_COUNT = 262144

_SHM = "shm.space"


@CHECKS.declare(_SHM, "memory")
def shm_space(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """/dev/shm as it is here, and as each of the launch's containers would have its own."""
    if needs is None:
        yield skip(_SHM)
        return
    # A container whose processes have no GPU (a master) shares nothing with those that have.
    groups: dict[str, list[ProcessNeeds]] = {}
    for process in needs.processes:
        if process.gpu is not None or process.shm_bytes or not _anybody(needs):
            origin = "" if process.container is None else process.container.origin
            groups.setdefault(origin, []).append(process)
    for group in groups.values() or ((),):
        yield from _shm_of(facts, group)


def _anybody(needs: LaunchNeeds) -> bool:
    return any(process.gpu is not None or process.shm_bytes for process in needs.processes)


def _shm_of(facts: Facts, processes: Sequence[ProcessNeeds]) -> Iterator[Finding]:
    """Of ``processes`` that share one /dev/shm: that of their container, or this one."""
    need_bytes = sum(process.shm_bytes for process in processes)
    ranks = sum(1 for process in processes if process.gpu is not None)
    container = processes[0].container if processes else None
    if container is not None:
        if container.host_ipc:
            text = "the container shares the host's /dev/shm"
            yield Finding(_SHM, Status.PASS, container.origin, text, format_bytes(need_bytes))
            return
        size = RUNTIME_SHM_BYTES if container.shm_bytes is None else container.shm_bytes
        said = "unless told otherwise" if container.shm_bytes is None else "as asked for"
        have = f"{format_bytes(size)} {said}"
        found = _shm(container.origin, size, size, have, need_bytes, ranks, ())
        described = (one._replace(described_by=container.runtime) for one in found.settings)
        yield found._replace(settings=tuple(described))
        return
    size_bytes, available = facts.memory.shm_size_bytes, facts.memory.shm_available_bytes
    if isinstance(size_bytes, Unknown) or isinstance(available, Unknown):
        reason = size_bytes if isinstance(size_bytes, Unknown) else available
        yield unknown(_SHM, SHM, reason.reason if isinstance(reason, Unknown) else "")
        return
    have = f"{format_bytes(available)} left of {format_bytes(size_bytes)}"
    evidence = (Evidence(f"statvfs {SHM}", f"{available} of {size_bytes} bytes"),)
    yield _shm(SHM, size_bytes, available, have, need_bytes, ranks, evidence)


def shm_wanted_bytes(need_bytes: int) -> int:
    """What to give /dev/shm where the launch itself puts ``need_bytes`` there.

    With room for NCCL and torch, which nobody counts; a tmpfs costs nothing until it is used.
    """
    return max(GIB, 2 * need_bytes)


def _shm(
    subject: str,
    size_bytes: int,
    available_bytes: int,
    have: str,
    need_bytes: int,
    ranks: int,
    evidence: tuple[Evidence, ...],
) -> Finding:
    need = format_bytes(need_bytes)
    wanted = shm_wanted_bytes(need_bytes)
    # What is large enough and full is not made smaller.
    larger = wanted > size_bytes
    settings = (Setting(Kind.SHM_SIZE, SHM, str(wanted), str(size_bytes)),) if larger else ()
    advice = f"give it {format_bytes(wanted)} or more" if larger else "make room there"
    if available_bytes < need_bytes:
        text = "who writes beyond the end dies of a bus error (exit code -7, 135), at the start"
        if size_bytes >= need_bytes:
            advice += ", or remove what killed servers left there (ls -l /dev/shm)"
        formula = "one page for the message queue of each tensor-parallel server, the least"
        return Finding(
            _SHM, Status.FAIL, subject, have, need, formula, text, evidence, advice, settings
        )
    if ranks > 1 and available_bytes <= RUNTIME_SHM_BYTES:
        text = f"{ranks} ranks share it with NCCL and torch, which need more than 64 MiB"
        return Finding(_SHM, Status.WARN, subject, have, need, "", text, evidence, advice, settings)
    return Finding(_SHM, Status.PASS, subject, have, need, "", "", evidence)


_MAPS = "memory.max-map-count"


@CHECKS.declare(_MAPS, "memory")
def max_map_count(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """The host's limit."""
    count = facts.memory.max_map_count
    need = f"{USUAL_MAP_COUNT} mappings"
    if isinstance(count, Unknown):
        yield unknown(_MAPS, "mappings of a process", count.reason, need=need)
        return
    have, evidence = f"{count} mappings", (Evidence(MAX_MAP_COUNT, str(count)),)
    if count >= USUAL_MAP_COUNT:
        yield Finding(_MAPS, Status.PASS, "mappings of a process", have, need, "", "", evidence)
        return
    yield Finding(
        _MAPS,
        Status.WARN,
        "mappings of a process",
        have,
        need,
        text="a process with many buffers is refused memory although there is some",
        evidence=evidence,
        advice="raise it",
        settings=(Setting(Kind.SYSCTL, "vm.max_map_count", str(USUAL_MAP_COUNT), str(count)),),
    )


_OVERCOMMIT = "memory.overcommit"


@CHECKS.declare(_OVERCOMMIT, "memory")
def overcommit(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """The host's policy."""
    memory, subject = facts.memory, "overcommit"
    if isinstance(memory.overcommit, Unknown):
        yield unknown(_OVERCOMMIT, subject, memory.overcommit.reason)
        return
    evidence = (Evidence(OVERCOMMIT, str(memory.overcommit)),)
    have = f"vm.overcommit_memory={memory.overcommit}"
    if memory.overcommit != 2:
        yield Finding(_OVERCOMMIT, Status.PASS, subject, have, evidence=evidence)
        return
    limit, committed = memory.value("CommitLimit"), memory.value("Committed_AS")
    need_bytes = 0 if needs is None else regular_bytes(needs)
    for value in (limit, committed, need_bytes):
        if isinstance(value, Unknown):
            yield unknown(_OVERCOMMIT, subject, value.reason, have=have)
            return
    assert isinstance(limit, int)
    assert isinstance(committed, int)
    assert isinstance(need_bytes, int)
    left = max(0, limit - committed)
    fits = left >= need_bytes
    yield Finding(
        _OVERCOMMIT,
        Status.WARN if fits else Status.FAIL,
        subject,
        f"{have}, {format_bytes(left)} may still be mapped",
        format_bytes(need_bytes),
        text="CUDA maps far more than it uses, and may be refused"
        if fits
        else "mappings are refused although memory is free",
        evidence=evidence,
        advice="let the kernel overcommit",
        settings=(Setting(Kind.SYSCTL, "vm.overcommit_memory", "0", "2"),),
    )
