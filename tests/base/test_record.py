"""Records are what ``typing.NamedTuple`` makes."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import typing
from typing import Any, NamedTuple

import pytest


class Light(NamedTuple):
    """A record."""

    name: str
    size: int = 3
    more: tuple[str, ...] = ()

    @property
    def double(self) -> int:
        return 2 * self.size


class Heavy(typing.NamedTuple):
    """A record."""

    name: str
    size: int = 3
    more: tuple[str, ...] = ()

    @property
    def double(self) -> int:
        return 2 * self.size


class Nothing(NamedTuple):
    """Has no fields."""


class Child(Light):
    """Inherits the fields."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda made: made("a"),
        lambda made: made("a", more=("b",)),
        lambda made: made._make(["a", 1, ()]),
        lambda made: made("a")._replace(size=5),
        lambda made: made("a")._asdict(),
        lambda made: repr(made("a")).replace("Light", "Heavy"),
        lambda made: (made._fields, made._field_defaults, made.__match_args__, made.__doc__),
        lambda made: made("a", 4).double,
        lambda made: (hash(made("a")), made("a") < made("b")),
        lambda made: (*copy.copy(made("a", 2)), *pickle.loads(pickle.dumps(made("a", 2)))),
        lambda made: isinstance(made("a"), made) and made("a") == ("a", 3, ()),
    ],
)
def test_a_record_is_what_typing_makes(ask: Any) -> None:
    assert ask(Light) == ask(Heavy)


@pytest.mark.parametrize(
    "ask",
    [
        lambda made: made(),
        lambda made: made("a", 1, (), 2),
        lambda made: made("a", nothing=1),
        lambda made: made._make(["a"] * 4),
        lambda made: setattr(made("a"), "size", 1),
        lambda made: made("a")._replace(nothing=1),
    ],
)
def test_it_refuses_what_typing_refuses(ask: Any) -> None:
    errors = []
    for made in (Heavy, Light):
        with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
            ask(made)
        errors.append(caught.type)
    assert errors[0] is errors[1]


def test_one_without_fields_and_one_that_inherits() -> None:
    assert Nothing() == ()
    child = Child("a")
    assert (child.size, child._replace(size=1).size, type(child)) == (3, 1, Child)
    assert repr(child) == "Child(name='a', size=3, more=())"


def test_threads_that_make_the_first_record_at_once_find_all_methods() -> None:
    """Facts are read by a thread a topic, and all make records."""
    wrong: list[BaseException] = []

    def use(made: Any, start: threading.Barrier) -> None:
        start.wait()
        try:
            assert made(1)._replace(size=2)._asdict() == {"size": 2}
        except BaseException as error:
            wrong.append(error)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):

            class Made(NamedTuple):
                size: int

            start = threading.Barrier(3)
            threads = [threading.Thread(target=use, args=(Made, start)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert wrong == []
