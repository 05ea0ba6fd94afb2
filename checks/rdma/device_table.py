"""RDMA devices as registering memory meets them: what bounds it, how that shows, and who says so.

A driver's attributes tell the longest region and the number of memory keys. What they do not tell
is how many pages a device can translate in all: that is here, as users ran into it and as the
drivers' sources have it. A device that is not here is not known, which is no pass.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from checks.base.units import GIB

# Linux's smallest page, by which drivers and users count a table's entries.
BASE_PAGE_BYTES = 4096


class Bound(Enum):
    """What is known of the sum that a device can translate."""

    HOST_MEMORY = "its tables lie in host memory and grow with what is registered"
    ENTRIES = "it has so many table entries"
    UNTOLD = "it has a bound, and nothing tells how large it is"


class Confidence(Enum):
    MEASURED = "measured"
    READ = "read in the driver's source"
    REPORTED = "reported by users"


class Table(NamedTuple):
    """How many pages of registered memory a device translates, all regions and processes together.

    holds_entries: so many are vouched for. worked_entries: the most that a user had working.
    failed_entries: the least that failed for somebody, 0 where nobody said.
    """

    bound: Bound
    holds_entries: int = 0
    worked_entries: int = 0
    failed_entries: int = 0


class DeviceRow(NamedTuple):
    """One kind of device. provider: as ``rdma_verbs.PROVIDERS``. functions: the PCI ids that it is
    about, () for all of the provider.

    max_mr_size_counts: whether ibv_query_device's max_mr_size is a real bound. page_effect: what
    the backing pages change. errno: what ``ibv_reg_mr`` gives over the sum, 0 where not known.
    kernel_log: words of the kernel's log that go with it. mode, gid: what Mooncake needs of it.
    """

    provider: str
    name: str
    table: Table
    max_mr_size_counts: bool
    page_effect: str
    errno: int
    kernel_log: tuple[str, ...]
    mode: str
    gid: str
    evidence: tuple[str, ...]
    confidence: Confidence
    functions: tuple[str, ...] = ()


EIO, EAGAIN, ENOMEM = 5, 11, 12
_BY_PAGE = "one entry for each backing page, so 2 MiB pages need 512 times fewer"
_ROCE_V2 = "a RoCE v2 entry with an IPv4 address"
_NO_MODE = "none"
# 64 GiB of 4 KiB pages are one region of the length that the device itself offers.
_ERDMA_TABLE = Table(
    Bound.ENTRIES,
    holds_entries=64 * GIB // BASE_PAGE_BYTES,
    worked_entries=95 * GIB // BASE_PAGE_BYTES,
    failed_entries=96 * GIB // BASE_PAGE_BYTES,
)
_ERDMA_LOG = ("Out of mr size:", "CMD(hdr ", "return with error")
_ERDMA_EVIDENCE = (
    "Mooncake #304: 64 + 31 GiB on 4 KiB pages registered, 64 + 32 and 48 + 48 did not",
    "Mooncake #1407: huge pages lift it; #1754: EIO, and the kernel's log says nothing of a size",
    "erdma_verbs.c: max_mr_size is the device's own (64 GiB seen), any failed command is EIO",
)

DEVICES = (
    DeviceRow(
        "erdma",
        "Alibaba Cloud eRDMA",
        _ERDMA_TABLE,
        True,
        f"{_BY_PAGE}; one page size for a whole region",
        EIO,
        _ERDMA_LOG,
        "compat_mode=Y of module erdma: Mooncake connects without RDMA_CM",
        "GID index 1 in Mooncake's guide; some instances have index 0 alone",
        _ERDMA_EVIDENCE,
        Confidence.REPORTED,
        ("1ded:107f",),
    ),
    DeviceRow(
        "erdma",
        "Alibaba Cloud eRDMA, RoCE v2 function",
        _ERDMA_TABLE,
        True,
        f"{_BY_PAGE}; one page size for a whole region",
        EIO,
        _ERDMA_LOG,
        "a kernel and an rdma-core that know 1ded:5007",
        _ROCE_V2,
        ("erdma_main.c: the same driver and tables as 1ded:107f", *_ERDMA_EVIDENCE),
        Confidence.REPORTED,
        ("1ded:5007",),
    ),
    DeviceRow(
        "mlx5",
        "NVIDIA ConnectX and BlueField",
        Table(Bound.HOST_MEMORY),
        False,
        "fewer entries and a faster registration on huge pages; no bound that they would lift",
        EAGAIN,
        ("CREATE_MKEY", "no resources(0xf)", "limits exceeded(0x8)"),
        _NO_MODE,
        f"{_ROCE_V2}, or InfiniBand",
        (
            "drivers/infiniband/hw/mlx5/main.c: max_mr_size is ~0, memory keys are max_mr",
            "SGLang HiCache with Mooncake, H800 benchmark: 760 GiB and L2 on each of 8 NICs",
            "Mooncake #1765: memory keys leaked by killed processes give EAGAIN; ucx #6264: ENOMEM",
        ),
        Confidence.READ,
    ),
    DeviceRow(
        "mlx4",
        "NVIDIA ConnectX-3",
        Table(Bound.UNTOLD),
        True,
        _BY_PAGE,
        ENOMEM,
        (),
        "log_num_mtt and log_mtts_per_seg of module mlx4_core set how much can be registered",
        f"{_ROCE_V2}, or InfiniBand",
        ("mlx4_core: 2^log_num_mtt x 2^log_mtts_per_seg pages in all",),
        Confidence.READ,
    ),
    DeviceRow(
        "ionic",
        "AMD Pensando Pollara",
        Table(Bound.ENTRIES, holds_entries=1 << 20, worked_entries=1 << 20),
        True,
        f"{_BY_PAGE}; a region of 4 GiB on 1 GiB pages registers although 2 GiB are offered",
        ENOMEM,
        (),
        _NO_MODE,
        _ROCE_V2,
        (
            "InferenceX #3330: about 4 GiB of 4 KiB pages for each device, all regions together",
            "Mooncake #4168, #3828: max_mr_size is 2 GiB",
        ),
        Confidence.REPORTED,
    ),
    DeviceRow(
        "efa",
        "AWS Elastic Fabric Adapter",
        Table(
            Bound.ENTRIES,
            # Mooncake's own default budget, MC_EFA_MAX_PTE_ENTRIES.
            holds_entries=22_000_000,
            worked_entries=95 * GIB // BASE_PAGE_BYTES,
            failed_entries=96 * GIB // BASE_PAGE_BYTES,
        ),
        True,
        f"{_BY_PAGE}; registering 4 KiB pages takes minutes",
        ENOMEM,
        (),
        "Mooncake's protocol efa: there are no RC queue pairs for protocol rdma",
        "none: EFA addresses by its own GID",
        (
            "libfabric #9739: 95 GB register, 96 GB give ENOMEM on one device",
            "Mooncake #1912: about 24 million entries for each NIC; #3210: the time that it takes",
            "libfabric #10402: 1 million pages in a region with remote write on older firmware",
        ),
        Confidence.REPORTED,
    ),
    DeviceRow(
        "irdma",
        "Intel E810 and X722",
        Table(Bound.UNTOLD),
        True,
        "physical buffer lists shared by the ports of a card, one entry for each 4 KiB or 2 MiB",
        ENOMEM,
        (),
        "RoCE v2 mode of the ice driver's RDMA function; iWARP is its default on some releases",
        _ROCE_V2,
        ("drivers/infiniband/hw/irdma/pble.c: the lists come from the function's own profile",),
        Confidence.READ,
    ),
    DeviceRow(
        "bnxt_re",
        "Broadcom NetXtreme-E",
        Table(Bound.UNTOLD),
        True,
        "page lists lie in host memory and are shorter on huge pages",
        ENOMEM,
        (),
        _NO_MODE,
        _ROCE_V2,
        ("drivers/infiniband/hw/bnxt_re: memory regions and windows share one count",),
        Confidence.READ,
    ),
    DeviceRow(
        "hns",
        "HiSilicon Hip",
        Table(Bound.UNTOLD),
        True,
        "translation tables of several levels in host memory, shorter on huge pages",
        ENOMEM,
        (),
        _NO_MODE,
        _ROCE_V2,
        ("drivers/infiniband/hw/hns/hns_roce_mr.c: the function's number of entries is not told",),
        Confidence.READ,
    ),
    DeviceRow(
        "mana",
        "Microsoft Azure Network Adapter",
        Table(Bound.UNTOLD),
        True,
        _BY_PAGE,
        ENOMEM,
        (),
        _NO_MODE,
        _ROCE_V2,
        ("drivers/infiniband/hw/mana/mr.c: regions are made by the host's firmware",),
        Confidence.READ,
    ),
    DeviceRow(
        "rxe",
        "soft-RoCE",
        Table(Bound.HOST_MEMORY),
        False,
        "none",
        ENOMEM,
        (),
        _NO_MODE,
        _ROCE_V2,
        (
            "drivers/infiniband/sw/rxe: max_mr_size is 2^64 - 1, and max_mr is 524 287",
            "two devices in a virtual machine: RLIMIT_MEMLOCK and the rdma cgroup alone bind",
        ),
        Confidence.MEASURED,
    ),
    DeviceRow(
        "siw",
        "soft-iWARP",
        Table(Bound.HOST_MEMORY),
        False,
        "none",
        ENOMEM,
        (),
        "iWARP connects by RDMA_CM alone, which Mooncake does not use",
        "none: iWARP has no GID that Mooncake could take",
        ("drivers/infiniband/sw/siw: page lists in host memory, and RLIMIT_MEMLOCK by itself",),
        Confidence.READ,
    ),
    DeviceRow(
        "ipathverbs",
        "Intel TrueScale (qib)",
        Table(Bound.HOST_MEMORY),
        False,
        "none",
        ENOMEM,
        (),
        _NO_MODE,
        "InfiniBand",
        ("drivers/infiniband/sw/rdmavt/mr.c: page lists in host memory",),
        Confidence.READ,
    ),
    DeviceRow(
        "hfi1verbs",
        "Cornelis Omni-Path",
        Table(Bound.HOST_MEMORY),
        False,
        "none",
        ENOMEM,
        (),
        _NO_MODE,
        "Omni-Path's own",
        ("drivers/infiniband/sw/rdmavt/mr.c: page lists in host memory",),
        Confidence.READ,
    ),
)


def device_row(provider: str, function: str | None) -> DeviceRow | None:
    """The row of a device; ``function``: its PCI id, ``1ded:107f``. None: not a known device.

    A function that no row names takes the first of its provider: the driver is the same.
    """
    rows = [row for row in DEVICES if row.provider == provider]
    exact = [row for row in rows if function in row.functions]
    return next(iter(exact or rows), None)
