"""How much memory a process pins by registering it, and how much it may pin: pure arithmetic.

Source: kernel drivers/infiniband/core/umem.c (``__ib_umem_get``): pages are counted for every
registration on every device, in base pages whatever backs them, into the process's ``pinned_vm``,
and that sum against RLIMIT_MEMLOCK; ``capable(CAP_IPC_LOCK)``, asked of the initial user namespace,
passes any sum. io_uring/rsrc.c (``io_account_mem``): a buffer that is registered with a ring is
counted into the same ``pinned_vm``, but held against the limit in another sum, that of the user's
rings (``user->locked_vm``): what it pins first, RDMA no longer has.
"""

from typing import NamedTuple

from checks.framework.docker_config import DOCKER_CONFIG
from checks.framework.finding import Evidence
from checks.framework.needs import (
    UNLIMITED,
    Bound,
    ContainerLimits,
    LaunchNeeds,
    ProcessNeeds,
    RunAs,
    SetLimit,
    is_root,
)
from checks.framework.problem import the_launch
from checks.framework.units import MIB, Quantity, format_bytes, round_up
from checks.framework.unknown import RUN_INSIDE, Unknown, or_unknown, require
from checks.limits.facts import IPC_LOCK_BIT, LIMITS, UID_MAP, LimitFacts
from checks.limits.launch_limits import added_capabilities, has_capability, start_limit
from checks.limits.runtimes import PAM_FOLDER, Limit, daemon_of, runtime_units
from checks.numa.nodes import STATUS
from checks.rdma.per_device import rdma_launch
from checks.rdma.registration import pinned_bytes, registration_of, through_peermem
from checks.releases.mooncake import MooncakeRelease
from checks.system.facts import SystemFacts

# The rings of queue pairs and completion queues count too where the provider registers them as user
# memory (kernel hw/mlx5/qp.c, hw/irdma/verbs.c): about 160 KiB per peer NIC with Mooncake's two
# queue pairs of 256 requests each, so this is what some 400 peers take of one NIC.
QUEUES_PER_NIC_BYTES = 64 * MIB
# io_uring counts a transparent huge page whole where its buffer has a part of it, as either end may
# (io_uring/rsrc.c, io_buffer_account_pin; seen). It is within what is left for queues.
RING_EDGES_BYTES = 2 * (2 * MIB - 4096)
_POD_HINT = (
    "A pod cannot set it: lift LimitMEMLOCK of the daemon that starts pods on this node, or run "
    "the container as user 0 with IPC_LOCK added."
)
NO_LARGEST = Unknown("the longest registration was not computed")


def pinning(needs: LaunchNeeds | None) -> LaunchNeeds:
    """Return the launch.

    Raises:
        UnjudgedError: If it has no process that pins memory.
    """
    launch = the_launch(needs)
    return launch if any(map(pins, launch.processes)) else rdma_launch(needs)


def pins(process: ProcessNeeds) -> bool:
    """Tell whether a process pins, or may pin, the memory that it moves to other hosts."""
    return process.rdma is not None or process.transport != ""


def pinned_unseen(transport: str) -> Unknown:
    """Return why nobody knows here what is pinned by a transport that is neither RDMA nor TCP."""
    return Unknown(
        f"what the transport {transport!r} pins, and under which limit, is not known",
        advice="lift RLIMIT_MEMLOCK where the process is started: then it is enough for any",
    )


class Demand(NamedTuple):
    """What one process pins: ``bytes`` over ``nics`` devices, and the formula of that sum.

    Attributes:
        more: A part that comes on top and is not known, None if ``bytes`` is all.
        ring_bytes: The part of ``bytes`` that io_uring pins, once for all devices.
    """

    nics: int
    bytes: int
    formula: str
    more: Unknown | None = None
    ring_bytes: int = 0


class Grant(NamedTuple):
    """The limit on what one process may pin.

    Attributes:
        limit: RLIMIT_MEMLOCK.
        void: CAP_IPC_LOCK lifts it.
        origin: Who sets the limit.
        doubt: The condition under which the capability counts although ``void`` is False, or "".
        hint: Advice that lifts the limit, or "".
        by_launch: The launch itself sets the limit, so no setting around the launch changes it,
            except one of the systemd unit ``unit``, if any.
        refused: A limit that the launch asks for and the kernel refuses.
    """

    limit: Limit | Unknown
    void: bool | Unknown
    origin: str
    evidence: tuple[Evidence, ...]
    doubt: str = ""
    hint: str = ""
    by_launch: bool = False
    unit: str = ""
    refused: SetLimit | None = None

    @property
    def have(self) -> str:
        """Return the limit and its origin, or the capability that lifts it, or "unknown"."""
        if self.void is True:
            return f"CAP_IPC_LOCK in effect ({self.origin})"
        if isinstance(self.limit, Unknown):
            return "unknown"
        return format_limit(self.limit, f" ({self.origin})")


def format_limit(limit: Limit, suffix: str = "") -> Quantity:
    """Return ``8.00 MiB`` or ``unlimited``, the hard limit if it differs, and ``suffix``."""
    soft, hard = ("unlimited" if part is None else format_bytes(part) for part in limit)
    text = soft if soft == hard else f"{soft} soft, {hard} hard"
    return Quantity(text + suffix, limit.soft, "bytes")


def soft_text(limit: Limit | Unknown) -> str:
    """Return the soft limit in bytes, as a setting has it, or ``unlimited``; "" if not known."""
    if isinstance(limit, Unknown):
        return ""
    return "unlimited" if limit.soft is None else str(limit.soft)


@or_unknown
def demand(
    process: ProcessNeeds,
    nics: int,
    page_bytes: int,
    largest_bytes: int | Unknown = NO_LARGEST,
    release: MooncakeRelease | None = None,
) -> Demand | Unknown:
    """Add up what a process pins on ``nics`` devices.

    GPU memory of unknown size is not in ``bytes``, but becomes ``more``.

    Args:
        page_bytes: The base page size, to which each registration is rounded.
        largest_bytes: The longest registration that all devices take.

    Returns:
        Unknown if the process's regions are not known.
    """
    more = None
    sizes: dict[str, int] = {}
    for region in require(process.regions):
        largest = region.bytes if isinstance(largest_bytes, Unknown) else largest_bytes
        plan = registration_of(region, largest, release)
        pinned = pinned_bytes(plan, page_bytes, region.offset_bytes)
        sizes[region.what] = sizes.get(region.what, 0) + pinned
    if through_peermem(process.environment):
        if isinstance(process.gpu_registered_bytes, Unknown):
            more = process.gpu_registered_bytes
        elif process.gpu_registered_bytes:
            pinned = round_up(process.gpu_registered_bytes, page_bytes)
            sizes["GPU memory through nvidia_peermem"] = pinned
    terms = " + ".join(f"{format_bytes(size)} {what}" for what, size in sizes.items())
    noun = "NIC" if nics == 1 else "NICs"
    total = sum(sizes.values())
    inside = f"({terms})" if len(sizes) > 1 else terms or "0 B"
    formula = f"{nics} {noun} x {inside}"
    # The first ring's, made at start, before the host pools are registered; later rings find them
    # registered.
    rings = round_up(process.ring_bytes, page_bytes)
    if rings:
        formula += f" + {format_bytes(rings)} SSD offload buffer once more, for io_uring"
    return Demand(nics, nics * total + rings, formula, more, rings)


def grant(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds | None) -> Grant:
    """Return the limit on the bytes that a process may pin, and the capability that lifts that
    limit.

    None as ``process`` means this process itself.
    """
    if process is None:
        return _own_grant(limits, "this shell")
    container, run_as = process.container, process.run_as
    if container is None:
        base = _with_launch(_own_grant(limits, "this shell"), process, limits, system)
        return _with_user(run_as, base, limits, system) if run_as.origin else base
    inside = system.container.inside
    if container.memlock_bytes is not None:
        size = None if container.memlock_bytes == UNLIMITED else container.memlock_bytes
        evidence = (Evidence(container.origin, f"memlock {container.memlock_bytes}"),)
        base = Grant(Limit(size, size), False, container.origin, evidence)
    elif inside:
        base = _own_grant(limits, "this container")
    else:
        base = _runtime_grant(limits, container.runtime)
    if container.runtime == "kubernetes":
        base = base._replace(hint=_POD_HINT)
    base = _with_launch(base, process, limits, system)
    if isinstance(run_as.user, Unknown):
        return base._replace(void=run_as.user)
    if run_as.user:
        container = container._replace(user="0" if "IPC_LOCK" in run_as.gained else run_as.user)
    return _with_capability(limits, container, base, inside)


def _with_user(run_as: RunAs, base: Grant, limits: LimitFacts, system: SystemFacts) -> Grant:
    """Return ``base`` with the capability of the user that runs the process."""
    void = has_capability(run_as, "IPC_LOCK", None, limits, system)
    user = run_as.user
    who = user.reason if isinstance(user, Unknown) else f"run by {user or 'whoever starts it'}"
    evidence = (*base.evidence[:1], Evidence(run_as.origin, who), *base.evidence[2:])
    origin = f"{who}, {run_as.origin}" if void is True else base.origin
    return base._replace(void=void, origin=origin, evidence=evidence)


def _with_launch(
    base: Grant, process: ProcessNeeds, limits: LimitFacts, system: SystemFacts
) -> Grant:
    """Return ``base`` with the memlock limit that the launch's own settings leave to the process.

    A setting that the kernel refuses becomes ``refused``.
    """
    after = start_limit("memlock", base.limit, process, limits, system)
    evidence, by = base.evidence, after.by
    if after.refused is not None:
        evidence += (Evidence(after.refused.origin, "memlock: refused, above the hard limit"),)
        base = base._replace(origin=f"{base.origin}; {after.refused.origin} is refused more")
    if by is not None:
        evidence += (Evidence(by.origin, f"memlock {_raw(after.limit)}"),)
        hint = f"raise the limit that the launch itself sets: {by.origin}"
        if by.soft is Bound.LOGIN:
            hint = f"raise memlock for that user in {PAM_FOLDER}"
        elif by.soft is Bound.SYSTEMD:
            hint = "write LimitMEMLOCK=infinity under [Service]"
        unit = "" if by.soft is Bound.LOGIN else by.where
        base = base._replace(origin=by.origin, by_launch=True, unit=unit, hint=hint)
    return base._replace(limit=after.limit, evidence=evidence, refused=after.refused)


def _own_grant(limits: LimitFacts, origin: str) -> Grant:
    """Return the limit and capability of this process itself.

    Args:
        origin: Words for whose limit it is. ``hint`` names a row of limits.conf that would lift
            memlock at a new login.
    """
    mask = limits.effective_capabilities
    evidence = [Evidence(LIMITS, f"Max locked memory: {_raw(limits.memlock)}")]
    if not isinstance(mask, Unknown):
        evidence.append(Evidence(STATUS, f"CapEff: {mask:016x}"))
    pam, hint = limits.runtimes.pam, ""
    for row in () if isinstance(pam, Unknown) else pam:
        if row.name == "memlock" and row.most is None and row.kind != "hard":
            who = f"{row.domain} at login"
            hint = f"log in anew: {row.source} lifts it for {who}; a service needs its own setting"
    void = limits.effective(IPC_LOCK_BIT)
    return Grant(limits.memlock, void, origin, tuple(evidence), hint=hint)


def _raw(limit: Limit | Unknown) -> str:
    if isinstance(limit, Unknown):
        return limit.reason
    return " ".join("unlimited" if part is None else str(part) for part in limit)


def _runtime_grant(limits: LimitFacts, runtime: str) -> Grant:
    """Return the limit of a container for which the launch sets no limit: Docker's default, or that
    of the daemon that starts containers.

    ``limit`` is Unknown if neither is seen, and for pyxis.
    """
    runtimes, default = limits.runtimes, limits.runtimes.docker_default
    if runtime == "pyxis":
        reason = "a job of Slurm has the limit of the shell that submits it, or slurmd's"
        return Grant(Unknown(reason), False, "the job's limit", ())
    if runtime != "kubernetes" and default is not None:
        evidence = (Evidence(DOCKER_CONFIG, f"default-ulimits memlock: {_raw(default)}"),)
        return Grant(default, False, "Docker's default", evidence)
    for unit in runtimes.units_of(runtime):
        memlock, source, what = unit.configured, unit.source, "LimitMEMLOCK"
        if unit.running is not None:
            memlock, what = unit.running.memlock, "Max locked memory"
            source = f"{daemon_of(unit.name)}, running"
        if memlock is not None:
            evidence = (Evidence(source, f"{what}: {_raw(memlock)}"),)
            return Grant(memlock, False, f"handed on by {unit.name}", evidence)
    daemons = " or ".join(map(daemon_of, runtime_units(runtime)))
    reason = f"no running {daemons} is seen here, and no unit of it sets LimitMEMLOCK"
    return Grant(Unknown(reason, advice=RUN_INSIDE), False, "the runtime's default", ())


def _with_capability(
    limits: LimitFacts, container: ContainerLimits, base: Grant, inside: bool
) -> Grant:
    """Return ``base`` with ``void`` and ``doubt`` by the container's user, added capabilities and
    user namespace.

    Args:
        inside: This check runs in that container.
    """
    if container.user is not None and not is_root(container.user):
        # Added capabilities reach the effective set of user 0 alone: others start with none.
        return base._replace(void=False)
    if inside and base.void is not True:
        base = base._replace(void=limits.effective(IPC_LOCK_BIT))
    if base.void is True or not declares_ipc_lock(container):
        return base
    outside_initial = _outside_initial_namespace(limits, container, inside)
    if outside_initial is not None:
        return base._replace(void=outside_initial[0], evidence=(*base.evidence, outside_initial[1]))
    what = "privileged" if container.privileged else "IPC_LOCK added"
    evidence = (*base.evidence, Evidence(container.origin, what))
    if container.user is not None or (inside and limits.euid == 0):
        return base._replace(void=True, origin=f"{what}, run by root", evidence=evidence)
    doubt = f"{what} is in effect only if the image's own user is root"
    return base._replace(void=False, evidence=evidence, doubt=doubt)


def _outside_initial_namespace(
    limits: LimitFacts, container: ContainerLimits, inside: bool
) -> tuple[bool | Unknown, Evidence] | None:
    """Return (new ``Grant.void``, evidence) if a container is not in the initial user namespace, or
    if that cannot be told.

    ``void`` is then False or Unknown.

    Returns:
        None if the container is in it.
    """
    if container.own_users:
        return False, Evidence(container.origin, "a user namespace of its own")
    if inside:
        initial = limits.initial_user_namespace
        if isinstance(initial, Unknown):
            return initial, Evidence(UID_MAP, initial.reason)
        return None if initial else (False, Evidence(UID_MAP, "not the initial user namespace"))
    remapped = limits.runtimes.userns_remap
    if container.runtime == "kubernetes" or remapped == "":
        return None
    if isinstance(remapped, Unknown):
        return remapped, Evidence(DOCKER_CONFIG, remapped.reason)
    return False, Evidence(DOCKER_CONFIG, f"userns-remap: {remapped}")


def declares_ipc_lock(container: ContainerLimits) -> bool:
    """Return whether the container's settings add the capability, in effect or not."""
    return container.privileged or bool(added_capabilities(container) & {"IPC_LOCK", "ALL"})
