"""Checks of RLIMIT_MEMLOCK against what a launch registers and pins."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.finding import (
    Check,
    CheckSet,
    Consequence,
    Finding,
    Kind,
    Setting,
    Status,
    skip,
    unknown,
)
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.base.version_text import Release, release_of
from checks.limits.runtimes import Limit
from checks.memlock.demand import NO_RDMA, QUEUES_PER_NIC_BYTES, Demand, Grant, demand, grant
from checks.rdma.registration import largest_region_bytes
from checks.rdma.use import devices_in_use
from checks.run.facts import Facts, TopicUnknownError

CHECKS = CheckSet()
_LIFT = Setting(Kind.ULIMIT, "memlock", "unlimited")


_LIMIT = "memlock.limit"


@CHECKS.declare(
    Check(
        id=_LIMIT,
        asks="May each process lock all the memory that it registers with its NICs?",
        consequence=Consequence.WILL_NOT_START,
        why=(
            "Registering memory with a NIC pins it, and the kernel adds up what a process has "
            "pinned: every region once for every NIC, in base pages whatever backs them, huge "
            "pages too, GPU memory that is registered through nvidia_peermem, and once more the "
            "buffer of SSD offload where io_uring has it. The sum is held against the process's "
            "soft RLIMIT_MEMLOCK at each registration with a NIC. The one that crosses "
            'it fails: Mooncake logs "Failed to register memory 0x...: Cannot allocate memory '
            '[12]" ("Operation not permitted [1]" where the limit is 0), setup of the store '
            "returns an error, and the server ends after it has already allocated and zeroed all "
            "its memory. 60 GiB work and 80 GiB do not, because with two NICs they are 160. "
            "CAP_IPC_LOCK makes the limit void, if it is in effect (CapEff, not CapBnd) and the "
            "process is in the initial user namespace. Neither SGLang nor Mooncake raises the soft "
            "limit, even where the hard one allows it. Pinning for the GPU (cudaHostRegister) does "
            "not look at the limit, so HiCache's own start proves nothing."
        ),
        outcomes=(
            (
                Status.PASS,
                "the limit holds what is registered with room for queue pairs, or it is unlimited, "
                "or CAP_IPC_LOCK makes it void",
            ),
            (
                Status.WARN,
                "the memory fits but leaves little for queue pairs, or it does not fit and the "
                "capability that would void the limit depends on the image's own user",
            ),
            (Status.FAIL, "the limit is below what is registered"),
            (
                Status.UNKNOWN,
                "the limit, the number of NICs or the registered size could not be told",
            ),
            (Status.SKIP, "no launch, or nothing of it is registered with a NIC"),
        ),
        remedy=(
            "Lift the limit where the process comes from: --ulimit memlock=-1 for docker, the "
            "runtime's unit (LimitMEMLOCK=infinity) for Kubernetes, which has no field for it, "
            "limits.d for logins, LimitMEMLOCK in the unit of a service."
        ),
        source=(
            "kernel drivers/infiniband/core/umem.c; Mooncake #1382, #1405; measured with two "
            "soft-RoCE devices: VmPin is NICs x bytes"
        ),
        topics=("limits", "rdma", "system"),
    )
)
def memlock_limit(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_LIMIT)
        return
    if not needs.rdma_processes:
        yield skip(_LIMIT, NO_RDMA)
        return
    release = release_of(needs.mooncake_version)
    yield from fold(_judge_limit(facts, process, release) for process in needs.rdma_processes)


def _judge_limit(facts: Facts, process: ProcessNeeds, release: Release | None) -> Finding:
    granted = grant(facts, process.container)
    wanted = _demand_or_unknown(facts, process, release)
    if isinstance(wanted, Demand) and not wanted.nics:
        text = "no NIC is in use, so nothing is registered (see the checks of rdma)"
        return skip(_LIMIT, text, process.name)
    if granted.void is True or granted.limit == Limit(None, None):
        if isinstance(wanted, Unknown):
            need, formula = "not known, and nothing limits it", ""
        else:
            need, formula = format_bytes(wanted.bytes), wanted.formula
        found = Finding(_LIMIT, Status.PASS, process.name, granted.have, need, formula)
        return found._replace(evidence=granted.evidence)
    if isinstance(wanted, Unknown):
        return unknown(_LIMIT, process.name, wanted.reason, have=granted.have)
    if not wanted.bytes and wanted.more is None:
        return skip(_LIMIT, "it registers no memory with a NIC", process.name)
    found = _held_against(granted, wanted)
    return found._replace(subject=process.name, formula=wanted.formula, evidence=granted.evidence)


def _held_against(granted: Grant, wanted: Demand) -> Finding:
    """The verdict where the limit counts; subject, formula and evidence are the caller's."""
    have, need = granted.have, format_bytes(wanted.bytes)
    limit = granted.limit
    if isinstance(limit, Unknown):
        return unknown(_LIMIT, "", f"what it may lock is not known: {limit.reason}", have, need)
    if wanted.more is not None:
        need = f"{need} and more"
    reserve = wanted.nics * QUEUES_PER_NIC_BYTES
    soft = limit.soft
    if soft is not None and wanted.more is not None and soft >= wanted.bytes:
        return unknown(
            _LIMIT, "", f"what it registers is not known: {wanted.more.reason}", have, need
        )
    if soft is None or soft >= wanted.bytes + reserve:
        return Finding(_LIMIT, Status.PASS, "", have, need)
    settings = (_LIFT._replace(now=str(limit.soft)),)
    if soft >= wanted.bytes:
        left = format_bytes(soft - wanted.bytes)
        text = (
            f"only {left} are left for queue pairs and completion queues, which mlx5 and others "
            'pin too: "Failed to create QP: Cannot allocate memory [12]" as peers come'
        )
        advice = f"Lift RLIMIT_MEMLOCK, or leave {format_bytes(reserve)} above the need."
        return Finding(
            _LIMIT, Status.WARN, "", have, need, text=text, advice=advice, settings=settings
        )
    if isinstance(granted.void, Unknown):
        reason = f"the limit is too low, and whether it counts is not known: {granted.void.reason}"
        return unknown(_LIMIT, "", reason, have, need)
    if granted.doubt:
        text = f"it starts only as root: {granted.doubt}, else the limit fails the registration"
        advice = "Lift the limit, which then holds for every user, or set the user to root."
        return Finding(
            _LIMIT, Status.WARN, "", have, need, text=text, advice=advice, settings=settings
        )
    error = "Cannot allocate memory [12]" if limit.soft else "Operation not permitted [1]"
    text = f'registering fails with "Failed to register memory ...: {error}"'
    hard = limit.hard
    if hard is None or hard >= wanted.bytes:
        text += "; the hard limit would do, but nothing raises the soft one"
    advice = granted.hint or "Lift RLIMIT_MEMLOCK where the process is started."
    advice = f"{advice} {_within(soft, wanted)}".rstrip()
    return Finding(_LIMIT, Status.FAIL, "", have, need, text=text, advice=advice, settings=settings)


def _within(soft: int, wanted: Demand) -> str:
    """What would fit into the limit as it is: fewer bytes, or fewer NICs."""
    if wanted.more is not None or not soft:
        return ""
    each = (wanted.bytes - wanted.ring_bytes) // wanted.nics
    less = format_bytes(-(-(wanted.bytes - soft) // wanted.nics))
    text = f"As it is, {less} less on each of {wanted.nics} NICs would fit"
    if wanted.nics == 1:
        text = f"As it is, {less} less would fit"
    nics = (soft - wanted.ring_bytes) // each if each else 0
    if nics > 0:
        text += f", or {nics} NIC{'s' if nics > 1 else ''} instead of {wanted.nics}"
    return f"{text}; huge pages change nothing."


def _demand_or_unknown(
    facts: Facts, process: ProcessNeeds, release: Release | None
) -> Demand | Unknown:
    try:
        names = devices_in_use(facts.rdma, process, release).names
    except TopicUnknownError as missing:
        return Unknown(str(missing))
    if isinstance(names, Unknown):
        return names
    nics = [nic for nic in facts.rdma.present if nic.name in names]
    largest = largest_region_bytes(nics, process.environment)
    return demand(process, len(names), page_bytes(facts), largest, release)


def page_bytes(facts: Facts) -> int:
    """The base page; where it could not be told the largest that Linux has, to be safe."""
    try:
        size = facts.system.page_bytes
    except TopicUnknownError:
        return 65536
    return 65536 if isinstance(size, Unknown) else size


_RINGS = "memlock.io-uring-buffers"


@CHECKS.declare(
    Check(
        id=_RINGS,
        asks="May the SSD offload pin its buffer for io_uring?",
        consequence=Consequence.DEGRADED,
        why=(
            "With MOONCAKE_OFFLOAD_USE_URING each I/O thread has a ring of its own and registers "
            "the whole offload buffer (1.25 GiB unless set) with it: one thread at start, the "
            "others at their first read. The kernel counts these pages in two sums: in that of "
            "all rings of the user, which it holds against RLIMIT_MEMLOCK here, and in what the "
            "process has pinned, which it holds against the limit when RDMA registers something: "
            "the ring of the start is part of what memlock.limit asks for. Where it does not fit, "
            'Mooncake logs "io_uring_register_buffers '
            'failed errno=12 (Cannot allocate memory) ... falling back to non-fixed-buffer I/O" '
            "and reads on, slower."
        ),
        outcomes=(
            (Status.PASS, "the limit is unlimited, or CAP_IPC_LOCK makes it void"),
            (Status.WARN, "the limit is finite: each I/O thread takes the buffer's size of it"),
            (Status.UNKNOWN, "the limit could not be told"),
            (Status.SKIP, "no launch, or none of its processes uses io_uring"),
        ),
        remedy="Lift RLIMIT_MEMLOCK where the process is started: --ulimit memlock=-1 for docker, "
        "LimitMEMLOCK=infinity in the unit of a service, or of the runtime for Kubernetes, "
        "limits.d for logins.",
        source="kernel io_uring/rsrc.c; Mooncake uring_file.cpp; SGLang #26061",
        topics=("limits", "system"),
    )
)
def ring_buffers(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_RINGS)
        return
    users = [process for process in needs.processes if process.uses_uring]
    if not users:
        yield skip(_RINGS, "no process of the launch uses io_uring")
        return
    yield from fold(_judge_rings(facts, process) for process in users)


def _judge_rings(facts: Facts, process: ProcessNeeds) -> Finding:
    granted = grant(facts, process.container)
    size = process.ring_bytes
    need = f"{format_bytes(size) if size else 'the buffer'} per I/O thread"
    found = Finding(_RINGS, Status.PASS, process.name, granted.have, need)
    found = found._replace(evidence=granted.evidence)
    limit = granted.limit
    if granted.void is True or (isinstance(limit, Limit) and limit.soft is None):
        return found
    for fact in (limit, granted.void):
        if isinstance(fact, Unknown):
            return found._replace(status=Status.UNKNOWN, text=fact.reason)
    assert isinstance(limit, Limit)
    return found._replace(
        status=Status.WARN,
        text="rings whose buffer does not fit read without it, and those that fit eat RDMA's share",
        advice="Lift RLIMIT_MEMLOCK where the process is started.",
        settings=(_LIFT._replace(now=str(limit.soft)),),
    )
