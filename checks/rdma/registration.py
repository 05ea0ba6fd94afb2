"""What registering a launch's memory takes: registrations, pinned bytes, table entries.

Source: Mooncake ``rdma_transport.cpp`` and ``rdma_context.cpp`` (pieces, since 0.3.13; before, a
region was cut off), ``real_client.cpp`` (segments were always mounted in pieces).
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from math import gcd
from typing import NamedTuple

from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.pages import MemoryKind, Region
from checks.framework.units import round_up
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import leading_integer
from checks.rdma.device_table import BASE_PAGE_BYTES, DeviceRow, device_row
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.use import ChosenBy, Use
from checks.releases.mooncake import MooncakeRelease

DEFAULT_LARGEST_REGION_BYTES = 1 << 40  # MC_MAX_MR_SIZE's, config.h
GPU_PAGE_BYTES = 65536  # in which NVIDIA's driver hands out memory (nv-p2p.h; Mooncake #1407)


class Split(Enum):
    """What becomes of a region that is longer than one registration may be."""

    WHOLE = "one registration"
    PIECES = "in pieces"
    CUT_OFF = "cut off at the limit, while peers are told the whole length"
    REFUSED = "refused: the limit is below one huge page"
    UNTOLD = "in pieces or cut off: Mooncake's version is not known"


class Registration(NamedTuple):
    """How one region is registered with one NIC: ``keys`` registrations of ``piece_bytes``."""

    split: Split
    keys: int
    piece_bytes: int
    bytes: int  # in all; less than the region where it is cut off. The last piece may be shorter.


@or_unknown
def largest_region_bytes(nics: Iterable[Nic], environment: Mapping[str, str]) -> int | Unknown:
    """Return Mooncake's max_mr_size: the smallest of MC_MAX_MR_SIZE (or 1 TiB) and NICs' limits."""
    asked = leading_integer(environment.get("MC_MAX_MR_SIZE", ""))
    smallest = asked if asked is not None and asked > 0 else DEFAULT_LARGEST_REGION_BYTES
    for nic in nics:
        smallest = min(smallest, require(nic.verbs.limits).max_mr_size_bytes)
    return smallest


def pieces(size_bytes: int, largest_bytes: int) -> int:
    """Count the pieces of at most ``largest_bytes`` that a region is cut into, at least 1."""
    return -(-size_bytes // largest_bytes) if size_bytes and largest_bytes > 0 else 1


def registration_of(
    region: Region, largest_bytes: int, release: MooncakeRelease | None
) -> Registration:
    """Return how Mooncake registers a region, ``largest_bytes`` at most at a time (0: any length).

    Args:
        release: Mooncake's, None if its version is not known.
    """
    size, page = region.bytes, region.page_bytes
    if size <= largest_bytes or largest_bytes <= 0:
        return Registration(Split.WHOLE, 1, size, size)
    if release is not None and release.registrations_end_on_pages and page > BASE_PAGE_BYTES:
        largest_bytes -= largest_bytes % page
        if not largest_bytes:
            return Registration(Split.REFUSED, 0, 0, 0)
    if region.what == MemoryKind.SEGMENT or (release is not None and release.registers_in_pieces):
        return Registration(Split.PIECES, pieces(size, largest_bytes), largest_bytes, size)
    if release is None:
        return Registration(Split.UNTOLD, pieces(size, largest_bytes), largest_bytes, size)
    return Registration(Split.CUT_OFF, 1, largest_bytes, largest_bytes)


def pinned_bytes(registered: Registration, page_bytes: int, offset_bytes: int = 0) -> int:
    """Return the host memory that the kernel counts as pinned for a region on one NIC.

    Whole pages of ``page_bytes`` are counted; a page in which a piece ends is counted again for the
    next piece.

    Args:
        offset_bytes: Where in a page the region begins. Source: infiniband/core/umem.c.
    """
    if not registered.keys or not registered.bytes:
        return 0
    offset = offset_bytes % page_bytes
    ends = registered.keys - 1
    twice = ends - _on_page_ends(ends, registered.piece_bytes, page_bytes, offset)
    return round_up(offset + registered.bytes, page_bytes) + twice * page_bytes


def _on_page_ends(ends: int, piece_bytes: int, page_bytes: int, offset_bytes: int) -> int:
    """Count the pieces that end exactly on a page boundary.

    The page in which any other piece ends is pinned twice: for this piece and for the next.

    The pieces are equal and follow each other.

    Args:
        ends: How many ends to look at.
        offset_bytes: Where in its page the first piece begins.
    """
    common = gcd(piece_bytes, page_bytes)
    if offset_bytes % common:
        return 0
    period = page_bytes // common
    first = -offset_bytes // common * pow(piece_bytes // common, -1, period) % period or period
    return max(0, (ends - first) // period + 1)


class Load(NamedTuple):
    """What one process registers with each of its NICs."""

    registrations: int  # memory keys
    by_page: Mapping[int, int]  # registered bytes by the size of the backing page, the GPU's too
    more: Unknown | None = None  # why more is registered than counted, None if all is

    @property
    def bytes(self) -> int:
        return sum(self.by_page.values())

    @property
    def entries(self) -> int:
        """Entries of the device's table, one for each backing page."""
        return sum(pieces(size, page) for page, size in self.by_page.items())


def load_of(
    process: ProcessNeeds, largest_bytes: int | Unknown, release: MooncakeRelease | None
) -> Load | Unknown:
    """Add up what ``process`` registers with each of its NICs; Unknown if its regions are unknown.

    If ``largest_bytes`` is Unknown, each region counts as one registration. If only the GPU memory
    is not known, the load leaves it out, and ``more`` says so.
    """
    if isinstance(process.regions, Unknown):
        return process.regions
    registrations = 0
    by_page: dict[int, int] = {}
    for region in process.regions:
        largest = region.bytes if isinstance(largest_bytes, Unknown) else largest_bytes
        registered = registration_of(region, largest, release)
        registrations += registered.keys
        page = region.page_bytes or BASE_PAGE_BYTES
        # An entry is a whole page: regions share none.
        touched = region.offset_bytes % page + registered.bytes if registered.bytes else 0
        by_page[page] = by_page.get(page, 0) + round_up(touched, page)
    gpu = process.gpu_registered_bytes
    if isinstance(gpu, Unknown):
        return Load(registrations, by_page, gpu)
    if gpu:
        by_page[GPU_PAGE_BYTES] = by_page.get(GPU_PAGE_BYTES, 0) + round_up(gpu, GPU_PAGE_BYTES)
    return Load(registrations, by_page)


def regions_under(limit_bytes: int, nics: int, region_bytes: int, page_bytes: int) -> int:
    """Count the regions that a process may register with each of its NICs under a memlock limit.

    Args:
        nics: The number of NICs; each pins a region anew, in whole pages of ``page_bytes``.
    """
    each = max(1, nics) * round_up(region_bytes, page_bytes)
    return limit_bytes // each if each else 0


# bool_parser.h of Mooncake; anything else leaves the default, which is nvidia-peermem.
_FALSE_WORDS = ("0", "false", "no", "off", "disable")


def through_peermem(environment: Mapping[str, str]) -> bool:
    """Tell whether nvidia_peermem registers GPU memory, which counts as pinned; else dma-buf."""
    return environment.get("WITH_NVIDIA_PEERMEM", "1").strip().lower() not in _FALSE_WORDS


class NicLoad(NamedTuple):
    """What is registered with one NIC."""

    nic: Nic
    loads: tuple[tuple[str, Load], ...] = ()  # by process
    unknown: Unknown | None = None  # why more may be registered, None if all is known

    @property
    def by_page(self) -> Mapping[int, int]:
        """Registered bytes by the size of the backing page."""
        sums: dict[int, int] = {}
        for _, load in self.loads:
            for page, size in load.by_page.items():
                sums[page] = sums.get(page, 0) + size
        return sums

    @property
    def bytes(self) -> int:
        return sum(load.bytes for _, load in self.loads)

    @property
    def entries(self) -> int:
        return sum(load.entries for _, load in self.loads)


def nic_loads(rdma: RdmaFacts, launch_uses: Iterable[Use]) -> list[NicLoad]:
    """Add up what the launch registers with each NIC in use, in the order of ``rdma.nics``.

    If the devices of some processes are not known, each NIC's ``unknown`` says so.
    """
    sums: dict[str, NicLoad] = {}
    elsewhere: Unknown | None = None
    for use in launch_uses:
        if isinstance(use.devices.names, Unknown):
            reason = use.devices.names.reason
            elsewhere = Unknown(f"{use.who} may register with it too: {reason}")
        largest = largest_region_bytes(use.nics, use.environment)
        for process in use.processes:
            load = load_of(process, largest, use.release)
            for nic in use.nics:
                total = sums.get(nic.name, NicLoad(nic))
                if isinstance(load, Unknown):
                    total = total._replace(unknown=load)
                else:
                    loads = (*total.loads, (process.name, load))
                    total = total._replace(loads=loads, unknown=_reason(total.unknown, load.more))
                sums[nic.name] = total
    there = [sums[nic.name] for nic in rdma.present if nic.name in sums]
    return [total._replace(unknown=_reason(total.unknown, elsewhere)) for total in there]


def _reason(*reasons: Unknown | None) -> Unknown | None:
    return next((reason for reason in reasons if reason is not None), None)


def table_row(nic: Nic) -> DeviceRow | Unknown | None:
    """Return a device's row of the table; None without a row, Unknown without a known provider."""
    provider = nic.provider
    if nic.driver in ("ib_qib", "qib"):  # of which the kernel has no number
        provider = "ipathverbs" if isinstance(provider, Unknown) else provider
    return provider if isinstance(provider, Unknown) else device_row(provider)


# config.h: MC_NUM_QP_PER_EP, MC_NUM_CQ_PER_CTX.
DEFAULT_QUEUE_PAIRS, DEFAULT_COMPLETION_QUEUES = 2, 1
PROTECTION_DOMAINS = 1


class Objects(NamedTuple):
    """RDMA objects that a launch makes on one device.

    Attributes:
        contexts: Processes that open it.
        others: Protection domains and completion queues.
    """

    contexts: int
    regions: int | Unknown  # Unknown if the launch's memory is unknown
    others: int
    queue_pairs: int  # once every process has talked to every NIC of every other one


def objects_of(nic: Nic, needs: LaunchNeeds, launch_uses: Iterable[Use]) -> Objects:
    """Count the RDMA objects that the launch makes on ``nic`` if all its ``takers`` open it."""
    mine = [(use, process) for use in launch_uses for process in takers(use, nic)]
    everyone = len(needs.rdma_processes) * max(1, needs.hosts)
    regions: int | Unknown = 0
    others = queue_pairs = 0
    for use, process in mine:
        largest = largest_region_bytes(use.candidate_nics, use.environment)
        if not isinstance(regions, Unknown):
            load = load_of(process, largest, use.release)
            regions = load if isinstance(load, Unknown) else regions + load.registrations
        queues = _small_number(use.environment, "MC_NUM_CQ_PER_CTX", DEFAULT_COMPLETION_QUEUES)
        others += PROTECTION_DOMAINS + queues
        one_peer = "MC_ENABLE_DEST_DEVICE_AFFINITY" in use.environment
        per_peer = 1 if one_peer else len(use.devices.candidates)
        pairs = _small_number(use.environment, "MC_NUM_QP_PER_EP", DEFAULT_QUEUE_PAIRS)
        queue_pairs += (everyone - 1) * per_peer * pairs
    return Objects(len(mine), regions, others, queue_pairs)


def takers(use: Use, nic: Nic) -> tuple[ProcessNeeds, ...]:
    """Return the processes of ``use`` that would open ``nic``; () if they do not look for that
    device, or MC_FORCE_TCP keeps them off RDMA.
    """
    if nic.name not in use.devices.candidates or use.devices.chosen is ChosenBy.FORCED_TCP:
        return ()
    return use.processes


def _small_number(environment: Mapping[str, str], name: str, default: int) -> int:
    value = leading_integer(environment.get(name, ""))
    return value if value is not None and 0 < value < 256 else default
