"""JSON to records: a NamedTuple's annotations say what each field has to be.

An optional field may be null or missing; ``X | Unknown`` may be ``{"unknown": reason}``. Fields
that a record does not have are passed over: a later version may write more.
"""

from __future__ import annotations

from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from checks.framework.unknown import Unknown

# No sentence of ours is near it; what is longer is cut, or one report would fill the screen.
LONGEST_TEXT = 4000
LARGEST_NUMBER = (1 << 64) - 1  # an address, or a counter of the kernel

Json = dict[str, Any]
_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}


class WrongError(Exception):
    """``args``: what is wrong, and where."""


class Unread(Unknown):
    """What another machine could not read, and why.

    Equal reasons are equal.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unread) and self.reason == other.reason

    def __hash__(self) -> int:
        return hash(self.reason)


def decode(hint: Any, value: Any, where: str = "") -> Any:
    """Return a JSON value as the type ``hint``.

    Lists become tuples, objects records, ``{"unknown": reason}`` an Unread.

    Args:
        where: The value's place, for the message.

    Raises:
        WrongError: If it has another type, or is a number out of range.
    """
    scalars, items, record, unknown = _hint_parts(hint)
    type_of_value = type(value)
    if type_of_value in (int, float) and not 0 <= value <= LARGEST_NUMBER:
        raise WrongError(f"{where} is {short(value)}")
    if type_of_value in scalars or Any in scalars:
        return value
    if type_of_value is int and float in scalars:
        return float(value)
    if type_of_value is dict and unknown and isinstance(value.get("unknown"), str):
        return Unread(value["unknown"][:LONGEST_TEXT])
    if type_of_value is list and items is not None:
        return tuple([decode(items, item, f"{where}[{at}]") for at, item in enumerate(value)])
    if type_of_value is dict and record is not None:
        return record._make([_field(value, where, *field) for field in _fields(record)])
    raise WrongError(f"{where or 'it'} is {short(value)}")


@lru_cache(maxsize=256)
def _hint_parts(hint: Any) -> tuple[frozenset[Any], Any, Any, bool]:
    """Take a type hint apart: its scalar types, the type of list items, the record type (None if
    the hint has no list or record), and whether it allows Unknown.
    """
    hints = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    scalars = frozenset(get_origin(hint) or hint for hint in hints)
    items = next((get_args(hint)[0] for hint in hints if get_origin(hint) is tuple), None)
    record = next((hint for hint in hints if hasattr(hint, "_fields")), None)
    return scalars - {tuple, record, Unknown}, items, record, Unknown in hints


@lru_cache(maxsize=64)
def _fields(record: Any) -> tuple[tuple[str, Any, bool, Any], ...]:
    """Return each field's name, hint, whether it may be missing, and its default."""
    defaults = record._field_defaults
    return tuple(
        (name, hint, name in defaults or NoneType in get_args(hint), defaults.get(name))
        for name, hint in get_type_hints(record).items()
    )


def _field(value: Json, where: str, name: str, hint: Any, optional: bool, default: Any) -> Any:
    """Return ``value[name]``, decoded; ``default`` if optional and missing.

    Raises WrongError.
    """
    item = value.get(name)
    if item is None and optional:
        return default
    if name not in value:
        raise WrongError(f"{where or 'it'} has no {name}")
    return decode(hint, item, f"{where}: {name}" if where else name)


def no_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which are no JSON: for ``parse_constant``."""
    raise ValueError(f"{name} is no number of JSON")


def short(value: Any) -> str:
    """Describe a JSON value in a few words or characters, for a message."""
    if type(value) is int and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bool | int):
        text = repr(value) if isinstance(value, str) else str(value).lower()
        return text if len(text) <= 60 else f"{text[:57]}..."
    return "null" if value is None else _NAMES.get(type(value), "a number")
