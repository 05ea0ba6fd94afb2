"""Checks of regular memory: the host's, the memory cgroup's, /dev/shm, mappings and overcommit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from checks.framework.cgroup_mounts import no_limit
from checks.framework.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    Subject,
    command,
    passed,
)
from checks.framework.needs import LaunchNeeds, ProcessNeeds, sizes_to_lower
from checks.framework.problem import Problems
from checks.framework.units import GIB, MIB, counted, format_bytes, format_need, format_page_size
from checks.framework.unknown import Unknown, or_unknown, require
from checks.memory.facts import MAX_MAP_COUNT, OVERCOMMIT, READ_ONLY, SHM, MemoryFacts
from checks.numa.nodes import Meminfo

CHECKS = Problems()

# What SGLang itself leaves to the system before it admits a pool (mem_cache/pool_host/base.py).
RESERVE_BYTES = 10 * GIB


@or_unknown
def regular_bytes(needs: LaunchNeeds) -> int | Unknown:
    """Return the bytes on regular pages that all processes of the launch take on this host."""
    return sum(require(process.regular_bytes) for process in needs.processes)


def _formula(processes: Iterable[ProcessNeeds], huge_bytes: int = 0) -> str:
    """Write the regular memory of the processes as a sum, ``2 x 3 GiB + 1 GiB``; unknown sizes are
    left out.

    Args:
        huge_bytes: Added as one more term.
    """
    every = (process.regular_bytes for process in processes)
    counts = Counter(size for size in every if isinstance(size, int) and size)
    sizes = ((n, format_bytes(size)) for size, n in counts.items())
    terms = [f"{n} x {size}" if n > 1 else size for n, size in sizes]
    if huge_bytes:
        terms.append(f"{format_bytes(huge_bytes)} of huge pages")
    return " + ".join(terms)


@CHECKS("memory.host")
def host_memory(needs: LaunchNeeds, memory: MemoryFacts) -> Iterator[Finding]:
    """Judge whether the host has the regular memory of all processes together.

    If SGLang has ranks, warn if less than 10 GiB would be left.
    """
    finding = passed("regular memory")
    table = finding.require(memory.meminfo)
    need_bytes = finding.require(regular_bytes(needs))
    available = finding.require(table.value("MemAvailable"))
    finding = finding._replace(
        have=format_bytes(available, "{} available"),
        need=format_need(need_bytes, available),
        formula=_formula(needs.processes),
        evidence=(Evidence(table.source, f"MemAvailable {available} bytes"),),
    )
    ranks = any(process.program == "sglang" for process in needs.processes)
    advice = f"lower {sizes_to_lower(needs.processes)}, or free memory{_unused_pages(needs, table)}"
    if need_bytes > available:
        refused = "a rank is refused, or " * ranks
        text = f"there is not enough memory: {refused}the kernel kills a process"
        yield finding.failed(text, advice)
    elif ranks and need_bytes and need_bytes + RESERVE_BYTES > available:
        left = format_bytes(available - need_bytes)
        text = f"{left} would be left for the model's loading, the system and page cache"
        yield finding.warned(text, advice)
    else:
        yield finding


def _unused_pages(needs: LaunchNeeds, table: Meminfo) -> str:
    """Return advice on the free huge pages of the default size, which no other memory can use.

    Return "" if all are taken or reserved, or if the launch takes or may take them.
    """
    rows = ("Hugepagesize", "HugePages_Free", "HugePages_Rsvd")
    size, free, reserved = (table.values.get(row, 0) for row in rows)
    if free <= reserved or isinstance(needs.usages, Unknown):
        return ""
    if any(spot.page_size_bytes == size for usage in needs.usages for spot in usage.mapped):
        return ""
    unused = f"{free - reserved} huge pages of {format_page_size(size)}"
    return f": {unused} are reserved and unused ({format_bytes((free - reserved) * size)})"


@CHECKS("memory.cgroup")
def cgroup_memory(needs: LaunchNeeds, memory: MemoryFacts) -> Iterator[Finding]:
    """Judge the memory limits of this process's own cgroup, of the launch's containers, and of a
    Slurm job. The job is left out if its limit is that cgroup's.
    """
    finding = passed("cgroup")
    charged, headroom = _charged(needs, memory), memory.headroom
    need_bytes, headroom = finding.require(charged), finding.require(headroom)
    formula = _formula(needs.processes, need_bytes - finding.require(regular_bytes(needs)))
    total = memory.value("MemTotal")
    if headroom is None or (isinstance(total, int) and headroom.left_bytes >= total > 0):
        yield passed("cgroup", "no limit below the host's", format_bytes(need_bytes), formula)
    else:
        killing = passed("cgroup").require(memory.killing_headroom)
        slow = headroom.source.endswith("/memory.high")
        if killing is not None and killing.left_bytes < need_bytes:
            slow, headroom = False, killing
        evidence = (Evidence(headroom.source, f"{headroom.left_bytes} bytes left"),)
        setting = Setting(Kind.CGROUP, headroom.source, no_limit(headroom.source))
        sizes = sizes_to_lower(needs.processes)
        left = headroom.left_bytes
        finding = _judge_fit("cgroup", left, need_bytes, formula, evidence, (setting,), sizes)
        if slow and finding.status is Status.FAIL:
            text = "the kernel slows every process of the cgroup down: the start may never end"
            finding = finding._replace(text=text, consequence=Consequence.DEGRADED)
        yield finding
    yield from container_memory(needs)
    if headroom is None or "slurm" not in headroom.source:
        yield from _judge_slurm_job(needs)


@or_unknown
def _charged(needs: LaunchNeeds, memory: MemoryFacts) -> int | Unknown:
    """Add up the memory that the cgroup charges: huge pages too, if the kernel counts them."""
    total = require(regular_bytes(needs))
    sizes = [process.hugetlb_bytes for process in needs.processes]
    if memory.hugetlb_charged is False or not any(isinstance(x, Unknown) or x for x in sizes):
        return total
    require(memory.hugetlb_charged)  # matters only if huge pages are taken
    return total + sum(map(require, sizes))


def _judge_fit(
    subject: str,
    left_bytes: int,
    need_bytes: int,
    formula: str,
    evidence: tuple[Evidence, ...],
    settings: tuple[Setting, ...],
    sizes: str,
) -> Finding:
    """Judge whether ``need_bytes`` fit into ``left_bytes`` below a memory limit.

    Warn if less than a tenth of the need would be left over.

    Args:
        sizes: Words for what a person may lower.
    """
    have, need = format_bytes(left_bytes, "{} allowed"), format_need(need_bytes, left_bytes)
    finding = passed(subject, have, need, formula, evidence=evidence)
    advice = f"raise the memory limit of the container, or lower {sizes}"
    if left_bytes < need_bytes:
        text = "the kernel kills a process when the limit is reached, minutes after a clean start"
        return finding.failed(text, advice, settings)
    if need_bytes and left_bytes < need_bytes + need_bytes // 10:
        text = "little is left for the programs themselves and for page cache"
        return finding.warned(text, advice, settings)
    return finding


def container_memory(needs: LaunchNeeds) -> Iterator[Finding]:
    """Judge each memory limit that the launch sets for a container, against the regular memory of
    the processes in it.

    Processes of unknown size are left out.
    """
    inside: dict[tuple[str, int], list[ProcessNeeds]] = {}
    for process in needs.processes:
        container = process.container
        limit = None if container is None else container.memory_bytes
        if container and limit is not None and isinstance(process.regular_bytes, int):
            inside.setdefault((container.origin, limit), []).append(process)
    for (origin, limit_bytes), processes in inside.items():
        need_bytes = sum(require(each.regular_bytes) for each in processes)
        evidence = (Evidence(origin, f"memory limit {limit_bytes} bytes"),)
        sizes = sizes_to_lower(processes)
        yield _judge_fit(origin, limit_bytes, need_bytes, _formula(processes), evidence, (), sizes)


def _judge_slurm_job(needs: LaunchNeeds) -> Iterator[Finding]:
    """Warn if a Slurm job's --mem is less than the launch's processes in the job need.

    Processes of unknown size, or in containers not of pyxis, are left out. Yields nothing without
    --mem.
    """
    places = [(each, each.container) for each in needs.processes]
    inside = [each for each, at in places if at is None or at.runtime == "pyxis"]
    need_bytes = sum(each.regular_bytes for each in inside if isinstance(each.regular_bytes, int))
    asked = {each.environment.get("SLURM_MEM_PER_NODE", "") for each in inside}
    for mib in sorted(each for each in asked if each.isdecimal()):
        given_bytes = int(mib) * MIB
        have, need = format_bytes(given_bytes, "{} asked for"), format_need(need_bytes, given_bytes)
        evidence = (Evidence("SLURM_MEM_PER_NODE", f"{mib} MiB"),)
        finding = passed("Slurm job", have, need, _formula(inside), evidence=evidence)
        if given_bytes < need_bytes:
            text = "where cgroup.conf has ConstrainRAMSpace=yes, a job that takes more is killed"
            sizes = sizes_to_lower(inside)
            advice = f"raise --mem of the job (0 is all of a node), or lower {sizes}"
            finding = finding.warned(text, advice)
        yield finding


# What a container runtime gives /dev/shm when nobody says otherwise (docker, containerd).
RUNTIME_SHM_BYTES = 64 * MIB
# The kernel's default is 65530; distributions that run large services set it to 262144 and more.
USUAL_MAP_COUNT = 262144
_REMOVE = "remove the files that killed servers left there"


@CHECKS("shm.space")
def shm_space(needs: LaunchNeeds, memory: MemoryFacts) -> Iterator[Finding]:
    """Judge the /dev/shm that processes of the launch use: this host's, and each container's."""
    # A container whose processes have no GPU (a master) shares nothing with those that have.
    groups: dict[str, list[ProcessNeeds]] = {}
    sharing = [each for each in needs.processes if each.gpu is not None or each.shm_bytes]
    for each in sharing or needs.processes:
        origin = "" if each.container is None else each.container.origin
        groups.setdefault(origin, []).append(each)
    for group in groups.values() or ((),):
        yield from _judge_shared_shm(memory, group)


def _judge_shared_shm(memory: MemoryFacts, processes: Sequence[ProcessNeeds]) -> Iterator[Finding]:
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
        origin = "unless told otherwise" if container.shm_bytes is None else "as asked for"
        have = format_bytes(size, f"{{}} {origin}")
        finding = _judge_shm(subject, size, size, have, need_bytes, ranks, ())
        described = (each._replace(described_by=container.runtime) for each in finding.settings)
        yield finding._replace(settings=tuple(described))
        return
    finding = passed(SHM)
    size_bytes = finding.require(memory.shm_size_bytes)
    available = finding.require(memory.shm_available_bytes)
    have = format_bytes(available, f"{{}} left of {format_bytes(size_bytes)}")
    evidence = (Evidence(f"statvfs {SHM}", f"{available} of {size_bytes} bytes"),)
    if memory.shm_refuses and need_bytes:
        finding = passed(SHM, memory.shm_refuses, format_bytes(need_bytes), evidence=evidence)
        advice, settings = f"{_REMOVE} (ls -l {SHM})", tuple[Setting, ...]()
        if memory.shm_refuses == READ_ONLY:
            again = command("mount", "-o", "remount,rw", SHM, as_root=True)
            advice, settings = "mount it writable", (again,)
        yield finding.failed("no segment can be made there", advice, settings)
        return
    yield _judge_shm(SHM, size_bytes, available, have, need_bytes, ranks, evidence)


def shm_wanted_bytes(need_bytes: int) -> int:
    """Return the size that /dev/shm should have: ``need_bytes``, and room for NCCL and torch."""
    return max(GIB, 2 * need_bytes)


def _judge_shm(
    subject: str,
    size_bytes: int,
    available_bytes: int,
    have: str,
    need_bytes: int,
    ranks: int,
    evidence: tuple[Evidence, ...],
) -> Finding:
    """Judge one /dev/shm.

    Fail if less is free than the launch certainly writes. Warn if several GPU processes (``ranks``)
    share 64 MiB or less of free space, too little for NCCL and torch.
    """
    need = format_bytes(need_bytes)
    finding = passed(subject, have, need, evidence=evidence)
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
        return finding.failed(text, advice, settings, formula=formula)
    if ranks > 1 and available_bytes <= RUNTIME_SHM_BYTES:
        text = f"{ranks} ranks share it with NCCL and torch, which need more than 64 MiB"
        formula = f"{need} at least, and what NCCL and torch take"
        more = format_bytes(RUNTIME_SHM_BYTES, "more than {}")
        return finding.warned(text, advice, settings, need=more, formula=formula)
    return finding


@CHECKS("memory.max-map-count")
def max_map_count(memory: MemoryFacts) -> Iterator[Finding]:
    """Judge how many mappings the host lets one process have; warn below the usual number."""
    finding = passed("mappings of a process", need=counted(USUAL_MAP_COUNT, "mappings"))
    count = finding.require(memory.max_map_count)
    evidence = (Evidence(MAX_MAP_COUNT, str(count)),)
    finding = finding._replace(have=counted(count, "mappings"), evidence=evidence)
    if count < USUAL_MAP_COUNT:
        text = "a process with many buffers is refused memory though some is free"
        setting = Setting(Kind.SYSCTL, "vm.max_map_count", str(USUAL_MAP_COUNT), str(count))
        finding = finding.warned(text, "raise it", (setting,))
    yield finding


@CHECKS("memory.overcommit")
def overcommit(needs: LaunchNeeds | None, memory: MemoryFacts) -> Iterator[Finding]:
    """Judge whether the host's policy of overcommit refuses mappings.

    Only policy 2 does: fail if the launch's regular memory does not fit, else warn because of CUDA.
    """
    finding = passed("overcommit")
    policy = finding.require(memory.overcommit)
    have = f"vm.overcommit_memory={policy}"
    finding = finding._replace(have=have, evidence=(Evidence(OVERCOMMIT, str(policy)),))
    if policy != 2:
        yield finding
        return
    bare = passed("overcommit", have)
    limit = bare.require(memory.value("CommitLimit"))
    committed = bare.require(memory.value("Committed_AS"))
    need_bytes = 0 if needs is None else bare.require(regular_bytes(needs))
    left = max(0, limit - committed)
    finding = finding._replace(
        have=format_bytes(left, f"{have}, {{}} may still be mapped"),
        need=format_need(need_bytes, left),
    )
    advice = "let the kernel overcommit"
    settings = (Setting(Kind.SYSCTL, "vm.overcommit_memory", "0", "2"),)
    if left >= need_bytes:
        text = "CUDA maps far more than it uses, and may be refused"
        yield finding.warned(text, advice, settings)
    else:
        yield finding.failed("mappings are refused although memory is free", advice, settings)
