"""Which RDMA devices each rank names: lists, per-rank maps, and what SGLang makes of them.

Source: SGLang 0.5.23 ``mooncake_store.py`` (a map is looked up by the rank inside its group, and is
auto-discovery where it is no JSON or names no such rank), and
``distributed/device_communicators/mooncake_transfer_engine.py`` (by the GPU's id).
"""

from __future__ import annotations

import json
from typing import Any

from checks.base.needs import RdmaUse
from checks.base.unknown import Unknown
from preflight.processes.processes import Kind, LaunchProcess, SglangServer
from preflight.programs.sglang_arguments import Setting


def store_devices(process: LaunchProcess, rank: int) -> RdmaUse | None:
    """The store's devices of one rank (0 for a process of its own); None without RDMA."""
    server, store = process.server, process.store
    if server is not None:
        return _server_devices(server, rank)
    if store is None or isinstance(store.client, Unknown):
        return None
    if store.client.protocol.value != "rdma":
        return None
    return RdmaUse(_names(store.devices), _devices_origin(process))


def _devices_origin(process: LaunchProcess) -> str:
    """Where a store's own process has its devices from: a flag, a variable, or nothing."""
    for word in process.arguments:
        flag = word.text.lstrip("-").partition("=")[0].replace("-", "_")
        if word.text.startswith("-") and flag in ("device_names", "device_name"):
            return f"--{flag} at {word.origin}"
    named = process.command.environment.get("MOONCAKE_DEVICE")
    if process.kind is Kind.STORE_SERVICE and named is not None:
        return f"MOONCAKE_DEVICE at {named.origin}"
    return process.name


def _server_devices(server: SglangServer, rank: int) -> RdmaUse | None:
    store = server.store
    if store is None or store.error:
        return _engine_devices(server, rank)
    protocol = store.value("protocol")
    if isinstance(protocol, Unknown):
        return RdmaUse(protocol, store.settings["protocol"].origin)
    if protocol != "rdma":
        return _engine_devices(server, rank)
    setting = store.settings["device_name"]
    value = setting.value
    if isinstance(value, str) and value.strip().startswith("{"):
        value = _of_map(value, rank, default="")
    return RdmaUse(_names(value), setting.origin)


def _engine_devices(server: SglangServer, rank: int) -> RdmaUse | None:
    """Prefill and decode servers move KV through a transfer engine, store or not."""
    if server.mode not in ("prefill", "decode"):
        return None
    if server.value("disaggregation_transfer_backend") != "mooncake":
        return None
    setting: Setting = server.arguments.settings["disaggregation_ib_device"]
    value = setting.value
    if isinstance(value, str) and value.strip().startswith("{"):
        value = _of_map(value, rank, default=None)
        if value is None:
            value = Unknown(f"{setting.origin}: names no device for rank {rank}")
    return RdmaUse(_names(value), setting.origin)


def _of_map(text: str, rank: int, default: str | None) -> Any:
    try:
        mapped = json.loads(text)
    except (ValueError, RecursionError):
        return default
    return mapped.get(str(rank), default) if isinstance(mapped, dict) else default


def _names(value: Any) -> tuple[str, ...] | Unknown:
    if isinstance(value, Unknown):
        return value
    if not isinstance(value, str) or value.strip() == "auto-discovery":
        return ()
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
