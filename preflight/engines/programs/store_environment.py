"""How Mooncake reads its environment, as its C++ code does it, and the settings that follow.

Each reader says what the library makes of a text, however surprising. Sources: Mooncake
``mooncake-store/include/utils.h`` (byte sizes), ``mooncake-store/src/client_service.cpp`` (leading
digits), ``mooncake-common/include/bool_parser.h``; C++'s stod and stoull; confirmed by running
0.3.13.post1 and 0.3.14.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.units import MIB, format_page_size
from checks.releases.mooncake import MooncakeRelease
from preflight.engines.programs.memory_records import (
    NO_ARENA_FLAGS,
    ArenaFlags,
    HotCache,
    StoreSettings,
)

UINT64_MAX = 2**64 - 1

_UNIT_BYTES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNIT_BYTES[_letter] = _UNIT_BYTES[_letter + "B"] = 1024**_power

# What C++'s std::stod takes, longest match first: hexadecimal, decimal, infinity, not-a-number.
_STOD = (
    r"[+-]?(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
    r"|inf(?:inity)?|nan(?:\([0-9A-Za-z_]*\))?)"
)
_BLANKS = " \t\r\n"
STRTOD_BLANKS = _BLANKS + "\v\f"
_LEAST_NORMAL = 2.0**-1022


def byte_size(text: str, negative_wraps: bool = False) -> int | None:
    """Return a size in bytes, or None if the library rejects it.

    Units are powers of 1024.

    ``MiB`` and ``GiB`` are rejected; ``1.5gb``, ``1e9``, ``0x10`` and ``infinite`` are not.

    Args:
        negative_wraps: -5 is 2^64 - 5, as in releases with ``negative_sizes_wrap``.
    """
    stripped = text.strip(_BLANKS)
    if stripped == "infinite":
        return UINT64_MAX
    start = len(stripped) - len(stripped.lstrip(STRTOD_BLANKS))
    number = re.compile(_STOD, re.IGNORECASE | re.ASCII).match(stripped, start)
    if number is None:
        return None
    value = _to_float(number.group())
    if value is None or (value < 0 and not negative_wraps):
        return None
    unit = stripped[number.end() :].lstrip(_BLANKS).upper()
    return None if unit not in _UNIT_BYTES else _to_uint64(value * _UNIT_BYTES[unit])


def leading_digits(text: str) -> int | None:
    """Return the number that ``std::stoull`` reads: the leading digits (``4GB`` is 4).

    A minus sign behind a blank is not noticed: `` -4`` is 2^64 - 4.

    Returns:
        None if the library warns and keeps its default: no digit first, zero, or a minus sign as
        the first character.
    """
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(\d+)", text, re.ASCII)
    if match is None or text.startswith("-"):
        return None
    value = int(match.group(2)[:40])
    if not 0 < value <= UINT64_MAX:
        return None
    return 2**64 - value if match.group(1) == "-" else value


def boolean(text: str, common_reader: bool = True) -> bool | None:
    """Return the boolean that ``TryParseBool`` reads; None for any other text.

    Args:
        common_reader: False for old releases, which do not know enable and disable.
    """
    word = text.strip(STRTOD_BLANKS if common_reader else _BLANKS).lower()
    if word in ("1", "true", "yes", "on") or (common_reader and word == "enable"):
        return True
    if word in ("0", "false", "no", "off") or (common_reader and word == "disable"):
        return False
    return None


def _to_uint64(value: float) -> int:
    """Return ``static_cast<uint64_t>`` as GCC on x86-64 does it, undefined cases too."""
    if value != value:
        return 2**63
    if value >= 2.0**64:
        return 0
    return 2**63 if value <= -(2.0**63) else int(value) % 2**64


def _to_float(text: str) -> float | None:
    """Return the number that ``std::stod`` reads; None if that throws, as for 1e999."""
    lower = text.lower()
    if "nan" in lower:
        return float("nan")
    try:
        value = float.fromhex(text) if "x" in lower else float(text)
    except OverflowError:
        return None
    overflowed = value in (float("inf"), float("-inf")) and "inf" not in lower
    digits = re.split("[pe]" if "x" not in lower else "p", lower.replace("0x", "", 1))[0]
    vanished = abs(value) < _LEAST_NORMAL and re.search("[1-9a-f]", digits) is not None
    return None if overflowed or vanished else value


# Mooncake's defaults (utils.h SZ_2MB; client_service.cpp InitLocalHotCache).
DEFAULT_HUGEPAGE_BYTES = 2 * MIB
DEFAULT_HOT_BLOCK_BYTES = 16 * MIB
_HCA_SEGMENTS = ("MC_STORE_HCA_AFFINITY", "MC_STORE_HCA_NUMA_SEGMENTS")


class Note(NamedTuple):
    """A sentence for the user on a value that Mooncake reads otherwise than written.

    Attributes:
        id: stable.
    """

    id: str
    text: str


def read_store_settings(
    environment: Mapping[str, str], release: MooncakeRelease, flags: ArenaFlags = NO_ARENA_FLAGS
) -> tuple[StoreSettings, tuple[Note, ...]]:
    """Return the settings that Mooncake reads of ``environment`` and ``flags``, and notes on values
    that it reads otherwise than written.

    Never raises.
    """
    notes: list[Note] = []
    settings = StoreSettings(
        hugepages=_hugepages(environment, notes),
        hugepage_bytes=_hugepage_bytes(environment, release, notes),
        arena_bytes=_arena_bytes(environment, release, flags, notes),
        arena_disabled=_arena_disabled(environment, release, notes),
        hot_cache=_hot_cache(environment, release, notes),
        hca_segments=all(boolean(environment.get(name, "")) is True for name in _HCA_SEGMENTS),
    )
    return settings, tuple(notes)


def _hugepages(environment: Mapping[str, str], notes: list[Note]) -> bool:
    """Return whether MC_STORE_USE_HUGEPAGE is set; adds a note if the value does not mean true."""
    value = environment.get("MC_STORE_USE_HUGEPAGE")
    if value is None:
        return False
    if boolean(value) is not True:
        why = "turns huge pages on, as any value does, even an empty one; unset it to turn them off"
        notes.append(Note("hugepage-switch-is-presence", f"MC_STORE_USE_HUGEPAGE={value}: {why}"))
    return True


def _hugepage_bytes(
    environment: Mapping[str, str], release: MooncakeRelease, notes: list[Note]
) -> int:
    """Return the page size of MC_STORE_HUGEPAGE_SIZE; 2 MiB if unset, or if this release maps no
    huge pages.

    Adds a note if the value is not used.
    """
    text = environment.get("MC_STORE_HUGEPAGE_SIZE")
    if text is None or not release.hugepages:
        return DEFAULT_HUGEPAGE_BYTES
    size = byte_size(text, release.negative_sizes_wrap)
    if size is not None and size in release.page_sizes_bytes:
        return size
    known = ", ".join(f"{size // MIB}MB" for size in release.page_sizes_bytes)
    why = f"not a page size that this Mooncake maps ({known}): it warns and maps 2 MiB pages"
    notes.append(Note("hugepage-size-ignored", f"MC_STORE_HUGEPAGE_SIZE={text}: {why}"))
    return DEFAULT_HUGEPAGE_BYTES


def _arena_bytes(
    environment: Mapping[str, str], release: MooncakeRelease, flags: ArenaFlags, notes: list[Note]
) -> int | None:
    """Return the size of the arena, of MC_MMAP_ARENA_POOL_SIZE or else of ``flags``; None for no
    arena.

    The size of ``flags`` also replaces a text that is 0 or no size. Adds a note on such a text, and
    on a number below 1 MiB without a unit.
    """
    text = environment.get("MC_MMAP_ARENA_POOL_SIZE", "")
    if not text:
        return flags.pool_bytes if flags.on else None
    size = byte_size(text, release.negative_sizes_wrap)
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
    """Return whether MC_DISABLE_MMAP_ARENA turns the arena off; adds a note if it is no boolean."""
    text = environment.get("MC_DISABLE_MMAP_ARENA", "")
    disabled = boolean(text, release.common_reader)
    if text and disabled is None:
        why = "not a truth value to Mooncake, which ignores it, so the arena stays on; write 1"
        notes.append(Note("arena-disable-ignored", f"MC_DISABLE_MMAP_ARENA={text}: {why}"))
    return bool(disabled)


def _hot_cache(
    environment: Mapping[str, str], release: MooncakeRelease, notes: list[Note]
) -> HotCache | None:
    """Return the local hot cache that the MC_STORE_LOCAL_HOT_... variables ask for; None if
    Mooncake keeps no hot cache.

    Adds a note on a size that Mooncake reads in another way.
    """
    text = environment.get("MC_STORE_LOCAL_HOT_CACHE_SIZE")
    if text is None or not release.hot_cache:
        return None
    # Mooncake keeps no hot cache while it keeps checksums.
    checksums = environment.get("MOONCAKE_STORE_CHECKSUM", "")
    if release.common_reader and boolean(checksums):
        return None
    size = leading_digits(text)
    if str(size) != text.strip():
        becomes = "as no size, and keeps no cache" if size is None else f"as {size} bytes"
        note = f"MC_STORE_LOCAL_HOT_CACHE_SIZE={text}: Mooncake reads this {becomes}; write bytes"
        notes.append(Note("hot-cache-size-misread", note))
    if size is None:
        return None
    block_text = environment.get("MC_STORE_LOCAL_HOT_BLOCK_SIZE", "")
    block = leading_digits(block_text) or DEFAULT_HOT_BLOCK_BYTES
    if block_text and str(block) != block_text.strip():
        note = f"MC_STORE_LOCAL_HOT_BLOCK_SIZE={block_text}: Mooncake reads this as {block} bytes"
        notes.append(Note("hot-cache-size-misread", f"{note}; write bytes"))
    shared_memory = environment.get("MC_STORE_LOCAL_HOT_CACHE_USE_SHM") == "1"
    return HotCache(size, block, shared_memory)
