"""Rules about how SGLang configures the Mooncake store: which source counts, how it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.processes.processes import SglangServer
from preflight.programs.consumer_grammar import (
    sglang_env_bool,
    sglang_env_int,
    sglang_segment_bytes,
)
from preflight.programs.store_config import KEYS, Source, StoreConfig
from preflight.programs.store_service_config import PROTOCOLS
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_STORE = "SGLang 0.5.23 mooncake_store.py"
_SWITCHES = ("standalone_storage", "check_server", "enable_ssd_offload", "enable_group_semantics")


@RULES.server(
    "extra-config-ignored",
    Severity.WARN,
    "store settings in --hicache-storage-backend-extra-config without a master or client address",
    "SGLang then reads none of them, and configures the store from a file or the environment",
    "add master_server_address to the JSON, or put the settings where SGLang reads them",
    f"{_STORE} _load_config; seen by running it",
)
def extra_config_ignored(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or store.source is Source.EXTRA_CONFIG or isinstance(store.source, Unknown):
        return
    ignored = [key for key in store.extra if key in KEYS]
    if ignored:
        used = store.source.value
        text = f"the extra config sets {', '.join(ignored)}, and {used} is used instead"
        yield Seen(f"{text}: the JSON names no master_server_address")


@RULES.server(
    "store-environment-ignored",
    Severity.WARN,
    "MOONCAKE_* variables beside a JSON configuration of the store",
    "only one source counts; a key that the JSON leaves out takes a constant, not its variable",
    "set the value in the JSON, or drop the JSON's address and use the environment alone",
    f"{_STORE} load_from_extra_config, from_file; seen by running it",
)
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


@RULES.server(
    "store-config-refused",
    Severity.FAIL,
    "a store configuration that SGLang or Mooncake refuses",
    "the server ends while it sets up HiCache, after the model is loaded",
    "give what the message asks for",
    _STORE,
)
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


@RULES.server(
    "segment-size-refused",
    Severity.FAIL,
    "a global_segment_size that SGLang cannot read, or that is negative",
    "ValueError or TypeError while HiCache is set up, after the model is loaded",
    "write whole gb (powers of 1024) or plain bytes: 8gb, 536870912",
    f"{_STORE} _parse_global_segment_size; seen by running it",
)
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


@RULES.server(
    "segment-size-plain",
    Severity.WARN,
    "a global_segment_size that is read as something else than it looks like",
    "plain numbers are bytes, fractions are cut off, and true is 1",
    "write whole gb, such as 8gb, or the bytes in full",
    f"{_STORE} _parse_global_segment_size; seen by running it",
)
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


@RULES.server(
    "string-is-true",
    Severity.WARN,
    "a switch in the JSON configuration that is a string",
    'any string is true to SGLang, "false" and "0" too',
    "write true or false without quotes",
    f"{_STORE}; seen by running it",
)
def string_is_true(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or store.source is Source.ENVIRONMENT:
        return
    for key in _SWITCHES:
        value = store.settings[key].value if key in store.settings else store.extra.get(key)
        if isinstance(value, str):
            becomes = "true" if value else "false"
            yield Seen(f"{key} is the string {value!r}, which counts as {becomes}")


@RULES.server(
    "store-key-unknown",
    Severity.WARN,
    "a key in the JSON configuration that SGLang does not know",
    "it is passed over without a word",
    "leave it out, or spell it as SGLang does",
    f"{_STORE}; seen by running it",
)
def store_key_unknown(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    if store is None or isinstance(store.source, Unknown):
        return
    for key in store.unknown_keys:
        near = _nearest(key, KEYS)
        yield Seen(f"{key!r} is no setting of the store{f': {near}?' if near else ''}")


@RULES.server(
    "environment-value-defaulted",
    Severity.WARN,
    "a MOONCAKE_* switch or number that SGLang cannot read",
    "it warns and takes the default",
    "write 1 or 0, true or false, or a whole number",
    "SGLang 0.5.23 environ.py EnvField.get; seen by running it",
)
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


@RULES.server(
    "segment-times-dp",
    Severity.WARN,
    "a segment that every data-parallel group contributes anew",
    "SGLang divides it by the tensor and pipeline ranks of one group: the sum is a multiple",
    "divide global_segment_size by the number of groups",
    f"{_STORE} setup: // (attn_tp x pp)",
)
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


@RULES.server(
    "local-hostname-localhost",
    Severity.WARN,
    "several nodes, and a store that names its host localhost",
    "other nodes connect to themselves when they fetch from this one",
    "export MOONCAKE_LOCAL_HOSTNAME with an address that the other nodes reach",
    f"{_STORE} _resolve_local_hostname",
)
def local_hostname_localhost(server: SglangServer) -> Iterator[Seen]:
    nodes = server.number("nnodes")
    if server.store is None or isinstance(nodes, Unknown) or nodes < 2:
        return
    host = server.store.settings["local_hostname"]
    if host.value in ("localhost", "127.0.0.1"):
        yield Seen(f"local_hostname is {host.value} ({host.origin}) with --nnodes {nodes}")


@RULES.server(
    "standalone-without-switch",
    Severity.FAIL,
    "a client address without standalone_storage, and no master",
    "setup gets no master address and raises TypeError; SGLang may then report a version problem",
    "set MOONCAKE_STANDALONE_STORAGE=1 beside MOONCAKE_CLIENT, or name the master",
    f"{_STORE} setup; the misleading report was seen by running it",
)
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


def _nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return near[0] if near else None
