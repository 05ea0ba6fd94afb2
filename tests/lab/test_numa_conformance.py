"""The model's NUMA part against the real library, on a machine with two nodes and RDMA devices.

A guest ran every experiment, and runs the core of them: the tests compare what was measured there
with what the model says.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from checks.hugetlb.fit import Fit
from tests.lab.core import recorded_and_live
from tests.lab.experiments import ALL, Experiment
from tests.lab.measure import Measured
from tests.lab.prediction import judge, predict

pytestmark = pytest.mark.slow

Results = Mapping[str, Measured]


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
