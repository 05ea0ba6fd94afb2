"""Fitting a launch to a host: reads the host once, solves, edits the launch."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from checks.framework.archive import write_whole
from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.pages import MemoryKind
from checks.framework.units import GIB, GIGABYTE, format_page_size
from checks.framework.unknown import Unknown, UnknownFactError
from checks.gpu.facts import read_gpus
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import Pool
from checks.run_checks.facts import READERS, read_facts
from checks.run_checks.runner import every_check
from preflight.base import exit_codes
from preflight.base.output import Progress
from preflight.base.program import data_file
from preflight.base.shell import quote
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.fit.judged_values import (
    KEEP,
    CompareBy,
    FitAnswer,
    Goal,
    HostState,
    Judgement,
    LaunchState,
    NextGib,
    facts_with_pools,
    is_mended,
    judged_values,
    released_root,
)
from preflight.cache_sizing.fit.launch_edit import (
    Edit,
    Edited,
    by_hand,
    command_line,
    edit_texts,
    launch_texts,
)
from preflight.cache_sizing.fit.launch_values import SizeValues, knobs, with_values
from preflight.cache_sizing.fit.solver import larger_fit, largest_sizes, solve
from preflight.command_inputs.host_source import Host, size_within
from preflight.command_inputs.launch_words import ALL_CHECKS, Chosen, LaunchWords, Waiver
from preflight.command_inputs.written_launch import WrittenLaunch
from preflight.engines.mooncake.allocations import Allocation, Backing
from preflight.engines.sglang.launch import server_ranks
from preflight.engines.sglang.model import Models
from preflight.engines.sglang.model_geometry import AttentionKind
from preflight.host_tuning.commands import NR_HUGEPAGES, Context, commands, context_of
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.processes import LaunchProcess
from preflight.verdict.answer import selection_of
from preflight.verdict.launch_checks import GATE

if TYPE_CHECKING:
    from preflight.cache_sizing.fit.divisions import DivisionChoice


DESCRIBED_NAME = "the host that is described"


class FitResult(NamedTuple):
    """The answer of ``fit`` with what is shown or written beside it.

    Attributes:
        edited: The launch's files with the new sizes; None if ``command`` has them, or nothing
            fits.
        written: Paths that were written.
        command: The launch's new command line, if it was given as a command, or the whole script of
            a first launch; else "".
        host_commands: What sets the pools and limits of the host.
        assumptions: About a host that was described.
        state, machine: Launch and host that were asked about.
        hints: What would let more fit.
        first: A first launch, for --model.
        ignored: (check, reason) that count for nothing; waivers_over: waivers that ended, so their
            checks count again.
        unread: Notes on parts of the launch that the numbers leave out.
        choice: Why the best division was chosen; None for another goal.
    """

    launch: str
    host: str
    answer: FitAnswer
    keep_bytes: int
    edited: Edited | None
    written: tuple[str, ...]
    command: str
    host_commands: tuple[str, ...]
    assumptions: tuple[str, ...]
    state: LaunchState
    machine: HostState
    exit_code: int
    hints: tuple[str, ...] = ()
    first: bool = False
    ignored: tuple[tuple[str, str], ...] = ()
    waivers_over: tuple[Waiver, ...] = ()
    unread: tuple[str, ...] = ()
    processes: tuple[LaunchProcess, ...] = ()
    choice: DivisionChoice | None = None


class FirstLaunch(NamedTuple):
    """A launch that is not written yet: one server on all GPUs of a host, on regular pages.

    Attributes:
        ranks: One for each GPU.
        where: The GPUs in words.
        nics: RDMA devices; none for TCP.
        buffers: L2 is staging alone (buffer_only).
    """

    model: str
    ranks: int
    where: str
    nics: tuple[str, ...]
    buffers: bool = False

    def script(self, name: str, l2_gb: int, segment_bytes: int) -> str:
        """Return the text of the launch script.

        Args:
            name: Of the script's file.
            l2_gb: L2 of each rank, in 10^9 bytes.
            segment_bytes: Segments of all ranks together.
        """
        nics = quote(",".join(self.nics)) if self.nics else ""
        ib_device = ' \\\n  --mooncake-ib-device "$MOONCAKE_DEVICE"' if nics else ""
        buffers = " \\\n  --hicache-host-memory-mode buffer_only" if self.buffers else ""
        return (
            Path(data_file("first_launch.sh", "cache_sizing/fit"))
            .read_text(encoding="utf-8")
            .format(
                model=quote(self.model),
                ranks=self.ranks,
                where=self.where,
                name=quote(name),
                l2_gb=l2_gb,
                segment_bytes=segment_bytes,
                protocol="rdma" if nics else "tcp",
                devices=f"export {f'MOONCAKE_DEVICE={nics}' if nics else 'MC_FORCE_TCP=1'}\n\n",
                ib_device=ib_device + buffers,
            )
        )

    def words(self) -> tuple[str, ...]:
        """Return a command with 1 GB of L2 for each rank and segments of 64 MiB, to start from."""
        return "bash", "-c", self.script("launch.sh", 1, self.ranks * (64 << 20))


def first_launch(model: str, host: Host, buffers: bool = False) -> FirstLaunch:
    """Return a launch of ``model`` on all GPUs of the host, for ``fit`` to begin with.

    Args:
        buffers: L2 is staging alone (buffer_only).

    Raises:
        UsageError: If no GPU is known.
    """
    count = len(read_gpus(host.root, None).on_pci)
    if not count:
        raise UsageError("--model: how many GPUs there are is not known: give --gpus, as 8xH100")
    names = host.root.names("/sys/class/infiniband")
    nics = () if isinstance(names, Unknown) else tuple(sorted(names))
    gpus = None if host.described_root is None else host.described_root.host.gpus
    where = f"{count} GPUs of this host" if gpus is None else f"{count}x{gpus.name}, as described"
    return FirstLaunch(model, count, where, nics, buffers)


def with_first_launch(result: FitResult, first: FirstLaunch, path: str) -> FitResult:
    """Return the result with the script of ``first``, in the sizes that fit, as its ``command`` (""
    if nothing fits).

    Args:
        path: Of the script's file; "" if no file is written.
    """
    values = result.answer.values
    result = result._replace(first=True, launch=path or f"a first launch of {first.model}")
    if result.answer.fits is None:
        return result._replace(command="")
    l2, segment = values.l2_bytes or GIGABYTE, values.segment_bytes or first.ranks * (64 << 20)
    tcp = "no NIC is known (--nics): this launch speaks TCP; with RDMA it is another launch"
    unread = result.unread if first.nics else (*result.unread, tcp)
    script = first.script(path or "launch.sh", l2 // GIGABYTE, segment)
    return result._replace(command=script, unread=unread)


def write_first(path: str, script: str) -> tuple[str, ...]:
    """Write a new, executable file with the script; return (path,).

    Raises:
        UsageError: If the file exists or cannot be written.
    """
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(script)
        os.chmod(path, 0o755)
    except OSError as error:
        raise UsageError(f"--write {path}: {error.strerror}") from None
    return (path,)


def fit_launch(
    launch_words: LaunchWords,
    host: Host,
    goal: str | None,
    keep_bytes: int,
    write: bool,
    timeout_seconds: float,
    chosen: Chosen = ALL_CHECKS,
    basis: CompareBy | None = None,
) -> FitResult | Unknown:
    """Find the largest sizes of a launch that fit the host, and edit the launch to have them.

    Writes no file.

    Args:
        goal: Value of a ``Goal``; None for "best", or for the only size that the launch has. "best"
            becomes "l2" if divisions cannot be compared, by ``basis``.
        keep_bytes: Memory to stay available.
        write: The caller will write the files.
        chosen: Which checks to use.

    Returns:
        Unknown if the launch was not read in time.

    Raises:
        UsageError: If the launch cannot be read, has no size for the goal, or, with ``write``, is
            no file.
    """
    selection = selection_of(chosen)
    sized = size_within(launch_words, host, timeout_seconds)
    if isinstance(sized, Unknown):
        return sized
    if sized is None:
        raise UsageError("fit is about a launch: give a script, or a command after --")
    launch, options = sized.launch, sized.options
    if write and (len(launch_words.words) != 1 or launch_words.is_command):
        raise UsageError("--write is for a launch that is a file: give the script or the manifest")
    facts = read_facts(host.root, sized.needs, timeout_seconds, READERS)
    sizes = knobs(launch.reading, sized.sizing.inputs.processes)
    state = LaunchState(launch, options, sizes)
    checks = list(every_check())

    def left_out(check: str) -> bool:
        return check in selection.ignore or (check != KEEP and not selection.takes(check))

    checks = [check for check in checks if not left_out(check.id)]
    progress, tried = Progress(after_seconds=2), count(1)

    def trying() -> None:
        progress.show(f"fit: trying sizes, {next(tried)} judged so far")

    machine = HostState(host.root, facts, checks, keep_bytes, left_out, trying)
    written, state = state, state._replace(launch=_without_limits(launch))
    choice, notes = None, sized.sizing.not_whole
    try:
        if goal is None:
            both = sizes.l2 is not None and sizes.segment is not None
            alone = sizes.l2 is None and sizes.segment is not None
            goal = "best" if both else "pool" if alone else "l2"
        wanted = Goal(goal)
        if wanted is Goal.BEST:
            from preflight.cache_sizing.fit.divisions import Chooser

            now = SizeValues(*(each and each.now_bytes for each in (sizes.l2, sizes.segment)))
            basis = basis or CompareBy()
            if basis.hosts is None:
                hosts, note = launch_hosts(sized.sizing, len(read_gpus(host.root, None).on_pci))
                notes += (note,) if note else ()
                basis = basis._replace(hosts=hosts if hosts > 1 else None)
            chooser = Chooser(basis, now, options, host.root, progress.show)
            try:
                answer = solve(state, machine, wanted, chooser)
                if answer.fits is not None:
                    choice = chooser.choice_of(answer.values)
                    if why := chooser.why_nothing_kept():
                        answer = answer._replace(fits=None, bounds=(), reason=why)
                        choice = None
            except UnknownFactError as error:
                notes += (f"not chosen by what is answered: {error.fact.reason}",)
                answer = solve(state, machine, Goal.L2)
        else:
            answer = solve(state, machine, wanted)
        if answer.fits is not None and written.launch != state.launch:
            judged = judged_values(written, machine, answer.values).findings
            limits = (each for each in judged if each.check == "memory.cgroup" and is_mended(each))
            answer = answer._replace(beside=(*limits, *answer.beside))
    finally:
        progress.clear()
    if answer.fits is not None:
        models = Models(host.root, options.model_config)
        answer = answer._replace(shares=tuple(shares(answer.fits, answer.goal, models)))
    if host.described_root is not None:
        answer = _for_description(answer, machine, host.described_root.not_described)
    fits = answer.fits is not None
    changes, command = _edited(launch_words, written, host, answer) if fits else (None, "")
    ignored, over = tuple(selection.ignore.items()), tuple(selection.expired)
    name = host.name if host.described_root is None else DESCRIBED_NAME
    assumed = () if host.described_root is None else host.described_root.assumptions
    steps = tuple(_host_commands(answer, context_of(facts)))
    basics = (launch.name, name, answer, keep_bytes, changes, (), command, steps, assumed)
    fit = FitResult(*basics, state, machine, _exit_code(answer), ignored=ignored, waivers_over=over)
    processes = sized.sizing.inputs.processes
    return fit._replace(unread=notes, processes=processes, choice=choice)


def _without_limits(launch: WrittenLaunch) -> WrittenLaunch:
    """Return the launch without the memory limits that it sets on its containers."""
    commands = tuple(
        each._replace(container=each.container and each.container._replace(memory_bytes=None))
        for each in launch.reading.commands
    )
    return launch._replace(reading=launch.reading._replace(commands=commands))


def _for_description(answer: FitAnswer, machine: HostState, topics: frozenset[str]) -> FitAnswer:
    """Return the answer for a host that was only described.

    Warnings and unknowns of host checks are taken out of ``beside``, except findings with a need
    whose check reads one of ``topics``.

    Args:
        topics: Of devices that the description leaves out. Their checks become ``not_described``.
    """
    asked = {check.id: topics.intersection(check.about) for check in machine.checks}

    def is_kept(each: Finding) -> bool:
        missing = asked.get(each.check)
        return each.status is Status.FAIL or missing is None or bool(each.need and missing)

    kept = tuple(filter(is_kept, answer.beside))
    devices = frozenset(id_ for id_, missing in asked.items() if missing)
    return answer._replace(beside=kept, not_described=devices)


def _exit_code(answer: FitAnswer) -> int:
    """Return the exit code: docs/fit.md says what each means."""
    if answer.fits is None and not answer.reason:
        return exit_codes.FAIL
    if answer.fits is None or answer.undecided:
        return exit_codes.UNKNOWN
    if any(finding.status is Status.FAIL for finding in answer.beside):
        return exit_codes.WARN
    return exit_codes.UNKNOWN if answer.misses_devices else 0


def _edited(
    launch: LaunchWords, state: LaunchState, host: Host, answer: FitAnswer
) -> tuple[Edited | None, str]:
    """Return (the launch's files with the new sizes, ""), or for a command (None, its new command
    line).

    If no edit and no line can be made, the first value has an advice for every size.
    """
    launch_words = launch.words
    changed = with_values(state.launch, answer.sizes, answer.values)
    if launch_words == (state.launch.name,):  # a file is called as it was given
        texts = launch_texts(launch_words[0], launch.env_files, host.environment, host.root.live)
        if texts is not None:
            return edit_texts(texts, answer.sizes, answer.values), ""
    line = command_line(state.launch.reading, changed.reading) if len(launch_words) > 1 else ""
    if line:
        return None, line
    return by_hand(state.launch.reading, answer.sizes, answer.values), ""


def _host_commands(answer: FitAnswer, context: Context) -> Iterator[str]:
    """Yield commands to run on the host before the launch; nothing if no size fits.

    The commands grow the huge page pools, also for the next boot, and mend failures and warnings
    that are the same for every size. A container's memory limit is yielded as a comment.
    """
    if answer.fits is None:
        return
    settings = []
    default_bytes = answer.fits.needs.default_page_bytes
    for target in answer.fits.pools:
        now, whole = target.now_pages or 0, target.node is None
        if target.pages > now:
            how = Kind.SYSFS, target.file
            if whole and target.page_bytes == default_bytes:
                how = Kind.SYSCTL, NR_HUGEPAGES
            settings.append(Setting(*how, str(target.pages), str(now)))
    yield from commands(settings, context)
    mended = [finding for finding in answer.beside if is_mended(finding)]
    yield from commands([setting for each in mended for setting in each.settings], context)
    for each in mended:
        if each.check == "memory.cgroup" and not each.settings:
            yield (
                f"# the container at {each.subject}: no memory limit, or one of {each.need}, a "
                "tenth more, and the 10 GiB that SGLang leaves free"
            )


# What the copy of an edited file is called, behind its name.
COPY = ".bak"
_MARK = b"\xef\xbb\xbf"


def write_edits(edits: Sequence[Edit]) -> tuple[str, ...]:
    """Write each edited file, with the old text in a copy beside it (``COPY``); return the paths.

    Raises:
        UsageError: If writing fails or, before any is written, if a file has changed since.
    """
    path = why = ""
    try:
        for edit in edits:
            path = edit.path
            if Path(path).read_bytes().removeprefix(_MARK) != edit.before.encode():
                raise UsageError(f"--write {path}: it has changed since it was read: run fit again")
        why = ": it is as it was"
        for edit in edits:
            path = edit.path
            _write(edit)
    except OSError as error:
        raise UsageError(f"--write {path}: {error.strerror}{why}") from None
    return tuple(edit.path for edit in edits)


def _write(edit: Edit) -> None:
    """Write the edited file, after a copy of the old one with its mode and owner."""
    real = os.path.realpath(edit.path)
    before, status = Path(real).read_bytes(), os.stat(real)
    write_whole(f"{real}{COPY}", before, stat.S_IMODE(status.st_mode))
    # Who may not give it to the owner is the owner himself, or cannot help.
    with suppress(PermissionError):
        os.chown(f"{real}{COPY}", status.st_uid, status.st_gid)
    mark = _MARK if before.startswith(_MARK) else b""
    write_whole(real, mark + edit.after.encode())


def launch_hosts(sizing: LaunchSizing, gpus: int) -> tuple[int, str]:
    """Return how many hosts like this one run the launch's servers with one shared store, at least
    1, and a sentence for the user.

    The sentence is "" if nothing is to be told.

    Args:
        gpus: GPUs of this host; 0 if not known. Each copy of a server is counted as one host if two
            copies do not fit the GPUs of a host. Otherwise it is not known how many copies share a
            host, and all copies together are counted as one host.
    """
    taken = sizing.group
    if taken is not None and taken.group.in_turn:
        return 1, ""
    # Servers that cache the same have one model, and are all prefill or all decode.
    cached = {
        process.number: (str(server.value("model_path")), server.mode)
        for process in sizing.whole
        if (server := process.server) is not None and server.hicache
        if server.value("hicache_storage_backend") == "mooncake"
    }
    numbers = cached if taken is None else taken.group.numbers
    wanted = {cached[number] for number in numbers if number in cached}
    caching = [each for each in sizing.whole if cached.get(each.number) in wanted]
    hosts, shared = 0, 0
    for members in [cached] if taken is None else [group.only_here for group in taken.groups]:
        servers = [each for each in caching if each.number in members]
        copies = max(map(_copies, servers), default=0)
        alone = all(2 * _ranks_here(each) > gpus > 0 for each in servers)
        hosts += copies if alone else min(1, copies)
        shared = max(shared, 0 if alone else copies)
    if shared > 1:
        note = f"of {shared} copies of a server it is not known how many share a host"
        return max(1, hosts), f"{note}, and one is counted: --nodes says it"
    spans = {process.server.number("nnodes") for process in caching if process.server is not None}
    if hosts < 2 or any(not isinstance(span, int) or hosts % span for span in spans):
        return 1, ""
    what = f"the launch is for {hosts} hosts like this one that share the store"
    return hosts, f"{what}: --nodes says another number"


def _copies(process: LaunchProcess) -> int:
    place = process.command.place
    return 1 if place is not None and place.kind == "service" else process.command.copies


def _ranks_here(process: LaunchProcess) -> int:
    """Return how many ranks of a server are on this host; 0 if that is not known."""
    ranks = None if process.server is None else server_ranks(process.server)
    return 0 if ranks is None or isinstance(ranks, Unknown) else ranks.here


_SWITCH = "MC_STORE_USE_HUGEPAGE"


def hints(state: LaunchState, host: HostState, answer: FitAnswer) -> Iterator[str]:
    """Yield a sentence on each change that ``fit`` does not make and that lets larger sizes fit,
    with the sizes.

    Nothing for the goal best, or if no size can be given.
    """
    if not answer.reason and answer.goal is not Goal.BEST:
        yield from _released_hint(state, host, answer)
        yield from _regular_hint(state, host, answer)


def _regular_hint(state: LaunchState, host: HostState, answer: FitAnswer) -> Iterator[str]:
    """Yield a hint if a larger L2 would pass SGLang's memory check with the pools on regular pages,
    without ``MC_STORE_USE_HUGEPAGE``.

    Nothing unless the goal is L2 and that check limits L2.
    """
    stopped = [*answer.blocking, *(each for bound in answer.bounds for each in bound.findings)]
    gated = answer.goal is Goal.L2 and any(finding.check == GATE for finding in stopped)
    reading = state.launch.reading
    if not gated or not any(_SWITCH in command.environment for command in reading.commands):
        return
    commands = tuple(
        command._replace(environment={n: w for n, w in command.environment.items() if n != _SWITCH})
        for command in reading.commands
    )
    launch = state.launch._replace(reading=reading._replace(commands=commands))
    larger = largest_sizes(state._replace(launch=launch), host, answer.goal, answer.gates)
    if larger is not None and _is_larger(larger, answer):
        yield (
            f"without {_SWITCH}, {larger.text} would pass: SGLang's own check asks for as much "
            "available memory as the pools take, and the pages that they lie on are no longer part "
            "of it"
        )


def _released_hint(state: LaunchState, host: HostState, answer: FitAnswer) -> Iterator[str]:
    """Yield a hint if larger sizes would fit once free huge pages that this launch does not take, 1
    GiB or more, were given back.

    Nothing here lowers a pool, so the user has to.
    """
    hugetlb: HugetlbFacts | Unknown = host.facts.topic("hugetlb")
    if isinstance(hugetlb, Unknown) or isinstance(hugetlb.hugetlb.pools, Unknown):
        return
    pools = [each for each in hugetlb.hugetlb.pools.values() if isinstance(each, Pool)]
    # Pages of each size that the launch takes, with the sizes found or the least.
    usages, taken = (answer.fits or answer.least).needs.usages, Counter[int]()
    for usage in () if isinstance(usages, Unknown) else usages:
        for spot, number in usage.mapped.items():
            taken[spot.page_size_bytes] += number
    spare = {
        each.page_size_bytes: each.free_pages - each.reserved_pages - taken[each.page_size_bytes]
        for each in pools
    }
    if sum(size * max(0, pages) for size, pages in spare.items()) < GIB:
        return
    root = released_root(host.root, pools)
    freed = host._replace(root=root, facts=facts_with_pools(root, answer.least.needs, host.facts))
    if answer.bounds and not any(larger_fit(state, freed, answer)):
        return
    larger = largest_sizes(state, freed, answer.goal, answer.gates)
    if larger is not None and _is_larger(larger, answer):
        sizes = ((pages, format_page_size(size)) for size, pages in spare.items() if pages > 0)
        names = " and ".join(f"{pages} pages of {size}" for pages, size in sizes)
        yield (
            f"{names} are reserved, free, and not taken by this launch; were the pools only as "
            f"large as they have to be, {larger.text} would pass (nothing here lowers a pool)"
        )


def _is_larger(larger: SizeValues, answer: FitAnswer) -> bool:
    """Return whether ``larger`` has more L2 or segment than the answer and less of neither.

    Returns:
        True if nothing fits in the answer.
    """
    if answer.fits is None:
        return True
    more = [(new or 0) - (old or 0) for new, old in zip(larger, answer.values, strict=True)][:2]
    return min(more) >= 0 and max(more) > 0


def shares(judgement: Judgement, goal: Goal, models: Models) -> Iterator[NextGib]:
    """Yield, for each size that ``goal`` is about, the cost of 1 GiB more on this host, and the
    tokens that the GiB would hold.

    Nothing if the launch could not be sized.
    """
    shown = judgement.sizing.shown
    if shown is None:
        return
    mapped = [a for process in shown.asked for a in process.allocations]
    if goal is not Goal.POOL:
        ranks = sum(1 for p in shown.inputs.launch.processes if p.host_pools_bytes)
        tokens = _gib_tokens(judgement, models, of_one_rank=True)
        yield _next_gib("l2", mapped, MemoryKind.HOST_POOL, ranks, tokens)
    if goal is not Goal.L2:
        tokens = _gib_tokens(judgement, models, of_one_rank=False)
        yield _next_gib("segment", mapped, MemoryKind.SEGMENT, 1, tokens)


def _next_gib(
    size: str, mapped: list[Allocation], what: MemoryKind, times: int, tokens: int | None
) -> NextGib:
    """Return the cost of 1 GiB more of ``size`` ("l2" or "segment").

    Args:
        mapped: All allocations.
        what: The kind that tells the page size; if none lies outside the arena, the arena tells it.
        times: How often the host has the size.
        tokens: How many 1 GiB holds; None if not known.
    """
    of_size = [a for a in mapped if a.what == what and a.backing is not Backing.ARENA]
    of_size = of_size or [a for a in mapped if a.what == MemoryKind.ARENA]
    page = max((a.page_size_bytes for a in of_size if a.on_huge_pages), default=0)
    host_bytes = times * GIB
    return NextGib(size, host_bytes, host_bytes // page if page else 0, page, tokens)


def _gib_tokens(judgement: Judgement, models: Models, *, of_one_rank: bool) -> int | None:
    """Return the tokens that 1 GiB more holds, for the first server with known pools: with
    ``of_one_rank`` as L2 of each rank, else in the store.

    Returns:
        None if no pools are known, or if the model is not known and the store is meant.
    """
    for process in judgement.sizing.inputs.processes:
        memory = judgement.sizing.inputs.memory.get(process.number)
        if process.server is None or memory is None:
            continue
        ranks = server_ranks(process.server)
        whole = [host_pool for host_pool in memory.pools if host_pool.tokens]
        if isinstance(ranks, Unknown) or not whole:
            continue
        # One token in all pools of one rank.
        token_bytes = sum(host_pool.bytes / host_pool.tokens for host_pool in whole)
        groups = ranks.attention_dp * ranks.replicas
        if of_one_rank:
            return int(GIB / token_bytes) * groups
        geometry = models.target(process.server.value("model_path")).geometry
        if isinstance(geometry, Unknown):
            return None
        # Of latent attention one rank stores each token, of others each with heads a part of it.
        latent = geometry.kind is AttentionKind.MLA
        writers = ranks.pp * (1 if latent else max(1, ranks.tp // ranks.attention_dp))
        return int(GIB / (token_bytes * writers))
    return None
