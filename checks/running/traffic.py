"""Bytes that went through the ports that a process uses, by the kernel's counters."""

from collections.abc import Iterable
from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown
from checks.base.written_numbers import kernel_count

# counters/port_rcv_data and port_xmit_data are in 32-bit words (IBTA, PortCounters).
_WORD_BYTES = 4


class Traffic(NamedTuple):
    """Bytes since the port came up."""

    received: int
    sent: int


@or_unknown
def read_traffic(
    root: Root, pid: int, verbs_devices: Iterable[str]
) -> dict[str, Traffic | Unknown] | Unknown:
    """Return the counters of each port: of RDMA devices, and of interfaces of its namespace.

    verbs_devices: the files that it has open, as uverbs0. What goes by RDMA is in no counter of an
    interface.
    """
    ports: dict[str, Traffic | Unknown] = {}
    for file in verbs_devices:
        device = known(root.text(f"/sys/class/infiniband_verbs/{file}/ibdev")).strip()
        folder = f"/sys/class/infiniband/{device}/ports"
        for port in known(root.names(folder)):
            ports[f"rdma {device} port {port}"] = _port(root, f"{folder}/{port}/counters")
    for line in known(root.text(f"/proc/{pid}/net/dev")).splitlines():
        interface, colon, numbers = line.partition(":")
        counts = [kernel_count(number) for number in numbers.split()]
        if colon and len(counts) >= 9 and counts[0] is not None and counts[8] is not None:
            ports[interface.strip()] = Traffic(counts[0], counts[8])
    return ports


@or_unknown
def _port(root: Root, folder: str) -> Traffic | Unknown:
    words = (known(root.count(f"{folder}/{name}")) for name in ("port_rcv_data", "port_xmit_data"))
    return Traffic(*(count * _WORD_BYTES for count in words))
