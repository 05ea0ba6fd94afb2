"""One end of a reliable connection as Mooncake sets up its own, and a buffer to write to."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import NamedTuple

from checks.rdma.libibverbs import MTU_BYTES
from preflight.verbs.objects import Peer, QueuePair, RegisteredRegion, open_device

# The larger write needs many packets of any path MTU, the smaller fits in one of the least.
BUFFER_BYTES = 64 * 1024
SMALL_BYTES = 64
# What is written, so that the side whose memory it is can say whether it arrived. Fresh memory is
# zero, and a write's last packet brings its end.
_PATTERNS = ((BUFFER_BYTES, 0xA5), (SMALL_BYTES, 0x5A))
# Where nothing is heard, the queue pair itself gives up after half a second; a device in software
# under load takes longer, and one that cannot send says nothing at all.
POLL_SECONDS = 10.0


class Endpoint(NamedTuple):
    """What the other side has to know. gid: 32 hexadecimal digits. key, address: of the buffer."""

    lid: int
    qpn: int
    psn: int
    gid: str
    mtu_bytes: int
    address: int
    key: int


class WriteEnd(NamedTuple):
    """status: of enum ibv_wc_status, 0 for success; None where nothing came in time."""

    status: int | None
    seconds: float


class Connection:
    """A queue pair on one port, with a buffer that the other side may write to.

    Closed with ``close``; the end of the process does as well.
    """

    def __init__(self, device: str, port: int, gid_index: int, mtu_limit_bytes: int) -> None:
        """Make a queue pair. Raises VerbsError; OSError where libibverbs cannot be loaded."""
        self._port, self._gid_index = port, gid_index
        self._buffer = mmap.mmap(-1, 2 * BUFFER_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._pair: QueuePair | None = None
        self._region: RegisteredRegion | None = None
        self._device = open_device(device)
        try:
            self._region = self._device.register(address, 2 * BUFFER_BYTES)
            self._pair = self._device.queue_pair()
            facts = self._device.port(port)
            active = MTU_BYTES.get(facts.mtu_code, min(MTU_BYTES.values()))
            self.mtu_bytes = min(active, mtu_limit_bytes)
            psn = int.from_bytes(os.urandom(3), "little")
            gid = self._device.gid(port, gid_index).hex()
            qpn, key = self._pair.number, self._region.rkey
            self.end = Endpoint(facts.lid, qpn, psn, gid, self.mtu_bytes, address, key)
            self._pair.initialize(port)
        except BaseException:
            self.close()
            raise

    def connect(self, other: Endpoint) -> None:
        """Make it ready to receive from ``other`` and to send to it. Raises VerbsError."""
        assert self._pair is not None
        codes = {size: code for code, size in MTU_BYTES.items()}
        peer = Peer(
            self._port,
            self._gid_index,
            bytes.fromhex(other.gid),
            other.lid,
            other.qpn,
            other.psn,
            codes[self.mtu_bytes],
        )
        self._pair.connect(peer, self.end.psn)

    def write(self, other: Endpoint, size: int) -> WriteEnd:
        """Write SMALL_BYTES or BUFFER_BYTES to the buffer of ``other``; acknowledged, or not.

        Raises VerbsError where it cannot even be posted.
        """
        assert self._pair is not None
        assert self._region is not None
        # Its own half: what the other side writes at the same time is not sent back to it.
        self._buffer[BUFFER_BYTES : BUFFER_BYTES + size] = bytes([dict(_PATTERNS)[size]]) * size
        own, key = self.end.address + BUFFER_BYTES, self._region.lkey
        started = time.monotonic()
        self._pair.write(own, size, key, other.address, other.key)
        while True:
            status = self._pair.poll()
            seconds = time.monotonic() - started
            if status is not None or seconds > POLL_SECONDS:
                return WriteEnd(status, seconds)

    def arrived_bytes(self) -> int:
        """Return the size of the other side's largest write that is here to its end; 0 for none."""
        for size, pattern in _PATTERNS:
            if self._buffer[size - 1] == pattern:
                return size
        return 0

    def close(self) -> None:
        """Give everything back, the last taken first."""
        for taken in (self._pair, self._region, self._device):
            if taken is not None:
                taken.close()
        self._pair = self._region = None
