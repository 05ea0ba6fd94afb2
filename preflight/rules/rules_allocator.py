"""Rules about the master's allocator: cachelib cuts segments into slabs and takes whole ones."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.units import GIB, MIB, format_bytes, round_up
from checks.base.unknown import Unknown
from preflight.launches.source import Origin, Word
from preflight.processes.processes import Kind, LaunchProcess, SglangServer
from preflight.programs import mooncake_grammar
from preflight.programs.mooncake_flags import flags_of, read_flags
from preflight.rules.rules import RuleSet, Seen, Severity
from preflight.sglang.launch import configured_segment

RULES = RuleSet()
SLAB_BYTES = 16 * MIB  # cachelib_memory_allocator Slab.h, Slab::kSize
_SOURCE = (
    "Mooncake segment.cpp MountSegment; seen by running 0.3.13.post1 and 0.3.14 with "
    "--memory_allocator=cachelib"
)


def _takes_slabs(processes: tuple[LaunchProcess, ...]) -> bool:
    """Whether the launch's own master is told to take cachelib."""
    for process in processes:
        if process.kind is not Kind.MASTER:
            continue
        given = read_flags(process.arguments, flags_of("mooncake_master"))
        values = [each.value for each in given if each.name == "memory_allocator"]
        if values and values[-1] == "cachelib":
            return True
    return False


def _page_bytes(process: LaunchProcess) -> int | None:
    """The huge pages that a client maps its segment with, 0 for none; None where it is unknown."""
    environment = process.command.environment
    if "MC_STORE_USE_HUGEPAGE" not in environment:
        return 0
    word = environment.get("MC_STORE_HUGEPAGE_SIZE")
    if word is None:
        return 2 * MIB
    # Every other size is another release's business: 2 MiB where it is not known.
    size = None if word.unresolved else mooncake_grammar.byte_size(word.text)
    return None if word.unresolved else size if size == GIB else 2 * MIB


def segment_of(process: LaunchProcess) -> tuple[int | None, Origin]:
    """What one client of ``process`` mounts, in bytes; None where that is not certain."""
    origin = process.command.origin
    if process.server is not None:
        return _of_rank(process.server), _written(process.server, origin)
    client = process.store.client if process.store else None
    if client is None or isinstance(client, Unknown):
        return None, origin
    return client.segment_bytes, origin


def _of_rank(server: SglangServer) -> int | None:
    size = configured_segment(server)
    if size is None or server.store is None or server.store.value("standalone_storage") is True:
        return None
    tp, pp, groups = server.number("tp_size"), server.number("pp_size"), server.attention_dp
    for value in (tp, pp, groups):
        if isinstance(value, Unknown):
            return None
    assert isinstance(tp, int)
    assert isinstance(pp, int)
    assert isinstance(groups, int)
    # Releases differ in what divides it: certain only where they agree.
    parts = {max(1, tp // max(1, groups) * (pp if by_pp else 1)) for by_pp in (True, False)}
    sizes = {size // part for part in parts}
    return sizes.pop() if len(sizes) == 1 else None


def _written(server: SglangServer, otherwise: Origin) -> Origin:
    word: Word | None = server.environment.get("MOONCAKE_GLOBAL_SEGMENT_SIZE")
    return otherwise if word is None else word.origin


@RULES.launch(
    "segment-not-slabs",
    Severity.FAIL,
    "a segment of no whole slabs of 16 MiB, and a master with --memory_allocator=cachelib",
    "the master refuses it: setup ends with -600, INVALID_PARAMS at the client; the reason stands "
    "in the master's log alone",
    "give each client (each rank) a multiple of 16 MiB, or leave --memory_allocator=offset",
    _SOURCE,
)
def segment_not_slabs(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    if not _takes_slabs(processes):
        return
    for process in processes:
        size, origin = segment_of(process)
        page = _page_bytes(process)
        if not size or page is None:
            continue
        mounted = round_up(size, page) if page else size
        if mounted % SLAB_BYTES:
            text = (
                f"{process.kind.value}: a client mounts {mounted} bytes ({format_bytes(mounted)})"
            )
            yield Seen(f"{text}, no multiple of {SLAB_BYTES}", origin)


@RULES.launch(
    "segment-base-unaligned",
    Severity.WARN,
    "a segment on huge pages of 2 MiB, and a master with --memory_allocator=cachelib",
    "cachelib wants its address to be a multiple of 16 MiB, and a mapping of 2 MiB pages begins "
    "anywhere: some starts end with -600, INVALID_PARAMS, others do not",
    "leave --memory_allocator=offset, or take pages of 1 GiB (MC_STORE_HUGEPAGE_SIZE=1GB)",
    _SOURCE + " and MC_STORE_USE_HUGEPAGE=1: one start of four was refused",
)
def segment_base_unaligned(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    if not _takes_slabs(processes):
        return
    for process in processes:
        size, origin = segment_of(process)
        if size and _page_bytes(process) == 2 * MIB:
            text = f"{process.kind.value}: {format_bytes(size)} a client on pages of 2 MiB"
            yield Seen(text, origin)
