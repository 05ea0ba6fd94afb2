"""The probe on real devices: what it measures is what is predicted, and nothing is left behind.

One guest with two soft-RoCE devices runs every case; the tests look at what each came to. Then each
binding of libibverbs makes the same objects, errors included.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.lab.conftest import Guests
from tests.lab.probes import CGROUP, GIB, MEMLOCK, MIB, ORDERS, OTHERS, SPEND, ids, libraries

pytestmark = pytest.mark.lab

Rows = Mapping[str, Any]


@pytest.fixture
def rows(guests: Guests) -> Rows:
    """What each case came to, by its id; one that does not run live is skipped."""
    found: Rows = guests["probes"]
    return found


@pytest.mark.parametrize("name", ids(ORDERS))
def test_nothing_is_left_registered(rows: Rows, name: str) -> None:
    """After success, failure, Ctrl-C and SIGKILL of either process."""
    row = rows[name]
    assert row["after"] == row["before"], row
    if row["held"] is not None:
        assert row["held"]["mr"] >= 8, "it was broken off before it held anything"


@pytest.mark.parametrize("name", ids((*MEMLOCK, *CGROUP)))
def test_the_measured_ceiling_is_the_predicted_one(rows: Rows, name: str) -> None:
    """To the region, and the limit is named for what it is."""
    answer = rows[name]["answer"]
    assert answer, rows[name]
    kind = "RLIMIT_MEMLOCK" if name in ids(MEMLOCK) else "rdma cgroup"
    unit = "bytes" if name in ids(MEMLOCK) else "regions"
    key = "size_bytes" if unit == "bytes" else unit
    predicted = min(row[key] for row in answer["predicted"] if row["kind"] == kind)
    held = answer["measured"][f"held_{unit}"]
    assert (answer["met"]["kind"], held) == (kind, predicted), answer
    assert answer["met"]["sure"]


@pytest.mark.parametrize("name", ids((*MEMLOCK, *CGROUP, *OTHERS[:3])))
def test_few_registrations_and_little_memory(rows: Rows, name: str) -> None:
    """2 log2(ceiling / region) + 8 beyond those of the greatest length that hold memory."""
    measured = rows[name]["answer"]["measured"]
    assert measured, rows[name]
    units = max(1, measured["held_bytes"] // measured["region_bytes"])
    longest = measured["held_bytes"] // measured["longest_bytes"]
    assert measured["registrations"] <= 2 * math.log2(units) + 8 + longest
    spend = 64 * MIB if name == "spend" else SPEND
    assert measured["spent_bytes"] <= spend
    # Whatever else the machine does meanwhile moves the number that the kernel shows.
    assert measured["memory_drop_bytes"] <= spend + 8 * MIB, measured


def test_without_a_limit_all_that_was_asked_for_is_held(rows: Rows) -> None:
    answer = rows["no limit"]["answer"]
    assert (rows["no limit"]["code"], answer["outcome"]) == (0, "measured")
    assert (answer["measured"]["held_bytes"], answer["met"]) == (GIB, None)


def test_the_allowance_ends_it_and_says_what_more_would_take(rows: Rows) -> None:
    answer = rows["spend"]["answer"]
    assert (rows["spend"]["code"], answer["measured"]["stopped"]) == (3, "--spend")
    assert "reaches 8.00 GiB" in answer["reason"]


def test_huge_pages_come_from_the_pool(rows: Rows) -> None:
    answer = rows["huge pages"]["answer"]
    assert answer["page_size_bytes"] == 2 * MIB
    assert answer["measured"]["held_bytes"] == 2 * GIB
    missing = rows["no huge pages"]
    assert missing["code"] == 3
    assert "1 free page of 1 GiB" in missing["answer"]["reason"]


def test_a_device_that_may_not_be_opened(rows: Rows) -> None:
    row = rows["no handle"]
    assert row["code"] == 3
    assert row["answer"], row


def test_it_refuses_beside_live_users(rows: Rows) -> None:
    """A device's ceiling is shared by all of its users."""
    row = rows["neighbour"]
    assert (row["code"], row["answer"]["outcome"]) == (3, "refused")
    assert "rxe0 is in use: 1 open, 1 memory regions (python" in row["answer"]["reason"]
    beside = rows["beside a neighbour"]
    assert (beside["code"], beside["answer"]["saved"]) == (0, [])  # shared, so not a ceiling


def test_interrupted_it_says_so(rows: Rows) -> None:
    assert rows["interrupt"]["code"] == 130
    assert "interrupted" in rows["interrupt"]["errors"]
    assert rows["interrupted user"]["code"] == 130
    assert rows["kill"]["code"] == -9


def test_a_measuring_process_that_dies_is_an_answer(rows: Rows) -> None:
    """Its death is told; it is not a ceiling."""
    row = rows["crash"]
    assert (row["code"], row["answer"]["outcome"]) == (3, "unknown")
    assert "killed by signal 9" in row["answer"]["reason"]


def test_what_was_measured_is_read_by_the_checks(rows: Rows) -> None:
    """Of the runs as root, the ones that say most, for each device and page size."""
    assert rows["no limit"]["answer"]["saved"]
    assert rows["huge pages"]["answer"]["saved"]
    found = {(row[0], row[1]): row[2:] for row in rows["measured"]["measured"]}
    assert found["rxe0", 2 * MIB][0] == 2 * GIB
    assert found["rxe0", 4096][0] >= GIB


def test_every_binding_says_the_same_of_a_device(rows: Rows) -> None:
    """But whether it pages on demand, which only pyverbs can ask."""
    said: list[dict[str, Any]] = list(map(dict, rows["verbs"]))
    assert [one.pop("library") for one in said] == libraries()
    kinds = [one.pop("kind") for one in said]
    assert kinds == libraries()
    paging = [one["check"].pop("pages_on_demand", "not asked") for one in said]
    assert paging == [False if kind == "PyverbsDevice" else "not asked" for kind in kinds]
    for one in said:
        assert one == {
            "absent": ["ibv_get_device_list", errno.ENODEV],
            "largest": True,
            "regions": 1,
            "refused": ["ibv_reg_mr", errno.EFAULT],
            "check": said[0]["check"],
            "absent one": {"listed": False, "error": "not among the 2 devices that it lists"},
        }
        assert one["check"]["limits"]["max_mr"] > 1
        assert one["check"]["ports"]["1"]["gid_table"] > 1
