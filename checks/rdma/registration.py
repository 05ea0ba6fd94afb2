"""What registering a launch's memory takes: registrations, pinned bytes, table entries.

The one model of it. ``rdma_objects`` counts memory keys by it, ``memlock`` pinned pages, and the
checks of regions and tables and the probe hold its numbers against ceilings. Pure arithmetic.

Source: Mooncake ``rdma_transport.cpp`` and ``rdma_context.cpp`` (pieces, since 0.3.13; before, a
region was cut off), ``real_client.cpp`` (segments were always mounted in pieces).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from math import gcd
from typing import NamedTuple

from checks.base.c_numbers import leading_integer
from checks.base.needs import MemoryKind, ProcessNeeds, Region
from checks.base.units import round_up
from checks.base.unknown import Unknown, known, or_unknown
from checks.rdma.device_table import BASE_PAGE_BYTES
from checks.rdma.facts import Nic
from checks.releases.mooncake import MooncakeRelease

# config.h: the default of MC_MAX_MR_SIZE.
DEFAULT_LARGEST_REGION_BYTES = 1 << 40
# NVIDIA's driver hands out its memory in pages of 64 KiB (nv-p2p.h; Mooncake #1407).
GPU_PAGE_BYTES = 65536


class Split(Enum):
    """What becomes of a region that is longer than one registration may be."""

    WHOLE = "one registration"
    PIECES = "in pieces"
    CUT_OFF = "cut off at the limit, while peers are told the whole length"
    REFUSED = "refused: the limit is below one huge page"
    UNTOLD = "in pieces or cut off: Mooncake's version is not known"


class Plan(NamedTuple):
    """How one region is registered with one NIC: ``keys`` registrations of ``piece_bytes``.

    bytes: in all; less than the region where it is cut off. The last piece may be shorter.
    """

    split: Split
    keys: int
    piece_bytes: int
    bytes: int


@or_unknown
def largest_region_bytes(nics: Iterable[Nic], environment: Mapping[str, str]) -> int | Unknown:
    """Mooncake's max_mr_size: MC_MAX_MR_SIZE lowered to that of every device opened."""
    asked = leading_integer(environment.get("MC_MAX_MR_SIZE", ""))
    smallest = asked if asked is not None and asked > 0 else DEFAULT_LARGEST_REGION_BYTES
    for nic in nics:
        limits = known(nic.verbs.limits)
        smallest = min(smallest, limits.max_mr_size_bytes)
    return smallest


def pieces(size_bytes: int, largest_bytes: int) -> int:
    """How many registrations a region is made of."""
    return -(-size_bytes // largest_bytes) if size_bytes and largest_bytes > 0 else 1


def plan_region(region: Region, largest_bytes: int, release: MooncakeRelease | None) -> Plan:
    """How ``region`` is registered where one registration takes ``largest_bytes`` at most."""
    size, page = region.bytes, region.page_bytes
    if size <= largest_bytes or largest_bytes <= 0:
        return Plan(Split.WHOLE, 1, size, size)
    if release is not None and release.registrations_end_on_pages and page > BASE_PAGE_BYTES:
        largest_bytes -= largest_bytes % page
        if not largest_bytes:
            return Plan(Split.REFUSED, 0, 0, 0)
    if region.what == MemoryKind.SEGMENT or (release is not None and release.registers_in_pieces):
        return Plan(Split.PIECES, pieces(size, largest_bytes), largest_bytes, size)
    if release is None:
        return Plan(Split.UNTOLD, pieces(size, largest_bytes), largest_bytes, size)
    return Plan(Split.CUT_OFF, 1, largest_bytes, largest_bytes)


def pinned_bytes(plan: Plan, page_bytes: int, offset_bytes: int = 0) -> int:
    """What the kernel counts of a region on one NIC, in base pages of ``page_bytes``.

    A piece that ends inside a page counts that page, and the next piece counts it again; so does a
    region that begins inside one (``offset_bytes``, as ``Region`` has it).
    Source: drivers/infiniband/core/umem.c, ib_umem_num_pages.
    """
    if not plan.keys or not plan.bytes:
        return 0
    offset = offset_bytes % page_bytes
    whole = round_up(offset + plan.bytes, page_bytes)
    ends = plan.keys - 1
    return whole + (ends - _on_page_ends(ends, plan.piece_bytes, page_bytes, offset)) * page_bytes


def _on_page_ends(ends: int, piece_bytes: int, page_bytes: int, offset_bytes: int) -> int:
    """Of the first ``ends`` ends of pieces, how many lie on a page's own end: every period-th."""
    common = gcd(piece_bytes, page_bytes)
    if offset_bytes % common:
        return 0
    period = page_bytes // common
    first = -offset_bytes // common * pow(piece_bytes // common, -1, period) % period or period
    return max(0, (ends - first) // period + 1)


def entries(region_bytes: int, page_bytes: int) -> int:
    """How many entries of a device's table a region takes, one for each backing page."""
    return pieces(region_bytes, page_bytes or BASE_PAGE_BYTES)


class Load(NamedTuple):
    """What one process registers with each of its NICs.

    registrations: memory keys. pinned_bytes: host memory, for one NIC. by_page: registered bytes by
    the size of the backing page, the GPU's included. more: why there is more, None where not.
    """

    registrations: int
    pinned_bytes: int
    by_page: Mapping[int, int]
    more: Unknown | None = None

    @property
    def bytes(self) -> int:
        return sum(self.by_page.values())

    @property
    def entries(self) -> int:
        return sum(entries(size, page) for page, size in self.by_page.items())


def load_of(
    process: ProcessNeeds,
    largest_bytes: int | Unknown,
    release: MooncakeRelease | None,
    page_bytes: int = BASE_PAGE_BYTES,
) -> Load | Unknown:
    """What ``process`` registers with each NIC; Unknown where its memory is.

    A limit that is not known (``largest_bytes``) leaves every region whole.
    """
    if isinstance(process.regions, Unknown):
        return process.regions
    registrations = pinned = 0
    by_page: dict[int, int] = {}
    for region in process.regions:
        largest = region.bytes if isinstance(largest_bytes, Unknown) else largest_bytes
        plan = plan_region(region, largest, release)
        registrations += plan.keys
        pinned += pinned_bytes(plan, page_bytes, region.offset_bytes)
        page = region.page_bytes or BASE_PAGE_BYTES
        # An entry is a whole page: regions share none.
        touched = round_up(region.offset_bytes % page + plan.bytes, page) if plan.bytes else 0
        by_page[page] = by_page.get(page, 0) + touched
    gpu = process.gpu_registered_bytes
    if isinstance(gpu, Unknown):
        return Load(registrations, pinned, by_page, gpu)
    if gpu:
        size = round_up(gpu, GPU_PAGE_BYTES)
        by_page[GPU_PAGE_BYTES] = by_page.get(GPU_PAGE_BYTES, 0) + size
    return Load(registrations, pinned, by_page)


def regions_under(limit_bytes: int, nics: int, region_bytes: int, page_bytes: int) -> int:
    """How many regions of ``region_bytes`` a process may register with each of ``nics`` devices.

    A region that does not fit on the last device is taken back from the others, as Mooncake does.
    """
    each = max(1, nics) * round_up(region_bytes, page_bytes)
    return limit_bytes // each if each else 0


# bool_parser.h of Mooncake; anything else leaves the default, which is nvidia-peermem.
_FALSE_WORDS = ("0", "false", "no", "off", "disable")


def through_peermem(environment: Mapping[str, str]) -> bool:
    """Whether GPU memory goes the way of nvidia_peermem, which counts; dma-buf does not."""
    return environment.get("WITH_NVIDIA_PEERMEM", "1").strip().lower() not in _FALSE_WORDS
