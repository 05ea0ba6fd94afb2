"""Store clients that are processes of their own: the store service and ``mooncake_client``.

Each comes to a ``StoreClient``, or to findings in its consumer's own words. Sources: Mooncake
``mooncake-wheel/mooncake/mooncake_store_service.py`` and ``mooncake_config.py``,
``mooncake-store/src/real_client_main.cpp``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from checks.units import GIB, MIB
from checks.unknown import Unknown
from preflight import mooncake_grammar
from preflight.consumer_grammar import store_bool, store_segment_bytes
from preflight.launch import Protocol, StoreClient
from preflight.launch_source import ReadFile, Word
from preflight.sglang_arguments import unresolved_reason

# mooncake_config.py: DEFAULT_GLOBAL_SEGMENT_SIZE, DEFAULT_LOCAL_BUFFER_SIZE.
SERVICE_SEGMENT_BYTES = 3355443200
SERVICE_LOCAL_BUFFER_BYTES = GIB
# real_client_main.cpp: --global_segment_size "4 GB", --local_buffer_size "0".
CLIENT_SEGMENT_BYTES = 4 * GIB
# file_storage.h: the SSD offload buffer without MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES.
OFFLOAD_BUFFER_BYTES = 1280 * MIB


class StoreProcess(NamedTuple):
    """What one process sets up; ``client`` Unknown where a variable decides it."""

    client: StoreClient | Unknown
    refused: tuple[str, ...]  # the program's own errors: it will not start
    misread: tuple[str, ...]  # accepted, and not what was written
    devices: str | Unknown
    master: str | Unknown


def read_store_service(
    arguments: tuple[Word, ...], environment: Mapping[str, Word], read_file: ReadFile
) -> StoreProcess:
    """``python -m mooncake.mooncake_store_service --config=…``, or from the environment."""
    path = _flags(arguments).get("config")
    if path is None and "MOONCAKE_CONFIG_PATH" in environment:
        path = environment["MOONCAKE_CONFIG_PATH"]
    if path is not None:
        config = _service_file(path, read_file)
    else:
        config = _service_environment(environment)
    if isinstance(config, Unknown):
        return StoreProcess(config, (), (), config, config)
    refused = [message for message in (config.pop("error", None),) if message]
    values: dict[str, Any] = {}
    for key, default, read in _SERVICE_KEYS:
        values[key] = _read(config.get(key, default), read, key, refused)
    client = _client(
        values["global_segment_size"],
        values["local_buffer_size"],
        values["protocol"],
        values["enable_ssd_offload"],
        environment,
    )
    address = values["master_server_address"]
    return StoreProcess(client, tuple(refused), (), values["device_name"], address)


def read_mooncake_client(
    arguments: tuple[Word, ...], environment: Mapping[str, Word]
) -> StoreProcess:
    """``mooncake_client --global_segment_size=80GB …``."""
    flags = _flags(arguments)
    misread: list[str] = []

    def size(name: str, default: int) -> int | Unknown:
        word = flags.get(name)
        if word is None:
            return default
        if word.unresolved:
            return Unknown(unresolved_reason(word))
        parsed = mooncake_grammar.byte_size(word.text)
        if parsed is None:
            misread.append(f"--{name}={word.text}: not a size to mooncake_client, which takes 0")
        return parsed or 0

    segment = size("global_segment_size", CLIENT_SEGMENT_BYTES)
    local = size("local_buffer_size", 0)
    protocol = _text(flags, "protocol", "tcp")
    offload = _text(flags, "enable_offload", "false")
    on = isinstance(offload, str) and offload.lower() in ("true", "1", "t", "yes", "y", "")
    client = _client(segment, local, protocol, on, environment)
    devices, master = (
        _text(flags, "device_names", ""),
        _text(flags, "master_server_address", "127.0.0.1:50051"),
    )
    return StoreProcess(client, (), tuple(misread), devices, master)


def offload_buffer_bytes(environment: Mapping[str, Word]) -> int:
    """MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES: a plain number, else the default."""
    word = environment.get("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES")
    text = word.text.strip().removeprefix("+") if word and not word.unresolved else ""
    return int(text) if text.isdecimal() and len(text) < 20 else OFFLOAD_BUFFER_BYTES


_SERVICE_KEYS: tuple[tuple[str, Any, Callable[[Any], Any]], ...] = (
    ("global_segment_size", SERVICE_SEGMENT_BYTES, store_segment_bytes),
    ("local_buffer_size", SERVICE_LOCAL_BUFFER_BYTES, store_segment_bytes),
    ("protocol", "tcp", lambda value: str(value).strip().lower()),
    ("device_name", "", str),
    ("master_server_address", "", str),
    ("enable_ssd_offload", False, store_bool),
)
_SERVICE_VARIABLES = {
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
}
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")


def _service_file(path: Word, read_file: ReadFile) -> dict[str, Any] | Unknown:
    text = Unknown(unresolved_reason(path)) if path.unresolved else read_file(path.text)
    if isinstance(text, Unknown):
        return text
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {"error": f"Configuration load failed: {path.text}: {error}"}
    if not isinstance(config, dict):
        return {"error": f"Configuration load failed: {path.text}: not a JSON object"}
    missing = [key for key in _REQUIRED if key not in config]
    if missing:
        config["error"] = f"Missing required config field: {missing[0]}"
    return config


def _service_environment(environment: Mapping[str, Word]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for key, variable in _SERVICE_VARIABLES.items():
        word = environment.get(variable)
        if word is not None:
            config[key] = Unknown(unresolved_reason(word)) if word.unresolved else word.text
    if not config.get("master_server_address", "") and "MOONCAKE_MASTER" not in environment:
        config["error"] = (
            "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set."
        )
    return config


def _read(value: Any, read: Callable[[Any], Any], key: str, refused: list[str]) -> Any:
    if isinstance(value, Unknown):
        return value
    try:
        parsed = read(value)
    except ValueError as error:
        refused.append(f"{key} {value!r}: ValueError: {error}")
        return Unknown(f"{key} {value!r} is refused")
    if isinstance(parsed, int) and parsed < 0:
        refused.append(f"Invalid {key}: {parsed}. Size must be non-negative.")
        return Unknown(f"{key} {value!r} is refused")
    return parsed


def _client(
    segment: int | Unknown,
    local: int | Unknown,
    protocol: str | Unknown,
    offload: bool | Unknown,
    environment: Mapping[str, Word],
) -> StoreClient | Unknown:
    if isinstance(segment, Unknown):
        return segment
    if isinstance(local, Unknown):
        return local
    # A protocol that decides nothing about memory is sized as RDMA, which registers the most.
    kind = Protocol.TCP if protocol == "tcp" else Protocol.RDMA
    buffer = offload_buffer_bytes(environment) if offload is True else None
    return StoreClient(segment, local, kind, buffer)


def _flags(words: tuple[Word, ...]) -> dict[str, Word]:
    """gflags and argparse alike: ``--name=value``, ``-name=value``, ``--name value``."""
    flags: dict[str, Word] = {}
    name = None
    for word in words:
        if word.text.startswith("-") and len(word.text) > 1:
            name, equals, value = word.text.lstrip("-").partition("=")
            name = name.replace("-", "_")
            flags[name] = word._replace(text=value)
            name = None if equals else name
        elif name is not None:
            flags[name] = word
            name = None
    return flags


def _text(flags: Mapping[str, Word], name: str, default: str) -> str | Unknown:
    word = flags.get(name)
    if word is None:
        return default
    return Unknown(unresolved_reason(word)) if word.unresolved else word.text
