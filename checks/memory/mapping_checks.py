"""Checks of what limits mappings: /dev/shm, their number, and the overcommit policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.base.check import CheckSet, any_launch, the_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Subject, command, passed, unknown
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import GIB, MIB, counted, format_bytes, format_need
from checks.base.unknown import Unknown
from checks.memory.facts import MAX_MAP_COUNT, OVERCOMMIT, READ_ONLY, SHM, MemoryFacts
from checks.memory.judge import regular_bytes

CHECKS = CheckSet()

# What a container runtime gives /dev/shm when nobody says otherwise (docker, containerd).
RUNTIME_SHM_BYTES = 64 * MIB
# The kernel's default is 65530; distributions that run large services set it to 262144 and more.
USUAL_MAP_COUNT = 262144
_REMOVE = "remove the files that killed servers left there"


@CHECKS.check("shm.space", the_launch)
def shm_space(needs: LaunchNeeds, memory: MemoryFacts) -> Iterator[Finding]:
    """Judge /dev/shm as it is here, and as each of the launch's containers would have its own."""
    # A container whose processes have no GPU (a master) shares nothing with those that have.
    groups: dict[str, list[ProcessNeeds]] = {}
    sharing = [one for one in needs.processes if one.gpu is not None or one.shm_bytes]
    for process in sharing or needs.processes:
        origin = "" if process.container is None else process.container.origin
        groups.setdefault(origin, []).append(process)
    for group in groups.values() or ((),):
        yield from _shm_of(memory, group)


def _shm_of(memory: MemoryFacts, processes: Sequence[ProcessNeeds]) -> Iterator[Finding]:
    """Judge the /dev/shm that ``processes`` share: that of their container, or this host's."""
    need_bytes = sum(process.shm_bytes for process in processes)
    ranks = sum(1 for process in processes if process.gpu is not None)
    container = processes[0].container if processes else None
    if container is not None:
        subject = Subject(container.origin, "container")
        if container.host_ipc:
            text = "the container shares the host's /dev/shm"
            yield passed(subject, text, format_bytes(need_bytes))
            return
        size = RUNTIME_SHM_BYTES if container.shm_bytes is None else container.shm_bytes
        said = "unless told otherwise" if container.shm_bytes is None else "as asked for"
        have = format_bytes(size, f"{{}} {said}")
        found = _shm(subject, size, size, have, need_bytes, ranks, ())
        described = (one._replace(described_by=container.runtime) for one in found.settings)
        yield found._replace(settings=tuple(described))
        return
    found = passed(SHM)
    size_bytes, available = (
        found.known(memory.shm_size_bytes),
        found.known(memory.shm_available_bytes),
    )
    have = format_bytes(available, f"{{}} left of {format_bytes(size_bytes)}")
    evidence = (Evidence(f"statvfs {SHM}", f"{available} of {size_bytes} bytes"),)
    if memory.shm_refuses and need_bytes:
        found = passed(SHM, memory.shm_refuses, format_bytes(need_bytes), evidence=evidence)
        again = command("mount", "-o", "remount,rw", SHM, as_root=True)
        yield (
            found.failed("no segment can be made there", "mount it writable", (again,))
            if memory.shm_refuses == READ_ONLY
            else found.failed("no segment can be made there", f"{_REMOVE} (ls -l {SHM})")
        )
        return
    yield _shm(SHM, size_bytes, available, have, need_bytes, ranks, evidence)


def shm_wanted_bytes(need_bytes: int) -> int:
    """Return how large /dev/shm has to be where the launch itself puts ``need_bytes`` there.

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
    advice = f"make it {format_bytes(wanted)} or larger" if larger else "make room there"
    if available_bytes < need_bytes:
        text = (
            "a process that writes beyond the end dies of a bus error (exit code -7 or 135), "
            "at start"
        )
        if size_bytes >= need_bytes:
            advice += f", or {_REMOVE} (ls -l {SHM})"
        formula = "one page for the message queue of each tensor-parallel server, the least"
        return passed(subject, have, need, formula, evidence=evidence).failed(
            text, advice, settings
        )
    if ranks > 1 and available_bytes <= RUNTIME_SHM_BYTES:
        text = f"{ranks} ranks share it with NCCL and torch, which need more than 64 MiB"
        formula = f"{need} at least, and what NCCL and torch take"
        need = format_bytes(RUNTIME_SHM_BYTES, "more than {}")
        found = passed(subject, have, need, formula, evidence=evidence)
        return found.warned(text, advice, settings)
    return passed(subject, have, need, evidence=evidence)


@CHECKS.check("memory.max-map-count")
def max_map_count(memory: MemoryFacts) -> Iterator[Finding]:
    """Judge the host's limit."""
    count = memory.max_map_count
    need = counted(USUAL_MAP_COUNT, "mappings")
    if isinstance(count, Unknown):
        yield unknown("mappings of a process", count, need=need)
        return
    have, evidence = counted(count, "mappings"), (Evidence(MAX_MAP_COUNT, str(count)),)
    if count >= USUAL_MAP_COUNT:
        yield passed("mappings of a process", have, need, evidence=evidence)
        return
    yield passed("mappings of a process", have, need, evidence=evidence).warned(
        "a process with many buffers is refused memory though some is free",
        "raise it",
        (Setting(Kind.SYSCTL, "vm.max_map_count", str(USUAL_MAP_COUNT), str(count)),),
    )


@CHECKS.check("memory.overcommit", any_launch)
def overcommit(needs: LaunchNeeds | None, memory: MemoryFacts) -> Iterator[Finding]:
    """Judge the host's policy."""
    found = passed("overcommit")
    policy = found.known(memory.overcommit)
    have = f"vm.overcommit_memory={policy}"
    found = found._replace(have=have, evidence=(Evidence(OVERCOMMIT, str(policy)),))
    if policy != 2:
        yield found
        return
    bare = passed("overcommit", have)
    limit, committed = (
        bare.known(memory.value("CommitLimit")),
        bare.known(memory.value("Committed_AS")),
    )
    need_bytes = 0 if needs is None else bare.known(regular_bytes(needs))
    left = max(0, limit - committed)
    found = found._replace(
        have=format_bytes(left, f"{have}, {{}} may still be mapped"),
        need=format_need(need_bytes, left),
    )
    advice = "let the kernel overcommit"
    settings = (Setting(Kind.SYSCTL, "vm.overcommit_memory", "0", "2"),)
    if left >= need_bytes:
        text = "CUDA maps far more than it uses, and may be refused"
        yield found.warned(text, advice, settings)
    else:
        yield found.failed("mappings are refused although memory is free", advice, settings)
