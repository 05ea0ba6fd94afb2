"""What the model says of a case: the same path that the command takes, environment included."""

from __future__ import annotations

from dataclasses import dataclass

from checks.framework.pages import Spot
from checks.releases.mooncake import mooncake_release
from preflight.engines.mooncake.allocations import StockedPools
from preflight.engines.mooncake.replay import pages_by_spot, replay
from preflight.engines.programs.memory_records import Launch, MappedProcess, Protocol, StoreClient
from preflight.engines.programs.store_environment import read_store_settings
from tests.real.cases import GIB, MIB, Case


@dataclass(frozen=True)
class Prediction:
    pages_2m: int
    pages_1g: int
    error: str


def predict(case: Case, version: str) -> Prediction:
    mooncake = mooncake_release(version)
    settings, _notes = read_store_settings(case.environment, mooncake)
    clients = tuple(
        StoreClient(
            client.segment_bytes,
            client.local_buffer_bytes,
            Protocol(client.protocol),
            client.offload_buffer_bytes,
        )
        for client in case.clients
    )
    launch = Launch((MappedProcess("process", settings, case.host_pools_bytes, clients),), mooncake)
    pools = StockedPools(
        {Spot(2 * MIB, None): case.pages_2m + case.overcommit_2m, Spot(GIB, None): case.pages_1g}
    )
    (process,) = replay(launch, pools)
    pages = pages_by_spot(process.allocations)
    failure = process.failure
    return Prediction(
        pages.get(Spot(2 * MIB, None), 0),
        pages.get(Spot(GIB, None), 0),
        failure.error if failure else "",
    )
