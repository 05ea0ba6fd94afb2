"""Which arguments each release of SGLang has: their flags, types, choices and defaults.

``data/sglang_arguments.json`` holds those of every release from 0.5.2 to 0.5.23, taken from the
parser that each one builds: one row for each argument, and another where a release changed it.
``since`` and ``until`` are places in ``versions``; a flag that is its name with dashes is left out.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from checks.framework.regex import regex
from checks.releases.sglang import parse_version
from preflight.base.program import data_file


class ArgumentTable(NamedTuple):
    """One release's arguments, in the order of the newest release that has each."""

    version: str
    exact: bool  # whether that is the release asked for
    rows: tuple[Mapping[str, Any], ...]


def argument_table(version: str | None = None) -> ArgumentTable:
    """Return the arguments of the newest known release up to ``version``, else of the oldest known
    one.

    Args:
        version: None for the newest known release.

    Raises:
        ValueError: If the text is no version.
    """
    known = _data()["versions"]
    if version is None:
        return _table(len(known) - 1, False)
    asked = parse_version(version)
    index = max((i for i, name in enumerate(known) if parse_version(name) <= asked), default=0)
    # A development build or a candidate of a release is not that release.
    return _table(index, version.strip().removeprefix("v") == known[index])


def known_releases() -> tuple[str, ...]:
    """Return every release whose arguments are known, the oldest first."""
    return tuple(_data()["versions"])


def releases_with(flag: str) -> tuple[tuple[str, str], ...]:
    """Return (first, last) of each series of consecutive known releases that have ``flag``."""
    known = _data()["versions"]
    has = [any(flag in row["flags"] for row in _table(i, True).rows) for i in range(len(known))]
    runs = (list(run) for present, run in groupby(range(len(known)), has.__getitem__) if present)
    return tuple((known[run[0]], known[run[-1]]) for run in runs)


@cache
def _data() -> dict[str, Any]:
    path = data_file("sglang_arguments.json")
    with open(path, encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


@cache
def _table(index: int, exact: bool) -> ArgumentTable:
    """Build the table of the release at place ``index`` of ``versions``, with the flags and choices
    that its rows leave out.

    Args:
        exact: As in ``ArgumentTable``.
    """
    data = _data()
    rows = []
    for row in data["arguments"]:
        if not row["since"] <= index <= row.get("until", index):
            continue
        choices = data["choices"][row["choices"]] if "choices" in row else None
        rows.append({**row, "flags": _flags(row), "choices": choices})
    return ArgumentTable(data["versions"][index], exact, tuple(rows))


def argument_names() -> Iterator[str]:
    """Return the name of every argument that any release has, some more than once."""
    return (row["name"] for row in _data()["arguments"])


def argument_flags() -> Iterator[str]:
    """Return every flag that any release has, some more than once."""
    for row in _data()["arguments"]:
        yield from _flags(row)


def _flags(row: Mapping[str, Any]) -> list[str]:
    """Return an argument's flags: the row's, else the argument's name with dashes."""
    return row.get("flags") or ["--" + row["name"].replace("_", "-")]


class RefusedError(Exception):
    """A command line that does not start a server; its text is what SGLang prints."""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json_list(text: str) -> Any:
    """Return any JSON value.

    Raises:
        ArgumentTypeError: In SGLang's words, for any other text.
    """
    try:
        return _json(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid JSON list: {text}. Please provide a valid JSON list."
        ) from None


def _cuda_graph_config(text: str) -> Any:
    """Return a JSON object.

    Raises:
        ArgumentTypeError: In SGLang's words, for any other text.
    """
    try:
        value = _json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--cuda-graph-config must be JSON: {error}") from None
    if isinstance(value, dict):
        return value
    type_name = type(value).__name__
    raise argparse.ArgumentTypeError(f"--cuda-graph-config must be a JSON object, got {type_name}")


def _lora(text: str) -> Any:
    """Return the text of a path or ``name=path``, or a JSON object.

    Raises:
        RefusedError: As SGLang does, for a text in braces that is no JSON, or lacks lora_name or
            lora_path.
    """
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return text
    try:
        adapter = _json(text)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    if "lora_path" in adapter and "lora_name" in adapter:
        return adapter
    raise RefusedError(
        f"{text!r} looks like a JSON str, but it does not contain 'lora_name' and 'lora_path' keys."
    )


_HUMAN = regex(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _human_int(text: str) -> int:
    """Return a number as SGLang's ``human_readable_int``: 25.6k is 25600, 1Mi is 1048576.

    Raises argparse.ArgumentTypeError, in SGLang's words, for any other text.
    """
    from decimal import Decimal

    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        try:
            return int(text.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"Invalid integer value: '{text.strip()}'. Use a plain integer, SI suffixes "
                "(1k, 1M), or IEC suffixes (1Ki, 1Mi). Suffixes are case-sensitive."
            ) from None
    number, suffix = match.groups()
    if suffix in _SI:
        return int(Decimal(number) * _SI[suffix])
    if "." in number:
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with IEC suffixes like '{suffix}'. Use an integer IEC value "
            f"such as '{int(Decimal(number))}{suffix}', or an SI value such as "
            f"'{number}{suffix[0]}'."
        )
    return int(number) * _IEC[suffix]


# What turns a word into a value, and the name under which argparse refuses it.
CONVERTERS: dict[str, tuple[Any, str]] = {
    "int": (int, "int"),
    "float": (float, "float"),
    "json": (_json, "loads"),
    "json_list": (_json_list, "json_list_type"),
    "json_object": (_cuda_graph_config, "parse_cuda_graph_config_arg"),
    "human_int": (_human_int, "human_readable_int"),
    "nullable_str": (lambda text: None if text in ("", "None") else text, "nullable_str"),
    "lora": (_lora, "str"),
}
