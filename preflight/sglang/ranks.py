"""A server's ranks on one host, and what they certainly write to /dev/shm.

The first rank of a tensor-parallel group makes a ring buffer there (24 MiB, a sparse file), and
zeroes the flags at its end: one page. What else lies there depends on what only a start tells: the
ring's chunks on what is sent, NCCL's segments on which GPUs reach each other, torch's on the model.
Host pools do not: they are memfd or anonymous memory. Source: shm_broadcast.py ShmRingBuffer and
parallel_state.py, 0.5.2 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        """Return the rank within its attention group of this host's ``index``-th process.

        Mooncake's store looks up a list of devices by it (mooncake_store.py).
        """
        each = max(1, self.tp * self.pp // self.nnodes)
        tp_rank = (self.node_rank * each + index % each) % self.tp
        return tp_rank % max(1, self.tp // self.attention_dp)


def server_ranks(server: SglangServer) -> Ranks | Unknown:
    """Return the ranks of ``server``; Unknown where a variable decides their number."""
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


# A tmpfs gives out pages of the kernel's size, the smallest of which this is.
PAGE_BYTES = 4096
_SWITCH = "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"
# True to every release: environ.py EnvBool, and before 0.5.11 get_bool_env_var, which takes no
# other word. Where it is on for newer ones alone, less is counted than is written.
_ON = ("true", "1")


def least_shm_bytes(ranks: Ranks, environment: Mapping[str, str]) -> int:
    """Bytes that the server's first rank on this host writes to /dev/shm, at least."""
    alone = ranks.tp < 2 or ranks.here < 2 or ranks.node_rank != 0
    on = environment.get(_SWITCH, "true").lower() in _ON
    return PAGE_BYTES if on and not alone else 0
