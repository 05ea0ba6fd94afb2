"""Transfers over soft-RoCE: what is wrong is found with its cause, and nothing else is."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.lab.conftest import Guests

# A guest of its own that measures for minutes.
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        os.environ.get("MOONCAKE_PREFLIGHT_REAL") != "all",
        reason="needs MOONCAKE_PREFLIGHT_REAL=all",
    ),
]


def answer_of(guests: Guests, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The only part, and the status of each finding by check and subject."""
    answer = guests["measures"][name]
    assert answer["answer"], answer["reason"]
    (part,) = answer["answer"]["parts"]
    found = {f"{one['check']} {one['subjects'][0]['name']}": one for one in answer["findings"]}
    return part, {key: f"{one['status']}: {one['text']}" for key, one in found.items()}


def test_a_healthy_nic_raises_no_alarm(guests: Guests) -> None:
    part, findings = answer_of(guests, "healthy")
    assert part["used"] == {"transport": "rdma", "devices": ["rxe0"], "error": ""}, part
    assert all(one["bytes_per_second"] > 0 for one in part["rates"])
    assert findings
    assert all(text.startswith("pass") for text in findings.values()), findings


def test_a_gid_that_is_not_there_is_named(guests: Guests) -> None:
    part, _ = answer_of(guests, "wrong GID")
    assert part["outcome"] == "failed"
    assert "Failed to open device rxe0 on port 1 with GID 9" in part["reason"]


def test_tcp_is_found_where_rdma_is_meant(guests: Guests) -> None:
    part, findings = answer_of(guests, "TCP forced")
    assert part["used"]["transport"] == "tcp"
    assert any(
        key.startswith("measure.transport") and text.startswith("warn")
        for key, text in findings.items()
    )


def test_rails_that_do_not_reach_each_other_are_found(guests: Guests) -> None:
    _, findings = answer_of(guests, "rails apart")
    assert findings["measure.nic all NICs at once"].startswith(("warn", "unknown"))
    assert findings["measure.nic rxe0"].startswith("pass")
