"""Rules about the store that SGLang configures: which source counts, and what processes share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from checks.base.units import format_bytes
from checks.base.unknown import Unknown, known
from preflight.processes.ports import split_address
from preflight.processes.processes import LaunchProcess, ProcessKind, SglangServer
from preflight.processes.services import PEER_TO_PEER, misdirected, not_dialled, not_served
from preflight.programs.sglang_arguments import SettingValue
from preflight.programs.store_config import (
    KEYS,
    Source,
    StoreConfig,
    StoreEdit,
    segment_edit,
    sglang_env_bool,
    sglang_env_int,
)
from preflight.programs.store_service_config import PROTOCOLS, sglang_segment_bytes
from preflight.rules.rules import RuleSet, Seen, Spelling, at, replaced
from preflight.sglang.launch import configured_segment

RULES = RuleSet("store")
_SEGMENT = "global_segment_size"
_SWITCHES = ("standalone_storage", "check_server", "enable_ssd_offload", "enable_group_semantics")


@RULES.store("extra-config-ignored")
def extra_config_ignored(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    source = known(store.source)
    ignored = [key for key in store.extra if key in KEYS]
    if ignored and source is not Source.EXTRA_CONFIG:
        text = f"the extra config sets {', '.join(ignored)}, and {source.value} is used instead"
        yield Seen(f"{text}: the JSON names no master_server_address")


@RULES.store("store-environment-ignored")
def store_environment_ignored(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding for each store variable that is set, if SGLang uses another source."""
    source = known(store.source)
    keys = {entry.variable: key for key, entry in KEYS.items()}
    for variable, where in () if source is Source.ENVIRONMENT else store.unused:
        if variable in keys:
            key = keys[variable]
            setting = store.settings[key]
            text = f"{variable} ({where}) is not read: {source.value} counts, and there {key} is "
            yield Seen(f"{text}{setting.value!r} ({setting.origin})")


@RULES.store("store-config-refused")
def store_config_refused(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding for each store setting that SGLang or the setup of Mooncake refuses."""
    if store.error:
        yield Seen(f"SGLang: {store.error}", None, _edited(server, store.edit))
    elif store.value("standalone_storage") is False:
        protocol, host = store.settings["protocol"], store.settings["local_hostname"]
        unknown = isinstance(protocol.value, Unknown)
        # With auto discovery Mooncake installs what it finds, and looks at no protocol.
        discovers = "MC_MS_AUTO_DISC" in server.environment
        if not unknown and not discovers and str(protocol.value) not in PROTOCOLS:
            text = f"protocol {protocol.value!r} ({protocol.origin}): setup fails after 20 tries"
            meant = Spelling().nearest(str(protocol.value).lower(), PROTOCOLS) or "rdma or tcp"
            edit = _rewritten(server, "protocol", protocol, meant)
            yield Seen(f"{text}: unsupported_protocol: write rdma or tcp", None, edit)
        if host.value == "":
            text = f"local_hostname is empty ({host.origin}): setup returns -600"
            edit = _rewritten(server, "local_hostname", host, "an address of this host")
            yield Seen(f"{text}: name an address of this host", None, edit)


def _rewritten(server: SglangServer, key: str, setting: SettingValue, new: str) -> str:
    """Return the edit that gives a store setting the value ``new``, as a sentence."""
    word = server.environment.get(setting.written_as)
    where = server.command.origin if word is None else word.origin
    name = f"{setting.written_as}=" if word is not None else f"{key}: "
    return replaced(where, f"{name}{setting.value}", f"{name}{new}")


def _edited(server: SglangServer, edit: StoreEdit | None) -> str:
    if edit is None:
        return ""
    where = edit.where or server.command.origin
    return replaced(where, edit.old, edit.new) if edit.old else f"{at(where)} add {edit.new}"


@RULES.store("segment-size-refused")
def segment_size_refused(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding if SGLang or Mooncake refuses the value of global_segment_size."""
    value, where = known(store.value(_SEGMENT)), store.settings[_SEGMENT].origin
    why = ""
    try:
        if value is not None and sglang_segment_bytes(value) < 0:
            why = "TypeError: setup(): incompatible function arguments"
    except ValueError as error:
        why = f"ValueError: {error}"
    if why:
        edit = _edited(server, segment_edit(store, server.environment))
        yield Seen(f"{_SEGMENT} {value!r} ({where}): {why}", None, edit)


@RULES.store("segment-size-plain")
def segment_size_plain(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding if global_segment_size is a boolean, a float, or between 0 and 1 MiB."""
    value, size = store.value(_SEGMENT), configured_segment(server)
    # A segment below a mebibyte is no store; somebody meant gigabytes.
    if size is not None and size >= 0 and (isinstance(value, bool | float) or 0 < size < 2**20):
        where = store.settings[_SEGMENT].origin
        yield Seen(f"{_SEGMENT} {value!r} ({where}) is {size} bytes to SGLang")


@RULES.store("string-is-true")
def string_is_true(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    for key in () if store.source is Source.ENVIRONMENT else _SWITCHES:
        value = store.settings[key].value if key in store.settings else store.extra.get(key)
        if isinstance(value, str):
            becomes = "true" if value else "false"
            yield Seen(f"{key} is the string {value!r}, which counts as {becomes}")


@RULES.store("store-key-unknown")
def store_key_unknown(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding for each setting that SGLang's Mooncake store does not know."""
    known(store.source)
    spelling = Spelling()
    for key in store.unknown_keys:
        near = spelling.nearest(key, KEYS)
        hint = f": did you mean {near}?" if near else ""
        yield Seen(f"{key!r} is not a setting of the store{hint}")


@RULES.store("environment-value-defaulted")
def environment_value_defaulted(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding for each store variable that SGLang cannot read: SGLang uses its default."""
    for entry in KEYS.values() if store.source is Source.ENVIRONMENT else ():
        word = server.environment.get(entry.variable)
        if word is None or word.unresolved or entry.read not in (sglang_env_bool, sglang_env_int):
            continue
        try:
            entry.read(word.text)
        except ValueError as error:
            text = f"{entry.variable}={word.text}: {error}, using default {entry.default!r}"
            yield Seen(text, word.origin)


@RULES.store("segment-times-dp")
def segment_times_dp(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding if each of several data-parallel groups contributes a whole segment."""
    size, groups = configured_segment(server), known(server.attention_dp) * known(server.replicas)
    if size is not None and groups > 1 and size > 0:
        text = f"global_segment_size {format_bytes(size)} is contributed by each of {groups} "
        yield Seen(f"{text}data-parallel groups: {format_bytes(size * groups)} in all")


@RULES.store("local-hostname-localhost")
def local_hostname_localhost(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    nodes, host = known(server.number("nnodes")), store.settings["local_hostname"]
    if nodes > 1 and host.value in ("localhost", "127.0.0.1"):
        yield Seen(f"local_hostname is {host.value} ({host.origin}) with --nnodes {nodes}")


@RULES.store("standalone-without-switch")
def standalone_without_switch(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding if client_server_address is set without standalone storage or a master."""
    known(store.source)
    names = ("client_server_address", "master_server_address", "standalone_storage")
    client, master, standalone = (known(store.value(name)) for name in names)
    if client and not store.error and not master and not standalone:
        text, tenant = f"client_server_address is {client!r}", store.value("tenant_id")
        text += ", standalone_storage is off and no master is named"
        # The wrong cause that SGLang reports for this error of setup.
        if isinstance(tenant, str) and tenant.strip() not in ("", "default"):
            text += "; SGLang then says that this Mooncake does not support tenant_id"
        elif store.value("enable_ssd_offload") is True:
            text += "; SGLang then says that this Mooncake is too old for SSD offload"
        yield Seen(text)


@RULES.process("master-without-port")
def master_without_port(process: LaunchProcess) -> Iterator[Seen]:
    """Yield a finding for each master address that has no port."""
    store = process.server.store if process.server is not None else None
    masters: list[object] = [one.master for one in process.stores]
    if store is not None and not store.error and store.value("standalone_storage") is not True:
        masters.append(store.value("master_server_address"))
    for master in masters:
        if isinstance(master, str) and master.strip() and ":" not in master:
            yield Seen(f"the master's address is {master!r}")


@RULES.launch("service-misdirected")
def service_misdirected(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process, service, elsewhere in misdirected(processes):
        port = "" if service.port is None else f":{service.port}"
        called = f"{service.kind} {service.host}{port}"
        yield Seen(f"{called}: {elsewhere} ({service.origin})", process.command.origin)


@RULES.launch("service-not-started")
def service_not_started(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each process that asks this host at a port that no master serves."""
    for process, service, master, served in not_served(processes):
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
        yield Seen(text, process.command.origin, remedy)


@RULES.process("endpoints-not-dialled")
def endpoints_not_dialled(process: LaunchProcess) -> Iterator[Seen]:
    """Yield a finding for each master or metadata server that is named and not asked."""
    names = ("master_server_address", "metadata_server")
    store = process.server.store if process.server is not None else None
    pairs = [] if store is None else [tuple(map(store.value, names))]
    for pair in (*pairs, *((client.master, client.metadata) for client in process.stores)):
        for name, value in zip(names, pair, strict=True):
            if isinstance(value, str) and (others := not_dialled(value)):
                yield Seen(f"{name} {value}: {others} is not dialled")


def _same_names(schemes: tuple[str, ...], processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each client with the ``host:port`` of another in one metadata server."""
    first: dict[tuple[str, str], LaunchProcess] = {}
    for process in processes:
        names = [(own.hostname, own.metadata) for own in process.stores]
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
                    yield Seen(text, process.command.origin)


RULES.launch("client-name-twice")(partial(_same_names, ("http", "https")))
RULES.launch("client-name-replaced")(partial(_same_names, ("etcd", "redis")))


@RULES.launch("segment-nowhere")
def segment_nowhere(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding if no process of the launch contributes a segment to the store."""
    servers = [process.server for process in processes if process.server]
    stores = [server for server in servers if server.store is not None]
    kinds = {process.kind for process in processes}
    if not stores or kinds & {ProcessKind.CLIENT, ProcessKind.STORE_SERVICE}:
        return
    if all(configured_segment(server) == 0 for server in stores):
        text = "global_segment_size is 0 in every server, and no store service or mooncake_client "
        yield Seen(f"{text}is in this source: one must run elsewhere", stores[0].command.origin)


@RULES.launch("keys-collide")
def keys_collide(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for servers with equal keys and another parallelism or KV type."""
    seen: dict[tuple[object, ...], SglangServer] = {}
    for process in processes:
        server = process.server
        if server is None or server.store is None:
            continue
        served = server.value("served_model_name")
        name = server.value("model_path") if served is None else served
        master = server.store.value("master_server_address")
        tag = server.store.extra.get("extra_backend_tag")
        if isinstance(name, Unknown) or isinstance(master, Unknown):
            continue
        first = seen.setdefault((name, master, tag), server)
        layout = [(s.value("tp_size"), s.value("kv_cache_dtype")) for s in (first, server)]
        known = not any(isinstance(value, Unknown) for pair in layout for value in pair)
        if known and layout[0] != layout[1]:
            both = f"{first.command.origin} and {server.command.origin} share the master {master}"
            text = f"{both} and the name {name!r}, with (tp, KV type) {layout[0]} and {layout[1]}"
            yield Seen(text, server.command.origin)


@RULES.launch("model-name-shared")
def model_name_shared(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each server that shares the name and master of another model's server."""
    seen: dict[tuple[object, object], SglangServer] = {}
    for process in processes:
        server = process.server
        if server is None or server.store is None or server.value("served_model_name") is None:
            continue
        name, paths = server.value("served_model_name"), server.value("model_path")
        master = server.store.value("master_server_address")
        if any(isinstance(value, Unknown) for value in (name, master, paths)):
            continue
        first = seen.setdefault((name, master), server)
        if first.value("model_path") != paths:
            text = f"{first.value('model_path')} and {paths} are both served as {name!r}"
            yield Seen(text, server.command.origin)
