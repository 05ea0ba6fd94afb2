"""Fields of a report as they have to be; what is otherwise is an error that says so."""

from __future__ import annotations

from typing import Any

from preflight.fleet.merge.records import Trouble, Unread

# No sentence of ours is near it; what is longer is cut, or one report would fill the screen.
LONGEST_TEXT = 4000
LARGEST_NUMBER = 1 << 62


class WrongError(Exception):
    """``args``: the trouble, the reason."""


def fact_field(row: dict[str, Any], name: str, where: str, kind: type) -> Any:
    """A value of ``kind``, None, or why it is not known."""
    value: Any = row.get(name)
    if value is None:
        return None
    if isinstance(value, dict):
        return unread_field(value, f"{where}: {name}")
    fits = type(value) is kind
    if fits and (kind is not int or 0 <= value <= LARGEST_NUMBER):
        return value
    raise WrongError(Trouble.WRONG, f"{where}: {name} is {short(value)}")


def unread_field(value: dict[str, Any], where: str) -> Unread:
    reason = value.get("unknown")
    if not isinstance(reason, str):
        raise WrongError(Trouble.WRONG, f"{where} does not say why it is unknown")
    return Unread(reason[:LONGEST_TEXT])


def text_field(document: dict[str, Any], name: str, where: str = "") -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise _missing(document, name, where, "a text")
    return value


def number_field(document: dict[str, Any], name: str, where: str = "") -> int:
    value: Any = document.get(name)
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise _missing(document, name, where, "a number of 0 or more")
    return value


def list_field(document: dict[str, Any], name: str, where: str = "") -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise _missing(document, name, where, "a list")
    return value


def object_field(document: dict[str, Any], name: str, where: str = "") -> dict[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise _missing(document, name, where, "an object")
    return value


def _missing(document: dict[str, Any], name: str, where: str, wanted: str) -> WrongError:
    at = f"{where}: " if where else ""
    if name not in document:
        return WrongError(Trouble.WRONG, f"{at}it has no {name}")
    return WrongError(Trouble.WRONG, f"{at}{name} is {short(document[name])}, not {wanted}")


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def short(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, str | bool | None) or (type(value) is int and abs(value) < 1 << 64):
        text = repr(value) if isinstance(value, str) else str(value).lower()
        return text if len(text) <= 60 else f"{text[:57]}..."
    return kind_of(value)
