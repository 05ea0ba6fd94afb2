"""What the processes of a launch listen on, and what they talk to.

Sources: Mooncake ``mooncake-store/src/master.cpp`` and ``real_client_main.cpp`` (flags),
``transfer_metadata.cpp`` (metadata strings), SGLang's own arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from checks.base.needs import BoundPort, Service
from checks.base.pages import Default
from checks.base.unknown import RUN_INSIDE, Unknown
from preflight.launches.container import Published
from preflight.launches.launchers import starts_anew
from preflight.launches.source import Word
from preflight.processes.container_paths import network_of, pod_of, service_of
from preflight.processes.processes import LaunchProcess, ProcessKind, with_router
from preflight.programs.mooncake_flags import is_on, value_of
from preflight.programs.sglang_arguments import SettingValue, port_value, unresolved

# What listens where when nothing is said.
MASTER_PORT = 50051
MASTER_METRICS_PORT = 9003
METADATA_PORT = 8080
CLIENT_PORT = 50052
CLIENT_HTTP_PORT = 9300
ROUTER_PORT = 30000
# Of sglang.srt.disaggregation.mini_lb and launch_lb (LBArgs).
BALANCER_PORT = 8000
SERVICE_PORT = 8080

# SGLang's rank 0 serves torch's store at --dist-init-addr, else at --nccl-port, which is not read
# then (model_executor/model_runner.py:773-779 of 0.5.9; distributed/bootstrap.py:237-249 of 0.5.23,
# _resolve_dist_init_method); the variable replaces both. DP attention on one host begins at the
# HTTP port + 233 without --dist-init-addr (server_args.py:5595, 5649-5687 of 0.5.9; 728, 814-883 of
# 0.5.23: PortArgs.init_new). Of the ports that follow, every server binds three: the first is the
# tokenizer's, the second the detokenizer's, the fifth the controller's (in managers/
# tokenizer_manager.py:324 and 328, detokenizer_manager.py:104 of 0.5.9; 679, 683, 127 of 0.5.23).
STORE_ELSEWHERE = "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"
DP_ATTENTION_OFFSET = 233
DP_ATTENTION_PORTS = (1, 2, 5)
# Beyond, newer releases go below the first one.
HIGHEST_FIRST_PORT = 65535 - 6
OF_DP_ATTENTION = "port of DP attention"

# Metadata strings that are not a server: each process answers for itself.
PEER_TO_PEER = "P2PHANDSHAKE"
# A store that registers here with a master that is here has its peers here.
_HERE = ("localhost", "127.0.0.1")
_METADATA_KINDS = {
    "http": "metadata-http",
    "https": "metadata-http",
    "etcd": "metadata-etcd",
    "redis": "metadata-redis",
}


# Which service each port of a program is; its other ports are no service that a launch looks for.
_SERVES = {
    (ProcessKind.MASTER, "RPC port"): "master",
    (ProcessKind.MASTER, "metrics port"): "master-admin",
    (ProcessKind.MASTER, "metadata port"): "metadata-http",
    (ProcessKind.METADATA, "HTTP port"): "metadata-http",
    (ProcessKind.CLIENT, "service port"): "client",
    (ProcessKind.SGLANG, "HTTP port"): "worker",
}
# Programs whose ports are all known, and services that are called by one of these.
_LISTENS = {kind for kind, _ in _SERVES} | {ProcessKind.STORE_SERVICE, ProcessKind.ROUTER}
_ASKED = set(_SERVES.values())
# (kind of service, port) of what the launch itself starts.
Bound = set[tuple[str, int]]


class Address(NamedTuple):
    """``host:port/path`` taken apart; port None where none is written."""

    host: str
    port: int | None
    path: str = ""


def ports(process: LaunchProcess) -> Iterator[BoundPort]:
    """Yield the fixed ports that ``process`` binds."""
    command = process.command
    network, pod = network_of(command), pod_of(command)
    may_give = next(process.open_words, None)
    for port in _own_ports(process):
        unsure = isinstance(port.origin, Default) and may_give is not None
        why = f"{may_give.text} ({may_give.origin})" if unsure and may_give is not None else ""
        placed = port._replace(network=network, pod=pod, unless=why)
        yield placed._replace(waited=command.waited, turn=command.turn)


def all_ports(
    processes: Sequence[LaunchProcess], others: Sequence[Published] = ()
) -> Iterator[BoundPort]:
    """Yield what the processes bind and what engines bind for them, in the launch's order.

    others: of containers whose program the launch does not show. Of those at which the processes of
    one server meet, those alone are yielded that something else of the launch wants too.
    """
    inner = [_inner_ports(process) for process in processes]
    wanted = {_place(port) for process in processes for port in ports(process)}
    met = Counter((host, _place(port)) for own in inner for host, port in own)
    for process, own in zip(processes, inner, strict=True):
        yield from ports(process)
        for host, port in own:
            stores = port.what != OF_DP_ATTENTION  # which binds one address alone
            if (stores and _place(port) in wanted) or met[host, _place(port)] > 1:
                yield port
        command = process.command
        if any(map(starts_anew, command.wrappers)):
            continue  # published by an engine of another host
        usual = {port.port for port in _own_ports(process) if port.customary}
        for published in command.published:
            port = _published(published)
            usually = port.port in usual
            yield port._replace(customary=usually, waited=command.waited, turn=command.turn)
    yield from map(_published, others)


def _place(port: BoundPort) -> tuple[str, int | Unknown]:
    return port.network, port.port


def _inner_ports(process: LaunchProcess) -> list[tuple[str, BoundPort]]:
    """Return where the processes of an SGLang server meet, and the host that is named for it.

    The host is "" for whichever the server runs on.
    """
    server, command = process.server, process.command
    if server is None or server.value("node_rank") != 0:
        return []
    settings, at = server.arguments.settings, server.value("dist_init_addr")
    host, first = "", None
    found: list[tuple[str, str, int]] = []
    if isinstance(at, str):
        host, first, _ = split_address(at)
    name = "nccl_port" if at is None else "dist_init_addr"
    store = server.value("nccl_port") if at is None else first
    if isinstance(store, int) and STORE_ELSEWHERE not in server.environment:
        found.append((f"--{name.replace('_', '-')}", settings[name].origin, store))
    http = server.value("port")
    if at is None and isinstance(http, int) and process.kind is ProcessKind.SGLANG:
        name, first = "port", http + DP_ATTENTION_OFFSET
    attention_dp = server.attention_dp
    apart = isinstance(attention_dp, int) and attention_dp > 1
    if apart and first is not None and first <= HIGHEST_FIRST_PORT:
        origin = f"counted from {settings[name].origin}"
        found += [(OF_DP_ATTENTION, origin, first + offset) for offset in DP_ATTENTION_PORTS]
    port = BoundPort("", 0, process.name, "", network_of(command), pod=pod_of(command), inner=True)
    port = port._replace(waited=command.waited, turn=command.turn)
    host = "" if host in _HERE else host
    return [(host, port._replace(what=what, origin=seen, port=one)) for what, seen, one in found]


def _published(port: Published) -> BoundPort:
    what = port.what if isinstance(port.port, Unknown) else f"{port.what} {port.port}"
    return BoundPort(what, port.port, port.owner, port.origin, pod=port.pod, address=port.address)


def _own_ports(process: LaunchProcess) -> Iterator[BoundPort]:
    server = process.server
    if server is not None:
        # Dynamo's worker serves no HTTP itself, and draws the bootstrap port unless it is given.
        draws = process.kind is ProcessKind.DYNAMO_SGLANG
        if not draws:
            # Its servers take free ports from --router-dp-worker-base-port on.
            routed = with_router(process.command)
            yield _argument_port(process, "router's HTTP port" if routed else "HTTP port", "port")
        if server.mode == "prefill" and not (
            draws and not server.arguments.given("disaggregation_bootstrap_port")
        ):
            yield _argument_port(process, "bootstrap port", "disaggregation_bootstrap_port")
        return
    if process.consumer is not None:
        for what, setting in process.consumer.ports:
            yield BoundPort(what, setting.value, process.name, setting.origin)
        return
    for what, flag, default in _fixed_ports(process):
        port = _flag_port(process, what, flag, default)
        yield port._replace(customary=port.port == default)


def _fixed_ports(process: LaunchProcess) -> Iterator[tuple[str, str, int]]:
    if process.kind is ProcessKind.MASTER:
        rpc = "rpc_port" if _has(process, "rpc_port") else "port"
        yield "RPC port", rpc, MASTER_PORT
        yield "metrics port", "metrics_port", MASTER_METRICS_PORT
        if is_on(process.arguments, "mooncake_master", "enable_http_metadata_server"):
            yield "metadata port", "http_metadata_server_port", METADATA_PORT
    elif process.kind is ProcessKind.CLIENT:
        yield "service port", "port", CLIENT_PORT
        if is_on(process.arguments, "mooncake_client", "enable_http_server"):
            yield "HTTP port", "http_port", CLIENT_HTTP_PORT
    elif process.kind in (ProcessKind.STORE_SERVICE, ProcessKind.METADATA):
        yield "HTTP port", "port", SERVICE_PORT
    elif process.kind is ProcessKind.ROUTER:
        modules = (word.text for word in process.command.words)
        balancer = any(text.startswith("sglang.srt.disaggregation.") for text in modules)
        yield "HTTP port", "port", BALANCER_PORT if balancer else ROUTER_PORT


def misdirected(
    processes: tuple[LaunchProcess, ...],
) -> Iterator[tuple[LaunchProcess, Service, str]]:
    """Yield what calls a Compose service of the launch where it does not listen, and where it does.

    What a router is told of has a rule of its own.
    """
    bound = _bound(processes)
    for process in processes:
        for service in () if process.kind is ProcessKind.ROUTER else _services(process, bound):
            if isinstance(service.host, str) and service.kind in _ASKED:
                where, kind = (service.host, service.port), service.kind
                elsewhere = listens_elsewhere(processes, *where, kind)
                if elsewhere:
                    yield process, service, elsewhere


def listens_elsewhere(
    processes: tuple[LaunchProcess, ...], host: str, port: int | None, kind: str
) -> str:
    """Return at which ports the Compose service ``host`` listens instead; "" where it may there.

    kind: of service, whose ports are named alone where it has some.
    """
    named = [one for one in processes if host and service_of(one.command) == host]
    found = [(process.kind, bound) for process in named for bound in ports(process)]
    unsure = any(process.kind not in _LISTENS for process in named)
    if unsure or any(isinstance(one.port, Unknown) or one.port == port for _, one in found):
        return ""
    alike = [one.port for of, one in found if _SERVES.get((of, one.what)) == kind]
    meant = " or ".join(str(one) for one in alike or [one.port for _, one in found])
    return f"that service listens on port {meant}" if meant else ""


def _bound(processes: tuple[LaunchProcess, ...]) -> Bound:
    return {
        (_SERVES.get((process.kind, port.what), ""), port.port)
        for process in processes
        for port in ports(process)
        if isinstance(port.port, int)
    }


def services(processes: tuple[LaunchProcess, ...]) -> tuple[Service, ...]:
    """Return everything that ``processes`` talk to, each address once."""
    bound = _bound(processes)
    # How others of the launch call a service of Compose, or what a Kubernetes object is called.
    names = {network_of(process.command).rpartition("/")[2] for process in processes}
    found: dict[tuple[object, ...], Service] = {}
    for process in processes:
        for service in _resolvable(process, _services(process, bound), names):
            key = (service.kind, str(service.host), service.port, service.path)
            found.setdefault(key, service)
    return tuple(found.values())


def _resolvable(
    process: LaunchProcess, talks_to: Iterator[Service], names: set[str]
) -> Iterator[Service]:
    """Yield the services whose names this host can look up, and those that nobody can here.

    A name in a network of its own is looked up there: what the launch starts under it is there, and
    of any other it is not known.
    """
    network = network_of(process.command)
    for service in talks_to:
        host = service.host
        if not network or isinstance(host, Unknown) or _is_address(host):
            yield service
        elif host.partition(".")[0] not in names:
            origin = process.command.origin
            why = f"{host} is looked up where {origin} runs, in a network that is not this host's"
            yield service._replace(host=Unknown(why, advice=RUN_INSIDE))


def _is_address(host: str) -> bool:
    """Return whether a host is given by an address that means the same from here.

    A name does not, nor does the container's own address.
    """
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return False


def _services(process: LaunchProcess, bound: Bound) -> Iterator[Service]:
    server = process.server
    store = server.store if server is not None else None
    if store is not None and not store.error:
        master = store.settings["master_server_address"]
        yield from _master(process, master, bound)
        if store.value("check_server") is True:
            yield from _health(process, master, store.settings["master_metrics_port"], bound)
        yield from _metadata(process, store.settings["metadata_server"], bound)
        if store.value("standalone_storage") is True:
            client = store.settings["client_server_address"]
            yield from _plain(process, "client", client, CLIENT_PORT, bound)
        yield from _advertised(process, store.settings["local_hostname"])
    if server is not None:
        first = server.arguments.settings["dist_init_addr"]
        # The node of rank 0 listens there itself.
        here = server.value("node_rank") == 0
        for service in _plain(process, "dist-init", first, None, bound):
            yield service._replace(own=here)
    if process.kind is ProcessKind.ROUTER:
        yield from _workers(process, bound)
    for own in process.stores:
        if own.master == "":
            continue
        yield from _master(process, SettingValue(own.master, process.name), bound)
        origin = process.name
        if process.kind is ProcessKind.CLIENT:
            given = value_of(process.arguments, "metadata_server")
            default = Default("default of --metadata_server")
            origin = default if given is None else str(given.origin)
        if (
            process.kind in (ProcessKind.CLIENT, ProcessKind.STORE_SERVICE)
            or process.consumer is not None
        ):
            yield from _metadata(process, SettingValue(own.metadata, origin), bound)
        both = (own.hostname, own.master)
        if not all(isinstance(one, str) and split_address(one).host in _HERE for one in both):
            yield from _advertised(process, SettingValue(own.hostname, process.name))


def _master(process: LaunchProcess, setting: SettingValue, bound: Bound) -> Iterator[Service]:
    value = setting.value
    if value in (None, "") or isinstance(value, Unknown):
        if isinstance(value, Unknown):
            yield Service("master", value, None, "", process.name, setting.origin, False)
        return
    scheme, separator, rest = str(value).partition("://")
    if not separator:
        yield _service(process, "master", str(value), MASTER_PORT, setting, bound)
        return
    # High availability: the address is that of the store in which the leader is written.
    for part in rest.split(";"):
        yield _service(process, f"metadata-{scheme}", part, None, setting, bound)


def _health(
    process: LaunchProcess, master: SettingValue, port: SettingValue, bound: Bound
) -> Iterator[Service]:
    if not isinstance(master.value, str) or "://" in master.value or not master.value:
        return
    host = split_address(master.value).host
    number = port.value if isinstance(port.value, int) else None
    origin, own = port.origin, ("master-admin", number) in bound
    yield Service("master-admin", host, number, "/health", process.name, origin, own)


def _metadata(process: LaunchProcess, setting: SettingValue, bound: Bound) -> Iterator[Service]:
    value = setting.value
    if value in (None, "", PEER_TO_PEER):
        return
    if isinstance(value, Unknown):
        yield Service("metadata-http", value, None, "", process.name, setting.origin, False)
        return
    scheme, separator, rest = str(value).partition("://")
    # Without a scheme it is an etcd (transfer_metadata_plugin.cpp).
    kind = _METADATA_KINDS.get(scheme, f"metadata-{scheme}") if separator else "metadata-etcd"
    default = {"http": 80, "https": 443}.get(scheme if separator else "")
    for part in (rest if separator else str(value)).split(";"):
        yield _service(process, kind, part, default, setting, bound)


class RouterTarget(NamedTuple):
    """A server that a router is told of. mode: prefill or decode. bootstrap: None without one."""

    mode: str
    address: Address
    bootstrap: int | Unknown | None
    word: Word


def router_targets(process: LaunchProcess) -> Iterator[RouterTarget]:
    """Yield the servers of ``--prefill URL [BOOTSTRAP_PORT]`` and ``--decode URL``.

    Those whose URL is not known are left out. Source: sglang_router 0.3.2 router_args.py,
    _parse_prefill_urls; sglang.srt.disaggregation of older releases has the bootstrap ports apart.
    """
    words = process.arguments if process.kind is ProcessKind.ROUTER else ()
    apart = any(word.text.startswith("--prefill-bootstrap-ports") for word in words)
    elsewhere: int | Unknown | None = Unknown("--prefill-bootstrap-ports") if apart else None
    mode = ""
    for place, word in enumerate(words):
        text, following = word.text, words[place + 1 : place + 2]
        if text.startswith("--"):
            flag, _, text = text.partition("=")
            mode = {"--prefill": "prefill", "--decode": "decode"}.get(flag, "")
        scheme, separator, rest = text.partition("://")
        if not mode or not separator or word.unresolved:
            continue
        address = split_address(rest)
        if address.port is None:
            address = address._replace(port=443 if scheme == "https" else 80)
        bootstrap = elsewhere
        if mode == "prefill" and following and "://" not in following[0].text:
            said = following[0].text
            if said.isdecimal():
                bootstrap = int(said)
            elif following[0].unresolved:
                bootstrap = unresolved(following[0])
        yield RouterTarget(mode, address, bootstrap, word)


def _workers(process: LaunchProcess, bound: Bound) -> Iterator[Service]:
    """Yield the servers that a router names by URL.

    Its flags are ``--prefill``, ``--decode`` and ``--worker-urls``.
    """
    for word in process.arguments:
        scheme, separator, rest = word.text.partition("://")
        if separator and scheme in ("http", "https", "grpc"):
            host = unresolved(word) if word.unresolved else rest
            setting = SettingValue(host, str(word.origin))
            yield from _plain(process, "worker", setting, None if word.unresolved else 80, bound)


def _advertised(process: LaunchProcess, setting: SettingValue) -> Iterator[Service]:
    """Yield the name under which a store registers; its default localhost has a rule of its own."""
    value = setting.value
    if value in (None, "", "localhost", "0.0.0.0"):  # the last is mooncake_client's own default
        return
    host = value if isinstance(value, Unknown) else split_address(str(value)).host
    yield Service("advertised", host, None, "", process.name, setting.origin, True)


def _plain(
    process: LaunchProcess, kind: str, setting: SettingValue, default: int | None, bound: Bound
) -> Iterator[Service]:
    if isinstance(setting.value, Unknown):
        yield Service(kind, setting.value, default, "", process.name, setting.origin, False)
    elif setting.value:
        yield _service(process, kind, str(setting.value), default, setting, bound)


def _service(
    process: LaunchProcess,
    kind: str,
    text: str,
    default: int | None,
    setting: SettingValue,
    bound: Bound,
) -> Service:
    address = split_address(text)
    port = default if address.port is None else address.port
    own = (kind, port) in bound
    return Service(kind, address.host, port, address.path, process.name, setting.origin, own)


def split_address(text: str) -> Address:
    """Split ``[::1]:80/x``, ``host:80/x`` or ``host``; what is no port stays in the host."""
    rest, slash, path = text.strip().partition("/")
    path = slash + path
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
    else:
        host, colon, port = rest.rpartition(":")
        if not colon or ":" in host:
            host, port = rest, ""
    number = port_value(port, "address")
    if isinstance(number, int):
        return Address(host, number, path)
    return Address(host if not port else rest, None, path)


def master_address(text: str) -> str:
    """Return a master's ``host:port`` in one form, however it is written.

    What is no ``host:port`` stays as it is.
    """
    if "://" in text:
        return text
    host, port, _ = split_address(text)
    return f"{host}:{MASTER_PORT if port is None else port}"


def _argument_port(process: LaunchProcess, what: str, name: str) -> BoundPort:
    assert process.server is not None
    setting = process.server.arguments.settings[name]
    value = setting.value
    number = value if isinstance(value, int | Unknown) else Unknown(f"{name} {value!r}: no number")
    return BoundPort(what, number, process.name, setting.origin)


def _flag_port(process: LaunchProcess, what: str, flag: str, default: int) -> BoundPort:
    word = value_of(process.arguments, flag)
    if word is None:
        return BoundPort(what, default, process.name, Default(f"default of --{flag}"))
    if word.unresolved:
        return BoundPort(what, unresolved(word), process.name, str(word.origin))
    number = port_value(word.text, f"--{flag}")
    return BoundPort(what, number, process.name, f"--{flag} at {word.origin}")


def _has(process: LaunchProcess, name: str) -> bool:
    return value_of(process.arguments, name) is not None
