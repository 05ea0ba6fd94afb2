"""The wheels, and the guests: all that the chosen tests ask for, each kind in one boot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.lab.experiments import Experiment
from tests.lab.fault_guest import Seen, healthy_of, run_faults
from tests.lab.faults import Fault
from tests.lab.fittings import Fitting
from tests.lab.guest import kernel, why_not
from tests.lab.measure import Measured, measure, preload
from tests.lab.rehearsals import Rehearsal
from tests.lab.rehearse_guest import (
    FIRST_RELEASE,
    SECONDS_EACH,
    SECONDS_EACH_FITTING,
    Rehearsed,
    rehearsals_script,
    rehearsed_in,
)
from tests.real.conftest import Wheel, wheel_0_3_13, wheel_0_3_14, wheel_of

__all__ = ["wheel_0_3_13", "wheel_0_3_14", "wheel_of"]  # fixtures

# Emulated, a fault takes some 10 seconds on a machine that does nothing else.
FAULT_SECONDS = 60


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Guests are started before all other tests, and what they measured is looked at last."""
    reason = why_not()
    for item in items:
        if item.get_closest_marker("lab") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=_turn)  # stable: within a turn they keep their order


def _turn(item: pytest.Item) -> int:
    if not item.get_closest_marker("lab"):
        return 1
    if "guests" not in getattr(item, "fixturenames", ()):
        return 2
    return 0 if item.get_closest_marker("starts_guests") else 3


def _wanted(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """The parameters of that name that the tests have which will run, in their order."""
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
    wheel_of: Callable[[str], Wheel],
) -> Iterator[Guests]:
    experiments: list[Experiment] = _wanted(request, "experiment")
    faults: list[Fault] = _wanted(request, "fault")
    rehearsals: list[Rehearsal] = _wanted(request, "rehearsal")
    fittings: list[Fitting] = _wanted(request, "fitting")
    healthy = dict.fromkeys(healthy_of(fault) for fault in faults if fault.expect)
    in_order = dict.fromkeys((*healthy, *faults))
    releases = {one.release for one in experiments} | {one.release for one in rehearsals}
    releases |= {FIRST_RELEASE} if rehearsals or fittings else set()
    wheels = {release: _wheel(request, wheel_of, release) for release in releases}
    newest = request.getfixturevalue("wheel_0_3_13") if faults else None
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
        return run_faults(in_order, newest, faults_folder, 120 + FAULT_SECONDS * len(in_order))

    running = Guests(pages, broken)
    yield running
    running.end()


def _wheel(request: pytest.FixtureRequest, wheel_of: Callable[[str], Wheel], release: str) -> Wheel:
    if release != "0.3.14":
        return wheel_of(release)
    wheel: Wheel = request.getfixturevalue("wheel_0_3_14")
    return wheel


@pytest.fixture(scope="session")
def measured(guests: Guests) -> dict[str, Measured]:
    """What each experiment of the tests that will run came to, by its id."""
    return guests.pages.result()[0]


@pytest.fixture(scope="session")
def rehearsed(guests: Guests) -> Rehearsed:
    """What each rehearsal and fitting of the tests that will run came to, by its id."""
    return guests.pages.result()[1]


@pytest.fixture(scope="session")
def seen(guests: Guests) -> dict[str, Seen]:
    """What happened with each fault of the tests that will run, by its id."""
    return guests.faults.result()
