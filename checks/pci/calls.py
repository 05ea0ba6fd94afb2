"""Access Control Services of a bridge, from its configuration space, which only root may read."""

from __future__ import annotations

from collections.abc import Callable

# PCI Express Base Specification: extended capabilities begin at 0x100; each starts with 16 bits of
# id, 4 of version and 12 of the next one's offset. ACS is id 0x000D, its control register at +6.
EXTENDED_START = 0x100
ACS = 0x000D
ACS_CONTROL = 6
# Each takes at least 8 bytes of the 4096, so a longer list runs in a circle.
MOST_CAPABILITIES = (4096 - EXTENDED_START) // 8


def acs(address: str) -> int | None:
    """Return the ACS control register of the function at ``address``; None where it has no ACS.

    Raises PermissionError where the kernel shows only the first 64 bytes (not root).
    """
    import os

    file = os.open(f"/sys/bus/pci/devices/{address}/config", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A conventional function has 256 bytes, as the file's size says, and no ACS.
        if os.fstat(file).st_size <= EXTENDED_START:
            return None
        # Few short reads: each goes to the device and takes its time.
        return acs_control(lambda offset, length: os.pread(file, length, offset))
    finally:
        os.close(file)


def acs_control(read: Callable[[int, int], bytes]) -> int | None:
    """Return ACS control of a configuration space; None where it has none.

    read: ``read(offset, length)`` gives bytes of it. Raises PermissionError where it gives too few.
    """
    offset = EXTENDED_START
    for _ in range(MOST_CAPABILITIES):
        header = read(offset, 4)
        if len(header) < 4:
            raise PermissionError(1, "only root may read the extended configuration space")
        value = int.from_bytes(header, "little")
        if value in (0, 0xFFFFFFFF):
            return None
        if value & 0xFFFF == ACS:
            return int.from_bytes(read(offset + ACS_CONTROL, 2), "little")
        offset = value >> 20 & 0xFFC
        if offset < EXTENDED_START:
            return None
    return None
