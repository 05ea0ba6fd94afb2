"""One end of a reliable connection through libibverbs, set up as Mooncake sets up its own.

Structures are those of ``infiniband/verbs.h``, whose layout is stable; polling and posting are
inline functions there, which call what the device's context holds.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from typing import NamedTuple

from checks.rdma.libibverbs import MTU_BYTES, ROOM_BYTES, PortAttributes
from preflight.fleet.pairs.structures import (
    LID_OFFSET,
    QPN_OFFSET,
    Attributes,
    Capacity,
    Completion,
    InitAttributes,
    Region,
    Request,
    Scatter,
)
from preflight.probes.verbs import ACCESS, VerbsError, probe_library

# As rdma_endpoint.cpp, tries of 4.096 us x 2^14 = 67 ms and 16 hops, but for one retry less than
# its 7: soft-RoCE (rxe) takes 7 for "never give up", and nothing would ever be heard.
TIMEOUT, RETRIES, HOPS, MIN_RNR_TIMER, READS = 14, 6, 16, 12, 16
# The larger write needs many packets of any path MTU, the smaller fits in one of the least.
BUFFER_BYTES = 64 * 1024
SMALL_BYTES = 64
# What is written, so that the side whose memory it is can say whether it arrived. Fresh memory is
# zero, and a write's last packet brings its end.
_PATTERNS = ((BUFFER_BYTES, 0xA5), (SMALL_BYTES, 0x5A))
# Where nothing is heard, the queue pair itself gives up after half a second; a device in software
# under load takes longer, and one that cannot send says nothing at all.
POLL_SECONDS = 10.0
_RC, _WRITE, _SIGNALED = 2, 0, 2
_INIT, _READY_TO_RECEIVE, _READY_TO_SEND = 1, 2, 3
# enum ibv_qp_attr_mask, as each step has to name what it sets.
_STATE, _ACCESS, _PKEY, _PORT, _PATH, _MTU = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8
_TIMEOUT, _RETRIES, _RNR_RETRY, _RQ_PSN, _READS = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
_RNR_TIMER, _SQ_PSN, _DEST_READS, _DEST_QPN = 1 << 15, 1 << 16, 1 << 17, 1 << 20
# Places in struct ibv_context_ops, which stands behind the context's first pointer.
_POLL_CQ, _POST_SEND = 11, 25


class End(NamedTuple):
    """What the other side has to know. gid: 32 hexadecimal digits. key, address: of the buffer."""

    lid: int
    qpn: int
    psn: int
    gid: str
    mtu_bytes: int
    address: int
    key: int


class Done(NamedTuple):
    """status: of enum ibv_wc_status, 0 for success; None where nothing came in time."""

    status: int | None
    seconds: float


def pair_library() -> ctypes.CDLL:
    """libibverbs with what a connection takes. Raises OSError where it cannot be loaded."""
    loaded = probe_library()
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for function, result, arguments in (
        ("ibv_create_cq", pointer, [pointer, number, pointer, pointer, number]),
        ("ibv_destroy_cq", number, [pointer]),
        ("ibv_create_qp", pointer, [pointer, pointer]),
        ("ibv_modify_qp", number, [pointer, pointer, number]),
        ("ibv_destroy_qp", number, [pointer]),
        ("ibv_query_gid", number, [pointer, ctypes.c_uint8, number, pointer]),
    ):
        bound = getattr(loaded, function)
        bound.restype, bound.argtypes = result, arguments
    return loaded


class Connection:
    """A queue pair on one port, with a buffer that the other side may write to.

    Closed with ``close``; the end of the process does as well.
    """

    def __init__(
        self, loaded: ctypes.CDLL, device: str, port: int, gid_index: int, mtu_limit_bytes: int
    ) -> None:
        """Raises VerbsError."""
        self._library, self._device = loaded, device
        self._port, self._gid_index = port, gid_index
        self._buffer = mmap.mmap(-1, 2 * BUFFER_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        # What is to be given back, in the order in which it was taken.
        self._held: list[tuple[str, int]] = []
        try:
            self._context = self._take("ibv_close_device", self._open())
            domain = self._take("ibv_dealloc_pd", self._made("ibv_alloc_pd", self._context))
            region = self._made("ibv_reg_mr", domain, address, 2 * BUFFER_BYTES, ACCESS)
            self._take("ibv_dereg_mr", region)
            queue = self._made("ibv_create_cq", self._context, 16, None, None, 0)
            self._queue = self._take("ibv_destroy_cq", queue)
            wanted = InitAttributes(send_cq=queue, recv_cq=queue, qp_type=_RC)
            wanted.cap = Capacity(4, 1, 1, 1, 0)
            pair = self._made("ibv_create_qp", domain, ctypes.byref(wanted))
            self._pair = self._take("ibv_destroy_qp", pair)
            memory = Region.from_address(region)
            self._local_key = memory.lkey
            self.mtu_bytes, lid = self._port_facts(mtu_limit_bytes)
            qpn = ctypes.c_uint32.from_address(pair + QPN_OFFSET).value
            psn = int.from_bytes(os.urandom(3), "little")
            gid = self._gid()
            self.end = End(lid, qpn, psn, gid, self.mtu_bytes, address, memory.rkey)
            first = Attributes(qp_state=_INIT, port_num=port, qp_access_flags=ACCESS)
            self._modify(first, _STATE | _PKEY | _PORT | _ACCESS, "INIT")
        except BaseException:
            self.close()
            raise

    def _open(self) -> int:
        count = ctypes.c_int(0)
        start = self._library.ibv_get_device_list(ctypes.byref(count))
        if not start:
            raise VerbsError(ctypes.get_errno(), "ibv_get_device_list", self._device)
        try:
            for device in (ctypes.c_void_p * count.value).from_address(start):
                name = self._library.ibv_get_device_name(device).decode(errors="replace")
                if name == self._device:
                    return self._made("ibv_open_device", device)
        finally:
            self._library.ibv_free_device_list(start)
        raise VerbsError(errno.ENODEV, "ibv_get_device_list", self._device)

    def _made(self, function: str, *arguments: object) -> int:
        ctypes.set_errno(0)
        made = getattr(self._library, function)(*arguments)
        if not made:
            raise VerbsError(ctypes.get_errno(), function, self._device)
        return int(made)

    def _take(self, undo: str, made: int) -> int:
        self._held.append((undo, made))
        return made

    def _port_facts(self, mtu_limit_bytes: int) -> tuple[int, int]:
        room = ctypes.create_string_buffer(ROOM_BYTES)
        number = self._library.ibv_query_port(self._context, self._port, room)
        if number:
            raise VerbsError(number, "ibv_query_port", self._device)
        port = PortAttributes.from_buffer(room)
        active = MTU_BYTES.get(port.active_mtu, min(MTU_BYTES.values()))
        return min(active, mtu_limit_bytes), ctypes.c_uint16.from_buffer(room, LID_OFFSET).value

    def _gid(self) -> str:
        raw = (ctypes.c_uint64 * 2)()
        if self._library.ibv_query_gid(self._context, self._port, self._gid_index, raw):
            raise VerbsError(ctypes.get_errno() or errno.EINVAL, "ibv_query_gid", self._device)
        return bytes(raw).hex()

    def _modify(self, attributes: Attributes, mask: int, step: str) -> None:
        number = self._library.ibv_modify_qp(self._pair, ctypes.byref(attributes), mask)
        if number:
            raise VerbsError(abs(number), f"ibv_modify_qp to {step}", self._device)

    def connect(self, other: End) -> None:
        """Ready to receive from ``other`` and to send to it. Raises VerbsError."""
        sizes = {size: code for code, size in MTU_BYTES.items()}
        ready = Attributes(
            qp_state=_READY_TO_RECEIVE,
            path_mtu=sizes[self.mtu_bytes],
            dest_qp_num=other.qpn,
            rq_psn=other.psn,
            max_dest_rd_atomic=READS,
            min_rnr_timer=MIN_RNR_TIMER,
        )
        path = ready.ah_attr
        path.dgid[:] = (ctypes.c_uint64 * 2).from_buffer_copy(bytes.fromhex(other.gid))
        path.sgid_index, path.hop_limit, path.is_global = self._gid_index, HOPS, 1
        path.dlid, path.port_num = other.lid, self._port
        mask = _STATE | _PATH | _MTU | _DEST_QPN | _RQ_PSN | _DEST_READS | _RNR_TIMER
        self._modify(ready, mask, "RTR")
        sending = Attributes(
            qp_state=_READY_TO_SEND,
            sq_psn=self.end.psn,
            timeout=TIMEOUT,
            retry_cnt=RETRIES,
            rnr_retry=7,
            max_rd_atomic=READS,
        )
        mask = _STATE | _TIMEOUT | _RETRIES | _RNR_RETRY | _SQ_PSN | _READS
        self._modify(sending, mask, "RTS")

    def write(self, other: End, size: int) -> Done:
        """Write SMALL_BYTES or BUFFER_BYTES to the buffer of ``other``; acknowledged, or not.

        Raises VerbsError where it cannot even be posted.
        """
        # Its own half: what the other side writes at the same time is not sent back to it.
        self._buffer[BUFFER_BYTES : BUFFER_BYTES + size] = bytes([dict(_PATTERNS)[size]]) * size
        piece = Scatter(self.end.address + BUFFER_BYTES, size, self._local_key)
        request = Request(
            sg_list=ctypes.addressof(piece),
            num_sge=1,
            opcode=_WRITE,
            send_flags=_SIGNALED,
            remote_addr=other.address,
            rkey=other.key,
        )
        bad = ctypes.c_void_p()
        post = self._operation(_POST_SEND, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        started = time.monotonic()
        number = post(self._pair, ctypes.byref(request), ctypes.byref(bad))
        if number:
            raise VerbsError(abs(number), "ibv_post_send", self._device)
        poll = self._operation(_POLL_CQ, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        found = Completion()
        while True:
            count = poll(self._queue, 1, ctypes.byref(found))
            seconds = time.monotonic() - started
            if count < 0:
                raise VerbsError(errno.EIO, "ibv_poll_cq", self._device)
            if count:
                return Done(int(found.status), seconds)
            if seconds > POLL_SECONDS:
                return Done(None, seconds)

    def arrived_bytes(self) -> int:
        """Of the largest write of the other side whose end is in the buffer here; 0 for none."""
        for size, pattern in _PATTERNS:
            if self._buffer[size - 1] == pattern:
                return size
        return 0

    def _operation(self, place: int, *arguments: type) -> ctypes._FuncPointer:
        at = self._context + (1 + place) * ctypes.sizeof(ctypes.c_void_p)
        function = ctypes.c_void_p.from_address(at).value
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(function or 0)

    def close(self) -> None:
        """Give everything back, the last taken first."""
        while self._held:
            undo, made = self._held.pop()
            getattr(self._library, undo)(made)
