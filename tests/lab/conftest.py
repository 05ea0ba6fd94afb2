"""The guests: all that tests ask for live, each kind in one boot; and the records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import why_not as why_no_container
from tests.lab.contained import run_containers
from tests.lab.engines import SECONDS_EACH as SECONDS_EACH_ENGINE
from tests.lab.engines import Engine, engines_in, engines_script
from tests.lab.experiments import Experiment
from tests.lab.fault_guest import Seen, run_faults
from tests.lab.faults import Fault
from tests.lab.guest import kernel, why_not
from tests.lab.measure import Measured, measure, preload
from tests.lab.measures import run_measures
from tests.lab.observes import run_observes
from tests.lab.probes import run_live_probes
from tests.lab.recorded import RecordedFaults, RecordedRehearsals, recorded_experiments
from tests.lab.rehearsals import Fitting, Rehearsal
from tests.lab.rehearse_guest import (
    FIRST_RELEASE,
    SECONDS_EACH,
    SECONDS_EACH_FITTING,
    Rehearsed,
    rehearsals_script,
    rehearsed_in,
)
from tests.lab.results import recorded
from tests.real.conftest import install_release

# Guests of their own: what comes of each -> the tests that look at it, and what runs it.
ALONE: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "containers": ("test_container_lab", run_containers),
    "measures": ("test_measure_lab", run_measures),
    "observes": ("test_observe_lab", run_observes),
    "probes": ("test_probe_lab", run_live_probes),
}
# Then the guest that begins with containers here is of the worker that has those tests, not of the
# one that has the guests (GROUPS of tests/conftest.py).
SEVERAL_WORKERS = "PYTEST_XDIST_WORKER" in os.environ
# Emulated, a fault takes some 10 seconds on a machine that does nothing else.
FAULT_SECONDS = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {"lab": why_not(), "containers": why_no_container()}
    for item in items:
        for mark, reason in reasons.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def _wanted(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """The parameters of that name that the tests have which will run live, in their order."""
    found = []
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.get_closest_marker("lab") and name in parameters:
            found.append(parameters[name])
    return list(dict.fromkeys(found))


Job = Callable[[], Any]


class Guests:
    """Two at a time, as their order has them: what came of each is there by its name."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        kernel()
        preload()
        self._threads = ThreadPoolExecutor(2)
        self._found = {name: self._threads.submit(job) for name, job in jobs.items()}

    def __getitem__(self, name: str) -> Any:
        return self._found[name].result()

    def end(self) -> None:
        self._threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def guests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guests]:
    modules = set()
    for item in request.session.items:
        skip = item.get_closest_marker("skipif")
        if item.get_closest_marker("lab") and not (skip and skip.args[0]):
            modules.add(Path(item.path).stem)
    # Made here: two threads that make the first of a session are in each other's way.
    folders = {name: tmp_path_factory.mktemp(name) for name in ("pages", "faults", *ALONE)}
    # The longest first, so that both processors are busy to the end.
    jobs: dict[str, Job | None] = {"faults": _faults(request, folders["faults"])}
    jobs["pages"] = _pages(request, folders["pages"])
    jobs |= {
        name: partial(run, folders[name])
        for name, (module, run) in ALONE.items()
        if module in modules and not (name == "containers" and SEVERAL_WORKERS)
    }
    running = Guests({name: job for name, job in jobs.items() if job})
    yield running
    running.end()


def _pages(request: pytest.FixtureRequest, folder: Path) -> Job | None:
    """Experiments, rehearsals and fittings, and engines."""
    experiments: list[Experiment] = _wanted(request, "experiment")
    rehearsals: list[Rehearsal] = _wanted(request, "rehearsal")
    fittings: list[Fitting] = _wanted(request, "fitting")
    engines: list[Engine] = _wanted(request, "engine")
    if not experiments and not rehearsals and not fittings and not engines:
        return None
    releases = {one.release for one in experiments} | {one.release for one in rehearsals}
    releases |= {FIRST_RELEASE} if rehearsals or fittings or engines else set()
    wheels = {release: install_release(release) for release in releases}

    def run() -> tuple[dict[str, Measured], Rehearsed, dict[str, Any]]:
        scripts = [rehearsals_script(rehearsals, fittings, wheels, folder)]
        scripts += [engines_script(engines, wheels[FIRST_RELEASE], folder)] if engines else []
        then = "".join(f"{one.rstrip()} || exit\n" for one in scripts if one)
        limit = SECONDS_EACH * len(rehearsals) + SECONDS_EACH_FITTING * len(fittings)
        limit += SECONDS_EACH_ENGINE * len(engines)
        found = measure(experiments, wheels, folder, then, limit)
        return found, rehearsed_in(folder), engines_in(folder)

    return run


def _faults(request: pytest.FixtureRequest, folder: Path) -> Job | None:
    faults: list[Fault] = _wanted(request, "fault")
    if not faults:
        return None
    limit = 600 + FAULT_SECONDS * len(faults)
    return partial(run_faults, faults, install_release(FIRST_RELEASE), folder, limit)


@pytest.fixture(scope="session")
def recorded_faults(tmp_path_factory: pytest.TempPathFactory) -> RecordedFaults:
    return RecordedFaults(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def recorded_rehearsals(tmp_path_factory: pytest.TempPathFactory) -> RecordedRehearsals:
    return RecordedRehearsals(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def measured(request: pytest.FixtureRequest, live: bool) -> Mapping[str, Measured]:
    """What each experiment came to, by its id: recorded, or in the guest of this session."""
    if not live:
        return recorded_experiments()
    measured: Mapping[str, Measured] = request.getfixturevalue("guests")["pages"][0]
    return measured


@pytest.fixture
def rehearsed(request: pytest.FixtureRequest, live: bool) -> Rehearsed:
    """What each rehearsal and fitting came to, by its id."""
    if not live:
        recorded: RecordedRehearsals = request.getfixturevalue("recorded_rehearsals")
        return recorded
    rehearsed: Rehearsed = request.getfixturevalue("guests")["pages"][1]
    return rehearsed


@pytest.fixture
def pinned(request: pytest.FixtureRequest, live: bool) -> Mapping[str, Any]:
    """What each engine's calls came to, by its id."""
    if not live:
        return recorded("engines")
    pinned: Mapping[str, Any] = request.getfixturevalue("guests")["pages"][2]
    return pinned


@pytest.fixture
def seen(request: pytest.FixtureRequest, live: bool) -> Mapping[str, Seen]:
    """What happened with each fault, by its id."""
    if not live:
        recorded: RecordedFaults = request.getfixturevalue("recorded_faults")
        return recorded
    seen: Mapping[str, Seen] = request.getfixturevalue("guests")["faults"]
    return seen
