"""How Python consumers read values: SGLang's, the store service's and vLLM's sizes and booleans.

Each function returns the value, or raises ValueError in the consumer's own words. Sources: SGLang
0.5.23 ``mem_cache/storage/mooncake_store/mooncake_store.py`` and ``environ.py``; Mooncake
``mooncake-wheel/mooncake/mooncake_config.py``; vLLM 0.33.0 ``vllm/distributed/mooncake_store.py``
and ``vllm/utils/argparse_utils.py``.
"""

from __future__ import annotations

import re
from typing import Any

from checks.base.regex import regex

_POWERS = {letter: 1024**power for power, letter in enumerate("kmgt", start=1)}
_STORE_SUFFIXES = (*((f"{k}b", size) for k, size in _POWERS.items()), *_POWERS.items(), ("b", 1))


def sglang_segment_bytes(value: Any) -> int:
    """Return bytes as SGLang's ``_parse_global_segment_size``: ``4gb`` is 4 GiB, no unit bytes."""
    if isinstance(value, int):
        return int(value)  # a JSON true is 1
    if isinstance(value, str):
        text = value.strip().lower()
        if text.endswith("gb"):
            number = text[:-2].strip()
            if not number:
                raise ValueError("Invalid global_segment_size: missing number before 'gb'")
            return int(number) * 1024**3
        return int(text)
    return python_int(value)


def store_segment_bytes(value: Any) -> int:
    """Return bytes as Mooncake's ``_parse_segment_size`` since 0.3.12: floats, b to tb."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        text = value.strip().lower()
        if not text:
            raise ValueError("Invalid segment size: empty string")
        for suffix, scale in _STORE_SUFFIXES:
            if text.endswith(suffix):
                number = text[: -len(suffix)].strip()
                if not number:
                    raise ValueError(f"Invalid segment size: missing number before '{suffix}'")
                return python_int(float(number) * scale)
        return python_int(float(text))
    return python_int(value)


_VLLM_SIZE = regex(r"^\s*([\d.]+)\s*(gb|mb|kb|b)?\s*$")


def vllm_size_bytes(value: Any) -> int:
    """Return bytes as vLLM's ``_parse_size``: floats, b to gb. Raises TypeError as it does."""
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        try:
            return int(value)
        except (TypeError, ValueError):
            raise TypeError(f"Unsupported type for size: {type(value)}") from None
    text = value.strip().lower()
    if not text:
        raise ValueError("Size cannot be empty.")
    match = _VLLM_SIZE.match(text)
    if not match:
        raise ValueError(f"Invalid format: '{value}'")
    try:
        number = float(match[1])
    except ValueError:
        raise ValueError(f"Invalid numeric value '{match[1]}' in: '{value}'") from None
    return int(number * dict(_STORE_SUFFIXES)[match[2] or "b"])


_HUMAN = regex(r"(\d+(?:\.\d+)?)([kmgt])", re.IGNORECASE | re.ASCII)


def human_readable_int(text: str) -> int:
    """Return vLLM's number: 80m is 80 * 10^6, 80M is 80 * 2^20. Raises ValueError."""
    text = text.strip()
    match = _HUMAN.fullmatch(text)
    if match is None:
        return int(text)
    power = "kmgt".index(match[2].lower()) + 1
    if match[2].islower():
        return int(float(match[1]) * 10 ** (3 * power))
    if "." in match[1]:
        raise ValueError(f"Decimals are not allowed with binary suffixes like {match[2]}.")
    return int(match[1]) << 10 * power


def store_bool(value: Any) -> bool:
    """Return the boolean that Mooncake's ``_parse_bool`` reads, in JSON and environment alike."""
    if isinstance(value, int | float | None):
        return bool(value)
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on", "enable"):
        return True
    if text not in ("", "false", "0", "no", "off", "disable"):
        raise ValueError(f"Invalid boolean value: {value!r}")
    return False


def sglang_env_bool(text: str) -> bool:
    """Return the boolean that ``EnvBool`` reads. Raises ValueError if the default is used."""
    value = text.lower()
    if value in ("true", "1", "yes", "y"):
        return True
    if value in ("false", "0", "no", "n"):
        return False
    raise ValueError(f'"{value}" is not a valid boolean value')


def sglang_env_int(text: str) -> int:
    """Return the integer that SGLang's ``EnvInt`` reads. Raises ValueError if it refuses it."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f'"{text}" is not a valid integer value') from None


def python_int(value: Any) -> int:
    """Return a value as ``int`` converts it. Raises ValueError for every refusal."""
    try:
        return int(value)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from None
