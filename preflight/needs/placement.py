"""Where a launch's memory comes to lie: the NUMA nodes of its NICs, and of each rank.

Each store names devices, and a server's ranks may name one each; ``--nic-numa-nodes``
stands for them all.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from checks.framework.device_nodes import device_numa_nodes, gpu_numa_nodes
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.numa.nodes import numa_nodes, read_allowed
from preflight.base.usage_error import UsageError
from preflight.engines.programs.memory_records import Protocol, StoreClient
from preflight.engines.programs.store_environment import Note

if TYPE_CHECKING:
    from preflight.processes.processes import LaunchProcess


class NicPlacement(NamedTuple):
    """The NUMA nodes of the NICs in use, which decide whether a segment is split.

    Attributes:
        origin: What tells the nodes, in words.
    """

    nodes: tuple[int, ...] | Unknown
    origin: str
    notes: tuple[Note, ...] = ()

    @property
    def listed(self) -> list[int] | None:
        """As it is shown; None if the nodes are not known."""
        return None if isinstance(self.nodes, Unknown) else list(self.nodes)


class RankPlacement(NamedTuple):
    """The NUMA node that each rank's memory is bound to, None if nothing binds it.

    Attributes:
        origin: What tells the nodes, in words.
    """

    nodes: tuple[int | None, ...]
    origin: str
    notes: tuple[Note, ...] = ()


def place_nics(
    protocol: Protocol, stated: tuple[int, ...] | None, device_names: str, root: Root
) -> NicPlacement:
    """Return the NUMA nodes of the store's NICs, with notes for the user.

    Args:
        stated: The nodes of --nic-numa-nodes, or None.
        device_names: The store's device list, with commas; "" and a JSON map mean all NICs.

    Returns:
        () for TCP; Unknown if the NICs cannot be read.
    """
    if protocol is Protocol.TCP:
        return NicPlacement((), "not used with tcp")
    if stated is not None:
        return NicPlacement(stated, "--nic-numa-nodes")
    devices = device_numa_nodes(root)
    if isinstance(devices, Unknown):
        text = f"the NICs cannot be read ({devices.reason}): give --nic-numa-nodes 0,1, or none"
        note = Note("nic-nodes-unknown", text)
        return NicPlacement(devices, f"unknown: {devices.reason}", (note,))
    origin, notes = "this host's RDMA devices", []
    # A JSON map per rank names them all together.
    names = () if device_names.strip().startswith("{") else device_names.split(",")
    wanted = {name.strip() for name in names if name.strip()}
    if wanted and devices:
        missing = sorted(wanted - devices.keys())
        if missing:
            text = f"the launch names {', '.join(missing)}: no such RDMA device on this host"
            notes.append(Note("device-missing", text))
        devices = {name: numa_node for name, numa_node in devices.items() if name in wanted}
        origin = "this host's RDMA devices that the launch names"
    if not devices:
        text = (
            "protocol rdma, and no RDMA device on this host: Mooncake would use TCP without a "
            "message. To size another host, give its --nic-numa-nodes (0,1, or none)"
        )
        notes.append(Note("rdma-without-device", text))
    nodes = sorted({numa_node for numa_node in devices.values() if numa_node is not None})
    return NicPlacement(tuple(nodes), origin, tuple(notes))


def unbound(ranks: int, why: str) -> RankPlacement:
    return RankPlacement((None,) * ranks, f"not bound: {why}")


def given_ranks(ranks: int, nodes: tuple[int, ...]) -> RankPlacement:
    """Place ranks by --rank-numa-nodes; () binds no rank.

    Raises:
        UsageError: On a wrong number.
    """
    if len(nodes) not in (0, ranks):
        count = f"the number of nodes ({len(nodes)}) is not that of the ranks ({ranks})"
        raise UsageError(f"--rank-numa-nodes: {count}: name one for each, or none")
    return RankPlacement(nodes or (None,) * ranks, "--rank-numa-nodes")


def binds_ranks(environment: Mapping[str, str]) -> bool:
    """Return whether SGLANG_AUTO_NUMA_BIND, read since 0.5.18, leaves binding on (the default)."""
    switch = environment.get("SGLANG_AUTO_NUMA_BIND", "1").strip().lower()
    return switch not in ("0", "false", "no", "n")


def place_ranks(
    ranks: int, nics: tuple[int, ...], root: Root, first_gpu: int = 0, leaves_unbound: bool = False
) -> RankPlacement:
    """Return the NUMA node to which SGLang binds each rank's memory: that of its GPU.

    If the GPUs do not tell, the ranks are spread over ``nics``, the nodes of the NICs. With fewer
    than two ``nics`` no rank is bound. A note tells what is assumed.

    SGLang (since 0.5.10) starts each rank under ``numactl --membind`` with the node of its GPU, on
    a host with a second node and numactl (utils/numa_utils.py).

    Args:
        leaves_unbound: A rank whose node the cpuset forbids is not bound.
    """
    gpus = gpu_numa_nodes(root)
    if len(numa_nodes(root)) > 1 and not isinstance(gpus, Unknown):
        nodes = gpus[first_gpu : first_gpu + ranks]
        if len(nodes) == ranks and None not in nodes:
            mems = read_allowed(root).mems if leaves_unbound else Unknown("not asked")
            if not isinstance(mems, Unknown) and not set(mems).issuperset(nodes):
                nodes = tuple(numa_node if numa_node in mems else None for numa_node in nodes)
            return RankPlacement(nodes, "this host's GPUs, to whose nodes SGLang binds each rank")
    if len(nics) < 2 and isinstance(gpus, Unknown):
        text = f"which nodes SGLang binds the ranks to is not known ({gpus.reason})"
        text += ", so they are taken to be bound to none; say --rank-numa-nodes"
        placed = unbound(ranks, "its GPUs cannot be read")
    elif len(nics) < 2:
        return unbound(ranks, "one NUMA node, or no GPU that names one")
    else:
        spread = tuple(nics[rank * len(nics) // ranks] for rank in range(ranks))
        text = f"ranks are taken to be bound to nodes {','.join(map(str, spread))}, in order, "
        text += "as SGLang binds them to their GPUs' nodes; say --rank-numa-nodes if that differs"
        placed = RankPlacement(spread, "assumed: spread evenly over the NICs' nodes")
    return placed._replace(notes=(Note("rank-nodes-assumed", text),))


class ClientNics:
    """Places the NICs of store clients, and keeps the placement of each list of devices that a
    client names.

    Args:
        stated: The nodes of --nic-numa-nodes, or None.
    """

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
        """Why the nodes of some client's NICs are not known; None if all are."""
        every = [placed.nodes for placed in self._placed.values()]
        return next((nodes for nodes in every if isinstance(nodes, Unknown)), None)

    def place(self, process: "LaunchProcess", client: StoreClient, rank: int = 0) -> StoreClient:
        """Return ``client`` with its NICs' nodes, if they differ from the first client's.

        It is unchanged without RDMA, or if the nodes are not known.

        Args:
            rank: Its number, 0 without ranks.
        """
        if client.protocol is not Protocol.RDMA:
            return client
        from preflight.processes.mooncake_users import store_devices

        use = store_devices(process, rank)
        named = () if use is None or isinstance(use.devices, Unknown) else use.devices
        text = ",".join(named)
        if text not in self._placed:
            self._placed[text] = place_nics(client.protocol, self._stated, text, self._root)
        nodes = self._placed[text].nodes
        if isinstance(nodes, Unknown) or nodes == self.first.nodes:
            return client
        return client._replace(nic_nodes=nodes)
