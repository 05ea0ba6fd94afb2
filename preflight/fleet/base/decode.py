"""JSON to records: a NamedTuple's annotations say what each field has to be.

An optional field may be null or missing; ``X | Unknown`` may be ``{"unknown": reason}``. A record
is an object, or a list of its fields in their order. Fields that a record does not have are passed
over: a later version may write more. In pure Python, for a node that only has that.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from checks.base.unknown import Unknown

# No sentence of ours is near it; what is longer is cut, or one report would fill the screen.
LONGEST_TEXT = 4000
LARGEST_NUMBER = (1 << 64) - 1  # an address, or a counter of the kernel

Json = dict[str, Any]

_SCALARS = {
    str: "a text",
    int: "a number of 0 or more",
    float: "a number of 0 or more",
    bool: "true or false",
}
_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}

Decode = Callable[[Any, str], Any]


class WrongError(Exception):
    """``args``: what is wrong, and where."""


class Unread(Unknown):
    """What another machine could not read, and why. Equal reasons are equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unread) and self.reason == other.reason

    def __hash__(self) -> int:
        return hash(self.reason)


@lru_cache(maxsize=256)
def decoder(kind: Any) -> Decode:
    """Return what makes a ``kind`` of (JSON, its place); that raises WrongError for other JSON."""
    if kind is Any:
        return lambda value, where: value
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    kinds = tuple(get_origin(one) if get_origin(one) in (dict, list) else one for one in kinds)
    as_it_is = frozenset(one for one in kinds if one in _SCALARS or one in (NoneType, dict, list))
    (wanted, inner), *_ = [_decoder(one) for one in kinds if one not in (NoneType, Unknown)]

    def decode(value: Any, where: str) -> Any:
        found = type(value)
        number = found in (int, float)
        if found in as_it_is and (not number or 0 <= value <= LARGEST_NUMBER):
            return value
        if number and float in as_it_is and 0 <= value <= LARGEST_NUMBER:
            return float(value)
        if found is dict and Unknown in kinds:
            if not isinstance(value.get("unknown"), str):
                raise WrongError(f"{where} does not say why it is unknown")
            return Unread(value["unknown"][:LONGEST_TEXT])
        if inner is not None:
            return inner(value, where)
        raise wrong(value, where, wanted)

    return decode


def _decoder(kind: Any) -> tuple[str, Decode | None]:
    """Return the name of ``kind``, and what makes it of a list or an object; None for a scalar."""
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return ("a list", _items(parts[0])) if parts[1:] == (...,) else ("a row", _row(parts))
    if hasattr(kind, "_fields"):
        return "an object", _record(kind)
    if issubclass(kind, Enum):
        return "a word", _word(kind)
    return _SCALARS.get(kind) or _NAMES[kind], None


def _items(kind: Any) -> Decode:
    item = decoder(kind)

    def decode(value: Any, where: str) -> Any:
        if type(value) is not list:
            raise wrong(value, where, "a list")
        return tuple([item(one, f"{where}[{at}]") for at, one in enumerate(value)])

    return decode


def _row(kinds: tuple[Any, ...]) -> Decode:
    items = [decoder(kind) for kind in kinds]

    def decode(value: Any, where: str) -> Any:
        if type(value) is not list or len(value) != len(items):
            raise wrong(value, where, f"a row of {len(items)}")
        return tuple([item(one, where) for item, one in zip(items, value, strict=True)])

    return decode


def _word(kind: type[Enum]) -> Decode:
    def decode(value: Any, where: str) -> Any:
        for one in kind:
            if one.value == value:
                return one
        raise wrong(value, where, f"one of {', '.join(str(one.value) for one in kind)}")

    return decode


def _record(kind: Any) -> Decode:
    hints = get_type_hints(kind).items()
    fields = [(name, decoder(one), NoneType in get_args(one)) for name, one in hints]
    absent = kind._field_defaults

    def decode(value: Any, where: str) -> Any:
        if type(value) is list and len(value) == len(fields):
            value = dict(zip(kind._fields, value, strict=True))
        if type(value) is not dict:
            raise wrong(value, where, "an object")
        found = []
        for name, read, optional in fields:
            one = value.get(name)
            if one is None and (optional or name in absent):
                found.append(absent.get(name))
            elif name not in value:
                raise WrongError(f"{where or 'it'} has no {name}")
            else:
                found.append(read(one, f"{where}: {name}" if where else name))
        return kind._make(found)

    return decode


def no_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which Python alone writes and reads as JSON.

    For ``parse_constant``.
    """
    raise ValueError(f"{name} is no number of JSON")


def wrong(value: Any, where: str, wanted: str) -> WrongError:
    """Return the error of a value, as ``rails[0]: port is '1', not a number of 0 or more``."""
    seen = short(value) if wanted in _SCALARS.values() else kind_of(value)
    return WrongError(f"{where} is {seen}, not {wanted}")


def kind_of(value: Any) -> str:
    """Return the name of a value's kind: ``a list``, ``a text``, ``null``."""
    return "null" if value is None else _NAMES.get(type(value), "a number")


def short(value: Any) -> str:
    """Return a value as it stands in a sentence."""
    if type(value) is int and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bool | int):
        text = repr(value) if isinstance(value, str) else str(value).lower()
        return text if len(text) <= 60 else f"{text[:57]}..."
    return kind_of(value)
