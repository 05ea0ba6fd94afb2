"""How a server's ranks come to be, and which of them run on this host."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.processes.processes import SglangServer
from preflight.sglang.admission_gate import ranks_per_host


class Ranks(NamedTuple):
    """One process each, ``here`` of them on this host: node ``node_rank`` of ``nnodes``."""

    tp: int
    pp: int
    replicas: int
    attention_dp: int
    here: int
    nnodes: int = 1
    node_rank: int = 0

    @property
    def sharing(self) -> int:
        """The ranks among which SGLang divides this host's memory."""
        return ranks_per_host(self.tp, self.pp, self.nnodes)

    def store_rank(self, index: int) -> int:
        """The rank within its attention group of this host's ``index``-th process.

        Mooncake's store looks up a list of devices by it (mooncake_store.py).
        """
        each = max(1, self.tp * self.pp // self.nnodes)
        tp_rank = (self.node_rank * each + index % each) % self.tp
        return tp_rank % max(1, self.tp // self.attention_dp)


def server_ranks(server: SglangServer) -> Ranks | Unknown:
    """The ranks of ``server``; Unknown where a variable decides their number."""
    numbers = [
        server.number("tp_size"),
        server.number("pp_size"),
        server.replicas,
        server.attention_dp,
        server.number("nnodes"),
    ]
    known: list[int] = []
    for number in numbers:
        if isinstance(number, Unknown):
            return number
        known.append(number)
    tp, pp, replicas, attention_dp, nodes = known
    if min(known) < 1:
        return Unknown("tp, pp, dp and nnodes must be 1 or more")
    here = max(1, tp * pp * replicas // nodes)
    node_rank = server.value("node_rank")
    own = node_rank if isinstance(node_rank, int) else 0
    return Ranks(tp, pp, replicas, attention_dp, here, nodes, max(0, own))
