"""RDMA objects through pyverbs, rdma-core's own binding."""

from __future__ import annotations

import errno
from typing import Any

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from preflight.verbs.objects import SETUP, Peer, PortFacts, VerbsError, named


def open_device(name: str) -> PyverbsDevice:
    """Open a device. Raises VerbsError."""
    with named("ibv_get_device_list", name, PyverbsError):
        names = [device.name.decode(errors="replace") for device in get_device_list()]
    if name not in names:
        raise VerbsError(errno.ENODEV, "ibv_get_device_list", name)
    return PyverbsDevice(name)


class PyverbsDevice:
    def __init__(self, name: str) -> None:
        self._name = name
        with named("ibv_open_device", name, PyverbsError):
            self._context = Context(name=name)
        with named("ibv_alloc_pd", name, PyverbsError):
            self._domain = PD(self._context)

    @property
    def largest_bytes(self) -> int:
        with named("ibv_query_device", self._name, PyverbsError):
            return int(self._context.query_device().max_mr_size)

    def register(self, address: int, size: int) -> Any:
        with named("ibv_reg_mr", self._name, PyverbsError):
            return MR(self._domain, size, SETUP.access, address)

    def port(self, number: int) -> PortFacts:
        with named("ibv_query_port", self._name, PyverbsError):
            facts = self._context.query_port(number)
            return PortFacts(facts.active_mtu, facts.lid)

    def gid(self, port: int, index: int) -> bytes:
        with named("ibv_query_gid", self._name, PyverbsError):
            return bytes.fromhex(self._context.query_gid(port, index).gid.replace(":", ""))

    def queue_pair(self) -> PyverbsQueuePair:
        return PyverbsQueuePair(self._name, self._context, self._domain)

    def close(self) -> None:
        self._domain.close()
        self._context.close()


class PyverbsQueuePair:
    def __init__(self, name: str, context: Context, domain: PD) -> None:
        self._name = name
        with named("ibv_create_cq", name, PyverbsError):
            self._queue = CQ(context, SETUP.completions)
        capacity = QPCap(
            max_send_wr=SETUP.send_requests, max_recv_wr=1, max_send_sge=1, max_recv_sge=1
        )
        wanted = QPInitAttr(enums.IBV_QPT_RC, scq=self._queue, rcq=self._queue, cap=capacity)
        with named("ibv_create_qp", name, PyverbsError):
            self._pair = QP(domain, wanted)

    @property
    def number(self) -> int:
        return int(self._pair.qp_num)

    def initialize(self, port: int) -> None:
        attributes = QPAttr(qp_state=enums.IBV_QPS_INIT, port_num=port)
        attributes.qp_access_flags = SETUP.access
        mask = enums.IBV_QP_STATE | enums.IBV_QP_PKEY_INDEX | enums.IBV_QP_PORT
        self._modify(attributes, mask | enums.IBV_QP_ACCESS_FLAGS, "INIT")

    def connect(self, peer: Peer, own_psn: int) -> None:
        dgid = ":".join(peer.gid.hex()[at : at + 4] for at in range(0, 32, 4))
        route = GlobalRoute(dgid=GID(dgid), sgid_index=peer.gid_index, hop_limit=SETUP.hops)
        path = AHAttr(dlid=peer.lid, port_num=peer.port, is_global=1, gr=route)
        ready = QPAttr(qp_state=enums.IBV_QPS_RTR, path_mtu=peer.mtu_code)
        ready.dest_qp_num, ready.rq_psn, ready.ah_attr = peer.number, peer.psn, path
        ready.max_dest_rd_atomic, ready.min_rnr_timer = SETUP.reads, SETUP.min_rnr_timer
        mask = enums.IBV_QP_STATE | enums.IBV_QP_AV | enums.IBV_QP_PATH_MTU
        mask |= enums.IBV_QP_DEST_QPN | enums.IBV_QP_RQ_PSN
        mask |= enums.IBV_QP_MAX_DEST_RD_ATOMIC | enums.IBV_QP_MIN_RNR_TIMER
        self._modify(ready, mask, "RTR")
        sending = QPAttr(qp_state=enums.IBV_QPS_RTS)
        sending.sq_psn, sending.timeout, sending.retry_cnt = own_psn, SETUP.timeout, SETUP.retries
        sending.rnr_retry, sending.max_rd_atomic = SETUP.rnr_retries, SETUP.reads
        mask = enums.IBV_QP_STATE | enums.IBV_QP_TIMEOUT | enums.IBV_QP_RETRY_CNT
        mask |= enums.IBV_QP_RNR_RETRY | enums.IBV_QP_SQ_PSN | enums.IBV_QP_MAX_QP_RD_ATOMIC
        self._modify(sending, mask, "RTS")

    def _modify(self, attributes: QPAttr, mask: int, state: str) -> None:
        with named(f"ibv_modify_qp to {state}", self._name, PyverbsError):
            self._pair.modify(attributes, mask)

    def write(self, address: int, size: int, lkey: int, to_address: int, rkey: int) -> None:
        pieces = [SGE(address, size, lkey)]
        request = SendWR(opcode=enums.IBV_WR_RDMA_WRITE, num_sge=1, sg=pieces)
        request.set_wr_rdma(rkey, to_address)
        with named("ibv_post_send", self._name, PyverbsError):
            self._pair.post_send(request)

    def poll(self) -> int | None:
        with named("ibv_poll_cq", self._name, PyverbsError):
            count, found = self._queue.poll(1)
        return int(found[0].status) if count else None

    def close(self) -> None:
        self._pair.close()
        self._queue.close()
