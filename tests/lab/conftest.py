"""The wheels, and one boot of the guest for all experiments that are asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.experiments import Experiment
from tests.lab.guest import why_not
from tests.lab.measure import Measured, measure
from tests.real.conftest import Wheel, wheel_0_3_14, wheel_of

__all__ = ["wheel_0_3_14", "wheel_of"]  # fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if item.get_closest_marker("lab") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def measured(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    wheel_of: Callable[[str], Wheel],
    wheel_0_3_14: Wheel,
) -> dict[str, Measured]:
    """What each experiment of the tests that will run came to, by its id."""
    wanted: dict[str, Experiment] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.get_closest_marker("lab") and "experiment" in parameters:
            experiment: Experiment = parameters["experiment"]
            wanted[experiment.id] = experiment
    releases = {experiment.release for experiment in wanted.values()}
    wheels = {
        release: wheel_0_3_14 if release == "0.3.14" else wheel_of(release) for release in releases
    }
    return measure(wanted.values(), wheels, tmp_path_factory.mktemp("guest"))
