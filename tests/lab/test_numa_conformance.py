"""The model's NUMA part against the real library, on a machine with two nodes and RDMA devices.

A guest ran every experiment, and runs the core of them: the tests compare what was measured there
with what the model says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from checks.framework.pages import Spot
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Fit, FitVerdict, Stock, judge_fit
from checks.releases.mooncake import mooncake_release
from preflight.engines.mooncake.allocations import StockedPools
from preflight.engines.mooncake.replay import ProcessReplay, hugetlb_usages, pages_by_spot, replay
from preflight.engines.programs.memory_records import Launch, MappedProcess, Protocol, StoreClient
from preflight.engines.programs.store_environment import read_store_settings
from tests.lab.core import recorded_and_live
from tests.lab.experiments import ALL, MIB, Experiment
from tests.lab.measure import Measured

pytestmark = pytest.mark.slow

PAGE = 2 * MIB
Results = Mapping[str, Measured]


@dataclass(frozen=True)
class Prediction:
    """said: the beginning of what each process says, up to the first that fails. pages: bound to
    node 0, bound to node 1, and bound to neither, in the processes that live."""

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


@recorded_and_live("experiment", [each for each in ALL if not each.at_once], xfail="disagrees")
def test_pages_and_errors_are_those_predicted(experiment: Experiment, measured: Results) -> None:
    found, predicted = measured[experiment.id], predict(experiment)
    assert len(found.said) == len(predicted.said), found
    for said, expected in zip(found.said, predicted.said, strict=True):
        assert said.startswith(expected), found
    on_0, on_1, anywhere = predicted.pages
    assert sum(found.pages) == on_0 + on_1 + anywhere, found
    assert found.pages[0] >= on_0, found
    assert found.pages[1] >= on_1, found
    assert experiment.recorded in (None, found.pages)


@recorded_and_live("experiment", ALL)
def test_the_verdict_is_a_promise(experiment: Experiment, measured: Results) -> None:
    found, verdict = measured[experiment.id], judge(experiment)
    started = all(said == "ok" for said in found.said)
    if verdict.fit in (Fit.FITS, Fit.FALLS_BACK):
        assert started, found
    if verdict.fit is Fit.FITS:
        for node, pages in enumerate(found.pages):
            bound = [spot for spot in verdict.needs if spot.node == node]
            assert not bound or pages <= verdict.needs[bound[0]], (found, verdict)
        assert sum(found.pages) <= sum(
            pages for spot, pages in verdict.needs.items() if spot.node is None
        )
    if not started:
        assert verdict.fit in (Fit.FAILS, Fit.UNKNOWN), (found, verdict)


# One bound process leaves nothing to chance: the verdict is that it starts just where it does. A
# hot cache is another matter: with 10 free pages it is dropped, with 20 it starves what follows.
@recorded_and_live(
    "experiment",
    [
        experiment
        for experiment in ALL
        if len(experiment.bound) == 1
        and experiment.bound != (None,)
        and not experiment.overcommit
        and not experiment.hot_cache_bytes
    ],
)
def test_the_verdict_on_a_bound_process_is_exact(experiment: Experiment, measured: Results) -> None:
    started = measured[experiment.id].said == ("ok",)
    assert (judge(experiment).fit is not Fit.FAILS) == started
