"""What a connection needs of ``infiniband/verbs.h``: structures that only grow at their ends."""

from __future__ import annotations

import ctypes

from checks.rdma.libibverbs import PortAttributes

# struct ibv_qp: six pointers and the handle stand before it.
QPN_OFFSET = 6 * ctypes.sizeof(ctypes.c_void_p) + 4
# struct ibv_port_attr: the LID is next to the last field that is bound, with no padding.
LID_OFFSET = PortAttributes.pkey_tbl_len.offset + PortAttributes.pkey_tbl_len.size


class Capacity(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint32)
        for name in ("send_wr", "recv_wr", "send_sge", "recv_sge", "inline_bytes")
    )


class InitAttributes(ctypes.Structure):
    _fields_ = (
        ("qp_context", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("srq", ctypes.c_void_p),
        ("cap", Capacity),
        ("qp_type", ctypes.c_int),
        ("sq_sig_all", ctypes.c_int),
        ("room", ctypes.c_char * 64),
    )


class Path(ctypes.Structure):
    """struct ibv_ah_attr; the GID counts as 64-bit words there."""

    _fields_ = (
        ("dgid", ctypes.c_uint64 * 2),
        ("flow_label", ctypes.c_uint32),
        ("sgid_index", ctypes.c_uint8),
        ("hop_limit", ctypes.c_uint8),
        ("traffic_class", ctypes.c_uint8),
        ("dlid", ctypes.c_uint16),
        ("sl", ctypes.c_uint8),
        ("src_path_bits", ctypes.c_uint8),
        ("static_rate", ctypes.c_uint8),
        ("is_global", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
    )


class Attributes(ctypes.Structure):
    """struct ibv_qp_attr."""

    _fields_ = (
        ("qp_state", ctypes.c_int),
        ("cur_qp_state", ctypes.c_int),
        ("path_mtu", ctypes.c_int),
        ("path_mig_state", ctypes.c_int),
        ("qkey", ctypes.c_uint32),
        ("rq_psn", ctypes.c_uint32),
        ("sq_psn", ctypes.c_uint32),
        ("dest_qp_num", ctypes.c_uint32),
        ("qp_access_flags", ctypes.c_uint),
        ("cap", Capacity),
        ("ah_attr", Path),
        ("alt_ah_attr", Path),
        ("pkey_index", ctypes.c_uint16),
        ("alt_pkey_index", ctypes.c_uint16),
        ("en_sqd_async_notify", ctypes.c_uint8),
        ("sq_draining", ctypes.c_uint8),
        ("max_rd_atomic", ctypes.c_uint8),
        ("max_dest_rd_atomic", ctypes.c_uint8),
        ("min_rnr_timer", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
        ("timeout", ctypes.c_uint8),
        ("retry_cnt", ctypes.c_uint8),
        ("rnr_retry", ctypes.c_uint8),
        ("alt_port_num", ctypes.c_uint8),
        ("alt_timeout", ctypes.c_uint8),
        ("rate_limit", ctypes.c_uint32),
        ("room", ctypes.c_char * 64),
    )


class Region(ctypes.Structure):
    """The beginning of struct ibv_mr."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("pd", ctypes.c_void_p),
        ("addr", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("handle", ctypes.c_uint32),
        ("lkey", ctypes.c_uint32),
        ("rkey", ctypes.c_uint32),
    )


class Scatter(ctypes.Structure):
    _fields_ = (("addr", ctypes.c_uint64), ("length", ctypes.c_uint32), ("lkey", ctypes.c_uint32))


class Request(ctypes.Structure):
    """struct ibv_send_wr, as a write to the other side's memory."""

    _fields_ = (
        ("wr_id", ctypes.c_uint64),
        ("next", ctypes.c_void_p),
        ("sg_list", ctypes.c_void_p),
        ("num_sge", ctypes.c_int),
        ("opcode", ctypes.c_int),
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
