"""Where a host's memory goes, now and with a launch: parts in bytes, whose sum is the memory; and a
bar for each place, with a table, for a terminal.

The same numbers as the checks judge by: of the whole host what ``MemAvailable`` counts as available
(``memory.host``), of a NUMA node its free memory and page cache (``numa.node-memory``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from checks.framework.pages import MemoryKind
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown, or_unknown, require
from checks.hugetlb.pools import HugeTlb, Pool
from checks.memory.facts import MemoryFacts
from checks.memory.judge import RESERVE_BYTES
from checks.run_checks.facts import Facts
from preflight.base.one_line import clean
from preflight.base.text import can_encode, table, wrapped
from preflight.command_inputs.host_source import Sized
from preflight.engines.mooncake.allocations import Backing
from preflight.verdict.judge_host import JudgedHost

# What the map is drawn from, whatever was checked.
MAP_TOPICS = ("memory", "hugetlb", "numa")


class PartName(NamedTuple):
    """How a part of a bar is named and drawn.

    Attributes:
        letter: A capital for huge pages.
        shade: The character that fills it in a terminal, unlike its neighbours'.
        colour: In a terminal.
        pattern: Over the colour on a page (page.css has it too), for memory that no process uses.
    """

    letter: str
    name: str
    shade: str
    colour: str = ""
    pattern: str = ""


# In the order in which they stand in a bar.
KINDS = {
    "used": PartName("o", "system and other processes", "▒"),
    "unknown": PartName("?", "in use or HugeTLB pages, not known which", "?", "magenta", "cross"),
    "held": PartName("H", "HugeTLB pages that others hold", "▓", "white", "stripes"),
    "closed": PartName("#", "beyond the memory cgroup's limit", "╳", "red", "cross"),
    "l2_huge": PartName("L", "L2 on huge pages", "█", "blue"),
    "segment_huge": PartName("S", "segment on huge pages", "▓", "cyan"),
    "arena_huge": PartName("A", "arena, with what lies in it", "▒", "magenta"),
    "buffer_huge": PartName("B", "local buffers on huge pages", "█", "yellow"),
    "other_huge": PartName("X", "hot cache on huge pages", "▓", "yellow"),
    "pool": PartName("P", "HugeTLB pages, free", "░", "green", "dots"),
    "l2": PartName("l", "L2", "█", "blue"),
    "segment": PartName("s", "segment", "▓", "cyan"),
    "arena": PartName("a", "arena", "▒", "magenta"),
    "buffer": PartName("b", "local buffers", "█", "yellow"),
    "other": PartName("x", "other memory of the launch", "▒", "yellow"),
    "free": PartName(".", "free, or page cache", "·"),
    "reserve": PartName("r", "reserve for the system", "─", "", "dots"),
}


OVER = "less: asked for, and not there"


class BarPart(NamedTuple):
    """One part of a bar.

    Attributes:
        key: Of ``KINDS``.
    """

    key: str
    bytes: int


class Bar(NamedTuple):
    """The memory of one place, in parts.

    Attributes:
        total_bytes: MemTotal; None for memory that may come from any NUMA node.
        over_bytes: By how much the parts exceed ``total_bytes``, so by how much memory is missing.
    """

    total_bytes: int | None
    parts: tuple[BarPart, ...]
    over_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def parts_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def bytes_of(self, key: str) -> int:
        return sum(part.bytes for part in self.parts if part.key == key)


class MemoryPlace(NamedTuple):
    """The memory of the host or of a NUMA node.

    Attributes:
        after: With the launch; None without a launch.
    """

    name: str
    now: Bar | Unknown
    after: Bar | Unknown | None

    @property
    def shown(self) -> Bar | Unknown:
        return self.now if self.after is None else self.after


class MemoryMap(NamedTuple):
    """Where memory goes.

    Attributes:
        places: The NUMA nodes, then memory that is bound to no node, and last the whole host. Only
            the host if it has a single node, or its nodes are unknown.
    """

    places: tuple[MemoryPlace, ...]

    def share(self, bar: Bar) -> float:
        """Return the width of ``bar``, 0 to 1: its part of the host if bound to no node, else 1."""
        host = self.places[-1].now
        if bar.total_bytes is not None or isinstance(host, Unknown) or not host.total_bytes:
            return 1.0
        return min(1.0, bar.parts_bytes / host.total_bytes)

    @property
    def with_launch(self) -> bool:
        return any(place.after is not None for place in self.places)


class TableRow(NamedTuple):
    """A row of the table of parts.

    Attributes:
        key: Of ``KINDS``; None for a sum.
        sizes: Bytes by place.
    """

    key: str | None
    name: str
    sizes: tuple[int, ...]


def known_bars(places: Iterable[MemoryPlace]) -> dict[str, Bar]:
    """Return the known bar of each place: with the launch or, if that is unknown, as of now."""
    bars = {}
    for place in places:
        bar = place.now if isinstance(place.shown, Unknown) else place.shown
        if not isinstance(bar, Unknown):
            bars[place.name] = bar
    return bars


def table_rows(bars: Collection[Bar]) -> list[TableRow]:
    """Return a row for each kind of part, then one for the excess, if any, and one for the whole
    memory.

    Nothing if no part is known.
    """
    rows = [
        TableRow(key, KINDS[key].name, tuple(bar.bytes_of(key) for bar in bars))
        for key in KINDS
        if any(bar.bytes_of(key) for bar in bars)
    ]
    if rows and any(bar.over_bytes for bar in bars):
        rows.append(TableRow(None, OVER, tuple(bar.over_bytes for bar in bars)))
    if rows:
        rows.append(TableRow(None, "memory", tuple(bar.total_bytes or 0 for bar in bars)))
    return rows


class _Memory(NamedTuple):
    """A place as it was read.

    Attributes:
        pools: By page size (pages that others hold, free pages).
        allowed_bytes: What the memory cgroup still allows.
        reserve_bytes: To be left for the system.
    """

    total_bytes: int
    available_bytes: int
    pools: Mapping[int, tuple[int, int]] | Unknown
    allowed_bytes: int | None = None  # by the memory cgroup, None without a limit
    reserve_bytes: int = 0
    notes: tuple[str, ...] = ()


def memory_map(facts: Facts, takes: Sequence[Take] | Unknown | None) -> MemoryMap:
    """Return where the host's memory goes; a NUMA node without memory is left out.

    Args:
        takes: What the launch takes, Unknown if that is not known; None without a launch.
    """
    topic = facts.topic("hugetlb")
    hugetlb = topic if isinstance(topic, Unknown) else topic.hugetlb
    host = _place("host", _host(facts, hugetlb), takes)
    numa = facts.topic("numa")
    if isinstance(numa, Unknown) or len(numa.nodes) < 2:
        return MemoryMap((host,))
    places = []
    for numa_node in numa.nodes:
        bound = takes if not isinstance(takes, Sequence) else _bound(takes, numa_node.node)
        if numa_node.total_bytes == 0 and not bound:
            continue  # CPUs without memory of their own
        memory = _node(numa_node.node, numa_node.total_bytes, numa_node.available_bytes, hugetlb)
        places.append(_place(f"node {numa_node.node}", memory, bound))
    if isinstance(takes, Sequence) and (free := _bound(takes, None)):
        places.append(MemoryPlace("any node", Bar(None, ()), Bar(None, _launch_parts(free))))
    return MemoryMap((*places, host))


def _bound(takes: Sequence[Take], numa_node: int | None) -> tuple[Take, ...]:
    return tuple(take for take in takes if take.numa_node == numa_node)


def _place(
    name: str, memory: _Memory | Unknown, takes: Sequence[Take] | Unknown | None
) -> MemoryPlace:
    """Return one place with its memory now and with the launch.

    Args:
        takes: None without a launch.
    """
    if isinstance(memory, Unknown):
        return MemoryPlace(name, memory, None if takes is None else memory)
    now = _bar(memory, ())
    if takes is None or isinstance(takes, Unknown):
        return MemoryPlace(name, now, takes)
    return MemoryPlace(name, now, now if isinstance(now, Unknown) else _bar(memory, takes))


def _bar(memory: _Memory, takes: Sequence[Take]) -> Bar | Unknown:
    """Return the bar of a memory once ``takes`` are taken from it.

    Returns:
        Unknown if huge pages are taken from pools that are unknown, or if the pools are larger than
        the memory.
    """
    available = memory.available_bytes
    rest = memory.total_bytes - available
    pools: Mapping[int, tuple[int, int]] = {}
    if isinstance(memory.pools, Unknown):
        if any(take.page_bytes is not None for take in takes):
            return memory.pools
        first = [BarPart("unknown", rest)]
    else:
        pools = memory.pools
        held_bytes = sum(size * pages for size, (pages, _) in pools.items())
        in_pools = held_bytes + sum(size * free for size, (_, free) in pools.items())
        # The counters are read one after another: what they are apart by is not anybody's.
        available -= max(0, in_pools - rest)
        first = [BarPart("used", max(0, rest - in_pools)), BarPart("held", held_bytes)]
        if available < 0:
            return Unknown(
                f"the HugeTLB pools ({format_bytes(in_pools)}) are larger than this memory "
                f"({format_bytes(memory.total_bytes)})"
            )
    wanted: Counter[int] = Counter()
    for take in takes:
        if take.page_bytes is not None:
            wanted[take.page_bytes] += take.bytes // take.page_bytes
    grown = sum(size * max(0, pages - pools.get(size, (0, 0))[1]) for size, pages in wanted.items())
    left_in_pools = sum(size * max(0, free - wanted[size]) for size, (_, free) in pools.items())
    regular = sum(take.bytes for take in takes if take.page_bytes is None)
    closed = 0 if memory.allowed_bytes is None else max(0, available - memory.allowed_bytes)
    # A pool grows outside of any memory cgroup.
    left = available - closed - regular - max(0, grown - closed)
    reserve = min(memory.reserve_bytes, max(0, left))
    free_parts = BarPart("free", max(0, left) - reserve), BarPart("reserve", reserve)
    pool_parts = BarPart("pool", left_in_pools), BarPart("closed", max(0, closed - grown))
    parts = (*first, *_launch_parts(takes), *pool_parts, *free_parts)
    notes, over = list(memory.notes), max(0, -left)
    if grown:
        notes.append(f"{format_bytes(grown)} of the huge pages are not reserved yet")
    if over:
        what = "there is" if memory.allowed_bytes is None else "the memory cgroup allows"
        notes.append(f"over-committed: {format_bytes(over)} more than {what}")
    elif takes and reserve < memory.reserve_bytes:
        size = format_bytes(memory.reserve_bytes)
        notes.append(f"{format_bytes(reserve)} left of {size} reserve")
    return Bar(memory.total_bytes, _ordered(parts), over, tuple(notes))


def _launch_parts(takes: Iterable[Take]) -> tuple[BarPart, ...]:
    sizes: Counter[str] = Counter()
    for take in takes:
        sizes[take.owner if take.page_bytes is None else f"{take.owner}_huge"] += take.bytes
    return _ordered(BarPart(*item) for item in sizes.items())


def _ordered(parts: Iterable[BarPart]) -> tuple[BarPart, ...]:
    order = list(KINDS)
    return tuple(sorted((x for x in parts if x.bytes), key=lambda part: order.index(part.key)))


@or_unknown
def _host(facts: Facts, hugetlb: HugeTlb | Unknown) -> _Memory | Unknown:
    """Return the memory of the whole host, with the memory cgroup's limit if that is less."""
    topic: MemoryFacts = require(facts.topic("memory"))
    total, available = require(topic.value("MemTotal")), require(topic.value("MemAvailable"))
    if available > total:
        return Unknown(f"MemAvailable is more than MemTotal ({total} bytes)")

    def whole(counts: Pool) -> tuple[int, int]:
        free = max(0, counts.free_pages - counts.reserved_pages)
        return counts.total_pages - free, free

    notes: tuple[str, ...] = ()
    allowed = None
    if isinstance(topic.headroom, Unknown):
        notes = (f"what the memory cgroup allows is unknown: {topic.headroom.reason}",)
    elif topic.headroom is not None and topic.headroom.left_bytes < available:
        allowed = max(0, topic.headroom.left_bytes)
        notes = (f"the memory cgroup allows {format_bytes(allowed)} more",)
    return _Memory(total, available, _pools(hugetlb, whole), allowed, RESERVE_BYTES, notes)


@or_unknown
def _node(
    numa_node: int, total: int | Unknown, available: int | Unknown, hugetlb: HugeTlb | Unknown
) -> _Memory | Unknown:
    """Return the memory of one NUMA node.

    Args:
        total, available: In bytes.
    """
    total, available = require(total), require(available)
    if available > total:
        return Unknown(f"node {numa_node}: more is available than there is ({total} bytes)")
    promised: list[int] = []

    def share(counts: Pool) -> tuple[int, int] | Unknown:
        """Return the held and the free pages of a pool on this node."""
        promised.append(counts.page_size_bytes * counts.reserved_pages)
        if numa_node in counts.nodes:
            here = counts.nodes[numa_node]
            return here.total_pages - here.free_pages, here.free_pages
        if counts.nodes or not counts.total_pages:
            return 0, 0
        return Unknown(f"{counts.source}: the kernel shows no pool per NUMA node")

    pools = _pools(hugetlb, share)
    size = 0 if isinstance(pools, Unknown) else sum(promised)
    notes = (f"{format_bytes(size)} of all nodes' free huge pages are promised to others",)
    return _Memory(total, available, pools, notes=notes if size else ())


@or_unknown
def _pools(
    hugetlb: HugeTlb | Unknown, share: Callable[[Pool], tuple[int, int] | Unknown]
) -> Mapping[int, tuple[int, int]] | Unknown:
    """Return (pages held by others, pages free) by page size; {} if the kernel has no huge pages.

    Args:
        share: Gives both for one pool.
    """
    pools = require(hugetlb).pools
    if isinstance(pools, Unknown) and pools.absent:
        return {}
    pools = require(pools)
    return {size: require(share(require(counts))) for size, counts in pools.items()}


# What the replay calls them -> the owner that a picture shows; anything else is "other".
OWNERS = {MemoryKind.HOST_POOL: "l2", MemoryKind.SEGMENT: "segment"}
OWNERS |= {MemoryKind.ARENA: "arena", MemoryKind.LOCAL_BUFFER: "buffer"}


class Take(NamedTuple):
    """Memory that a process takes and keeps.

    Attributes:
        owner: l2, segment, arena, buffer or other.
        page_bytes: Page size of the HugeTLB pool that it comes from, None for regular memory.
        numa_node: The node that it is bound to, None if it is not bound.
    """

    owner: str
    bytes: int
    page_bytes: int | None
    numa_node: int | None


def memory_of(judged_host: JudgedHost) -> MemoryMap:
    """Return where the host's memory goes, with the launch if there is one."""
    takes: tuple[Take, ...] | Unknown | None = None
    if (launch := judged_host.launch) is not None:
        takes = launch if isinstance(launch, Unknown) else launch_takes(launch)
    return memory_map(judged_host.facts, takes)


def launch_takes(sized: Sized) -> tuple[Take, ...] | Unknown:
    """Return the memory that each mapping of the launch takes, or why that is Unknown.

    If the launch is known between two bounds, the upper one is taken.
    """
    for process in sized.needs.processes:
        for size in (process.regular_bytes, process.hugetlb_bytes):
            if isinstance(size, Unknown):
                return size
    shown = sized.sizing.shown
    if shown is None:
        least = sized.sizing.inputs.least
        return least if isinstance(least, Unknown) else Unknown("what the launch maps is not known")
    takes = []
    for replayed in shown.asked:
        for mapped in (*replayed.allocations, *replayed.heap):
            page = mapped.page_size_bytes if mapped.on_huge_pages else None
            # A process that is bound takes its regular memory there too, though no mapping says so.
            numa_node = replayed.process.node if mapped.node is None else mapped.node
            bytes_taken = mapped.pages * mapped.page_size_bytes
            if bytes_taken and (page or mapped.backing is Backing.REGULAR):
                owner = OWNERS.get(mapped.what, "other")
                takes.append(Take(owner, bytes_taken, page, numa_node))
    return tuple(takes)


Paint = Callable[[str, str], str]

# Where the memory ends and what is asked for does not.
END, PLAIN_END = "┃", "|"
# A part so wide has room for its letter within its shade.
LETTERED = 3


def draws_blocks(encoding: str | None) -> bool:
    """Return whether an encoding has the shades and the curve's dots."""
    return can_encode("█▓▒░·╳─┃⣿", encoding)


def bars_text(memory_map: MemoryMap, paint: Paint, width: int, plain: bool) -> str:
    """Return bars, their notes, and a table of all parts in bytes; no final newline.

    Args:
        paint: Colours a text, (text, colour).
        width: In columns.
        plain: ASCII only.
    """
    lines = ["Memory after this launch" if memory_map.with_launch else "Memory of this host"]
    for place in memory_map.places:
        lines += _place_text(memory_map, place, paint, width, plain)
    places = memory_map.places
    rows = table_rows(known_bars(places).values())[:-1]
    beside = _BESIDE_NAME + max((len(row.name) for row in rows), default=0)
    count = max(1, (width - beside) // _SIZE_COLUMNS)  # as many as fit beside each other
    tables = [_table(places[at : at + count], width) for at in range(0, len(places), count)]
    return "\n".join([*lines, "", "\n\n".join(filter(None, tables))]).rstrip()


def _place_text(
    memory_map: MemoryMap, place: MemoryPlace, paint: Paint, width: int, plain: bool
) -> list[str]:
    """Return the lines of one place: name and size, bar, and notes.

    Args:
        plain: ASCII only.
    """
    if isinstance(place.now, Unknown):
        return _lines(f"{place.name}: unknown: {clean(place.now.reason)}", width)
    bar = place.shown
    if isinstance(bar, Unknown):
        # What is there now is known all the same; only what the launch makes of it is not.
        message = f"{_named(place.name, place.now)}; with the launch unknown: {clean(bar.reason)}"
        return [*_lines(message, width), f"  {_bar_text(place.now, paint, width - 2, plain)}"]
    lines = _lines(_named(place.name, bar), width)
    if bar.parts:
        # Brackets and the margin aside; each part has a column.
        room = max(len(bar.parts), int((width - 4) * memory_map.share(bar))) + 2
        lines.append(f"  {_bar_text(bar, paint, room, plain)}")
    return [*lines, *(line for note in bar.notes for line in _lines(f"  {note}", width))]


def _named(name: str, bar: Bar) -> str:
    if bar.total_bytes is None:
        return f"{name}: {format_bytes(bar.parts_bytes)}, bound to no node"
    return f"{name}: {format_bytes(bar.total_bytes)}"


def _lines(text: str, width: int) -> list[str]:
    return wrapped(text, width, 2, hyphens=True)


def _bar_text(bar: Bar, paint: Paint, width: int, plain: bool) -> str:
    """Return a bar to scale between brackets, ``width`` columns wide.

    Memory that is missing stands behind an end mark.
    """
    inside = width - 2 - bool(bar.over_bytes)
    counts = columns_of([part.bytes for part in bar.parts], inside)
    cells = [
        (char, part.key)
        for part, count in zip(bar.parts, counts, strict=True)
        for char in _filled(part.key, count, plain)
    ]
    if not bar.over_bytes:
        return f"[{_coloured(cells, paint)}]"
    # At least a column is over, at least one is not.
    size = bar.parts_bytes
    end = min(max(1, inside * (size - bar.over_bytes) // size), inside - 1)
    mark = paint(PLAIN_END if plain else END, "red")
    return f"[{_coloured(cells[:end], paint)}{mark}{_coloured(cells[end:], paint)}]"


def _filled(key: str, count: int, plain: bool) -> str:
    """Return the characters of one part: its shade with its letter; if ``plain``, only letters."""
    letter = KINDS[key].letter
    if plain:
        return letter * count
    shade = KINDS[key].shade
    if count < LETTERED or key == "free":
        return shade * count if count >= LETTERED else letter * min(1, count) + shade * (count - 1)
    before = (count - 1) // 2
    return shade * before + letter + shade * (count - 1 - before)


def _coloured(cells: Sequence[tuple[str, str]], paint: Paint) -> str:
    """Return the text with each run of one part in its colour."""
    text = ""
    for key, run in groupby(cells, key=lambda cell: cell[1]):
        chars, colour = "".join(char for char, _ in run), KINDS[key].colour
        text += paint(chars, colour) if colour else chars
    return text


# The margin, a letter and the gaps beside a name; a size with its gap ("1023.99 GiB").
_BESIDE_NAME = 6
_SIZE_COLUMNS = 13


def _table(places: Sequence[MemoryPlace], width: int) -> str:
    """Return the table of all parts in bytes for some places; "" if no part is known."""
    bars = known_bars(places)
    rows = [
        [
            "" if row.key is None else KINDS[row.key].letter,
            row.name,
            *(format_bytes(size) if size else "" for size in row.sizes),
        ]
        for row in table_rows(bars.values())
        if any(row.sizes)
    ]
    if not rows:
        return ""
    least = max(16, width - _BESIDE_NAME - _SIZE_COLUMNS * len(bars))
    heads = ["", "part", *bars]
    widths = [None, least, *(None for _ in bars)]
    return table(rows, heads, right=range(2, len(heads)), widths=widths, margin="  ")


def columns_of(sizes: Sequence[int], width: int) -> list[int]:
    """Return columns in proportion to ``sizes``, ``width`` in all.

    Every size above 0 has at least one. If more than ``width`` sizes are above 0, only the largest
    have a column, one each.
    """
    filled = [at for at, size in enumerate(sizes) if size > 0]
    first = sorted(filled, key=lambda at: (-sizes[at], at))[: max(0, width)]
    columns = [int(at in first) for at in range(len(sizes))]
    # Each further column goes to whoever is furthest from its share, the first of equals.
    total = sum(sizes[at] for at in filled)
    spare = width - sum(columns)
    over = {at: max(0, sizes[at] * width - total) for at in filled}
    missing = sum(over.values())
    if spare <= 0 or not missing:
        return columns
    exact = {at: over[at] * spare for at in filled}
    for at in filled:
        columns[at] += exact[at] // missing
    left = width - sum(columns)
    for at in sorted(filled, key=lambda at: (-(exact[at] % missing), at))[:left]:
        columns[at] += 1
    return columns
