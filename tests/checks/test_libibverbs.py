"""The one way to libibverbs: what pyverbs says becomes the same answer as the calls by ctypes.

The bindings meet a real device in tests/lab. Here a stand-in takes the place of pyverbs.
"""

from __future__ import annotations

import ctypes
import errno
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from checks.framework.root import LIMIT_SECONDS, Root
from checks.framework.unknown import Unknown
from checks.rdma import libibverbs
from checks.rdma.libibverbs import CtypesDevice, VerbsError, has_pyverbs, open_device, query
from checks.rdma.verbs import read_verbs

ATTRIBUTES = {"max_mr_size": 1 << 63, "max_mr": 524287, "max_qp": 1048544}
PORT = {"active_mtu": 3, "gid_tbl_len": 1024}


class PyverbsError(Exception):
    def __init__(self, text: str, error_code: int = -1) -> None:
        super().__init__(text)
        self.error_code = error_code


class Context:
    """A device with one port that pages on demand."""

    def __init__(self, name: str) -> None:
        self.closed = False

    def query_device(self) -> Any:
        return SimpleNamespace(**ATTRIBUTES)

    def query_device_ex(self) -> Any:
        return SimpleNamespace(odp_caps=SimpleNamespace(general_caps=1))

    def query_port(self, number: int) -> Any:
        if number > 1:
            raise PyverbsError("no such port", errno.EINVAL)
        return SimpleNamespace(**PORT)

    def close(self) -> None:
        self.closed = True


def get_device_list() -> list[Any]:
    return [SimpleNamespace(name=b"rxe0"), SimpleNamespace(name=b"rxe1")]


Install = Callable[..., None]


@pytest.fixture
def pyverbs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Install a stand-in whose functions ``more`` may replace."""

    def install(**more: object) -> None:
        folder = tmp_path / "pyverbs"
        folder.mkdir()
        package, device, error = map(ModuleType, ("pyverbs", "device", "pyverbs_error"))
        vars(device).update({"Context": Context, "get_device_list": get_device_list, **more})
        vars(error)["PyverbsError"] = PyverbsError
        device.__file__ = str(folder / "device.so")
        vars(package).update({"device": device, "pyverbs_error": error})
        for name, module in (("", package), (".device", device), (".pyverbs_error", error)):
            monkeypatch.setitem(sys.modules, f"pyverbs{name}", module)

    return install


def refusing(name: str, text: str, number: int = -1) -> Callable[..., Any]:
    """Return a function of pyverbs of that name, which raises its error."""

    def refuse(*_: object, **__: object) -> Any:
        raise PyverbsError(text, number)

    refuse.__name__ = name
    return refuse


@pytest.mark.slow
def test_what_pyverbs_says_is_the_answer_of_check(pyverbs: Install) -> None:
    pyverbs()
    seen = read_verbs(Root(), "rxe0")
    assert (seen.listed, seen.error, seen.pages_on_demand) == (True, "", True)
    assert not isinstance(seen.limits, Unknown)
    assert not isinstance(seen.ports, Unknown)
    assert seen.limits == tuple(ATTRIBUTES.values())
    assert {number: port.active_mtu_bytes for number, port in seen.ports.items()} == {1: 1024}
    with pytest.raises(VerbsError) as caught:
        open_device("no0")
    assert (caught.value.call, caught.value.errno) == ("ibv_get_device_list", errno.ENODEV)


@pytest.mark.parametrize(
    ("more", "answer"),
    [
        (
            {"get_device_list": refusing("get_device_list", "Failed to get devices list")},
            {"listed": False, "error": "Failed to get devices list"},
        ),
        (
            {"Context": refusing("Context", "no", errno.EAGAIN)},
            {"listed": True, "opened": False, "errno": errno.EAGAIN},
        ),
        (
            {"get_device_list": list},
            {"listed": False, "error": "not among the 0 devices that it lists"},
        ),
    ],
)
def test_a_refusal_of_pyverbs_is_told_as_that_of_the_library(
    pyverbs: Install, more: dict[str, Any], answer: dict[str, Any]
) -> None:
    pyverbs(**more)
    assert answer.items() <= query("rxe0").items()


@pytest.mark.slow
def test_a_provider_that_does_not_say_whether_it_pages_on_demand_is_unknown(
    pyverbs: Install,
) -> None:
    class Silent(Context):
        query_device_ex = refusing("query_device_ex", "no", errno.EOPNOTSUPP)

    Silent.__name__ = "Context"
    pyverbs(Context=Silent)
    paging = read_verbs(Root(), "rxe0").pages_on_demand
    assert isinstance(paging, Unknown)
    assert paging.advice == ""


def test_without_pyverbs_an_answer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that the calls by ctypes give has no key for it."""
    answer = {"listed": True, "opened": True, "limits": ATTRIBUTES, "ports": {}}
    monkeypatch.setattr(Root, "call", lambda *_: answer)
    paging = read_verbs(Root(), "rxe0").pages_on_demand
    assert isinstance(paging, Unknown)
    assert "python3-pyverbs" in paging.advice


def test_a_pyverbs_with_a_library_of_its_own_is_not_asked(pyverbs: Install, tmp_path: Path) -> None:
    """The wheel of pyverbs 56.0rc1 on PyPI has it in ``pyverbs.libs``: Mooncake loads another."""
    pyverbs()
    assert has_pyverbs()
    (tmp_path / "pyverbs.libs").mkdir()
    assert not has_pyverbs()


@pytest.mark.slow
def test_a_device_that_hangs_under_pyverbs_does_not_hang_this_process(pyverbs: Install) -> None:
    """pyverbs holds the interpreter's lock while it waits for the device."""

    class Hanging(Context):
        def __init__(self, name: str) -> None:
            ctypes.PyDLL(None).sleep(30)

    pyverbs(Context=Hanging)
    token = LIMIT_SECONDS.set(1.0)
    start = time.monotonic()
    listed = read_verbs(Root(), "rxe0").listed
    LIMIT_SECONDS.reset(token)
    assert isinstance(listed, Unknown)
    assert time.monotonic() - start < 10


def test_a_library_that_cannot_be_loaded_lists_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libibverbs, "has_pyverbs", lambda: False)
    monkeypatch.setattr(libibverbs, "SONAME", "libibverbs-of-no-release.so")
    answer = query("rxe0")
    assert answer["listed"] is False
    assert "cannot be loaded" in answer["error"]
    with pytest.raises(OSError, match="cannot open shared object"):
        CtypesDevice("rxe0")
