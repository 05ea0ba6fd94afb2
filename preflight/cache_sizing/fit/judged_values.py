"""One launch with one set of values, judged on the host as it will be once the plan is applied.

It is what ``check`` does: the same sizing, the same needs, the same checks. Only the launch's
values are changed first, and the host's pools are set to what ``plan`` computes for them, with the
memory gone to them; ``apply`` never lowers a pool, and neither does this.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple

from checks.framework.finding import Finding, Kind, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.pages import MemoryKind
from checks.framework.problem import Problem
from checks.framework.recording import RecordingRoot
from checks.framework.root import Root
from checks.framework.units import KIB, format_bytes, format_need
from checks.framework.unknown import Unknown, UnknownFactError, require
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import POOLS, Pool
from checks.memory.facts import MemoryFacts
from checks.memory.judge import regular_bytes
from checks.numa.nodes import NODES, read_meminfo, read_node_meminfo
from checks.run_checks.facts import READERS, Facts
from checks.run_checks.runner import judge
from preflight.cache_sizing.capacity.workload import WorkloadOptions
from preflight.cache_sizing.fit.launch_values import Knobs, SizeValues, with_values
from preflight.command_inputs.written_launch import WrittenLaunch, size_written
from preflight.engines.sglang.admission_gate import least_free_bytes
from preflight.engines.sglang.launch import server_ranks
from preflight.host_tuning.records import PoolTarget, pools
from preflight.needs.launch_needs import launch_needs
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.processes import LaunchOptions
from preflight.verdict.launch_checks import launch_findings

MEMINFO = "/proc/meminfo"
_COUNTS = ("nr_hugepages", "free_hugepages")
# Rows of a node's meminfo that give way to pages once its free memory is used up, in that order.
_CACHE = ("Inactive(file)", "Active(file)", "SReclaimable")


class PlannedRoot(RecordingRoot):
    """``inner`` with other texts, by path, in place of some files.

    Nothing is written to disk.
    """

    def __init__(self, inner: Root, texts: dict[str, str]) -> None:
        super().__init__(inner)
        self.texts = texts

    def text(self, name: str) -> str | Unknown:
        return self.texts[name] if name in self.texts else super().text(name)


def planned_root(root: Root, pools: Iterable[PoolTarget], default_page_bytes: int) -> Root:
    """Return ``root`` as it would read once the huge page pools are set to ``pools``: their counts
    grow, and free memory shrinks.

    Pages bound to no node come from all nodes, as in Linux; no pool is lowered.

    Args:
        default_page_bytes: The page size of meminfo and ``vm.nr_hugepages``.
    """
    grown = [target for target in pools if target.pages > (target.now_pages or 0)]
    if not grown:
        return root
    texts: dict[str, str] = {}
    now = PlannedRoot(root, texts)
    free, cache = _node_memory(root)
    for target in grown:
        size, added = target.page_bytes, target.pages - (target.now_pages or 0)
        name = f"hugepages-{size // KIB}kB"
        if target.node is not None:
            shares = {target.node: added}
        else:
            room = {}
            for numa_node in free:
                there = root.integer(f"{NODES}/node{numa_node}/hugepages/{name}/nr_hugepages")
                if not isinstance(there, Unknown) or not there.absent:
                    room[numa_node] = (free[numa_node] + cache[numa_node]) // size
            shares = _spread_evenly(added, room)
        _add_pages(now, added, *(f"{POOLS}/{name}/{count}" for count in _COUNTS))
        for numa_node, pages in shares.items():
            folder = f"{NODES}/node{numa_node}/hugepages/{name}"
            _add_pages(now, pages, *(f"{folder}/{count}" for count in _COUNTS))
            taken = min(free.get(numa_node, 0), pages * size)
            if numa_node in free:
                free[numa_node] -= taken
                cache[numa_node] = max(0, cache[numa_node] - (pages * size - taken))
            _take_node_memory(now, numa_node, pages * size)
        rows = {"MemFree": -added * size, "MemAvailable": -added * size}
        if size == default_page_bytes:
            rows |= {"HugePages_Total": added, "HugePages_Free": added}
            _add_pages(now, added, "/proc/sys/vm/nr_hugepages")
        rows["Hugetlb"] = added * size
        _change_rows(now, MEMINFO, rows)
    return now


def released_root(root: Root, pools: Iterable[Pool]) -> Root:
    """Return ``root`` as it would read if free huge pages were given back to their node's memory.

    Each node keeps as many free pages as the whole pool has promised (``reserved_pages``), for any
    node may have to supply the promised pages.
    """
    now = PlannedRoot(root, {})
    for huge_pool in pools:
        size, name = huge_pool.page_size_bytes, f"hugepages-{huge_pool.page_size_bytes // KIB}kB"
        # Which node a reservation will be met on is not known: so many stay on each.
        shares = {
            numa_node: max(0, share.free_pages - huge_pool.reserved_pages)
            for numa_node, share in huge_pool.nodes.items()
        }
        released = sum(shares.values())
        if not released:
            continue
        _add_pages(now, -released, *(f"{POOLS}/{name}/{count}" for count in _COUNTS))
        for numa_node, pages in shares.items():
            folder = f"{NODES}/node{numa_node}/hugepages/{name}"
            _add_pages(now, -pages, *(f"{folder}/{count}" for count in _COUNTS))
            _change_rows(now, f"{NODES}/node{numa_node}/meminfo", {"MemFree": pages * size})
        rows = {"MemFree": released * size, "MemAvailable": released * size}
        _change_rows(now, MEMINFO, rows)
    return now


def _node_memory(root: Root) -> tuple[dict[int, int], dict[int, int]]:
    """Return two dicts, in bytes by NUMA node: free memory, and page cache that can be reclaimed.

    If no node can be read, all available memory is taken as free on node 0.
    """
    free: dict[int, int] = {}
    cache: dict[int, int] = {}
    for numa_node, table in read_node_meminfo(root).items():
        if isinstance(table, Unknown) or isinstance(value := table.value("MemFree"), Unknown):
            continue
        free[numa_node] = value
        rows = (table.value(name) for name in _CACHE)
        cache[numa_node] = sum(row for row in rows if isinstance(row, int))
    if not free:
        meminfo = read_meminfo(root)
        available = meminfo if isinstance(meminfo, Unknown) else meminfo.value("MemAvailable")
        free, cache = {0: available if isinstance(available, int) else 0}, {0: 0}
    return free, cache


def _spread_evenly(pages: int, room: Mapping[int, int]) -> dict[int, int]:
    """Return pages by node: ``pages`` spread evenly over nodes, none beyond its ``room`` (pages).

    Pages for which no node has room are spread evenly over all nodes.
    """
    shares = dict.fromkeys(room, 0)
    left, open_nodes = pages, [numa_node for numa_node in room if room[numa_node] > 0]
    while left and open_nodes:
        each, rest = divmod(left, len(open_nodes))
        for index, numa_node in enumerate(open_nodes):
            taken = min(each + (index < rest), room[numa_node] - shares[numa_node])
            shares[numa_node] += taken
            left -= taken
        open_nodes = [numa_node for numa_node in open_nodes if shares[numa_node] < room[numa_node]]
    for index, numa_node in enumerate(shares):
        shares[numa_node] += left // len(shares) + (index < left % len(shares))
    return shares


def _add_pages(now: PlannedRoot, pages: int, *names: str) -> None:
    """Add ``pages`` (may be negative) to the count in each file of ``names`` that can be read."""
    for name in names:
        count = now.integer(name)
        if not isinstance(count, Unknown):
            now.texts[name] = f"{count + pages}\n"


def _take_node_memory(now: PlannedRoot, numa_node: int, size: int) -> None:
    """Take ``size`` bytes from a node's free memory in ``now``, then the rest from page cache."""
    name = f"{NODES}/node{numa_node}/meminfo"
    table = read_node_meminfo(now).get(numa_node, Unknown("no such node"))
    if isinstance(table, Unknown):
        return
    rows: dict[str, int] = {}
    for row in ("MemFree", *_CACHE):
        value = table.value(row)
        if isinstance(value, int):
            rows[row] = -min(value, size)
            size += rows[row]
    _change_rows(now, name, rows)


def _change_rows(now: PlannedRoot, name: str, changes: Mapping[str, int]) -> None:
    """Add ``changes`` to rows of the meminfo file ``name``: bytes for rows in kB, else pages.

    No value falls below zero, and rows that the file does not have are ignored.
    """
    content = now.text(name)
    if isinstance(content, Unknown):
        return
    lines = []
    for line in content.splitlines():
        label, colon, amount = line.partition(":")
        amounts, key = amount.split(), (label.split() or [""])[-1]
        if colon and key in changes and amounts and amounts[0].isdigit():
            scale = KIB if amounts[1:] == ["kB"] else 1
            # Rounded down: where it is less, to the side of less.
            value = max(0, int(amounts[0]) + changes[key] // scale)
            unit = " kB" if scale == KIB else ""
            line = f"{label}: {value}{unit}"
        lines.append(line)
    now.texts[name] = "\n".join(lines) + "\n"


# What a plan changes of the facts; all others are read once.
_PLANNED_TOPICS = ("memory", "hugetlb", "numa")
_RESERVATION = "hugetlb.reservation"
KEEP = "fit.keep"
# The checks that hold a size against the host. Others count too where sizes change what they find.
GATES = (
    *("launch.sizes", "launch.not-read", "launch.cannot-map", "sglang.admission-gate"),
    *("memory.host", "memory.cgroup", "memory.overcommit", "numa.node-memory", "shm.space"),
    *("hugetlb.shortage", "hugetlb.node-shortage", "hugetlb.page-size", "hugetlb.cgroup-limit"),
    *(_RESERVATION, "memlock.limit", "rdma.region-too-large", "rdma.table-capacity", KEEP),
)

# Those of them that only less memory or a larger host passes: there is nothing to mend.
ROOM = frozenset(
    {"sglang.admission-gate", "memory.host", "numa.node-memory", "hugetlb.shortage"}
    | {"hugetlb.node-shortage", _RESERVATION, KEEP}
)
# What is set for a launch however large it is: the host has enough of it.
_SET = (Kind.ULIMIT, Kind.SYSCTL, Kind.SHM_SIZE)


def is_mended(finding: Finding) -> bool:
    """Return whether a setting of the host or a container mends a finding for all sizes.

    Returns:
        False for a finding that passes or is unknown, and for the checks ``ROOM``.
    """
    if finding.status not in (Status.FAIL, Status.WARN) or finding.check in ROOM:
        return False
    if finding.settings and all(setting.kind in _SET for setting in finding.settings):
        return True
    limited = finding.check == "memory.cgroup" and finding.subject != "cgroup"
    return (limited and not finding.settings) or finding.check == "hugetlb.after-reboot"


class HostState(NamedTuple):
    """A host as it is now, and how it is judged.

    Attributes:
        facts: All topics, read once.
        checks: Those to judge with.
        keep_bytes: Memory to stay available.
        left_out: Tells by a check's id that its findings do not count.
        trying: Called at each judgement, to show progress.
    """

    root: Root
    facts: Facts
    checks: Sequence[Problem]
    keep_bytes: int
    left_out: Callable[[str], bool] = lambda _: False
    trying: Callable[[], None] = lambda: None


class LaunchState(NamedTuple):
    """A launch as it is written, and the places of its sizes."""

    launch: WrittenLaunch
    options: LaunchOptions
    sizes: Knobs


class Judgement(NamedTuple):
    """What ``check`` would say of the launch with ``values``, once the plan is applied.

    Attributes:
        pools: The plan's targets.
        planned: The host with these pools; facts are read from it.
        room_bytes: About how much memory is left beyond what is mapped, what is kept and what
            SGLang's memory check asks for; negative if too little. It only guides the search, and
            judges nothing.
    """

    values: SizeValues
    sizing: LaunchSizing
    needs: LaunchNeeds
    pools: tuple[PoolTarget, ...]
    planned: Root
    facts: Facts
    findings: tuple[Finding, ...]
    room_bytes: int = 0

    def of(self, ids: Iterable[str], *statuses: Status) -> tuple[Finding, ...]:
        """Return the findings of the checks ``ids`` that have one of ``statuses``."""
        wanted = frozenset(ids)
        return tuple(f for f in self.findings if f.check in wanted and f.status in statuses)


class Goal(Enum):
    """Which size gets as much memory as fits."""

    BEST = "best"
    L2 = "l2"
    POOL = "pool"
    BALANCED = "balanced"


class CompareBy(NamedTuple):
    """The requests that are replayed to compare divisions: of a workload, or of the trace with this
    path.

    With neither, of the launch's benchmark, or else of SGLang's published one.

    Attributes:
        hosts: How many share the store; None to leave that to the launch.
    """

    workload: WorkloadOptions = WorkloadOptions()
    trace: str | None = None
    hosts: int | None = None


class SizeBound(NamedTuple):
    """Why ``size`` ("l2" or "segment") cannot be ``value_bytes``, one step larger: the findings
    that stop this value, the worst first.
    """

    size: str
    value_bytes: int
    findings: tuple[Finding, ...]


class NextGib(NamedTuple):
    """What 1 GiB more of one size costs and buys, if the host had room for it.

    Attributes:
        size: "l2" or "segment".
        host_bytes: Memory of this host.
        pages: Number of huge pages, each of ``page_bytes``; 0 on regular pages.
        tokens: None if the model's geometry is not known.
    """

    size: str
    host_bytes: int
    pages: int
    page_bytes: int
    tokens: int | None


class FitAnswer(NamedTuple):
    """The sizes that fit, and how they were judged.

    Attributes:
        values: The sizes that fit.
        fits: Their judgement; None if nothing fits. Then ``reason`` says why no size can be given,
            or if it is "", ``blocking`` is what stops the sizes in ``values``.
        sizes: Where the launch sets its sizes.
        least: The judgement of the least sizes.
        unknown: Findings of gates that could not be judged at any size.
        bounds: What stops each size of the goal.
        beside: Other findings of check, the worst first.
        shares: What 1 GiB more costs.
        gates: The checks that sizes were held against.
        not_described: Checks of devices that the description of the host leaves out.
    """

    goal: Goal
    sizes: Knobs
    values: SizeValues
    fits: Judgement | None
    least: Judgement
    blocking: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    bounds: tuple[SizeBound, ...] = ()
    beside: tuple[Finding, ...] = ()
    shares: tuple[NextGib, ...] = ()
    gates: frozenset[str] = frozenset()
    reason: str = ""
    not_described: frozenset[str] = frozenset()

    @property
    def misses_devices(self) -> bool:
        """Whether the launch needs devices that nobody described."""
        return any(
            finding.status is Status.UNKNOWN and finding.check in self.not_described
            for finding in (*self.unknown, *self.beside)
        )

    @property
    def undecided(self) -> bool:
        """Whether a gate is unknown for another reason than a device that is not described."""
        return any(finding.check not in self.not_described for finding in self.unknown)


def judged_values(
    state: LaunchState, host: HostState, values: SizeValues, ids: Iterable[str] | None = None
) -> Judgement:
    """Judge the launch with ``values`` on the host as it will be once the plan is applied.

    Args:
        ids: What to judge by; None for all. With ``ids``, values whose huge pages cannot be
            reserved are judged no further.

    Raises:
        UsageError: If the launch has an invalid value.
    """
    host.trying()
    launch, sizing = sized_values(state, host, values)
    needs = launch_needs(sizing)
    hugetlb: HugetlbFacts | Unknown = host.facts.topic("hugetlb")
    # What the plan sets each pool to, and what of the pools it cannot tell.
    targets, _, gaps = pools(needs, hugetlb)
    before = [check for check in host.checks if check.id == _RESERVATION]
    # That memory is in pieces is no bound: it is compacted, or reserved at boot.
    findings = [
        finding._replace(status=Status.PASS) if finding.status is Status.WARN else finding
        for finding in judge(host.facts, needs, before)
    ]
    findings += [Finding(_RESERVATION, Status.UNKNOWN, "huge pages", text=g.reason) for g in gaps]
    facts, planned = host.facts, host.root
    if ids is not None and any(finding.status is Status.FAIL for finding in findings):
        grown = sum((each.pages - (each.now_pages or 0)) * each.page_bytes for each in targets)
        room = _judge_keep(needs, facts, host.keep_bytes)[1] - host.keep_bytes - grown
        room = min(room, _pool_room(targets, hugetlb))
        return Judgement(values, sizing, needs, targets, planned, facts, tuple(findings), room)
    wanted = {check.id for check in host.checks} if ids is None else {*ids}
    chosen = [check for check in host.checks if check.id in wanted - {_RESERVATION}]
    planned = planned_root(host.root, targets, needs.default_page_bytes)
    if planned is not host.root:
        sizing = size_written(launch, state.options, planned)
        needs = launch_needs(sizing)
        facts = facts_with_pools(planned, needs, facts)
    findings += judge(facts, needs, chosen)
    findings += launch_findings(sizing, takes=lambda id_: ids is None or id_ in wanted)
    kept, left = _judge_keep(needs, facts, host.keep_bytes)
    findings = [finding for finding in (*findings, *kept) if not host.left_out(finding.check)]
    room = min(left - host.keep_bytes, _gate_room(sizing, facts), _pool_room(targets, hugetlb))
    return Judgement(values, sizing, needs, targets, planned, facts, tuple(findings), room)


def sized_values(
    state: LaunchState, host: HostState, values: SizeValues
) -> tuple[WrittenLaunch, LaunchSizing]:
    """Return the launch with ``values``, sized on the host as it is now."""
    launch = with_values(state.launch, state.sizes, values)
    return launch, size_written(launch, state.options, host.root)


def facts_with_pools(planned: Root, needs: LaunchNeeds, before: Facts) -> Facts:
    """Return the facts ``before``, with memory, huge pages and NUMA read anew from ``planned``."""
    topics: dict[str, Any] = {name: before.topic(name) for name in READERS}
    for name in _PLANNED_TOPICS:
        if not isinstance(topics[name], Unknown):
            module, function = READERS[name]
            topics[name] = getattr(import_module(module), function)(planned, needs)
    return Facts(topics)


def _judge_keep(needs: LaunchNeeds, facts: Facts, keep_bytes: int) -> tuple[list[Finding], int]:
    """Judge whether ``keep_bytes`` stay available once the launch is mapped.

    Return the finding in a list, empty if ``keep_bytes`` is 0, and the bytes that stay (negative if
    too few, 0 if unknown).
    """
    memory: MemoryFacts | Unknown = facts.topic("memory")
    try:
        available, taken = (
            require(require(memory).value("MemAvailable")),
            require(regular_bytes(needs)),
        )
    except UnknownFactError as error:
        unknown = Finding(KEEP, Status.UNKNOWN, "memory to keep", text=error.fact.reason)
        return ([unknown] if keep_bytes else []), 0
    left = available - taken
    if not keep_bytes:
        return [], left
    have, need = f"{format_bytes(max(0, left))} left", f"{format_need(keep_bytes, left)} to keep"
    status = Status.PASS if left >= keep_bytes else Status.FAIL
    less = format_bytes(keep_bytes - left) if left < keep_bytes else ""
    text = f"{less} too little would be left (--keep)" if less else ""
    formula = f"{format_bytes(available)} available - {format_bytes(taken)} on regular pages"
    return [Finding(KEEP, status, "memory to keep", have, need, formula, text)], left


def _pool_room(targets: Sequence[PoolTarget], hugetlb: HugetlbFacts | Unknown) -> int:
    """Return about how many bytes the huge page pools could still grow by beyond ``targets``,
    evenly on all NUMA nodes; 1 << 62 if no target is bound to a node whose free memory is known.
    """
    free = {} if isinstance(hugetlb, Unknown) else hugetlb.node_free_bytes
    rooms = [
        free[numa_node] - (pages - (now or 0)) * page_bytes
        for page_bytes, numa_node, pages, now in targets
        if numa_node is not None and numa_node in free
    ]
    return min(rooms) * len(rooms) if rooms else 1 << 62


def _gate_room(sizing: LaunchSizing, facts: Facts) -> int:
    """Return about how many bytes are available beyond what SGLang's memory check asks for when the
    last rank starts: the least over all servers.

    Returns:
        0 if the host's available memory is unknown.
    """
    memory: MemoryFacts | Unknown = facts.topic("memory")
    available = memory if isinstance(memory, Unknown) else memory.value("MemAvailable")
    if isinstance(available, Unknown) or sizing.shown is None:
        return 0
    inputs, room = sizing.inputs, available
    for process in inputs.processes:
        pools = inputs.memory.get(process.number)
        ranks = None if process.server is None else server_ranks(process.server)
        if pools is None or ranks is None or isinstance(ranks, Unknown):
            continue
        asked = least_free_bytes(pools.pools, ranks.sharing, inputs.sglang)
        replays = (x for x in sizing.shown.asked if x.process.id.command == process.number)
        mapped = (allocation for replay in replays for allocation in replay.allocations)
        regular = any(x.what is MemoryKind.HOST_POOL and not x.on_huge_pages for x in mapped)
        taken = sum(host_pool.taken_bytes for host_pool in pools.pools)
        others = taken * (ranks.here - 1) if regular else 0
        if asked is not None and pools.budget_bytes is None:
            room = min(room, available - asked[0] - others)
    return room


# What sizes change back and forth: its remedy is a variable of the launch, never a size. And what
# says of a division that it is a poor one: it starts.
_NO_GATES = {"rdma.fork-safe", "l3-repeats-l2"}


def sensitive_ids(first: Judgement, second: Judgement) -> frozenset[str]:
    """Return the ids of the gates: ``GATES``, and the checks whose findings differ between two
    judgements of the launch with different sizes, except ``_NO_GATES``.
    """
    low, high = Counter(first.findings), Counter(second.findings)
    changed = (finding.check for finding in (low - high) + (high - low))
    return frozenset({*GATES, *changed} - _NO_GATES)
