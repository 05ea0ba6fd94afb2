"""What a Mooncake store client makes of its environment: settings, and what it misreads."""

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.units import MIB, format_page_size
from checks.releases.mooncake import MooncakeRelease
from preflight.programs import mooncake_grammar
from preflight.programs.memory_records import NO_ARENA_FLAGS, ArenaFlags, HotCache, StoreSettings

# Mooncake's defaults (utils.h SZ_2MB; client_service.cpp InitLocalHotCache).
DEFAULT_HUGEPAGE_BYTES = 2 * MIB
DEFAULT_HOT_BLOCK_BYTES = 16 * MIB
_HCA_SEGMENTS = ("MC_STORE_HCA_AFFINITY", "MC_STORE_HCA_NUMA_SEGMENTS")


class Note(NamedTuple):
    """Something the user should hear that changes no number: a stable id, and a sentence."""

    id: str
    text: str


def read_store_settings(
    environment: Mapping[str, str], release: MooncakeRelease, flags: ArenaFlags = NO_ARENA_FLAGS
) -> tuple[StoreSettings, tuple[Note, ...]]:
    """Return the settings that Mooncake reads of ``environment`` and ``flags``. Never raises."""
    notes: list[Note] = []
    settings = StoreSettings(
        hugepages=_hugepages(environment, notes),
        hugepage_bytes=_hugepage_bytes(environment, release, notes),
        arena_bytes=_arena_bytes(environment, release, flags, notes),
        arena_disabled=_arena_disabled(environment, release, notes),
        hot_cache=_hot_cache(environment, release, notes),
        hca_segments=all(
            mooncake_grammar.boolean(environment.get(name, "")) is True for name in _HCA_SEGMENTS
        ),
    )
    return settings, tuple(notes)


def _hugepages(environment: Mapping[str, str], notes: list[Note]) -> bool:
    """Return whether huge pages are on: MC_STORE_USE_HUGEPAGE is set, whatever its value."""
    value = environment.get("MC_STORE_USE_HUGEPAGE")
    if value is None:
        return False
    if mooncake_grammar.boolean(value) is not True:
        why = "turns huge pages on, as any value does, even an empty one; unset it to turn them off"
        notes.append(Note("hugepage-switch-is-presence", f"MC_STORE_USE_HUGEPAGE={value}: {why}"))
    return True


def _hugepage_bytes(
    environment: Mapping[str, str], release: MooncakeRelease, notes: list[Note]
) -> int:
    """Return the page size of MC_STORE_HUGEPAGE_SIZE; 2 MiB if this release maps no such pages."""
    text = environment.get("MC_STORE_HUGEPAGE_SIZE")
    if text is None or not release.hugepages:
        return DEFAULT_HUGEPAGE_BYTES
    size = mooncake_grammar.byte_size(text, release.negative_sizes_wrap)
    if size is not None and size in release.page_sizes_bytes:
        return size
    known = ", ".join(f"{size // MIB}MB" for size in release.page_sizes_bytes)
    why = f"not a page size that this Mooncake maps ({known}): it warns and maps 2 MiB pages"
    notes.append(Note("hugepage-size-ignored", f"MC_STORE_HUGEPAGE_SIZE={text}: {why}"))
    return DEFAULT_HUGEPAGE_BYTES


def _arena_bytes(
    environment: Mapping[str, str], release: MooncakeRelease, flags: ArenaFlags, notes: list[Note]
) -> int | None:
    """Return the size of the arena, by MC_MMAP_ARENA_POOL_SIZE or a flag; None for no arena."""
    text = environment.get("MC_MMAP_ARENA_POOL_SIZE", "")
    if not text:
        return flags.pool_bytes if flags.on else None
    size = mooncake_grammar.byte_size(text, release.negative_sizes_wrap)
    if size:
        if size < MIB and text.strip().isdecimal():
            why = "bytes, as it has no unit, so that the arena holds nothing"
            note = f"MC_MMAP_ARENA_POOL_SIZE={text}: {why}; write {text.strip()}gb if that is meant"
            notes.append(Note("arena-size-small", note))
        return size
    tries = f"then tries an arena of {format_page_size(flags.pool_bytes)} in every process"
    note = f"MC_MMAP_ARENA_POOL_SIZE={text}: not a size to Mooncake, which {tries}; write a size "
    notes.append(Note("arena-size-unreadable", f"{note}such as 56gb, or unset it for no arena"))
    return flags.pool_bytes


def _arena_disabled(
    environment: Mapping[str, str], release: MooncakeRelease, notes: list[Note]
) -> bool:
    """Return whether MC_DISABLE_MMAP_ARENA turns the arena off."""
    text = environment.get("MC_DISABLE_MMAP_ARENA", "")
    disabled = mooncake_grammar.boolean(text, release.common_reader)
    if text and disabled is None:
        why = "not a truth value to Mooncake, which ignores it, so the arena stays on; write 1"
        notes.append(Note("arena-disable-ignored", f"MC_DISABLE_MMAP_ARENA={text}: {why}"))
    return bool(disabled)


def _hot_cache(
    environment: Mapping[str, str], release: MooncakeRelease, notes: list[Note]
) -> HotCache | None:
    """Return the local hot cache that the MC_STORE_LOCAL_HOT_... variables ask for, or None."""
    text = environment.get("MC_STORE_LOCAL_HOT_CACHE_SIZE")
    if text is None or not release.hot_cache:
        return None
    # Mooncake keeps no hot cache while it keeps checksums.
    checksums = environment.get("MOONCAKE_STORE_CHECKSUM", "")
    if release.common_reader and mooncake_grammar.boolean(checksums):
        return None
    size = mooncake_grammar.leading_digits(text)
    if str(size) != text.strip():
        becomes = "as no size, and keeps no cache" if size is None else f"as {size} bytes"
        note = f"MC_STORE_LOCAL_HOT_CACHE_SIZE={text}: Mooncake reads this {becomes}; write bytes"
        notes.append(Note("hot-cache-size-misread", note))
    if size is None:
        return None
    block_text = environment.get("MC_STORE_LOCAL_HOT_BLOCK_SIZE", "")
    block = mooncake_grammar.leading_digits(block_text) or DEFAULT_HOT_BLOCK_BYTES
    if block_text and str(block) != block_text.strip():
        note = f"MC_STORE_LOCAL_HOT_BLOCK_SIZE={block_text}: Mooncake reads this as {block} bytes"
        notes.append(Note("hot-cache-size-misread", f"{note}; write bytes"))
    shared_memory = environment.get("MC_STORE_LOCAL_HOT_CACHE_USE_SHM") == "1"
    return HotCache(size, block, shared_memory)
