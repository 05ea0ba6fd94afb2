"""Facts as plain data, for JSON and for a person, whatever records they are made of."""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from checks.framework.unknown import Unknown


def plain(value: Any) -> Any:
    """Return a value as JSON data: records as objects, Unknown as {"unknown": reason}, sets as
    sorted lists, bytes in hexadecimal, anything else as text.
    """
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [plain(item) for item in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def fields(record: Any, *names: str) -> dict[str, Any]:
    """Return these fields of a record as plain data, in this order."""
    return {name: plain(getattr(record, name)) for name in names}


def _key(key: Any) -> str:
    """Return a key as text.

    A tuple's parts are joined: JSON has no key but a text.
    """
    if isinstance(key, tuple):
        return " ".join(_key(part) for part in key)
    key = plain(key)
    return "" if key is None else str(key)
