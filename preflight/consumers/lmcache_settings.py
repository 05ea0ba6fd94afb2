"""LMCache's own settings: what each comes to from YAML, variables and the engine's JSON.

Read in LMCache 0.5.6 (``lmcache/v1/config.py``, ``config_base.py``); ``data/lmcache_settings.txt``
has every setting.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from preflight.base.data_file import data_file

_ALIASES = {
    "plugin_locations": "runtime_plugin_locations",
    "external_backends": "storage_plugins",
}


class _Row(NamedTuple):
    kind: str
    default: Any


@cache
def lmcache_settings() -> Mapping[str, _Row]:
    """Return every setting by its name: how it is read, and its default."""
    rows = {}
    with open(data_file("lmcache_settings.txt"), encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                name, kind, default = line.split(" ", 2)
                rows[name] = _Row(kind, json.loads(default))
    return rows


def _disk(value: Any) -> str | None:
    parts = [part.strip() for part in str(value).split(",") if part.strip()]
    return ",".join(part.removeprefix("file://") for part in parts) or None


def _numbers(one: type, alone: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [one(each) for each in value]
        if isinstance(value, alone):
            return [value]
        return [one(part.strip()) for part in str(value).split(",") if part.strip()]

    return read


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _bool(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "1")


def _mode(value: Any) -> str:
    text = str(value).strip().lower().replace("-", "_")
    if text in ("prefix_strict", "prefixstrict"):
        return "prefix_strict"
    if text in ("skip_missing_chunks", "skipmissingchunks", "legacy"):
        return "skip_missing_chunks"
    raise ValueError(
        "hidden_states_retrieve_mode must be 'prefix_strict' or "
        f"'skip_missing_chunks', got {value!r}"
    )


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    return json.loads(value) if value else None


def _list(value: Any) -> Any:
    if isinstance(value, list):
        return value
    return [value] if value else []


_READ: Mapping[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "bool": _bool,
    "str": str,
    "disk": _disk,
    "ints": _numbers(int, int),
    "floats": _numbers(float, float),
    "strs": _texts,
    "json": _json,
    "list": _list,
    "mode": _mode,
}


def lmcache_values(
    file: str | None, environment: Mapping[str, str], said: list[str] | None = None
) -> dict[str, Any]:
    """Return every setting as LMCache has it, from a YAML text and the environment.

    file: None without one. Raises what LMCache raises, in its own words. said: to which its
    warnings of lost values are added.
    """
    said = [] if said is None else said
    rows = lmcache_settings()
    found: dict[str, Any] = {}
    if file is not None:
        import yaml

        found = _resolved((yaml.safe_load(file) or {}).items(), said)
    values: dict[str, Any] = {}
    given = {name: f"LMCACHE_{name.upper()}" for name in (*rows, *_ALIASES)}
    plain = _resolved([(n, environment[v]) for n, v in given.items() if v in environment], said)
    for name, row in rows.items():
        value = row.default
        if name in found:
            value = found[name]
        elif file is None and name in plain:
            value = _unquoted(plain[name])
        values[name] = _safely(name, row, value, said)
        if file is not None and name in plain:
            try:
                values[name] = _READ[row.kind](_unquoted(plain[name]))
            except ValueError as error:
                said.append(f"LMCACHE_{name.upper()}={plain[name]}: {error}: it is passed over")
    _validate(values, {*found, *plain})
    return values


def _resolved(items: Any, said: list[str]) -> dict[str, Any]:
    found = {}
    for key, value in items:
        if key in _ALIASES or key in lmcache_settings():
            found[_ALIASES.get(key, key)] = value
        else:
            said.append(f"Unknown configuration key: {key}")
    return found


def _safely(name: str, row: _Row, value: Any, said: list[str]) -> Any:
    if value is None:
        return None
    try:
        return _READ[row.kind](value)
    except ValueError as error:
        said.append(f"Failed to convert value for {name}={value!r}: {error}: it has none then")
        return None


def _unquoted(text: str) -> str:
    if not text:
        return text
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        try:
            value = ast.literal_eval(text)
            if isinstance(value, str):
                return value
        except (ValueError, SyntaxError):
            return text[1:-1]
    return text


def _validate(values: dict[str, Any], given: set[str]) -> None:
    """Check the values as LMCache's ``_validate_config`` does, and complete them.

    Raises ValueError or AssertionError as it does.
    """
    if values["min_retrieve_tokens"] < 0:
        raise ValueError(f"min_retrieve_tokens must be >= 0, got {values['min_retrieve_tokens']}")
    if values["enable_blending"]:
        values["save_unfull_chunk"] = True
    if values["enable_controller"]:
        for name in ("controller_pull_url", "controller_reply_url"):
            if values[name] is None:
                raise ValueError(f"{name} is required when enable_controller=True")
        if not values["lmcache_worker_ports"]:
            raise ValueError(
                "lmcache_worker_ports is required and cannot be empty when enable_controller=True"
            )
    if values["enable_p2p"]:
        _need(values["enable_controller"])
        for name in ("p2p_host", "p2p_init_ports", "p2p_lookup_ports", "transfer_channel"):
            _need(values[name] is not None)
    extra = values["extra_config"]
    nixl = extra is not None and extra.get("enable_nixl_storage")
    if values["enable_pd"]:
        _validate_pd(values)
    if nixl:
        _validate_nixl(values, extra, given)


def _need(holds: object, text: str = "") -> None:
    if not holds:
        raise AssertionError(text)


def _validate_pd(values: dict[str, Any]) -> None:
    for name in ("pd_role", "pd_buffer_size", "pd_buffer_device"):
        _need(values[name] is not None)
    _need(values["enable_p2p"] is False, "PD only supports enable_p2p=False")
    mode = values["pd_backend_mode"]
    if mode not in ("sync", "async"):
        raise ValueError(f"pd_backend_mode must be 'sync' or 'async', got {mode!r}")
    values["save_unfull_chunk"] = True
    if values["pd_role"] == "receiver":
        where = values["retrieve_locations"]
        text = "store_location cannot be PDBackend for receiver"
        _need(values["store_location"] != "PDBackend", text)
        _need(
            where in (None, ["PDBackend"]),
            f'for pd receiver, retrieve_locations are expected to be ["PDBackend"], now, it is '
            f"{where}",
        )


def _validate_nixl(values: dict[str, Any], extra: dict[str, Any], given: set[str]) -> None:
    _need(extra.get("nixl_backend") is not None)
    _need(extra.get("nixl_pool_size") is not None)
    if extra.get("nixl_presence_cache_only") and not extra.get("nixl_presence_cache"):
        text = "nixl_presence_cache must be true when nixl_presence_cache_only is true"
        raise ValueError(text)
    device = values["nixl_buffer_device"]
    _need(device is not None)
    if device != "cpu":
        _need(values["nixl_buffer_size"] is not None)
    else:
        if values["nixl_buffer_size"] is not None:
            raise ValueError("nixl_buffer_size must not be set when nixl_buffer_device='cpu'")
        if values["max_local_cpu_size"] <= 0:
            raise ValueError("nixl_buffer_device='cpu' requires max_local_cpu_size > 0")
        if values["enable_p2p"]:
            raise ValueError("enable_p2p=True together with enable_nixl_storage=True")
    if "nixl_use_hugepages" in extra:
        huge = bool(extra["nixl_use_hugepages"])
        if device == "cpu":
            own = values["local_cpu_use_hugepages"]
            if "local_cpu_use_hugepages" in given and own != huge:
                raise ValueError(
                    f"Conflicting hugepage settings: extra_config.nixl_use_hugepages={huge!r} vs "
                    f"local_cpu_use_hugepages={own!r}"
                )
            values["local_cpu_use_hugepages"] = huge
        del extra["nixl_use_hugepages"]


def overridden(values: dict[str, Any], key: str, value: Any) -> None:
    """Set ``lmcache.<key>`` of the engine's JSON; what cannot be converted changes nothing."""
    row = lmcache_settings().get(key)
    if row is None:
        return
    try:
        if key == "extra_config":  # of whatever type it is
            values[key] = _json(value) if isinstance(value, str) else value
            return
        read = None if value is None else _READ[row.kind](value)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return
    if value is None or read is not None:
        values[key] = read
