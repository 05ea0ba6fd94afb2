"""Shares of one mapping are told by what made them, not by how alike their neighbours are."""

from __future__ import annotations

from checks.base.needs import MemoryKind
from checks.releases.mooncake import mooncake_release
from preflight.mooncake.allocations import mappings
from preflight.mooncake.replay import asked_for
from preflight.programs.memory_records import (
    Launch,
    MappedProcess,
    Protocol,
    StoreClient,
    StoreSettings,
)
from tests.builders.hosts import GIB, MIB


def test_two_segments_on_other_nodes_are_two_mappings() -> None:
    """Both are split into shares of one size, one behind the other: no local buffer between."""
    clients = tuple(
        StoreClient(GIB, 0, Protocol.RDMA, nic_nodes=nodes) for nodes in ((0, 1), (2, 3))
    )
    process = MappedProcess("rank 0", StoreSettings(True, 2 * MIB), clients=clients)
    launch = Launch((process,), mooncake_release("0.3.12"), (0, 1))
    (replay,) = asked_for(launch)
    segments = [
        [share.node for share in shares]
        for shares in mappings(replay.allocations)
        if shares[0].what is MemoryKind.SEGMENT
    ]
    assert segments == [[0, 1], [2, 3]]
