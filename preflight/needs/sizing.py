"""The sizing itself: a launch's needs held against this host's pools, under both rules."""

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.pages import MemoryKind, Pages, Spot
from checks.framework.root import Root
from checks.framework.units import format_page_size
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Fit, FitVerdict, Stock, judge_fit
from checks.hugetlb.pools import HugeTlb, Pool, read_hugetlb
from checks.hugetlb.stock import read_stock, stated_stock
from checks.numa.nodes import Meminfo, memory_nodes, read_meminfo, read_node_free
from checks.releases.mooncake import MooncakeRelease
from preflight.base.usage_error import UsageError
from preflight.engines.mooncake.allocations import Backing
from preflight.engines.mooncake.replay import (
    ProcessReplay,
    hugetlb_usages,
    pages_by_spot,
    replay_endless,
    replay_stock,
)
from preflight.engines.programs.store_environment import Note
from preflight.needs.flag_inputs import Flags, gather_flags
from preflight.needs.sizing_inputs import RuleTerms, SizingInputs

# The helper's statuses and their exit codes.
HELPER_EXIT_CODES = {
    "planning_only": 0,
    "clean_arena_budget_available": 0,
    "baseline_fits_arena_may_fallback": 1,
    "insufficient_for_baseline": 2,
}


class DocumentedRule(NamedTuple):
    """The helper's four numbers and its status; ``available_bytes`` None if it knows no pool."""

    baseline_per_rank_bytes: int
    baseline_total_bytes: int
    clean_arena_per_rank_bytes: int
    clean_arena_total_bytes: int
    available_bytes: int | None
    status: str

    @property
    def exit_code(self) -> int:
        return HELPER_EXIT_CODES[self.status]


def documented_rule(terms: RuleTerms, available_bytes: int | None) -> DocumentedRule:
    """Return the answer of the documented helper.

    Args:
        available_bytes: Of huge pages, None if no pool is known.
    """
    baseline = terms.hicache_bytes + terms.segment_bytes
    clean_arena, ranks = baseline + (terms.arena_bytes or 0), terms.tp_size
    if available_bytes is None:
        status = "planning_only"
    elif available_bytes < baseline * ranks:
        status = "insufficient_for_baseline"
    elif available_bytes < clean_arena * ranks:
        status = "baseline_fits_arena_may_fallback"
    else:
        status = "clean_arena_budget_available"
    sizes = baseline, baseline * ranks, clean_arena, clean_arena * ranks
    return DocumentedRule(*sizes, available_bytes, status)


EXIT_CODES = {"fits": 0, "falls_back": 1, "fails": 2, "planning_only": 3, "unknown": 3}


class HostMemory(NamedTuple):
    """What was read of the host, once."""

    meminfo: Meminfo | Unknown
    hugetlb: HugeTlb
    node_free_bytes: Mapping[int, int]

    def memory_bytes(self, key: str) -> int | Unknown:
        return self.meminfo if isinstance(self.meminfo, Unknown) else self.meminfo.value(key)


class Sizing(NamedTuple):
    """The answer: what is asked for, what would be taken, and the verdict under both rules.

    Attributes:
        asked: The replay as if huge pages never ran short.
        taken: The replay with this host's pages.
        withheld: Why no pages are to be reserved, as the launch ends even with pages; else "".
    """

    inputs: SizingInputs
    host: HostMemory
    asked: tuple[ProcessReplay, ...]
    taken: tuple[ProcessReplay, ...] | None  # None where no pool is known to take from
    stock: Mapping[Spot, Stock | Unknown]
    verdict: FitVerdict
    unused: tuple[Note, ...]  # asked for, and not used, however many pages there are
    status: str
    reason: str
    documented: DocumentedRule
    withheld: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def starts_by_luck(self) -> bool:
        """Return whether the launch fails only if its ranks map memory in an unlucky order."""
        taken = self.taken
        fails = taken is None or any(process.failure for process in taken)
        return self.status == "fails" and not fails

    @property
    def asked_by_process(self) -> dict[int, list[ProcessReplay]]:
        """Return the replays of ``asked``, by the number of the launch's process."""
        replays: dict[int, list[ProcessReplay]] = {}
        for replay in self.asked:
            replays.setdefault(replay.process.id.command, []).append(replay)
        return replays

    @property
    def need_bytes(self) -> int:
        """Return the bytes of all huge pages that are asked for, over all page sizes."""
        return needed_bytes(self.verdict.needs)


def needed_bytes(needs: Pages) -> int:
    """Return the bytes of all pages; those bound to a NUMA node are counted once."""
    return sum(spot.page_size_bytes * pages for spot, pages in needs.items() if not spot.nodes)


def size_flags(flags: Flags, environment: Mapping[str, str], root: Root) -> Sizing:
    """Return the sizing of flags on the host below ``root``.

    Raises UsageError.
    """
    host = read_host(root)
    inputs = gather_flags(flags, environment, root, host.hugetlb.default_page_size_bytes)
    if not flags.documented:
        _refuse_missing_page_size(inputs, host.hugetlb)
    return judge_inputs(inputs, host, root)


def read_host(root: Root) -> HostMemory:
    meminfo = read_meminfo(root)
    return HostMemory(meminfo, read_hugetlb(root, meminfo), read_node_free(root))


def judge_inputs(inputs: SizingInputs, host: HostMemory, root: Root) -> Sizing:
    """Return the sizing of one launch, judged against the host."""
    usages = hugetlb_usages(inputs.launch)
    asked = replay_endless(inputs.launch)
    unlimited = judge_fit(usages, {})
    stock = _stock(inputs, host, root, unlimited.needs)
    verdict = judge_fit(usages, stock)
    unused = unused_requests(inputs, asked)
    taken = replay_stock(inputs.launch, stock)
    status, reason = _status(inputs, asked, verdict, stock, unused)
    if status == "fails" and not reason:
        reason = _why_it_fails(taken)
    stated, documented = _stated_host(inputs, host), _documented(inputs, host.hugetlb)
    judged = stock, verdict, unused, status, reason
    return Sizing(inputs, stated, asked, taken, *judged, documented)


def _stated_host(inputs: SizingInputs, host: HostMemory) -> HostMemory:
    """Return the host with an empty pool of the store's page size if --available-hugetlb states
    another host's huge pages; else ``host`` unchanged.
    """
    page = inputs.settings.hugepage_bytes
    if inputs.available_bytes is None:
        return host
    pools = {} if isinstance(host.hugetlb.pools, Unknown) else host.hugetlb.pools
    pools = {**pools, page: Pool(page, "--available-hugetlb", 0, 0, 0, 0, 0, {})}
    return host._replace(hugetlb=host.hugetlb._replace(pools=pools, barred={}))


def without_arena(sizing: Sizing) -> FitVerdict:
    """Judge the same launch against the same pools, with no arena asked for."""
    launch = sizing.inputs.launch.without_arenas()
    return judge_fit(hugetlb_usages(launch), sizing.stock)


def unused_requests(inputs: SizingInputs, asked: tuple[ProcessReplay, ...]) -> tuple[Note, ...]:
    """Return notes on memory that is asked for and never used.

    Equal notes are told once.
    """
    release, version = inputs.launch.release, f"Mooncake {inputs.shown['mooncake_version'].value}"
    notes = (note for process in asked for note in _unused_by(process, release, version))
    return tuple(dict.fromkeys(notes))


def _unused_by(process: ProcessReplay, mooncake: MooncakeRelease, version: str) -> list[Note]:
    """Return notes on what one process asks for in vain: an arena, or huge pages for a mapping."""
    notes: list[Note] = []
    settings, allocations = process.process.settings, process.allocations
    created = any(allocation.what is MemoryKind.ARENA for allocation in allocations)
    if settings.arena_bytes is not None and process.process.clients and not created:
        if settings.arena_disabled:
            why = "MC_DISABLE_MMAP_ARENA turns it off"
        elif not settings.hugepages:
            why = "without MC_STORE_USE_HUGEPAGE nothing in Mooncake creates it"
        elif not mooncake.arena:
            why = f"{version} has none; it came with 0.3.11"
        else:
            why = "nothing here is mapped the way that would create it"
        notes.append(Note("arena-not-created", f"the arena is never created: {why}"))
    on_regular = sorted({a.what for a in allocations if a.backing is Backing.REGULAR})
    # Neither is ever on huge pages; nor does Mooncake map what SGLang allocates by itself.
    never = {MemoryKind.HOT_CACHE, MemoryKind.OFFLOAD_BUFFER, MemoryKind.CPU_POOL}
    if process.process.own_allocator is not None:
        never.add(MemoryKind.HOST_POOL)
    wanted = [what for what in on_regular if what not in never]
    if settings.hugepages and wanted:
        why = "reads no MC_STORE_USE_HUGEPAGE (0.3.8.post1 does)"
        if mooncake.hugepages:
            why = "splits a segment over NUMA nodes on regular pages (0.3.12 and later do not)"
        text = f"{', '.join(wanted)}: on regular pages, since {version} {why}"
        notes.append(Note("pool-on-regular-pages", text))
    return notes


def _refuse_missing_page_size(inputs: SizingInputs, hugetlb: HugeTlb) -> None:
    """Raise UsageError if this kernel has no pages of --hugepage-size."""
    size = inputs.hugepage_bytes
    if size is None or inputs.available_bytes is not None:
        return
    read, every = hugetlb.pool(size), hugetlb.pools
    if isinstance(read, Unknown) and read.absent and not isinstance(every, Unknown):
        has = ", ".join(map(format_page_size, every)) or "no huge pages"
        text = f"--hugepage-size {format_page_size(size)}: this kernel has {has}"
        raise UsageError(f"{text}; to size another host, say what it has with --available-hugetlb")


def _stock(
    inputs: SizingInputs, host: HostMemory, root: Root, needs: Mapping[Spot, int]
) -> dict[Spot, Stock | Unknown]:
    """Return the pages available at each spot: read (else Unknown), or stated for another host."""
    page = inputs.settings.hugepage_bytes
    spots = {*needs, Spot(page, None)}
    stock = read_stock(root, host.hugetlb, host.memory_bytes("MemAvailable"), spots)
    stated = inputs.available_bytes
    if stated is not None:
        bound = {numa_node for spot in spots for numa_node in spot.nodes}
        nodes = sorted(bound | set(memory_nodes(root) if bound else ()))
        stated_pages = stated_stock(stated // page, page, nodes)
        stock.update(stated_pages)
        for spot in (spot for spot in spots if spot.among and spot.page_size_bytes == page):
            pages = sum(stated_pages[Spot(page, each)].least_pages for each in spot.among)
            stock[spot] = Stock(pages, pages)
    return stock


def _status(
    inputs: SizingInputs,
    asked: tuple[ProcessReplay, ...],
    verdict: FitVerdict,
    stock: Mapping[Spot, Stock | Unknown],
    unused: tuple[Note, ...],
) -> tuple[str, str]:
    """Return the status of one bound, and the reason; "" if the status says all."""
    broken = next((process.failure for process in asked if process.failure), None)
    if broken:
        return "fails", f"{broken.what}: {broken.error}"
    if inputs.nic_nodes_unknown is not None and verdict.fit is not Fit.FAILS:
        why = f"which NUMA nodes the NICs sit on is unknown ({inputs.nic_nodes_unknown.reason})"
        return "unknown", why
    if inputs.start_unknown is not None and verdict.fit in (Fit.FITS, Fit.FALLS_BACK):
        return "unknown", inputs.start_unknown.reason
    if verdict.fit is Fit.UNKNOWN:
        stock_here = stock.get(Spot(inputs.settings.hugepage_bytes, None))
        if isinstance(stock_here, Unknown):
            return ("planning_only" if stock_here.absent else "unknown"), stock_here.reason
        unread = [s.available.reason for s in verdict.shortages if isinstance(s.available, Unknown)]
        apart = "on which nodes reserved pages, or those made on demand, are is not told"
        return "unknown", unread[0] if unread else apart
    if verdict.fit is Fit.FITS and unused:
        return "falls_back", unused[0].text
    return verdict.fit.value, ""


def _why_it_fails(taken: tuple[ProcessReplay, ...] | None) -> str:
    """Return how a launch with too few pages ends, or may end."""
    for process in taken or ():
        if process.failure:
            return f"{process.process.name}, {process.failure.what}: {process.failure.error}"
    return "the processes race for too few pages: what one maps early leaves a later one without"


def _documented(inputs: SizingInputs, hugetlb: HugeTlb) -> DocumentedRule:
    """Return the answer of mooncake-hicache-sizing, the helper of Mooncake's documentation, for the
    same inputs.

    The helper takes the whole HugeTLB pool as free, whoever holds its pages.
    """
    available = inputs.available_bytes
    if available is None:
        # The helper reads nr_hugepages from sysfs.
        size = 2 * 1024**2 if inputs.hugepage_bytes is None else inputs.hugepage_bytes
        hugepage_pool = hugetlb.pool(size)
        if not isinstance(hugepage_pool, Unknown) and hugetlb.page_sizes_complete:
            available = hugepage_pool.total_pages * size
    return documented_rule(inputs.terms, available)


def taken_pages(sizing: Sizing, spot: Spot) -> int | None:
    """Return how many available pages of ``spot`` the launch takes; None if no pool is known."""
    if sizing.taken is None:
        return None
    pages = (pages_by_spot(process.allocations, process.process.among) for process in sizing.taken)
    return sum(count for process in pages for at, count in process.items() if spot.gives(at))
