"""Which processes of a launch load Mooncake's library, and which RDMA devices each rank names.

A process names them in a list, or in a map per rank. Source: SGLang 0.5.23 ``mooncake_store.py`` (a
map is looked up by the rank inside its group, and is auto-discovery if it is no JSON or lacks the
rank), and ``distributed/device_communicators/mooncake_transfer_engine.py`` (by the GPU's id).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from checks.framework.needs import RdmaUse
from checks.framework.unknown import Unknown
from checks.releases.sglang import sglang_release, store_reader
from preflight.engines.programs.sglang_arguments import SettingValue, word_value
from preflight.engines.programs.store_service_config import json_object
from preflight.engines.sglang.server import SglangServer
from preflight.launches.source import Word
from preflight.processes.containers import place_of
from preflight.processes.processes import LaunchProcess, ProcessKind

_PROGRAMS = (ProcessKind.STORE_SERVICE, ProcessKind.CLIENT, ProcessKind.MASTER)


def uses_mooncake(process: LaunchProcess) -> bool:
    """Return whether a process uses Mooncake's store or engine, or is one of its programs."""
    if process.server is not None:
        return _server_uses_mooncake(process.server)
    if process.consumer is not None:
        return bool(process.consumer.clients) or process.consumer.transfer_protocol != ""
    return process.kind in _PROGRAMS


def store_clients(process: LaunchProcess) -> bool:
    """Tell whether a process is a client of the Mooncake store."""
    holder = process if process.server is None else process.server
    return holder.store is not None


def settings_of(
    processes: tuple[LaunchProcess, ...],
    names: tuple[str, ...],
    reads: Callable[[LaunchProcess], bool] = uses_mooncake,
) -> Iterator[tuple[LaunchProcess, str, Word]]:
    """Yield (process, name, word) for each variable of ``names`` that a process is given and reads.

    Each written value is yielded once, with the first process that reads it; a value that is not
    known is left out.

    Args:
        reads: Tells whether a process reads variables with these names at all.
    """
    seen = set()
    for process in processes:
        if not reads(process):
            continue
        for name in names:
            word = process.command.environment.get(name)
            if word is not None and not word.unresolved and (name, word) not in seen:
                seen.add((name, word))
                yield process, name, word


def _server_uses_mooncake(server: SglangServer) -> bool:
    """Tell whether a server uses Mooncake: as a store, between prefill and decode, for encoders, or
    between experts.
    """
    if server.store is not None:
        return True
    transfers = server.mode in ("prefill", "decode")
    backends = "moe_a2a_backend elastic_ep_backend encoder_transfer_backend".split()
    backends += ["disaggregation_transfer_backend"] * transfers
    return "mooncake" in map(server.value, backends)


def _store_setting(process: LaunchProcess, key: str) -> Any:
    """Return a setting of the store of an SGLang server; None without one."""
    store = None if process.server is None else process.server.store
    return None if store is None else store.value(key)


def device_names(process: LaunchProcess) -> str | None:
    """Return the device names that a store client is given; None if there are none, or unknown."""
    value = _store_setting(process, "device_name")
    if process.server is None and process.store is not None:
        value = process.store.devices
    return value if isinstance(value, str) else None


def place(process: LaunchProcess) -> tuple[tuple[str, ...], ...] | None:
    """Return where a process runs: equal places share their files; () on the host."""
    return place_of(process.command)


def offloads(process: LaunchProcess) -> bool:
    """Tell whether a store client offloads to SSD, as far as is known."""
    return ssd_offload(process) is True


def ssd_offload(process: LaunchProcess) -> Any:
    """Return the SSD offload setting of a store client: True for on."""
    if process.server is not None or process.store is None:
        return _store_setting(process, "enable_ssd_offload")
    return process.store.offload


def store_protocol(process: LaunchProcess) -> str | Unknown | None:
    """Return a store client's transport (rdma, tcp, efa, ..) or Unknown; None for no client."""
    if process.server is not None or process.store is None:
        protocol: str | Unknown | None = _store_setting(process, "protocol")
        return protocol
    client, protocol = process.store.client, process.store.protocol
    if isinstance(client, Unknown):
        return client
    return client.protocol.value if protocol == "" else protocol


def store_devices(process: LaunchProcess, rank: int) -> RdmaUse | None:
    """Return the RDMA devices that one rank uses (0 for a process without ranks): those of its
    store client, else of its transfer engine.

    Returns:
        None if neither uses RDMA, or the client's settings are not known.
    """
    server, store = process.server, process.store
    if server is not None:
        return _server_devices(server, rank)
    transfer = None if process.consumer is None else process.consumer.transfer
    if transfer is not None and store is None:  # the same engine as SGLang's
        forced = "MC_FORCE_TCP" in process.command.environment
        use = RdmaUse(_names(transfer.value), transfer.origin, by_engine=True)
        return None if forced else use
    if transfer is not None and store is not None and store.devices == "":
        return RdmaUse(_names(transfer.value), transfer.origin)
    if store is None or isinstance(store.client, Unknown):
        return None
    protocol = store_protocol(process)
    if protocol != "rdma" and not isinstance(protocol, Unknown):  # what is not known may be RDMA
        return None
    origin, variable = _devices_origin(process)
    return RdmaUse(_names(store.devices), origin, variable)


def _devices_origin(process: LaunchProcess) -> tuple[str, str]:
    """Return where the devices of a store's own process are written, and MOONCAKE_DEVICE if that
    variable names the devices, else "".

    The place is the process's name if no flag, setting of its engine or variable names the devices.
    """
    for word in process.arguments:
        flag = word.flag.lstrip("-").replace("-", "_")
        if flag in ("device_names", "device_name"):
            return f"--{flag} at {word.origin}", ""
    if process.consumer is not None and "store.device_name" in process.consumer.settings:
        return process.consumer.settings["store.device_name"].origin, ""
    named = process.command.environment.get("MOONCAKE_DEVICE")
    if process.kind is ProcessKind.STORE_SERVICE and named is not None:
        return f"MOONCAKE_DEVICE at {named.origin}", "MOONCAKE_DEVICE"
    return process.name, ""


def _server_devices(server: SglangServer, rank: int) -> RdmaUse | None:
    """Return the RDMA devices of one rank of a server's store; without a store over RDMA, those of
    the engine between prefill and decode.

    Returns:
        None if neither uses RDMA.
    """
    store = server.store
    # In standalone storage a mooncake_client has the devices, and the rank only shared memory.
    if store is None or store.error or store.value("standalone_storage") is True:
        return _engine_use(server, rank)
    protocol = store.value("protocol")
    if isinstance(protocol, Unknown):
        return RdmaUse(protocol, store.settings["protocol"].origin)
    if protocol != "rdma":
        return _engine_use(server, rank)
    setting = store.settings["device_name"]
    value = setting.value
    if isinstance(value, str) and value.strip().startswith("{"):
        value = _map_entry(value, rank, default="")
    return RdmaUse(_names(value), setting.origin, setting.written_as)


# SGLang 0.5.1 to 0.5.3, mooncake_store.py __post_init__.
_OF_AUTO = {
    "MC_MS_AUTO_DISC": "1",
    "MC_MS_FILTERS": "mlx5_bond_0, mlx5_bond_1, mlx5_bond_2, mlx5_bond_3",
}


def variables_of_auto(server: SglangServer | None) -> dict[str, str]:
    """Return the variables that SGLang itself sets if its store's device is ``auto``, the default
    up to 0.5.3, whatever the launch has; {} for other devices and newer releases.
    """
    if server is None or server.store is None or server.store.value("device_name") != "auto":
        return {}
    return _OF_AUTO if store_reader(server.arguments.version).device == "auto" else {}


def engine_devices(server: SglangServer | None, rank: int) -> RdmaUse | None:
    """Return the devices that one rank's engine between prefill and decode is given.

    A server looks the devices up before it starts, even if the transport is not RDMA.

    Returns:
        None without ``server``, for a server without an engine of Mooncake's, and for Ascend's
        engine.
    """
    if server is None or engine_protocol(server) in (None, "ascend"):
        return None
    setting: SettingValue = server.arguments.settings["disaggregation_ib_device"]
    value = setting.value
    if isinstance(value, str) and value.endswith(".json"):  # a map in a file
        return RdmaUse(Unknown(f"{value} is not read"), setting.origin, setting.written_as)
    if isinstance(value, str) and value.strip().startswith("{"):
        value = _map_entry(value, rank, default=None)
        if value is None:
            value = Unknown(f"{setting.origin}: names no device for rank {rank}")
    return RdmaUse(_names(value), setting.origin, setting.written_as, by_engine=True)


def _engine_use(server: SglangServer, rank: int) -> RdmaUse | None:
    """Return the devices that the engine between prefill and decode uses; None without RDMA."""
    protocol = engine_protocol(server)
    if isinstance(protocol, Unknown):
        origin = server.environment["MOONCAKE_PROTOCOL"].origin
        return RdmaUse(protocol, f"MOONCAKE_PROTOCOL at {origin}", "MOONCAKE_PROTOCOL")
    return engine_devices(server, rank) if protocol == "rdma" else None


def engine_protocol(server: SglangServer) -> str | Unknown | None:
    """Return the transport of a server's Mooncake engine between prefill and decode: rdma, tcp,
    efa, ascend.

    MC_FORCE_TCP makes it tcp (transfer_engine_impl.cpp, init). Devices only narrow Mooncake's own
    discovery (transfer_engine_py.cpp, initializeExt).

    Returns:
        None for a server without that engine; Unknown if it depends on a variable or a release that
        is not known.
    """
    if server.mode not in ("prefill", "decode"):
        return None
    if server.value("disaggregation_transfer_backend") != "mooncake":
        return None
    if server.value("device") == "npu":  # AscendTransferEngine, without RDMA devices
        return "ascend"
    if "MC_FORCE_TCP" in server.environment:
        return "tcp"
    word = server.environment.get("MOONCAKE_PROTOCOL")
    if word is None:
        return "rdma"
    named = word_value(word)
    if named != "efa" and not isinstance(named, Unknown):
        return "rdma"  # a wheel that is not built for EFA looks for RDMA devices whatever it says
    if server.arguments.assumed:
        why = "which releases of SGLang go by MOONCAKE_PROTOCOL is known, and not which one runs"
        return Unknown(why, advice="give --sglang-version")
    return named if sglang_release(server.arguments.version).engine_takes_protocol else "rdma"


def other_transport(process: LaunchProcess) -> str:
    """Return a process's transport other than RDMA and TCP, whose driver pins memory; else ""."""
    server, protocol = process.server, store_protocol(process)
    store = None if server is None else server.store
    # In standalone storage a mooncake_client moves it, and a store with an error nothing.
    if store is not None and (store.error or store.value("standalone_storage") is True):
        protocol = None
    if isinstance(protocol, str) and protocol not in ("", "rdma", "tcp"):
        return protocol
    engine = None if server is None else engine_protocol(server)
    return engine if engine in ("efa", "ascend") else ""


def _map_entry(text: str, rank: int, default: str | None) -> Any:
    mapped = json_object(text)
    return default if isinstance(mapped, str) else mapped.get(str(rank), default)


def _names(value: Any) -> tuple[str, ...] | Unknown:
    if isinstance(value, Unknown):
        return value
    if not isinstance(value, str) or value.strip() == "auto-discovery":
        return ()
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
