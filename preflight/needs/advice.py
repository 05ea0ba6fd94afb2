"""What to set: the pool to reserve, the environment to export, and the arena worth having."""

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.finding import Kind
from checks.framework.pages import MemoryKind, Spot
from checks.framework.units import (
    GIB,
    GIGABYTE,
    MIB,
    format_bytes,
    format_page_size,
    round_up,
    segment_text,
)
from checks.framework.unknown import Unknown, UnknownFactError, require
from checks.hugetlb.fit import pool_needs
from checks.hugetlb.pools import GIGANTIC_BYTES
from checks.hugetlb.targets import (
    ASK_FIT,
    Target,
    now_and_held,
    reserve_settings,
    reserve_targets,
    why_refused,
)
from preflight.base.shell import comment, line, write
from preflight.engines.mooncake.allocations import Backing
from preflight.needs.sizing import Sizing, needed_bytes, without_arena

_OF_STATED = ", on the host whose huge pages --available-hugetlb gives"


class Recommendation(NamedTuple):
    """One thing to do: a stable id, a sentence, and commands to copy; () if no command helps."""

    id: str
    text: str
    commands: tuple[str, ...] = ()


def recommend(sizing: Sizing) -> tuple[Recommendation, ...]:
    """Return the recommendations, in the order in which they are to be carried out."""
    arena = _arena(sizing)
    needs = without_arena(sizing).needs if arena else sizing.verdict.needs
    targets = reserve_targets(sizing.host.hugetlb, needs).items()
    # The memory that becomes huge pages when the pools grow to their targets.
    added = sum(spot.page_size_bytes * (to.pages - (to.now_pages or 0)) for spot, to in targets)
    return (
        *arena,
        *_reservation(sizing, "to run it as written, " if arena else ""),
        *_host_memory(sizing, added),
        *_sglang_gate(sizing, added),
        *_environment(sizing, keep_arena=not arena),
    )


def pool_pages_needed(sizing: Sizing, page_size_bytes: int) -> int:
    """Return the pages of one size that the host needs: the launch's plus other programs' pages."""
    need = pool_needs(sizing.verdict.needs).get(Spot(page_size_bytes, None), 0)
    _, others = now_and_held(sizing.host.hugetlb.pool(page_size_bytes), None)
    return need + others


def numbers_to_set(sizing: Sizing) -> str:
    """Return the settings that make the pools large enough for the launch as written, as one text.

    The text says so if nothing is to be set, or if this host cannot give the pages now.
    """
    targets = reserve_targets(sizing.host.hugetlb, sizing.verdict.needs)
    if not targets:
        return "nothing: the pools are large enough"
    settings = reserve_settings(targets, sizing.inputs.launch.default_page_bytes)
    if sizing.inputs.available_bytes is not None:
        return ", ".join(f"{each.name}={each.wanted}" for each in settings) + _OF_STATED
    if sizing.withheld:
        return f"nothing yet: {sizing.withheld}"
    settings_text = ", ".join(f"{s.name}={s.wanted} (now {s.now or 'unknown'})" for s in settings)
    cannot = ", which this host cannot give now: see below" if _why_refused(sizing, targets) else ""
    return f"{settings_text}{cannot}"


def _reservation(sizing: Sizing, condition: str) -> list[Recommendation]:
    """Return the advice to reserve pages, or that the pools suffice; [] if the launch takes no huge
    pages.

    If the pools cannot grow now, the advice says why.

    Args:
        condition: Begins the sentence.
    """
    if not sizing.need_bytes:
        return []
    targets = reserve_targets(sizing.host.hugetlb, sizing.verdict.needs)
    if not targets:
        text = "the pools are large enough: nothing to reserve"
        return [Recommendation("reserve-hugepages", text)]
    reasons: list[str] = []
    for spot, target in targets.items():
        now = _OF_STATED
        if sizing.inputs.available_bytes is None:
            others = f", {target.held_pages} that others hold" if target.held_pages else ""
            now = f"{others} (now {'unknown' if target.now_pages is None else target.now_pages})"
        pages = f"{target.pages} pages of {format_page_size(spot.page_size_bytes)}{spot.where}"
        reasons.append(f"{pages}: {target.own_pages} for this launch{now}")
    text = f"{condition}reserve {'; '.join(reasons)}"
    refused = _why_refused(sizing, targets)
    commands = () if refused else tuple(_reserve_commands(sizing, targets))
    text += f"; {refused}" * bool(refused)
    return [Recommendation("reserve-hugepages", text, commands)]


def _why_refused(sizing: Sizing, targets: Mapping[Spot, Target]) -> str:
    """Return why ``targets`` cannot be reserved now; "" if they can or another host is sized."""
    host = sizing.host
    if sizing.inputs.available_bytes is not None:
        return ""  # of this host's memory nothing follows for the one that is asked about
    if sizing.withheld:
        return sizing.withheld
    reason = why_refused(targets, host.memory_bytes("MemAvailable"), host.node_free_bytes)
    return f"cannot be reserved now ({reason}): {ASK_FIT}" if reason else ""


def _reserve_commands(sizing: Sizing, targets: Mapping[Spot, Target]) -> list[str]:
    """Return the lines of shell that make the pools as large as ``targets`` say."""
    lines: list[str] = []
    for spot, target in targets.items():
        if spot.page_size_bytes >= GIGANTIC_BYTES and spot.node is None:
            gib = spot.page_size_bytes // GIB
            boot = f"hugepagesz={gib}G hugepages={target.pages}"
            lines.append(comment(f"at boot, on the kernel command line: {boot}"))
            lines.append(comment("at run time only where memory is not yet fragmented:"))
        (setting,) = reserve_settings({spot: target}, sizing.inputs.launch.default_page_bytes)
        sysctl = line(("sysctl", "-w", f"{setting.name}={setting.wanted}"), "sudo ")
        file = write(setting.wanted, setting.name, "sudo ")
        lines.append(sysctl if setting.kind is Kind.SYSCTL else file)
    return lines


def _host_memory(sizing: Sizing, added: int) -> list[Recommendation]:
    """Return a sentence on whether this host's memory can give ``added`` bytes of huge pages.

    Returns:
        [] for 0 bytes, or if another host is sized.
    """
    if not added or sizing.inputs.available_bytes is not None:  # then of another host
        return []
    try:
        total = require(sizing.host.memory_bytes("MemTotal"))
        available = require(sizing.host.memory_bytes("MemAvailable"))
    except UnknownFactError as error:
        why = error.fact.reason
        text = f"whether this host's memory can give {format_bytes(added)} is unknown ({why})"
        return [Recommendation("host-memory-unknown", text)]
    more, free = f"{format_bytes(added)} more huge pages", format_bytes(available)
    if added > total:
        has = (
            f"it has {format_bytes(total)} of memory; lower the L2 pool, the segment, or its ranks"
        )
        return [Recommendation("host-memory-too-small", f"this host cannot give {more}: {has}")]
    if added > available:
        text = f"{more} are more than the {free} of memory that is available now: stop what runs, "
        return [Recommendation("host-memory-busy", f"{text}or reserve at boot")]
    text = f"this host can give {more}: {free} of memory is available"
    return [Recommendation("host-memory-suffices", text)]


def _sglang_gate(sizing: Sizing, added: int) -> list[Recommendation]:
    """Return advice if SGLang's check of MemAvailable would refuse L2 once ``added`` bytes more are
    huge pages.

    Returns:
        [] if L2 is not on this host's huge pages, or MemAvailable is unknown. [] for a launch that
        was read: ``launch_sizing`` replays its check.
    """
    inputs, terms = sizing.inputs, sizing.inputs.terms
    available = sizing.host.memory_bytes("MemAvailable")
    # A launch's own is replayed exactly, see preflight.needs.launch_sizing.
    on_huge_pages = inputs.settings.hugepages and inputs.available_bytes is None
    asks = on_huge_pages and inputs.source is None and terms.segment_scope == "instance"
    if isinstance(available, Unknown) or not asks:
        return []
    from preflight.engines.sglang.admission_gate import RESERVE_BYTES

    left = available - added
    wanted = terms.hicache_bytes * sizing.inputs.ranks + RESERVE_BYTES
    if left >= wanted:
        return []
    ask = f"SGLang asks for {format_bytes(wanted)} of MemAvailable besides the huge pages (L2 x "
    ask += f"{sizing.inputs.ranks} ranks + 10 GiB), and {format_bytes(max(0, left))} would be left"
    text = f"{ask}: expect 'Not enough host memory available'"
    return [Recommendation("sglang-admission", text)]


def _arena(sizing: Sizing) -> list[Recommendation]:
    """Return the advice to drop the arena; [] without one, or if that saves no huge pages."""
    mapped = [a for process in sizing.asked for a in process.allocations]
    arena = next((a for a in mapped if a.what is MemoryKind.ARENA), None)
    least = without_arena(sizing).needs
    saved = sizing.need_bytes - needed_bytes(least)
    if arena is None or saved <= 0:
        return []
    page = arena.page_size_bytes
    used = max(process.arena_used_bytes for process in sizing.asked)
    in_arena = {a.what for a in mapped if a.backing is Backing.ARENA}
    serves_segment = MemoryKind.SEGMENT in in_arena
    text = f"a rank uses {format_bytes(used)} of its arena's {format_bytes(arena.mapped_bytes)}"
    text += "; the L2 pool never comes from it"
    if not serves_segment and sizing.inputs.terms.segment_bytes:
        text += ", and here neither does the segment"
    text += f". Without it the launch needs {format_bytes(needed_bytes(least))}, "
    text += f"{format_bytes(saved)} less"
    if serves_segment and page == sizing.inputs.settings.hugepage_bytes:
        text += f"; an arena of {round_up(used, page) // MIB}mb takes the same"
    pools = reserve_targets(sizing.host.hugetlb, least)
    refused = _why_refused(sizing, pools)
    commands = [] if refused else _reserve_commands(sizing, pools)
    text += f"; {refused}" * bool(refused)
    return [Recommendation("drop-arena", text, ("unset MC_MMAP_ARENA_POOL_SIZE", *commands))]


def _environment(sizing: Sizing, *, keep_arena: bool) -> list[Recommendation]:
    """Return the environment block for the shell that starts the launch; [] for a launch that was
    read, which sets its variables.

    Args:
        keep_arena: Export the arena's size, else unset it.
    """
    settings, terms = sizing.inputs.settings, sizing.inputs.terms
    if sizing.inputs.source is not None:
        return []  # the launch has its own
    commands = []
    if settings.hugepages:
        size = settings.hugepage_bytes
        spelled = f"{size // GIB}GB" if size >= GIB else f"{size // MIB}MB"
        commands += ["export MC_STORE_USE_HUGEPAGE=1", f"export MC_STORE_HUGEPAGE_SIZE={spelled}"]
    else:
        commands.append("unset MC_STORE_USE_HUGEPAGE MC_STORE_HUGEPAGE_SIZE")
    commands.append(f"export MOONCAKE_GLOBAL_SEGMENT_SIZE={segment_text(terms.segment_bytes)}")
    arena = settings.arena_bytes
    used = arena is not None and settings.hugepages and not settings.arena_disabled
    without = "unset MC_MMAP_ARENA_POOL_SIZE"
    if arena is None or not used:
        commands.append(without)
    else:
        whole = f"{arena // GIB}gb" if arena % GIB == 0 else f"{arena // MIB}mb"
        spelled = whole if arena % MIB == 0 else f"{arena}b"
        export = f"export MC_MMAP_ARENA_POOL_SIZE={spelled}"
        commands += [export] if keep_arena else [without, f"# to run it as written: {export}"]
    if terms.segment_scope == "instance" and terms.hicache_bytes >= GIGABYTE:
        # SGLang takes whole 10^9 bytes and adds one KV page, which the remainder has room for.
        flag = f"--hicache-size {terms.hicache_bytes // GIGABYTE}"
        commands.append(f"# and to SGLang, which counts 10^9 bytes: {flag}")
    return [Recommendation("environment", "export for the launch", tuple(commands))]
