"""Rules about the store that SGLang configures: which source counts, and what processes share."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.processes.processes import Kind, LaunchProcess, SglangServer
from preflight.programs.consumer_grammar import (
    sglang_env_bool,
    sglang_env_int,
    sglang_segment_bytes,
)
from preflight.programs.store_config import KEYS, Source, StoreConfig
from preflight.programs.store_service_config import PROTOCOLS
from preflight.rules.rules import RuleSet, Seen, Spelling

RULES = RuleSet("store")
_SWITCHES = ("standalone_storage", "check_server", "enable_ssd_offload", "enable_group_semantics")


@RULES.server("extra-config-ignored")
def extra_config_ignored(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or store.source is Source.EXTRA_CONFIG or isinstance(store.source, Unknown):
        return
    ignored = [key for key in store.extra if key in KEYS]
    if ignored:
        used = store.source.value
        text = f"the extra config sets {', '.join(ignored)}, and {used} is used instead"
        yield Seen(f"{text}: the JSON names no master_server_address")


@RULES.server("store-environment-ignored")
def store_environment_ignored(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or store.source is Source.ENVIRONMENT:
        return
    for variable, where in store.unused:
        key = next((key for key, entry in KEYS.items() if entry.variable == variable), None)
        if key is not None and isinstance(store.source, Source):
            setting = store.settings[key]
            yield Seen(
                f"{variable} ({where}) is not read: {store.source.value} counts, and there "
                f"{key} is {setting.value!r} ({setting.origin})"
            )


@RULES.server("store-config-refused")
def store_config_refused(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store and store.error:
        yield Seen(f"SGLang: {store.error}")
    elif store and store.value("standalone_storage") is False:
        protocol, host = store.settings["protocol"], store.settings["local_hostname"]
        unknown = isinstance(protocol.value, Unknown)
        # With auto discovery Mooncake installs what it finds, and looks at no protocol.
        discovers = "MC_MS_AUTO_DISC" in server.environment
        if not unknown and not discovers and str(protocol.value) not in PROTOCOLS:
            text = f"protocol {protocol.value!r} ({protocol.origin}): setup fails after 20 tries"
            yield Seen(f"{text}: unsupported_protocol: write rdma or tcp")
        if host.value == "":
            text = f"local_hostname is empty ({host.origin}): setup returns -600"
            yield Seen(f"{text}: name an address of this host")


@RULES.server("segment-size-refused")
def segment_size_refused(server: SglangServer) -> Iterator[Seen]:
    value = _segment(server)
    if value is None:
        return
    try:
        size = sglang_segment_bytes(value)
    except ValueError as error:
        yield Seen(f"global_segment_size {value!r} ({_where(server)}): ValueError: {error}")
        return
    if size < 0:
        error_text = "TypeError: setup(): incompatible function arguments"
        yield Seen(f"global_segment_size {value!r} ({_where(server)}): {error_text}")


@RULES.server("segment-size-plain")
def segment_size_plain(server: SglangServer) -> Iterator[Seen]:
    value = _segment(server)
    try:
        size = None if value is None else sglang_segment_bytes(value)
    except ValueError:
        return
    # A segment below a mebibyte is no store; somebody meant gigabytes.
    odd = isinstance(value, bool | float) or (size is not None and 0 < size < 2**20)
    if size is not None and size >= 0 and odd:
        yield Seen(f"global_segment_size {value!r} ({_where(server)}) is {size} bytes to SGLang")


@RULES.server("string-is-true")
def string_is_true(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or store.source is Source.ENVIRONMENT:
        return
    for key in _SWITCHES:
        value = store.settings[key].value if key in store.settings else store.extra.get(key)
        if isinstance(value, str):
            becomes = "true" if value else "false"
            yield Seen(f"{key} is the string {value!r}, which counts as {becomes}")


@RULES.server("store-key-unknown")
def store_key_unknown(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or isinstance(store.source, Unknown):
        return
    spelling = Spelling()
    for key in store.unknown_keys:
        near = spelling.nearest(key, KEYS)
        yield Seen(f"{key!r} is no setting of the store{f': {near}?' if near else ''}")


@RULES.server("environment-value-defaulted")
def environment_value_defaulted(server: SglangServer) -> Iterator[Seen]:
    if server.store is None or server.store.source is not Source.ENVIRONMENT:
        return
    for entry in KEYS.values():
        word = server.environment.get(entry.variable)
        if word is None or word.unresolved or entry.read not in (sglang_env_bool, sglang_env_int):
            continue
        try:
            entry.read(word.text)
        except ValueError as error:
            text = f"{entry.variable}={word.text}: {error}, using default {entry.default!r}"
            yield Seen(text, word.origin)


@RULES.server("segment-times-dp")
def segment_times_dp(server: SglangServer) -> Iterator[Seen]:
    value = _segment(server)
    attention_dp, replicas = server.attention_dp, server.replicas
    if value is None or isinstance(attention_dp, Unknown) or isinstance(replicas, Unknown):
        return
    groups = attention_dp * replicas
    try:
        size = sglang_segment_bytes(value)
    except ValueError:
        return
    if groups > 1 and size > 0:
        yield Seen(
            f"global_segment_size {format_bytes(size)} is contributed by each of {groups} "
            f"data-parallel groups: {format_bytes(size * groups)} in all"
        )


@RULES.server("local-hostname-localhost")
def local_hostname_localhost(server: SglangServer) -> Iterator[Seen]:
    nodes = server.number("nnodes")
    if server.store is None or isinstance(nodes, Unknown) or nodes < 2:
        return
    host = server.store.settings["local_hostname"]
    if host.value in ("localhost", "127.0.0.1"):
        yield Seen(f"local_hostname is {host.value} ({host.origin}) with --nnodes {nodes}")


@RULES.server("standalone-without-switch")
def standalone_without_switch(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or store.error or isinstance(store.source, Unknown):
        return
    client, master = store.value("client_server_address"), store.value("master_server_address")
    standalone = store.value("standalone_storage")
    if any(isinstance(value, Unknown) for value in (client, master, standalone)):
        return
    if client and not master and not standalone:
        text = f"client_server_address is {client!r}, standalone_storage is off, no master"
        yield Seen(text + _blamed(store))


@RULES.launch("segment-nowhere")
def segment_nowhere(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    servers = [process.server for process in processes if process.server]
    stores = [server for server in servers if server.store is not None]
    owners = {Kind.CLIENT, Kind.STORE_SERVICE} & {process.kind for process in processes}
    if not stores or owners:
        return
    if all(_size(server) == 0 for server in stores):
        yield Seen(
            "global_segment_size is 0 in every server, and no store service or mooncake_client "
            "is in this source: one must run elsewhere",
            stores[0].command.origin,
        )


@RULES.launch("keys-collide")
def keys_collide(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
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
            yield Seen(
                f"{first.command.origin} and {server.command.origin} share the master {master} and "
                f"the name {name!r}, with (tp, KV type) {layout[0]} and {layout[1]}",
                server.command.origin,
            )


@RULES.launch("model-name-shared")
def model_name_shared(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
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


def _blamed(store: StoreConfig) -> str:
    """What SGLang takes the TypeError for: its text names every argument that setup has."""
    tenant = store.value("tenant_id")
    if isinstance(tenant, str) and tenant.strip() not in ("", "default"):
        return "; SGLang then says that this Mooncake does not support tenant_id"
    if store.value("enable_ssd_offload") is True:
        return "; SGLang then says that this Mooncake is too old for SSD offload"
    return ""


def _segment(server: SglangServer) -> object:
    """The configured segment, as written; None where there is none to judge."""
    if server.store is None:
        return None
    value = server.store.value("global_segment_size")
    return None if isinstance(value, Unknown) else value


def _where(server: SglangServer) -> str:
    return server.store.settings["global_segment_size"].origin if server.store else ""


def _size(server: SglangServer) -> int | None:
    try:
        value = server.store.value("global_segment_size") if server.store else None
        unknown = value is None or isinstance(value, Unknown)
        return None if unknown else sglang_segment_bytes(value)
    except ValueError:
        return None
