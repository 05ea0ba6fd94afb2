"""observe on two NUMA nodes and an RDMA device: what is registered is what the kernel lists."""

from __future__ import annotations

import os

import pytest

from tests.lab.conftest import Guests
from tests.lab.observes import SITUATIONS, Observed

# A guest of its own, for minutes.
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        os.environ.get("MOONCAKE_PREFLIGHT_REAL") != "all",
        reason="needs MOONCAKE_PREFLIGHT_REAL=all",
    ),
]
SEGMENT_BYTES = 32 << 20
# What is found beside a pass, of the client and of the launch.
DEVIATIONS = {
    "as meant": {},
    "bound to node 1": {},
    "on the wrong node": {"observe.numa-node"},
    "without the right to lock": {"observe.locked-memory"},
}


def observed(guests: Guests, name: str) -> Observed:
    seen: Observed = guests["observes"][name]
    return seen


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_registered_is_what_the_kernel_lists(guests: Guests, name: str) -> None:
    seen = observed(guests, name)
    finding = seen.finding("observe.registered")
    listed = sum(each["mrlen"] for each in seen.regions if each["comm"] == "mooncake_client")
    assert finding["status"] == "pass"
    assert finding["have"]["value"] == finding["need"]["value"] == listed == SEGMENT_BYTES


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_deviation_is_named_and_nothing_else(guests: Guests, name: str) -> None:
    findings = observed(guests, name).answer["findings"]
    assert {each["check"] for each in findings if each["status"] == "warn"} == set(DEVIATIONS[name])
    assert {each["status"] for each in findings} <= {"pass", "warn", "skip"}
    pages = observed(guests, name).finding("observe.huge-pages")
    assert pages["have"]["value"] == pages["need"]["value"] == SEGMENT_BYTES // (2 << 20)
