"""RDMA objects through ctypes, where pyverbs is not there: a bare container, a carried program.

Structures are those of ``infiniband/verbs.h``, which only grow at their ends; polling and posting
are inline functions there, which call what the device's context holds.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable

from checks.rdma.libibverbs import (
    ROOM_BYTES,
    DeviceAttributes,
    PortAttributes,
    fields,
    library,
)
from preflight.verbs.objects import SETUP, Peer, PortFacts, VerbsError

_RC, _WRITE, _SIGNALED = 2, 0, 2
_INIT, _READY_TO_RECEIVE, _READY_TO_SEND = 1, 2, 3
# enum ibv_qp_attr_mask, as each step has to name what it sets.
_STATE, _ACCESS, _PKEY, _PORT, _PATH, _MTU = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8
_TIMEOUT, _RETRIES, _RNR_RETRY, _RQ_PSN, _READS = 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
_RNR_TIMER, _SQ_PSN, _DEST_READS, _DEST_QPN = 1 << 15, 1 << 16, 1 << 17, 1 << 20
# Places in struct ibv_context_ops, which stands behind the context's first pointer.
_POLL_CQ, _POST_SEND = 11, 25

# struct ibv_qp: six pointers and the handle stand before it.
QPN_OFFSET = 6 * ctypes.sizeof(ctypes.c_void_p) + 4
# struct ibv_port_attr: the LID is next to the last field that is bound, with no padding.
LID_OFFSET = PortAttributes.pkey_tbl_len.offset + PortAttributes.pkey_tbl_len.size


class QueueCapacity(ctypes.Structure):
    _fields_ = fields(ctypes.c_uint32, "send_wr recv_wr send_sge recv_sge inline_bytes")


class InitAttributes(ctypes.Structure):
    _fields_ = (
        *fields(ctypes.c_void_p, "qp_context send_cq recv_cq srq"),
        ("cap", QueueCapacity),
        *fields(ctypes.c_int, "qp_type sq_sig_all"),
        ("room", ctypes.c_char * 64),
    )


class Path(ctypes.Structure):
    """struct ibv_ah_attr; the GID counts as 64-bit words there."""

    _fields_ = (
        ("dgid", ctypes.c_uint64 * 2),
        ("flow_label", ctypes.c_uint32),
        *fields(ctypes.c_uint8, "sgid_index hop_limit traffic_class"),
        ("dlid", ctypes.c_uint16),
        *fields(ctypes.c_uint8, "sl src_path_bits static_rate is_global port_num"),
    )


class Attributes(ctypes.Structure):
    """struct ibv_qp_attr."""

    _fields_ = (
        *fields(ctypes.c_int, "qp_state cur_qp_state path_mtu path_mig_state"),
        *fields(ctypes.c_uint32, "qkey rq_psn sq_psn dest_qp_num"),
        ("qp_access_flags", ctypes.c_uint),
        ("cap", QueueCapacity),
        *fields(Path, "ah_attr alt_ah_attr"),
        *fields(ctypes.c_uint16, "pkey_index alt_pkey_index"),
        *fields(ctypes.c_uint8, "en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic"),
        *fields(ctypes.c_uint8, "min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num"),
        ("alt_timeout", ctypes.c_uint8),
        ("rate_limit", ctypes.c_uint32),
        ("room", ctypes.c_char * 64),
    )


class RegionFields(ctypes.Structure):
    """The beginning of struct ibv_mr."""

    _fields_ = (
        *fields(ctypes.c_void_p, "context pd addr"),
        ("length", ctypes.c_size_t),
        *fields(ctypes.c_uint32, "handle lkey rkey"),
    )


class Scatter(ctypes.Structure):
    _fields_ = (("addr", ctypes.c_uint64), *fields(ctypes.c_uint32, "length lkey"))


class WorkRequest(ctypes.Structure):
    """struct ibv_send_wr, as a write to the other side's memory."""

    _fields_ = (
        ("wr_id", ctypes.c_uint64),
        *fields(ctypes.c_void_p, "next sg_list"),
        *fields(ctypes.c_int, "num_sge opcode"),
        ("send_flags", ctypes.c_uint),
        ("imm_data", ctypes.c_uint32),
        ("remote_addr", ctypes.c_uint64),
        ("rkey", ctypes.c_uint32),
        ("room", ctypes.c_char * 128),
    )


class Completion(ctypes.Structure):
    """The beginning of struct ibv_wc, 48 bytes in all."""

    _fields_ = (
        ("wr_id", ctypes.c_uint64),
        ("status", ctypes.c_int),
        ("room", ctypes.c_char * 52),
    )


def open_device(name: str) -> CtypesDevice:
    """Open a device. Raises VerbsError; OSError where libibverbs cannot be loaded."""
    return CtypesDevice(_Library(name))


class _Library:
    """libibverbs, whose calls raise VerbsError for ``device`` where they fail."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.loaded = library()
        pointer, number = ctypes.c_void_p, ctypes.c_int
        for function, result, arguments in (
            ("ibv_alloc_pd", pointer, [pointer]),
            ("ibv_dealloc_pd", number, [pointer]),
            ("ibv_reg_mr", pointer, [pointer, pointer, ctypes.c_size_t, number]),
            ("ibv_dereg_mr", number, [pointer]),
            ("ibv_create_cq", pointer, [pointer, number, pointer, pointer, number]),
            ("ibv_destroy_cq", number, [pointer]),
            ("ibv_create_qp", pointer, [pointer, pointer]),
            ("ibv_modify_qp", number, [pointer, pointer, number]),
            ("ibv_destroy_qp", number, [pointer]),
            ("ibv_query_gid", number, [pointer, ctypes.c_uint8, number, pointer]),
        ):
            bound = getattr(self.loaded, function)
            bound.restype, bound.argtypes = result, arguments

    def make(self, function: str, *arguments: object) -> int:
        """Call what returns an object's address, and NULL with errno where it fails."""
        ctypes.set_errno(0)
        made = getattr(self.loaded, function)(*arguments)
        if not made:
            raise VerbsError(ctypes.get_errno(), function, self.device)
        return int(made)

    def do(self, function: str, *arguments: object, named: str = "") -> None:
        """Call what returns 0, or an error number, or -1 with errno."""
        ctypes.set_errno(0)
        number = getattr(self.loaded, function)(*arguments)
        if number:
            told = ctypes.get_errno() or errno.EINVAL if number == -1 else abs(number)
            raise VerbsError(told, named or function, self.device)


class CtypesRegion:
    def __init__(self, verbs: _Library, address: int) -> None:
        self._verbs, self._address = verbs, address
        fields = RegionFields.from_address(address)
        self.lkey, self.rkey = int(fields.lkey), int(fields.rkey)

    def close(self) -> None:
        self._verbs.do("ibv_dereg_mr", self._address)


class CtypesDevice:
    def __init__(self, verbs: _Library) -> None:
        self._verbs = verbs
        self._context = self._open()
        self._domain = verbs.make("ibv_alloc_pd", self._context)

    def _open(self) -> int:
        loaded, name = self._verbs.loaded, self._verbs.device
        count = ctypes.c_int(0)
        start = self._verbs.make("ibv_get_device_list", ctypes.byref(count))
        try:
            for device in (ctypes.c_void_p * count.value).from_address(start):
                if loaded.ibv_get_device_name(device).decode(errors="replace") == name:
                    return self._verbs.make("ibv_open_device", device)
        finally:
            loaded.ibv_free_device_list(start)
        raise VerbsError(errno.ENODEV, "ibv_get_device_list", name)

    @property
    def largest_bytes(self) -> int:
        room = ctypes.create_string_buffer(ROOM_BYTES)
        self._verbs.do("ibv_query_device", self._context, room)
        return int(DeviceAttributes.from_buffer(room).max_mr_size)

    def register(self, address: int, size: int) -> CtypesRegion:
        made = self._verbs.make("ibv_reg_mr", self._domain, address, size, SETUP.access)
        return CtypesRegion(self._verbs, made)

    def port(self, number: int) -> PortFacts:
        room = ctypes.create_string_buffer(ROOM_BYTES)
        self._verbs.do("ibv_query_port", self._context, number, room)
        lid = ctypes.c_uint16.from_buffer(room, LID_OFFSET).value
        return PortFacts(PortAttributes.from_buffer(room).active_mtu, lid)

    def gid(self, port: int, index: int) -> bytes:
        raw = (ctypes.c_uint64 * 2)()
        self._verbs.do("ibv_query_gid", self._context, port, index, raw)
        return bytes(raw)

    def queue_pair(self) -> CtypesQueuePair:
        return CtypesQueuePair(self._verbs, self._context, self._domain)

    def close(self) -> None:
        self._verbs.loaded.ibv_dealloc_pd(self._domain)
        self._verbs.loaded.ibv_close_device(self._context)


class CtypesQueuePair:
    def __init__(self, verbs: _Library, context: int, domain: int) -> None:
        self._verbs, self._context = verbs, context
        self._queue = verbs.make("ibv_create_cq", context, SETUP.completions, None, None, 0)
        wanted = InitAttributes(send_cq=self._queue, recv_cq=self._queue, qp_type=_RC)
        wanted.cap = QueueCapacity(SETUP.send_requests, 1, 1, 1, 0)
        try:
            self._pair = verbs.make("ibv_create_qp", domain, ctypes.byref(wanted))
        except VerbsError:
            verbs.do("ibv_destroy_cq", self._queue)
            raise

    @property
    def number(self) -> int:
        return ctypes.c_uint32.from_address(self._pair + QPN_OFFSET).value

    def initialize(self, port: int) -> None:
        attributes = Attributes(qp_state=_INIT, port_num=port, qp_access_flags=SETUP.access)
        self._modify(attributes, _STATE | _PKEY | _PORT | _ACCESS, "INIT")

    def connect(self, peer: Peer, own_psn: int) -> None:
        ready = Attributes(
            qp_state=_READY_TO_RECEIVE,
            path_mtu=peer.mtu_code,
            dest_qp_num=peer.number,
            rq_psn=peer.psn,
            max_dest_rd_atomic=SETUP.reads,
            min_rnr_timer=SETUP.min_rnr_timer,
        )
        path = ready.ah_attr
        path.dgid[:] = (ctypes.c_uint64 * 2).from_buffer_copy(peer.gid)
        path.sgid_index, path.hop_limit, path.is_global = peer.gid_index, SETUP.hops, 1
        path.dlid, path.port_num = peer.lid, peer.port
        mask = _STATE | _PATH | _MTU | _DEST_QPN | _RQ_PSN | _DEST_READS | _RNR_TIMER
        self._modify(ready, mask, "RTR")
        sending = Attributes(
            qp_state=_READY_TO_SEND,
            sq_psn=own_psn,
            timeout=SETUP.timeout,
            retry_cnt=SETUP.retries,
            rnr_retry=SETUP.rnr_retries,
            max_rd_atomic=SETUP.reads,
        )
        mask = _STATE | _TIMEOUT | _RETRIES | _RNR_RETRY | _SQ_PSN | _READS
        self._modify(sending, mask, "RTS")

    def _modify(self, attributes: Attributes, mask: int, state: str) -> None:
        named = f"ibv_modify_qp to {state}"
        self._verbs.do("ibv_modify_qp", self._pair, ctypes.byref(attributes), mask, named=named)

    def write(self, address: int, size: int, lkey: int, to_address: int, rkey: int) -> None:
        piece = Scatter(address, size, lkey)
        request = WorkRequest(
            sg_list=ctypes.addressof(piece),
            num_sge=1,
            opcode=_WRITE,
            send_flags=_SIGNALED,
            remote_addr=to_address,
            rkey=rkey,
        )
        bad = ctypes.c_void_p()
        pointer = ctypes.c_void_p
        post = self._operation(_POST_SEND, pointer, pointer, pointer)
        number = post(self._pair, ctypes.byref(request), ctypes.byref(bad))
        if number:
            raise VerbsError(abs(number), "ibv_post_send", self._verbs.device)

    def poll(self) -> int | None:
        found = Completion()
        poll = self._operation(_POLL_CQ, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        count = poll(self._queue, 1, ctypes.byref(found))
        if count < 0:
            raise VerbsError(errno.EIO, "ibv_poll_cq", self._verbs.device)
        return int(found.status) if count else None

    def _operation(self, place: int, *arguments: type) -> Callable[..., int]:
        at = self._context + (1 + place) * ctypes.sizeof(ctypes.c_void_p)
        function = ctypes.c_void_p.from_address(at).value
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(function or 0)

    def close(self) -> None:
        self._verbs.do("ibv_destroy_qp", self._pair)
        self._verbs.do("ibv_destroy_cq", self._queue)
