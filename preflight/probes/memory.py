"""A long range of addresses behind which one small buffer lies, over and over.

Registering the range pins and translates every page of it, as often as it shows the buffer: the
kernel's accounts and the device see the whole length, and the memory spent is the buffer's, the
lists that the kernel and the driver keep per page, and the range's own page tables.
"""

import ctypes
import os
from typing import NamedTuple

from checks.base.root import Root
from checks.base.units import MIB, format_bytes, format_page_size, round_up
from checks.base.unknown import Unknown
from checks.numa.nodes import read_meminfo
from checks.rdma.device_table import BASE_PAGE_BYTES

# linux/memfd.h: MFD_HUGETLB, and where the page size's power of two stands.
_MFD_CLOEXEC, _MFD_HUGETLB, _SIZE_SHIFT = 1, 4, 26
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 1, 2, 0x10
_MAP_ANONYMOUS, _MAP_NORESERVE = 0x20, 0x4000
_FAILED = ctypes.c_void_p(-1).value

# struct scatterlist, one for each run of pages that do not lie together (mm.h: 32 bytes).
LIST_BYTES_PER_PAGE = 32
# What drivers keep for each page that they translate: rxe 16 bytes, erdma and others 8.
DRIVER_BYTES_PER_PAGE = 16
# A page table entry of the range itself.
TABLE_BYTES_PER_PAGE = 8
# vm.max_map_count is 65530 unless set: each showing of the buffer is a mapping.
MOST_SHOWINGS = 30_000
LARGEST_BUFFER_BYTES = 32 * MIB


class Layout(NamedTuple):
    """range_bytes: the longest registration. buffer_bytes: what lies behind it."""

    page_bytes: int
    range_bytes: int
    buffer_bytes: int

    def spent_bytes(self, registered_bytes: int, soft: bool) -> int:
        """Return what so much registered memory, over all devices, takes of the host's.

        That is the buffer, the range's page tables, and what the kernel and the driver keep. soft:
        a device in software, which keeps a list of base pages whatever backs them.
        """
        driver_page = BASE_PAGE_BYTES if soft else self.page_bytes
        return (
            self.buffer_bytes
            + self.range_bytes // self.page_bytes * TABLE_BYTES_PER_PAGE
            + registered_bytes // self.page_bytes * LIST_BYTES_PER_PAGE
            + registered_bytes // driver_page * DRIVER_BYTES_PER_PAGE
        )


def plan_layout(page_bytes: int, region_bytes: int, longest_bytes: int, spend_bytes: int) -> Layout:
    """Lay out a range of ``longest_bytes``, or as much as a quarter of ``spend_bytes`` lets be.

    A driver takes the largest page that fits a whole region, so memory that happens to lie together
    would be measured on larger pages than it has. The buffer is an odd number of pages and shows
    more than once in every region: there one run of pages ends where no larger page does.
    """
    buffer = round_up(min(LARGEST_BUFFER_BYTES, spend_bytes // 8, longest_bytes), page_bytes)
    buffer = min(buffer, max(page_bytes, region_bytes // 2 // page_bytes * page_bytes))
    tables = max(spend_bytes // 8, TABLE_BYTES_PER_PAGE)
    length = min(longest_bytes, tables // TABLE_BYTES_PER_PAGE * page_bytes)
    length = max(page_bytes, length - length % page_bytes)
    buffer = max(buffer, round_up(-(-length // MOST_SHOWINGS), page_bytes))
    pages = min(buffer, length) // page_bytes
    if pages % 2 == 0:
        # One page less is still enough showings, unless that is what the number came from.
        pages += 1 if length // page_bytes > (pages - 1) * MOST_SHOWINGS else -1
    return Layout(page_bytes, length, min(pages * page_bytes, length))


def map_range(layout: Layout) -> int:
    """Map the range and return its address. Raises OSError: no memory, or no huge page.

    It is never unmapped: the process that asks for it ends soon.
    """
    descriptor = _buffer(layout)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    # Addresses alone, with room to begin on a page of any size.
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    start = _map(libc, None, layout.range_bytes + layout.page_bytes, _PROT_NONE, flags, -1)
    start = round_up(start, layout.page_bytes)
    for offset in range(0, layout.range_bytes, layout.buffer_bytes):
        length = min(layout.buffer_bytes, layout.range_bytes - offset)
        flags = _MAP_SHARED | _MAP_FIXED
        _map(libc, start + offset, length, _PROT_READ_WRITE, flags, descriptor)
    os.close(descriptor)
    return start


def _buffer(layout: Layout) -> int:
    """Make the file in memory, all its pages there: a missing huge page is an error, no signal."""
    page, flags = layout.page_bytes, _MFD_CLOEXEC
    huge = page > os.sysconf("SC_PAGE_SIZE")
    if huge:
        flags |= _MFD_HUGETLB | (page.bit_length() - 1) << _SIZE_SHIFT
    try:
        descriptor = os.memfd_create("mooncake-preflight", flags)
        os.ftruncate(descriptor, layout.buffer_bytes)
        os.posix_fallocate(descriptor, 0, layout.buffer_bytes)
    except OSError as error:
        pages = layout.buffer_bytes // page
        what = f"{pages} free page{'s' if pages > 1 else ''} of {format_page_size(page)}"
        if not huge:
            what = format_bytes(layout.buffer_bytes)
        raise OSError(error.errno, f"the buffer takes {what}: {error.strerror}") from None
    return descriptor


def _map(
    libc: ctypes.CDLL, address: int | None, length: int, protection: int, flags: int, file: int
) -> int:
    """Call mmap and return the address. Raises OSError."""
    found = libc.mmap(address, length, protection, flags, file, 0)
    if found == _FAILED or found is None:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {length} bytes: {os.strerror(number)}")
    return int(found)


def memory_available_bytes() -> int | None:
    """Return MemAvailable in bytes; None if it cannot be read."""
    table = read_meminfo(Root())
    value = table if isinstance(table, Unknown) else table.value("MemAvailable")
    return None if isinstance(value, Unknown) else value
