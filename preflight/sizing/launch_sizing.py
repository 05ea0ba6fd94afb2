"""A sizing of a launch as it was written: the verdict at both bounds, what the rules find, and
SGLang's own check of host memory, held against every server."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.finding import Consequence
from checks.base.pages import MemoryKind
from checks.base.root import Root
from checks.base.unknown import Unknown, UnknownFactError, known, or_unknown
from checks.hugetlb.fit import Fit
from checks.releases.sglang import SglangRelease
from preflight.launches.source import ReadFile, Reading
from preflight.mooncake.allocations import OnShortage
from preflight.processes.host_groups import TakenGroup, take_group
from preflight.processes.processes import LaunchOptions, LaunchProcess, SglangServer, understand
from preflight.processes.unread import (
    NotRead,
    undecided,
    unread,
    with_written_versions,
    written_too_old,
)
from preflight.sglang.admission_gate import (
    FeasiblePages,
    FreeMemory,
    GateAnswer,
    feasible_hugepages,
    gate,
    gate_booked,
)
from preflight.sglang.launch import Ranks, server_ranks
from preflight.sglang.pools import ServerMemory
from preflight.sizing.chosen_releases import engines_of, known_sglang, with_image
from preflight.sizing.launch_inputs import LaunchInputs, gather_launch, worst
from preflight.sizing.sizing import EXIT_CODES, Sizing, judge_inputs, read_host


class LaunchSizing(NamedTuple):
    """The answer about a launch: the sizing at both bounds, the upper (``most``) is shown.

    Both are None if a deciding number is unknown. unread: parts of the launch without a number, so
    that nothing fits for certain. group: the part of a launch for several hosts that is sized, of
    the processes ``whole``. regular_bytes: the least and the most on regular pages, or None.
    consequence: of a failure.
    """

    reading: Reading
    inputs: LaunchInputs
    least: Sizing | None
    most: Sizing | None
    admissions: tuple[Admission | Unknown, ...]
    status: str
    reason: str
    unread: tuple[NotRead, ...] = ()
    group: TakenGroup | None = None
    whole: tuple[LaunchProcess, ...] = ()
    regular_bytes: tuple[int, int] | None = None
    consequence: Consequence = Consequence.WILL_NOT_START

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def not_whole(self) -> tuple[str, ...]:
        """Return a line on each part that an answer about this launch leaves out."""
        lines = () if self.group is None else (self.group.text,)
        if self.reading.left_out:
            lines = (*lines, f"in no number here: {'; '.join(self.reading.left_out)}")
        if not self.unread:
            return lines
        shown = ", ".join(f"{each.what} ({each.origin})" for each in self.unread[:4])
        more = f", and {len(self.unread) - 4} more" if len(self.unread) > 4 else ""
        return (*lines, f"not read, and in no number here: {shown}{more}")

    def exit_code_by(self, rule: str) -> int:
        """Return the exit code, by our rule or by the documented one."""
        if rule == "documented" and self.shown is not None:
            return self.shown.documented.exit_code
        return self.exit_code

    @property
    def shown(self) -> Sizing | None:
        return self.most or self.least


def size_launch(
    reading: Reading, source: str, options: LaunchOptions, root: Root, read_file: ReadFile
) -> LaunchSizing:
    """Understand ``reading`` and hold it against the host below ``root``."""
    host = read_host(root)
    older = written_too_old(options, reading)
    options = with_image(with_written_versions(options, reading), reading, root)
    sglang = known_sglang(options.sglang_version, options.installed)
    sglang_version = None if sglang is None else str(sglang[1].value)
    whole = understand(reading.commands, read_file, sglang_version, engines_of(options.installed))
    group = take_group(whole, options.host_group, root)
    taken = range(len(whole)) if group is None else group.group.numbers
    processes = tuple(process for process in whole if process.number in taken)
    default_page = host.hugetlb.default_page_size_bytes
    inputs = gather_launch(processes, source, options, root, default_page)
    least = None if isinstance(inputs.least, Unknown) else judge_inputs(inputs.least, host, root)
    most: Sizing | None = least
    if inputs.most != inputs.least:
        most = None if isinstance(inputs.most, Unknown) else judge_inputs(inputs.most, host, root)
    admissions = _admissions(inputs, most, options)
    stated = options.model_config is not None
    missed = (*older, *unread(reading, processes), *undecided(processes, stated))
    status, reason = _status(inputs, least, most, admissions)
    if missed and status != "fails":
        others = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        status, reason = "unknown", f"{missed[0].text}{others}"
    return LaunchSizing(
        reading, inputs, least, most, admissions, status, reason, missed, group, whole
    )


def _admissions(
    inputs: LaunchInputs, sizing: Sizing | None, options: LaunchOptions
) -> tuple[Admission | Unknown, ...]:
    """Return the answers of SGLang's own check, if the launch is to run on this host."""
    if options.available_bytes is not None:
        return ()
    admissions: list[Admission | Unknown] = []
    for process in inputs.processes:
        server, pools = process.server, inputs.memory.get(process.number)
        if server is None:
            continue
        if sizing is None or pools is None:
            if server.hicache:
                unread = Unknown(f"the pools of {server.command.origin} are not known")
                bounds = (inputs.most, inputs.least)
                admissions.append(next((b for b in bounds if isinstance(b, Unknown)), unread))
        # A decode server has a host pool without HiCache: it keeps retracted requests.
        elif server.hicache or pools.pools:
            admissions.append(admit(process.number, server, pools, inputs, sizing))
    return tuple(admissions)


def _status(
    inputs: LaunchInputs,
    least: Sizing | None,
    most: Sizing | None,
    admissions: tuple[Admission | Unknown, ...],
) -> tuple[str, str]:
    """Return the status of both bounds together, and the reason."""
    refused = worst(inputs.findings)
    if refused is not None:
        return "fails", refused.text
    for admission in admissions:
        if isinstance(admission, Admission) and admission.refused:
            return "fails", f"{admission.origin}: ValueError: {admission.refused}"
    if least is None:
        why = inputs.least.reason if isinstance(inputs.least, Unknown) else ""
        return "unknown", why
    if least.status == "fails":
        return "fails", least.reason
    if most is None:
        bound = inputs.most
        why = bound.reason if isinstance(bound, Unknown) else ""
        give = f"; {bound.advice}" if isinstance(bound, Unknown) and bound.advice else ""
        return "unknown", f"the size of the L2 pool is not known: {why}{give}"
    if most.status == least.status:
        return _unless_more(inputs, most.status, most.reason)
    return "unknown", (
        f"the L2 pool is known between two bounds: {least.status} at the lower, {most.status} at "
        "the upper"
    )


def _unless_more(inputs: LaunchInputs, status: str, reason: str) -> tuple[str, str]:
    """Return status and reason; unknown if an unknown model may take more. A size that is given
    bounds the pools of a known model alone."""
    for process in inputs.processes if status != "fails" else ():
        server, memory = process.server, inputs.memory.get(process.number)
        size = None if server is None or not server.hicache else server.value("hicache_size")
        if memory is not None and memory.missing is not None and isinstance(size, int) and size > 0:
            give = "give the model's config.json with --model-config"
            what = "whether an index or draft pool comes on top of --hicache-size is not known"
            return "unknown", f"{what}: {memory.missing.reason}: {give}"
    return status, reason


class Admission(NamedTuple):
    """One server's answer. refused: the message that it would print, for certain. late: what the
    slowest rank would print, should the others have taken their pools by then."""

    origin: str
    refused: str | None
    late: str | None
    pages: FeasiblePages | None


@or_unknown
def admit(
    number: int, server: SglangServer, memory: ServerMemory, inputs: LaunchInputs, sizing: Sizing
) -> Admission:
    """Tell whether SGLang admits the pools of ``server``, process ``number``, on this host.

    Unknown if it cannot be told.
    A server whose L2 is on huge pages is asked for regular memory all the same: the gate does not
    know what backs its pools.
    """
    origin, ranks, release = str(server.command.origin), known(server_ranks(server)), inputs.sglang
    if not memory.pools:
        why = Unknown(memory.why) if memory.missing is None else memory.missing
        raise UnknownFactError(why.of("the size of each pool is not known: "))
    host = known(inputs.free[number])
    if memory.budget_bytes is not None:
        # Sized to fit a budget, and booked against it: no rank reads the memory anew.
        booked = gate_booked(memory.pools, memory.budget_bytes, release)
        return Admission(origin, _message(booked), None, None)
    pools = [
        allocation
        for process in sizing.asked
        if process.process.id.command == number
        for allocation in process.allocations
        if allocation.what is MemoryKind.HOST_POOL
    ]
    huge = any(pool.on_huge_pages for pool in pools)
    # Pools that do without huge pages where there are too few may come to lie on regular ones.
    optional = any(pool.on_shortage is OnShortage.FALLS_BACK for pool in pools)
    may_grow = not huge or (optional and sizing.verdict.fit is not Fit.FITS)
    # On huge pages a pool takes nothing more from what is available: the fewest are refused.
    first = last = gate(memory.pools, host, ranks.sharing, release, on_hugepages=huge)
    if may_grow:
        others = sum(sum(memory.of_stage(ranks.stage(at), True)) for at in range(ranks.here))
        others -= sum(pool.taken_bytes for pool in memory.pools)
        last = gate(memory.pools, host, ranks.sharing, release, others)
    pages = _feasible(memory, ranks, host, release, sizing) if huge else None
    return Admission(origin, _message(first), _message(last), pages)


def _message(answers: tuple[GateAnswer, ...]) -> str | None:
    return next((answer.message for answer in answers if answer.message), None)


def _feasible(
    memory: ServerMemory, ranks: Ranks, host: FreeMemory, release: SglangRelease, sizing: Sizing
) -> FeasiblePages | None:
    """Return the pool sizes with enough pages that the gate admits."""
    from preflight.sizing.advice import held_pages

    # The huge pages that L2 is on.
    size = next(
        allocation.page_size_bytes
        for process in sizing.asked
        for allocation in process.allocations
        if allocation.what is MemoryKind.HOST_POOL and allocation.on_huge_pages
    )
    pool = sizing.host.hugetlb.pool(size)
    if isinstance(pool, Unknown):
        return None
    return feasible_hugepages(
        [memory.pools] * ranks.here,
        host,
        ranks.sharing,
        release,
        page_size_bytes=size,
        current_pages=pool.total_pages,
        least_pages=held_pages(sizing, size),
    )
