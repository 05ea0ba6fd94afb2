"""The wheels; the guests: all that tests ask for live, each kind in one boot; and the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.lab.experiments import Experiment
from tests.lab.fault_guest import Seen, healthy_of, run_faults
from tests.lab.faults import Fault
from tests.lab.fittings import Fitting
from tests.lab.guest import kernel, why_not
from tests.lab.measure import Measured, measure, preload
from tests.lab.recorded import RecordedFaults, RecordedRehearsals, recorded_experiments
from tests.lab.rehearsals import Rehearsal
from tests.lab.rehearse_guest import (
    FIRST_RELEASE,
    SECONDS_EACH,
    SECONDS_EACH_FITTING,
    Rehearsed,
    rehearsals_script,
    rehearsed_in,
)
from tests.real.conftest import install_release

# Emulated, a fault takes some 10 seconds on a machine that does nothing else.
FAULT_SECONDS = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if item.get_closest_marker("lab") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _wanted(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """The parameters of that name that the tests have which will run live, in their order."""
    found = []
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.get_closest_marker("lab") and name in parameters:
            found.append(parameters[name])
    return list(dict.fromkeys(found))


class Guests:
    """One after the other: either keeps one processor busy, and the tests beside it another.

    With both at once they took twice the processor time: Mooncake's threads wait by looking.
    """

    def __init__(
        self,
        pages: Callable[[], tuple[dict[str, Measured], Rehearsed]],
        faults: Callable[[], dict[str, Seen]],
    ) -> None:
        kernel()
        preload()
        self._threads = ThreadPoolExecutor(1)
        self.pages: Future[tuple[dict[str, Measured], Rehearsed]] = self._threads.submit(pages)
        self.faults: Future[dict[str, Seen]] = self._threads.submit(faults)

    def end(self) -> None:
        self._threads.shutdown()


@pytest.fixture(scope="session")
def guests(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Guests]:
    experiments: list[Experiment] = _wanted(request, "experiment")
    faults: list[Fault] = _wanted(request, "fault")
    rehearsals: list[Rehearsal] = _wanted(request, "rehearsal")
    fittings: list[Fitting] = _wanted(request, "fitting")
    # Of these the check alone is wanted; that they start is recorded.
    healthy = [replace(healthy_of(fault), starts="") for fault in faults if fault.expect]
    in_order = dict.fromkeys((*healthy, *faults))
    releases = {one.release for one in experiments} | {one.release for one in rehearsals}
    releases |= {FIRST_RELEASE} if rehearsals or fittings else set()
    wheels = {release: install_release(release) for release in releases}
    newest = install_release(FIRST_RELEASE) if faults else None
    # Made here: two threads that make the first of a session are in each other's way.
    pages_folder, faults_folder = (tmp_path_factory.mktemp(name) for name in ("guest", "faults"))

    def pages() -> tuple[dict[str, Measured], Rehearsed]:
        if not experiments and not rehearsals and not fittings:
            return {}, {}
        then = rehearsals_script(rehearsals, fittings, wheels, pages_folder)
        limit = SECONDS_EACH * len(rehearsals) + SECONDS_EACH_FITTING * len(fittings)
        found = measure(experiments, wheels, pages_folder, then, limit)
        return found, rehearsed_in(pages_folder)

    def broken() -> dict[str, Seen]:
        if newest is None or not faults:
            return {}
        return run_faults(in_order, newest, faults_folder, 600 + FAULT_SECONDS * len(in_order))

    running = Guests(pages, broken)
    yield running
    running.end()


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
    guests: Guests = request.getfixturevalue("guests")
    return guests.pages.result()[0]


@pytest.fixture
def rehearsed(request: pytest.FixtureRequest, live: bool) -> Rehearsed:
    """What each rehearsal and fitting came to, by its id."""
    if not live:
        recorded: RecordedRehearsals = request.getfixturevalue("recorded_rehearsals")
        return recorded
    guests: Guests = request.getfixturevalue("guests")
    return guests.pages.result()[1]


@pytest.fixture
def seen(request: pytest.FixtureRequest, live: bool) -> Mapping[str, Seen]:
    """What happened with each fault, by its id."""
    if not live:
        recorded: RecordedFaults = request.getfixturevalue("recorded_faults")
        return recorded
    guests: Guests = request.getfixturevalue("guests")
    return guests.faults.result()
