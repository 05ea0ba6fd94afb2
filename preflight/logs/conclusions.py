"""What the numbers of a log's line come to: the functions that a pattern's ``compute`` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checks.base.units import GIB, KIB, MIB, format_bytes, format_page_size, round_up
from preflight.logs.patterns import Groups, Hits
from preflight.sglang.admission_gate import RESERVE_BYTES

Compute = Callable[[Groups, Hits], Mapping[str, Any]]

# The sizes that Mooncake names in its messages.
_PAGE_BYTES = {"2MB": 2 * MIB, "512MB": 512 * MIB, "1GB": GIB}
_DRIVER_PAGE_BYTES = 4 * KIB


def number(values: Mapping[str, Any], name: str) -> int | None:
    """Return a value as a whole number, decimal or 0x; None where it is missing or absurd."""
    text = values.get(name, "")
    if isinstance(text, int):
        return text
    if len(text) > 40:
        return None
    try:
        return int(text, 0) if text.startswith("0x") else int(text)
    except ValueError:
        return None


def _pages(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return how many pages a mapping takes, of the size that the line or the log names."""
    mark, shared = seen.get("mark.hugepage-size"), seen.get("mark.hugepage-shm")
    size_bytes = number(groups, "size") or (number(shared.last, "size") if shared else None)
    default = 2 * MIB
    if "page" in groups:
        page_bytes = _PAGE_BYTES.get(groups["page"])
    else:
        page_bytes = _PAGE_BYTES.get(mark.last.get("page", ""), default) if mark else default
    if not size_bytes or not page_bytes:
        return {}
    return {
        "size": size_bytes,
        "page_count": round_up(size_bytes, page_bytes) // page_bytes,
        "page_size": format_page_size(page_bytes),
    }


def _arena(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return what is left of the arena, and how large it would have to be."""
    asked, offset, size = (number(groups, name) for name in ("asked", "offset", "size"))
    if asked is None or offset is None or size is None:
        return {}
    return {"asked": asked, "size": size, "left": max(size - offset, 0), "least": offset + asked}


def _admission(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return what SGLang's check of host memory misses, in its GB of 10^9.

    What it prints as free is after its reserve, in all releases from 0.5.2 on.
    """
    try:
        asked, free = float(groups["asked"]), float(groups["free"])
    except (KeyError, ValueError):
        return {}
    reserve = RESERVE_BYTES / 1e9
    admitted = asked <= free
    return {
        "admitted": "yes" if admitted else "no",
        "free_gb": f"{free:.2f}",
        "reserve_gb": f"{reserve:.2f}",
        "kept_gb": f"{free - reserve:.2f}",
        "wanted_gb": f"{asked + reserve:.2f}",
        "missing_gb": f"{asked - free + (reserve if admitted else 0):.2f}",
    }


def _victim(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return what the process that the kernel killed held, in bytes."""
    hit = seen.get("kernel.oom-victim")
    sizes = [number(hit.first, name) for name in ("anon", "file", "shmem")] if hit else []
    known = [size for size in sizes if size is not None]
    if hit is None or not known:
        return {}
    return {
        "victim": hit.first.get("name", "it"),
        "held": sum(known) * KIB,
        "shared": (sizes[2] or 0) * KIB,
    }


def _pinned_pages(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return how many bytes the pages of one call of the GPU's driver are."""
    pages = number(groups, "pages")
    if pages is None or pages > 1 << 48:
        return {}
    return {"page_count": pages, "pinned": pages * _DRIVER_PAGE_BYTES}


def _missing(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return how many of what was asked for, or waited for, did not come."""
    wanted, got = ("wanted", "joined") if "wanted" in groups else ("asked", "got")
    most, least = number(groups, wanted), number(groups, got)
    if most is None or least is None:
        return {}
    return {wanted: most, got: least, "missing": max(most - least, 0)}


def _slabs(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return what is no multiple of the allocator's slabs."""
    size, address, slab = (number(groups, name) for name in ("size", "address", "slab"))
    if not slab or size is None or address is None:
        return {}
    over = [f"its size ({format_bytes(size)})"] * bool(size % slab)
    over += [f"its address ({address:#x})"] * bool(address % slab)
    return {"over": " and ".join(over)} if over else {}


def _flag_releases(groups: Groups, seen: Hits) -> Mapping[str, Any]:
    """Return which program of Mooncake has the flag in some releases, and in which."""
    from preflight.programs.mooncake_flags import flag_table

    releases, programs = flag_table()
    for program, flags in programs.items():
        flag = flags.get(groups.get("name", ""))
        if flag is not None and (flag.since or flag.until):
            until = f"to {flag.until}" if flag.until else "on"
            return {"program": program, "since": flag.since or releases[0], "until": until}
    return {"oldest": releases[0], "newest": releases[-1]}


COMPUTE: dict[str, Compute] = {
    "pages": _pages,
    "arena": _arena,
    "admission": _admission,
    "victim": _victim,
    "pinned-pages": _pinned_pages,
    "missing": _missing,
    "slabs": _slabs,
    "flag-releases": _flag_releases,
}
