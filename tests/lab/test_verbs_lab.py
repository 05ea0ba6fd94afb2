"""Each binding of libibverbs makes the same objects on a real soft-RoCE device, errors included."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.lab.conftest import Guests
from tests.lab.verbs import libraries

pytestmark = pytest.mark.lab


def test_every_binding_says_the_same_of_a_device(guests: Guests) -> None:
    said: list[dict[str, Any]] = guests["verbs"]
    assert [one.pop("library") for one in said] == libraries()
    kinds = {one.pop("kind") for one in said}
    assert len(kinds) == len(said)
    assert {one.pop("pages") for one in said} < {True, False}  # all the same, and told
    for one in said:
        assert one == {
            "absent": ["ibv_get_device_list", errno.ENODEV],
            "largest": True,
            "regions": 1,
            "refused": ["ibv_reg_mr", errno.EFAULT],
        }
