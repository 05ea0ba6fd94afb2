"""What the model says of an experiment: what each process takes and says, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from checks.base.pages import Spot
from checks.base.unknown import Unknown
from checks.hugetlb.fit import FitVerdict, Stock, judge_fit
from checks.releases.mooncake import mooncake_release
from preflight.mooncake.allocations import StockedPools
from preflight.mooncake.replay import ProcessReplay, hugetlb_usages, pages_by_spot, replay
from preflight.programs.memory_records import Launch, MappedProcess, Protocol, StoreClient
from preflight.programs.store_environment import read_store_settings
from tests.lab.experiments import MIB, Experiment

PAGE = 2 * MIB


@dataclass(frozen=True)
class Prediction:
    """said: the beginning of what each process says, up to the first that fails.

    pages: bound to node 0, bound to node 1, and bound to neither, in the processes that live.
    """

    said: tuple[str, ...]
    pages: tuple[int, int, int]


def predict(experiment: Experiment) -> Prediction:
    first, second = experiment.pools
    pools = StockedPools(
        {
            Spot(PAGE, None): first + second + experiment.overcommit,
            Spot(PAGE, 0): first + experiment.overcommit,
            Spot(PAGE, 1): second + experiment.overcommit,
        }
    )
    said: list[str] = []
    taken: dict[Spot, int] = {}
    for process in replay(_launch(experiment), pools):
        said.append(_says(process))
        if said[-1] != BUS_ERROR:
            for spot, pages in pages_by_spot(process.allocations).items():
                taken[spot] = taken.get(spot, 0) + pages
        if process.failure:
            break
    on_0, on_1, anywhere = (taken.get(Spot(PAGE, node), 0) for node in (0, 1, None))
    return Prediction(tuple(said), (on_0, on_1, anywhere))


BUS_ERROR = "exit -7"


def _says(process: ProcessReplay) -> str:
    if process.failure is None:
        return "ok"
    error = process.failure.error
    if error.startswith("SIGBUS"):
        return BUS_ERROR
    if "returns" in error:
        return error.split()[2].rstrip(":")
    return error.removeprefix("setup raises ")


def judge(experiment: Experiment) -> FitVerdict:
    first, second = experiment.pools
    total, more = first + second + experiment.overcommit, experiment.overcommit
    stock: dict[Spot, Stock | Unknown] = {
        Spot(PAGE, None): Stock(total, total),
        Spot(PAGE, 0): Stock(first, first + more),
        Spot(PAGE, 1): Stock(second, second + more),
    }
    return judge_fit(hugetlb_usages(_launch(experiment)), stock)


def _launch(experiment: Experiment) -> Launch:
    mooncake = mooncake_release(experiment.release)
    settings, _notes = read_store_settings(experiment.environment(), mooncake)
    client = StoreClient(
        experiment.segment_bytes, experiment.local_bytes, Protocol(experiment.protocol)
    )
    clients = (client,) if experiment.segment_bytes or experiment.local_bytes else ()
    processes = tuple(
        MappedProcess(f"rank {number}", settings, experiment.host_pools_bytes, clients, node)
        for number, node in enumerate(experiment.bound)
    )
    return Launch(processes, mooncake, tuple(sorted(set(experiment.nic_nodes))))
