"""RDMA objects through the ``ibverbs`` wheel, which loads libibverbs itself and needs no other."""

from __future__ import annotations

import errno

import ibverbs

from preflight.verbs.objects import SETUP, Peer, PortFacts, VerbsError, named


def open_device(name: str) -> IbverbsDevice:
    """Open a device. Raises VerbsError."""
    with named("ibv_get_device_list", name, ibverbs.VerbsError):
        found = [device for device in ibverbs.get_device_list() if device.name == name]
    if not found:
        raise VerbsError(errno.ENODEV, "ibv_get_device_list", name)
    return IbverbsDevice(name, found[0])


class IbverbsDevice:
    def __init__(self, name: str, device: ibverbs.Device) -> None:
        self._name = name
        with named("ibv_open_device", name, ibverbs.VerbsError):
            self._context = device.open()
        with named("ibv_alloc_pd", name, ibverbs.VerbsError):
            self._domain = self._context.alloc_pd()

    @property
    def largest_bytes(self) -> int:
        with named("ibv_query_device", self._name, ibverbs.VerbsError):
            return int(self._context.query_device().max_mr_size)

    def register(self, address: int, size: int) -> ibverbs.MR:
        with named("ibv_reg_mr", self._name, ibverbs.VerbsError):
            return self._domain.reg_mr(address, size, SETUP.access)

    def port(self, number: int) -> PortFacts:
        with named("ibv_query_port", self._name, ibverbs.VerbsError):
            facts = self._context.query_port(number)
            return PortFacts(int(facts.active_mtu), facts.lid)

    def gid(self, port: int, index: int) -> bytes:
        with named("ibv_query_gid", self._name, ibverbs.VerbsError):
            return bytes(self._context.query_gid(port, index).raw)

    def queue_pair(self) -> IbverbsQueuePair:
        return IbverbsQueuePair(self._name, self._context, self._domain)

    def close(self) -> None:
        self._domain.close()
        self._context.close()


class IbverbsQueuePair:
    def __init__(self, name: str, context: ibverbs.Context, domain: ibverbs.PD) -> None:
        self._name = name
        with named("ibv_create_cq", name, ibverbs.VerbsError):
            self._queue = context.create_cq(SETUP.completions)
        wanted = ibverbs.QPInitAttr(self._queue, self._queue, max_send_wr=SETUP.send_requests)
        with named("ibv_create_qp", name, ibverbs.VerbsError):
            self._pair = domain.create_qp(wanted)

    @property
    def number(self) -> int:
        return int(self._pair.qp_num)

    def initialize(self, port: int) -> None:
        with named("ibv_modify_qp to INIT", self._name, ibverbs.VerbsError):
            self._pair.to_init(port, SETUP.access)

    def connect(self, peer: Peer, own_psn: int) -> None:
        other = ibverbs.QPInfo(peer.number, peer.psn, peer.lid, peer.gid, peer.port, peer.mtu_code)
        with named("ibv_modify_qp to RTR", self._name, ibverbs.VerbsError):
            self._pair.to_rtr(
                other,
                peer.gid_index,
                peer.mtu_code,
                hop_limit=SETUP.hops,
                min_rnr_timer=SETUP.min_rnr_timer,
                max_dest_rd_atomic=SETUP.reads,
            )
        with named("ibv_modify_qp to RTS", self._name, ibverbs.VerbsError):
            self._pair.to_rts(own_psn, SETUP.timeout, SETUP.retries, SETUP.rnr_retries, SETUP.reads)

    def write(self, address: int, size: int, lkey: int, to_address: int, rkey: int) -> None:
        request = ibverbs.SendWR(
            sg_list=[ibverbs.SGE(address, size, lkey)],
            opcode=ibverbs.WROpcode.RDMA_WRITE,
            send_flags=ibverbs.SendFlags.SIGNALED,
            remote_addr=to_address,
            rkey=rkey,
        )
        with named("ibv_post_send", self._name, ibverbs.VerbsError):
            self._pair.post_send(request)

    def poll(self) -> int | None:
        with named("ibv_poll_cq", self._name, ibverbs.VerbsError):
            return next((int(found.status) for found in self._queue.poll(1)), None)

    def close(self) -> None:
        self._pair.close()
        self._queue.close()
