"""What turns a word into the value of one of SGLang's arguments, and how it refuses a word.

Source: SGLang's ``utils/common.py`` (``human_readable_int``, ``json_list_type``, ``nullable_str``),
``cuda_graph_config.py`` and ``LoRAPathAction``; the same in every release that has them.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any


class RefusedError(Exception):
    """A command line that does not start a server; its text is what SGLang prints."""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json_list(text: str) -> Any:
    try:
        return _json(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Invalid JSON list: {text}. Please provide a valid JSON list."
        ) from None


def _cuda_graph_config(text: str) -> Any:
    try:
        value = _json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--cuda-graph-config must be JSON: {error}") from None
    if isinstance(value, dict):
        return value
    raise argparse.ArgumentTypeError(
        f"--cuda-graph-config must be a JSON object, got {type(value).__name__}"
    )


def _nullable(text: str) -> str | None:
    return None if text in ("", "None") else text


def _lora(text: str) -> Any:
    """A path or ``name=path``, or a JSON object; its action refuses what the type would not."""
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


_HUMAN = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _human_int(text: str) -> int:
    """SGLang's ``human_readable_int``: 25.6k is 25600, 1Mi is 1048576, case counts."""
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
    "nullable_str": (_nullable, "nullable_str"),
    "lora": (_lora, "str"),
}
