"""Hosts on which Mooncake's rule for the NICs of a GPU and PCI disagree, and random ones."""

import random
from dataclasses import replace

from tests.builders.synthetic import SyntheticHost, gpu_host
from tests.builders.synthetic_devices import Gpu, Nic


def behind(root: str, *bridges: str) -> tuple[str, ...]:
    """The parents of a function: ``behind("10", "10:01", "11:00")``."""
    return (f"pci0000:{root}", *(f"0000:{bridge}.0" for bridge in bridges))


def nic(number: int, address: str, parents: tuple[str, ...], node: int | None) -> Nic:
    name, ip = f"mlx5_{number}", f"10.0.0.{number + 1}"
    return Nic(name, f"0000:{address}.0", parents, node, ip, number)


def gpu(address: str, parents: tuple[str, ...], node: int | None) -> Gpu:
    return Gpu(f"0000:{address}.0", parents, node)


def shallow_on_the_other_socket() -> SyntheticHost:
    """GPU and mlx5_0 behind switches of node 0; mlx5_1 on a root port of node 1, so fewer steps."""
    return SyntheticHost(
        gpus=[gpu("13:00", behind("10", "10:01", "11:00", "12:00"), 0)],
        nics=[
            nic(0, "23:00", behind("20", "20:01", "21:00", "22:00"), 0),
            nic(1, "81:00", behind("80", "80:01"), 1),
        ],
        nodes=2,
    )


def integrated_beside_switches() -> SyntheticHost:
    """mlx5_0 shares a switch with the GPU two levels up; mlx5_1 is on the root bus itself."""
    cascade = ("10:01", "11:00", "12:00")
    return SyntheticHost(
        gpus=[gpu("15:00", behind("10", *cascade, "13:00", "14:00"), 0)],
        nics=[
            nic(0, "18:00", behind("10", "10:01", "11:00", "12:01", "16:00", "17:00"), 0),
            nic(1, "10:1f", behind("10"), 0),
        ],
        nodes=2,
    )


def no_nodes_named() -> SyntheticHost:
    """As firmware without an affinity table shows the machine of ``gpu_host``."""
    host = gpu_host()
    return replace(
        host,
        gpus=[gpu._replace(node=None) for gpu in host.gpus],
        nics=[nic._replace(node=None) for nic in host.nics],
    )


def one_nic_without_node() -> SyntheticHost:
    """The last NIC names none, all others do."""
    host = gpu_host()
    *others, last = host.nics
    return replace(host, nics=[*others, last._replace(node=None)])


def random_host(seed: int) -> SyntheticHost:
    """GPUs and NICs on random trees of bridges, on up to three nodes or none."""
    chance = random.Random(seed)
    nodes = chance.choice((1, 2, 2, 3))
    bridges: list[tuple[tuple[str, ...], int | None]] = []
    for number in range(chance.randint(1, 4)):
        node = chance.choice((*range(nodes), *range(nodes), None))
        root = f"{number * 0x40:02x}"
        bridges.append((behind(root), node))
        for below in range(chance.randint(0, 6)):
            parents, at = chance.choice([one for one in bridges if one[0][0] == f"pci0000:{root}"])
            address = f"0000:{number * 0x40 + len(parents):02x}:{below + 1:02x}.0"
            bridges.append(((*parents, address), at))
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    for number in range(chance.randint(2, 12)):
        parents, node = chance.choice(bridges)
        address = f"{0x10 + number:02x}:{chance.randint(16, 31):02x}"
        if chance.random() < 0.5:
            gpus.append(gpu(address, parents, node))
        else:
            nics.append(nic(len(nics), address, parents, node))
    return SyntheticHost(gpus=gpus, nics=nics, nodes=nodes)


NAMED = {
    "8 GPUs and 8 NICs": gpu_host,
    "no nodes named": no_nodes_named,
    "one NIC without node": one_nic_without_node,
    "shallow on the other socket": shallow_on_the_other_socket,
    "integrated beside switches": integrated_beside_switches,
}
