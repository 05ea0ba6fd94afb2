"""The NUMA nodes of the NICs that each store client of a launch uses.

Every store names its own devices, and a server's ranks may name one each; ``--nic-numa-nodes``
stands for them all.
"""

from __future__ import annotations

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.mooncake.placement import NicPlacement, place_nics
from preflight.processes.processes import LaunchProcess
from preflight.processes.rank_devices import store_devices
from preflight.programs.memory_records import Protocol, StoreClient


class ClientNics:
    """Placements by the devices that are named, each read once; the first is the launch's own."""

    def __init__(self, root: Root, stated: tuple[int, ...] | None) -> None:
        self._root = root
        self._stated = stated
        self._placed: dict[str, NicPlacement] = {}

    @property
    def first(self) -> NicPlacement:
        """The NICs of the first client that uses RDMA; those of the launch as a whole."""
        return next(iter(self._placed.values()), NicPlacement((), "no process uses RDMA"))

    @property
    def every(self) -> tuple[NicPlacement, ...]:
        return tuple(self._placed.values())

    @property
    def unknown(self) -> Unknown | None:
        """Why the nodes of some client's NICs are not known; None where all are."""
        every = [placed.nodes for placed in self._placed.values()]
        return next((nodes for nodes in every if isinstance(nodes, Unknown)), None)

    def place(self, process: LaunchProcess, client: StoreClient, rank: int = 0) -> StoreClient:
        """``client`` with the nodes of its own NICs, where they are not the launch's."""
        if client.protocol is not Protocol.RDMA:
            return client
        use = store_devices(process, rank)
        named = () if use is None or isinstance(use.devices, Unknown) else use.devices
        text = ",".join(named)
        if text not in self._placed:
            self._placed[text] = place_nics(client.protocol, self._stated, text, self._root)
        nodes = self._placed[text].nodes
        if isinstance(nodes, Unknown) or nodes == self.first.nodes:
            return client
        return client._replace(nic_nodes=nodes)
