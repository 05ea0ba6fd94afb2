"""RDMA objects through pyverbs, rdma-core's own binding."""

from __future__ import annotations

import errno
from typing import Any

from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError

from preflight.verbs.objects import ACCESS, VerbsError, named


def open_device(name: str) -> PyverbsDevice:
    """Open a device. Raises VerbsError."""
    with named("ibv_get_device_list", name, PyverbsError):
        names = [device.name.decode(errors="replace") for device in get_device_list()]
    if name not in names:
        raise VerbsError(errno.ENODEV, "ibv_get_device_list", name)
    return PyverbsDevice(name)


class PyverbsDevice:
    def __init__(self, name: str) -> None:
        self._name = name
        with named("ibv_open_device", name, PyverbsError):
            self._context = Context(name=name)
        with named("ibv_alloc_pd", name, PyverbsError):
            self._domain = PD(self._context)

    @property
    def largest_bytes(self) -> int:
        with named("ibv_query_device", self._name, PyverbsError):
            return int(self._context.query_device().max_mr_size)

    def register(self, address: int, size: int) -> Any:
        with named("ibv_reg_mr", self._name, PyverbsError):
            return MR(self._domain, size, ACCESS, address)

    def close(self) -> None:
        self._domain.close()
        self._context.close()
