"""RDMA objects are made on a real soft-RoCE device, errors included."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.lab.conftest import Guests

pytestmark = pytest.mark.lab

INVALID_ACCESS = 10  # enum ibv_wc_status: IBV_WC_REM_ACCESS_ERR


def test_objects_of_a_device_and_its_errors(guests: Guests) -> None:
    said: list[dict[str, Any]] = guests["verbs"]
    assert said == [
        {
            "mtu_bytes": 1024,
            "statuses": [0, 0],
            "arrived_bytes": 64 * 1024,
            "wrong key": INVALID_ACCESS,
            "absent": ["ibv_get_device_list", errno.ENODEV],
            "largest": True,
            "regions": 1,
            "refused": ["ibv_reg_mr", errno.EFAULT],
        }
    ]
