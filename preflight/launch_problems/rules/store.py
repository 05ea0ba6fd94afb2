"""Rules about SGLang's configuration of the store, what servers share in it, and RDMA devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from shlex import quote
from typing import Any

from checks.framework.pages import Default
from checks.framework.problem import Match, Problems
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown, require
from checks.releases.sglang import sglang_release
from checks.run_checks.facts import Facts
from preflight.engines.programs.memory_records import Protocol, StoreClient
from preflight.engines.programs.mooncake_flags import is_on, value_of
from preflight.engines.programs.sglang_arguments import SettingValue
from preflight.engines.programs.store_config import (
    KEYS,
    Source,
    StoreConfig,
    StoreEdit,
    segment_edit,
    sglang_env_bool,
    sglang_env_int,
)
from preflight.engines.programs.store_service_config import PROTOCOLS, sglang_segment_bytes
from preflight.engines.sglang.launch import configured_segment
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules.rules import Spelling, at, replaced
from preflight.processes.mooncake_users import variables_of_auto
from preflight.processes.ports import split_address
from preflight.processes.processes import LaunchProcess, ProcessKind
from preflight.processes.services import PEER_TO_PEER, misdirected, not_dialled, unserved_calls

RULES = Problems("store.md")
DEVICES = Problems("devices.md")
# Flags whose blanks and empty items SGLang drops itself, where it looks the devices up
# (_validate_ib_devices, from 0.5.9 on); Mooncake takes those of the store's own list as they are.
_CLEANED = ("--disaggregation-ib-device", "--mooncake-ib-device")
_SEGMENT = "global_segment_size"
_SWITCHES = ("standalone_storage", "check_server", "enable_ssd_offload", "enable_group_semantics")


@RULES("extra-config-ignored")
def extra_config_ignored(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    source = require(store.source)
    ignored = [key for key in store.extra if key in KEYS]
    if ignored and source is not Source.EXTRA_CONFIG:
        text = f"the extra config sets {', '.join(ignored)}, and {source.value} is used instead"
        yield Match(f"{text}: the JSON names no master_server_address")


@RULES("store-environment-ignored")
def store_environment_ignored(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding for each store variable that is set, if SGLang uses another source."""
    source = require(store.source)
    keys = {entry.variable: key for key, entry in KEYS.items()}
    for variable, where in () if source is Source.ENVIRONMENT else store.unused:
        if variable in keys:
            key = keys[variable]
            setting = store.settings[key]
            text = f"{variable} ({where}) is not read: {source.value} counts, and there {key} is "
            yield Match(f"{text}{setting.value!r} ({setting.origin})")


@RULES("store-config-refused")
def store_config_refused(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding for SGLang's error in the store's settings; without an error, for a protocol
    and for a hostname that Mooncake's setup refuses.
    """
    if store.error:
        yield Match(f"SGLang: {store.error}", None, _edit_text(server, store.edit))
    elif store.value("standalone_storage") is False:
        protocol, host = store.settings["protocol"], store.settings["local_hostname"]
        unknown = isinstance(protocol.value, Unknown)
        # With auto discovery Mooncake installs what it finds, and looks at no protocol.
        discovers = "MC_MS_AUTO_DISC" in server.environment
        if not unknown and not discovers and str(protocol.value) not in PROTOCOLS:
            text = f"protocol {protocol.value!r} ({protocol.origin}): setup fails after 20 tries"
            meant = Spelling().nearest(str(protocol.value).lower(), PROTOCOLS) or "rdma or tcp"
            edit = _new_value_text(server, "protocol", protocol, meant)
            yield Match(f"{text}: unsupported_protocol: write rdma or tcp", None, edit)
        if host.value == "":
            text = f"local_hostname is empty ({host.origin}): setup returns -600"
            edit = _new_value_text(server, "local_hostname", host, "an address of this host")
            yield Match(f"{text}: name an address of this host", None, edit)


def _new_value_text(server: SglangServer, key: str, setting: SettingValue, new: str) -> str:
    """Return the edit that gives a store setting the value ``new``, as a sentence."""
    word = server.environment.get(setting.written_as)
    where = server.command.origin if word is None else word.origin
    name = f"{setting.written_as}=" if word is not None else f"{key}: "
    return replaced(where, f"{name}{setting.value}", f"{name}{new}")


def _edit_text(server: SglangServer, edit: StoreEdit | None) -> str:
    if edit is None:
        return ""
    where = edit.where or server.command.origin
    return replaced(where, edit.old, edit.new) if edit.old else f"{at(where)} add {edit.new}"


@RULES("segment-size-refused")
def segment_size_refused(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding if SGLang or Mooncake refuses the value of global_segment_size."""
    value, where = require(store.value(_SEGMENT)), store.settings[_SEGMENT].origin
    why = ""
    try:
        if value is not None and sglang_segment_bytes(value) < 0:
            why = "TypeError: setup(): incompatible function arguments"
    except ValueError as error:
        why = f"ValueError: {error}"
    if why:
        edit = _edit_text(server, segment_edit(store, server.environment))
        yield Match(f"{_SEGMENT} {value!r} ({where}): {why}", None, edit)


@RULES("segment-size-plain")
def segment_size_plain(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding if global_segment_size is a boolean, a float, or between 0 and 1 MiB."""
    value, size = store.value(_SEGMENT), configured_segment(server)
    # A segment below a mebibyte is no store; somebody meant gigabytes.
    if size is not None and size >= 0 and (isinstance(value, bool | float) or 0 < size < 2**20):
        where = store.settings[_SEGMENT].origin
        yield Match(f"{_SEGMENT} {value!r} ({where}) is {size} bytes to SGLang")


@RULES("string-is-true")
def string_is_true(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    for key in () if store.source is Source.ENVIRONMENT else _SWITCHES:
        value = store.settings[key].value if key in store.settings else store.extra.get(key)
        if isinstance(value, str):
            becomes = "true" if value else "false"
            yield Match(f"{key} is the string {value!r}, which counts as {becomes}")


@RULES("store-key-unknown")
def store_key_unknown(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding for each setting that SGLang's Mooncake store does not know."""
    require(store.source)
    spelling = Spelling()
    for key in store.unknown_keys:
        near = spelling.nearest(key, KEYS)
        hint = f": did you mean {near}?" if near else ""
        yield Match(f"{key!r} is not a setting of the store{hint}")


@RULES("environment-value-defaulted")
def environment_value_defaulted(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding for each boolean or number of the store that SGLang cannot read."""
    for entry in KEYS.values() if store.source is Source.ENVIRONMENT else ():
        word = server.environment.get(entry.variable)
        if word is None or word.unresolved or entry.read not in (sglang_env_bool, sglang_env_int):
            continue
        try:
            entry.read(word.text)
        except ValueError as error:
            text = f"{entry.variable}={word.text}: {error}, using default {entry.default!r}"
            yield Match(text, word.origin)


@RULES("segment-times-dp")
def segment_times_dp(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding if each of several data-parallel groups contributes a whole segment."""
    size, groups = (
        configured_segment(server),
        require(server.attention_dp) * require(server.replicas),
    )
    if size is not None and groups > 1 and size > 0:
        text = f"global_segment_size {format_bytes(size)} is contributed by each of {groups} "
        yield Match(f"{text}data-parallel groups: {format_bytes(size * groups)} in all")


@RULES("local-hostname-localhost")
def local_hostname_localhost(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    nodes, host = require(server.number("nnodes")), store.settings["local_hostname"]
    if nodes > 1 and host.value in ("localhost", "127.0.0.1"):
        yield Match(f"local_hostname is {host.value} ({host.origin}) with --nnodes {nodes}")


@RULES("standalone-without-switch")
def standalone_without_switch(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding if client_server_address is set without standalone storage or a master."""
    require(store.source)
    names = ("client_server_address", "master_server_address", "standalone_storage")
    client, master, standalone = (require(store.value(name)) for name in names)
    if client and not store.error and not master and not standalone:
        text, tenant = f"client_server_address is {client!r}", store.value("tenant_id")
        text += ", standalone_storage is off and no master is named"
        # The wrong cause that SGLang reports for this error of setup.
        if isinstance(tenant, str) and tenant.strip() not in ("", "default"):
            text += "; SGLang then says that this Mooncake does not support tenant_id"
        elif store.value("enable_ssd_offload") is True:
            text += "; SGLang then says that this Mooncake is too old for SSD offload"
        yield Match(text)


def _master_addresses(process: LaunchProcess) -> list[str]:
    """Return the addresses of masters, as far as they are known, that a process's clients dial."""
    store = process.server.store if process.server is not None else None
    masters: list[object] = [client.master for client in process.stores]
    if store is not None and not store.error and store.value("standalone_storage") is not True:
        masters.append(store.value("master_server_address"))
    return [master for master in masters if isinstance(master, str) and master.strip()]


@RULES("master-without-port")
def master_without_port(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each master address that has no port."""
    for master in _master_addresses(process):
        if ":" not in master:
            yield Match(f"the master's address is {master!r}")


@RULES("ha-address-plain")
def ha_address_plain(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each client with one master's address, if all masters of the launch are
    of a group that elects its leader (--enable_ha).
    """
    masters = [process.arguments for process in processes if process.kind is ProcessKind.MASTER]
    if not masters or not all(is_on(each, "mooncake_master", "enable_ha") for each in masters):
        return
    names = "etcd_endpoints", "ha_backend_connstring"
    endpoints = [word for name in names if (word := value_of(masters[0], name))]
    backend = value_of(masters[0], "ha_backend_type")
    remedy = ""
    if endpoints and not endpoints[-1].unresolved and (backend is None or backend.text == "etcd"):
        remedy = f"write {quote(f'etcd://{endpoints[-1].text}')} as the master's address"
    for process in processes:
        for master in _master_addresses(process):
            if "://" not in master:
                text = f"the masters elect a leader, and {master} is one of them, or a service"
                yield Match(text, process.command.origin, remedy)


@RULES("service-misdirected")
def service_misdirected(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for process, service, elsewhere in misdirected(processes):
        port = "" if service.port is None else f":{service.port}"
        called = f"{service.kind} {service.host}{port}"
        yield Match(f"{called}: {elsewhere} ({service.origin})", process.command.origin)


@RULES("service-not-started")
def service_not_started(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each process that asks this host's master at a port that none serves."""
    for process, service, master, served in unserved_calls(processes):
        called = f"{service.kind} {service.host}:{service.port} ({service.origin})"
        listens = " and ".join(map(str, served))
        if service.kind == "master":
            text = f"{called}: the launch's {master.name} listens on port {listens}"
            remedy = f"ask port {listens}, or give {master.name} --rpc_port={service.port}"
        else:
            flags = f"--enable_http_metadata_server=true --http_metadata_server_port={service.port}"
            text = f"{called}: the launch's {master.name} "
            text += f"serves metadata on port {listens}" if served else "serves no metadata"
            remedy = f"give {master.name} {flags}, or write {PEER_TO_PEER} as metadata server"
        yield Match(text, process.command.origin, remedy)


@RULES("endpoints-not-dialled")
def endpoints_not_dialled(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each master or metadata address of which a client passes over a part."""
    names = ("master_server_address", "metadata_server")
    store = process.server.store if process.server is not None else None
    pairs = [] if store is None else [tuple(map(store.value, names))]
    for pair in (*pairs, *((client.master, client.metadata) for client in process.stores)):
        for name, value in zip(names, pair, strict=True):
            if isinstance(value, str) and (others := not_dialled(value)):
                yield Match(f"{name} {value}: {others} is not dialled")


def _same_names(schemes: tuple[str, ...], processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each store client with the ``host:port`` and the metadata server of an
    earlier client that may run beside it.

    Args:
        schemes: Of the metadata servers that are looked at.
    """
    first: dict[tuple[str, str], LaunchProcess] = {}
    for process in processes:
        names = [(client.hostname, client.metadata) for client in process.stores]
        store = process.server.store if process.server is not None else None
        if store is not None and store.value("standalone_storage") is False:
            names.append((store.value("local_hostname"), store.value("metadata_server")))
        for name, metadata in names:
            if not isinstance(name, str) or not isinstance(metadata, str):
                continue
            named = metadata.partition("://")[0] in schemes
            if named and split_address(name).port is not None:
                other = first.setdefault((name, metadata), process)
                apart = other.command.waited or other.command.turn != process.command.turn
                if other is not process and not apart:
                    text = f"{process.name} and {other.name} are both {name} in {metadata}"
                    yield Match(text, process.command.origin)


RULES("client-name-twice")(partial(_same_names, ("http", "https")))
RULES("client-name-replaced")(partial(_same_names, ("etcd", "redis")))


@RULES("segment-nowhere")
def segment_nowhere(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding if each server gives its store a segment of 0, and the launch has neither a
    store service nor a mooncake_client.
    """
    stores = [server for server, _ in _store_servers(processes)]
    kinds = {process.kind for process in processes}
    if not stores or kinds & {ProcessKind.CLIENT, ProcessKind.STORE_SERVICE}:
        return
    if all(configured_segment(server) == 0 for server in stores):
        text = "global_segment_size is 0 in every server, and no store service or mooncake_client "
        yield Match(f"{text}is in this source: one must run elsewhere", stores[0].command.origin)


@RULES("model-name-shared")
def model_name_shared(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each server with the served name and the master of an earlier server, but
    another model.
    """
    first: dict[tuple[object, object], object] = {}
    for server, store in _store_servers(processes):
        name, model = server.value("served_model_name"), server.value("model_path")
        master = store.value("master_server_address")
        if name is None or any(isinstance(value, Unknown) for value in (name, master, model)):
            continue
        other = first.setdefault((name, master), model)
        if other != model:
            text = f"{other} and {model} are both served as {name!r}"
            yield Match(text, server.command.origin)


def _store_servers(processes: tuple[LaunchProcess, ...]) -> list[tuple[SglangServer, StoreConfig]]:
    """Return the SGLang servers that use the Mooncake store, each with its configuration."""
    servers = [each.server for each in processes if each.server is not None]
    return [(server, server.store) for server in servers if server.store is not None]


@DEVICES("device-name-syntax")
def device_name_syntax(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each name in a device list that cannot be the name of a device."""
    server = process.server
    for what, text in _engine_lists(process) if server is None else _device_lists(server):
        names = text.split(",")
        cleans = server is not None and sglang_release(server.arguments.version).looks_up_devices
        if what in _CLEANED and cleans:
            names = [name.strip() for name in names if name.strip()] or names
        for name in names:
            wrong = _name_error(name)
            if wrong:
                yield Match(f"{what}: {name!r} {wrong}")


@DEVICES("device-map-unreadable")
def device_map_unreadable(server: SglangServer) -> Iterator[Match]:
    text = _store_devices(server)
    if text is not None and isinstance(_device_map(text), str):
        yield Match(f"device_name {text!r}: {_device_map(text)}")


@DEVICES("device-map-rank-missing")
def device_map_rank_missing(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if the store's per-rank device map leaves out some ranks."""
    text, ranks = _store_devices(server), require(server.number("tp_size"))
    mapped = None if text is None else _device_map(text)
    if isinstance(mapped, dict) and ranks <= 1024:
        sharing = max(1, ranks // max(1, require(server.attention_dp)))
        missing = [str(rank) for rank in range(sharing) if str(rank) not in mapped]
        if missing:
            yield Match(f"device_name names no device for rank {', '.join(missing)}")


@DEVICES("device-map-repeats")
def device_map_repeats(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if data-parallel groups use the same entries of a per-rank device map."""
    text, groups = _store_devices(server), require(server.number("dp_size"))
    if text is not None and groups > 1 and isinstance(_device_map(text), dict):
        each = "each attention group" if require(server.attention_dp) > 1 else "each replica"
        yield Match(f'a device map with --dp-size {groups}: the first rank of {each} takes "0"')


@DEVICES("two-transfer-engines")
def two_transfer_engines(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding for each reason why an RDMA store does not share SGLang's transfer engine."""
    require(store.source)
    if store.error or not _offers_engine(server) or store.value("standalone_storage") is True:
        return
    devices = [server.value(name) for name in ("disaggregation_ib_device", "mooncake_ib_device")]
    engine = require(next((value for value in devices if value is not None), None))
    names = ("device_name", "metadata_server", "protocol")
    device, metadata, protocol = (require(store.value(name)) for name in names)
    if protocol != "rdma" or variables_of_auto(server):  # those releases share none
        return
    if metadata != "P2PHANDSHAKE":
        text = f"the store has the metadata server {metadata!r}, SGLang's engine P2PHANDSHAKE"
        edit = f"write P2PHANDSHAKE as its metadata server ({_place_of(store, 'metadata_server')})"
        yield Match(text, None, edit)
    transfers = server.mode in ("prefill", "decode")
    flag = "--disaggregation-ib-device" if transfers else "--mooncake-ib-device"
    where, setting = at(server.command.origin), _place_of(store, "device_name")
    if not (device or engine):  # '' here, None there: compared as they are
        text = "the store has no device, nor has SGLang's engine, which is shared only where both "
        edit = f"{where} name the devices for both, written alike: {flag}, and {setting}"
        yield Match(f"{text}are given the same", None, edit)
    elif device != engine:
        edit = f"{where} add {flag} {quote(str(device))}"
        if device == "auto":  # no device, in the releases that share
            edit = f"{where} name the devices for both, written alike: {flag}, and {setting}"
        if engine:
            edit = f"give the store {engine!r}, as {flag} has it ({setting})"
        both = [f"device {name!r}" if name else "no device" for name in (device, engine)]
        yield Match(f"the store has {both[0]}, SGLang's engine {both[1]}", None, edit)


@DEVICES("tcp-takes-rdma")
def tcp_takes_rdma(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if the protocol is tcp, but SGLang's own engine may use RDMA devices."""
    store, word = server.store, server.environment.get("MOONCAKE_PROTOCOL")
    shared = store is not None and _offers_engine(server)
    if "MC_FORCE_TCP" in server.environment or not (_transfers(server) or shared):
        return
    if store and store.value("protocol") == "tcp":
        text = f"protocol is tcp ({store.settings['protocol'].origin})"
        yield Match(text, harmless=_has_no_nic)
    elif word is not None and word.text == "tcp":
        yield Match("protocol is tcp (MOONCAKE_PROTOCOL)", word.origin, harmless=_has_no_nic)


def _has_no_nic(facts: Facts) -> str:
    """Say that a host has no RDMA device; "" if it has one, or that is not known."""
    rdma = facts.topic("rdma")
    return "" if isinstance(rdma, Unknown) or rdma.nics != () else "no RDMA device on this host"


@DEVICES("custom-mem-pool-unknown")
def custom_mem_pool_unknown(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if SGLang does not know the value of SGLANG_MOONCAKE_CUSTOM_MEM_POOL."""
    word = server.environment.get("SGLANG_MOONCAKE_CUSTOM_MEM_POOL")
    if word is None or word.unresolved or word.text.lower() in ("true", "false", "0", ""):
        return
    if word.text not in ("NVLINK", "BAREX", "INTRA_NODE_NVLINK"):
        yield Match(f"SGLANG_MOONCAKE_CUSTOM_MEM_POOL={word.text}", word.origin)


def _place_of(store: StoreConfig, key: str) -> str:
    """Return the place of a store setting; if nobody wrote it, the name under which to add it."""
    setting = store.settings[key]
    if not isinstance(setting.origin, Default):
        return str(setting.origin)
    return KEYS[key].variable if store.source is Source.ENVIRONMENT else f"{key} beside its others"


def _transfers(server: SglangServer) -> bool:
    """Return whether Mooncake's engine moves KV cache between prefill and decode."""
    backend = server.value("disaggregation_transfer_backend")
    return server.mode in ("prefill", "decode") and backend == "mooncake"


def _offers_engine(server: SglangServer) -> bool:
    """Return whether SGLang offers its transfer engine to the store.

    For a linker alone it makes none (``maybe_init_shared_mooncake_transfer_engine``).
    """
    if server.links and not _transfers(server):
        return False
    reuse = server.environment.get("SGLANG_HICACHE_MOONCAKE_REUSE_TE")
    return reuse is None or reuse.text.lower() not in ("0", "false", "no", "n")


def _store_devices(server: SglangServer) -> str | None:
    store = server.store
    if store is None or not isinstance(store.source, Source):
        return None
    value = store.value("device_name")
    return value if isinstance(value, str) else None


def _device_lists(server: SglangServer) -> Iterator[tuple[str, str]]:
    """Yield (setting, device names with commas) for each device list of an SGLang server.

    A JSON map of devices per rank yields one pair a value. ``auto`` and files are left out.
    """
    stored = _store_devices(server)
    names = ("disaggregation_ib_device", "mooncake_ib_device")
    flags = [("--" + name.replace("_", "-"), server.value(name)) for name in names]
    for what, text in (("device_name", stored), *flags):
        if not isinstance(text, str) or not text or text in ("auto-discovery", "auto"):
            continue
        if text.endswith(".json") and what.startswith("--"):
            continue
        mapped = _device_map(text)
        if mapped is None:
            yield what, text
        elif isinstance(mapped, dict):
            yield from ((what, item) for item in mapped.values() if isinstance(item, str))


def _engine_lists(process: LaunchProcess) -> Iterator[tuple[str, str]]:
    """Yield (setting, device names with commas) for each device list of an engine that is not
    SGLang.

    A store client without RDMA is left out.
    """
    consumer = process.consumer
    for store in process.stores if consumer is not None else ():
        rdma = isinstance(store.client, StoreClient) and store.client.protocol is Protocol.RDMA
        if rdma and isinstance(store.devices, str) and store.devices:
            yield "device_name", store.devices
    if consumer is not None and consumer.transfer is not None and consumer.transfer.value:
        yield consumer.transfer.origin, consumer.transfer.value


def _device_map(text: str) -> dict[str, Any] | str | None:
    """Return a JSON map of devices per rank, or its error as text; None for a list of names."""
    if not text.strip().startswith("{"):
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return parsed if isinstance(parsed, dict) else "not an object"


def _name_error(name: str) -> str:
    """Return the error in a device name as the end of a sentence; "" if no error is known."""
    blank = " " in name or name != name.strip()
    wrong = {
        "is empty": not name.strip(),
        "": "$" in name,
        "has a port, which is NCCL's spelling": ":" in name,
        "has quotes in it": '"' in name or "'" in name,
        "has a blank in it, which Mooncake takes as part of the name": blank,
    }
    return next((text for text, holds in wrong.items() if holds), "")
