"""Which memory of a rank another process registers: its ``mooncake_client`` in standalone storage.

A rank with a dummy client hands its shared memories to the client that it is told, which registers
them with its own NICs and pins them under its own limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checks.base.pages import MemoryKind
from preflight.mooncake.allocations import Allocation
from preflight.mooncake.replay import ProcessReplay
from preflight.processes.ports import ports
from preflight.processes.processes import LaunchProcess, ProcessKind
from preflight.processes.services import services
from preflight.programs.memory_records import Protocol

_HANDED = (MemoryKind.HOST_POOL, MemoryKind.LOCAL_BUFFER)


def handed_over(replay: ProcessReplay) -> tuple[Allocation, ...]:
    """Return what a process maps and another registers: all of it that a dummy client uses."""
    if not any(client.dummy for client in replay.process.clients):
        return ()
    return tuple(one for one in replay.allocations if one.what in _HANDED)


def registers_for(
    processes: Sequence[LaunchProcess], replays: Mapping[int, Sequence[ProcessReplay]]
) -> dict[int, int]:
    """Return the number of the client that registers for each process that hands memory over.

    It is the one at the port that the process is told, or the only one; one without RDMA registers
    nothing. Where the launch starts none, another launch's does.
    """
    clients = {
        port.port: process
        for process in processes
        if process.kind is ProcessKind.CLIENT
        for port in ports(process)
        if port.what == "service port"
    }
    only = next(iter(clients.values())) if len(clients) == 1 else None
    found: dict[int, int] = {}
    for process in processes:
        told = next((one for one in services((process,)) if one.kind == "client"), None)
        client = None if told is None else clients.get(told.port or 0, only)
        stores = () if client is None else replays.get(client.number, ())
        if client is not None and any(
            one.protocol is Protocol.RDMA for each in stores for one in each.process.clients
        ):
            found[process.number] = client.number
    return found
