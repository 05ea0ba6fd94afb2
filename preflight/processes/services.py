"""What the processes of a launch talk to: masters, metadata servers, workers behind a router.

Sources: Mooncake ``mooncake-store/src/master.cpp`` and ``real_client_main.cpp`` (flags),
``transfer_metadata.cpp`` (metadata strings), SGLang's own arguments.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import NamedTuple

from checks.framework.needs import Service
from checks.framework.pages import Default
from checks.framework.unknown import RUN_INSIDE, Unknown
from preflight.engines.programs.mooncake_flags import value_of
from preflight.engines.programs.sglang_arguments import SettingValue, why_unresolved
from preflight.launches.source import Word
from preflight.processes.containers import network_of, service_of
from preflight.processes.ports import (
    CLIENT_PORT,
    MASTER_PORT,
    OWN_HOST,
    Address,
    ports,
    ports_of,
    split_address,
)
from preflight.processes.processes import LaunchProcess, ProcessKind, keep_last

# Metadata strings that are not a server: each process answers for itself.
PEER_TO_PEER = "P2PHANDSHAKE"
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
_LISTENS = {of for of, _ in _SERVES} | {ProcessKind.STORE_SERVICE, ProcessKind.ROUTER}
_ASKED = set(_SERVES.values())
# (kind of service, port) at which the launch itself listens -> the addresses, "" for one that is
# not known here.
Listening = dict[tuple[str, int], tuple[str, ...]]


def misdirected(
    processes: tuple[LaunchProcess, ...],
) -> Iterator[tuple[LaunchProcess, Service, str]]:
    """Yield (process, service, sentence) for each call, other than a router's, to a port on which a
    Compose service does not listen.

    The sentence names the ports on which that service listens.
    """
    local = _listening(processes)
    for process in processes:
        for service in () if process.kind is ProcessKind.ROUTER else _services_of(process, local):
            if isinstance(service.host, str) and service.kind in _ASKED:
                where, role = (service.host, service.port), service.kind
                elsewhere = listens_elsewhere(processes, *where, role)
                if elsewhere:
                    yield process, service, elsewhere


# What a master and a metadata server call the port at which a launch asks them.
_PORT_OF = {"master": "RPC port", "metadata-http": "metadata port"}


def unserved_calls(
    processes: tuple[LaunchProcess, ...],
) -> Iterator[tuple[LaunchProcess, Service, LaunchProcess, tuple[int, ...]]]:
    """Yield (process, service, master, ports) for each process that asks a master or metadata
    server of this host at a port that the launch does not serve.

    master: the last master of the launch. ports: those at which the launch's masters serve the
    same. Nothing is yielded if a port is not known, or another program may serve the metadata.
    """
    local = _listening(processes)
    masters = [p for p in processes if p.kind is ProcessKind.MASTER and not network_of(p.command)]
    at = {port.port for each in ports_of(processes) for port in each}
    unsure = any(master.unread is not None or next(master.open_words, None) for master in masters)
    unsure = unsure or any(isinstance(port, Unknown) for port in at)
    others = [p for p in processes if p.kind is ProcessKind.OTHER]
    unsure = unsure or any("meta" in word.text for p in others for word in p.command.words)
    for process in () if unsure or not masters else processes:
        for service in () if network_of(process.command) else _services_of(process, local):
            what = _PORT_OF.get(service.kind)
            if what is not None and service.host in OWN_HOST and service.port not in at:
                of_masters = (port for master in masters for port in ports(master))
                numbers = [port.port for port in of_masters if port.what == what]
                served = tuple(port for port in numbers if isinstance(port, int))
                yield process, service, masters[-1], served


def not_dialled(text: str) -> str:
    """Return the addresses behind the first of ``etcd://a:1;etcd://b:1``, which a client passes
    over as they repeat a scheme.

    Returns:
        "" if no later address has a scheme, or the first has none.
    """
    _, separator, rest = text.partition("://")
    others = rest.partition(";")[2]
    return others if separator and "://" in others else ""


def endpoints(rest: str) -> list[str]:
    """Return the addresses of ``a:1;b:1``; the first alone if a later one has a scheme."""
    parts = rest.split(";")
    return parts[:1] if not_dialled(f"://{rest}") else parts


def listens_elsewhere(
    processes: tuple[LaunchProcess, ...], host: str, port: int | None, role: str
) -> str:
    """Return a sentence on which ports a Compose service listens instead of ``port``.

    Args:
        host: The service's name.
        role: The kind of service that is called, such as master. "" if ``port`` may be right, or
            the service is not known.
    """
    named = named_services(processes).get(host, ()) if host else ()
    ports_bound = [(process.kind, each) for process in named for each in ports(process)]
    unsure = any(process.kind not in _LISTENS for process in named)
    numbers = [each.port for _, each in ports_bound]
    if unsure or port in numbers or any(isinstance(number, Unknown) for number in numbers):
        return ""
    alike = [each.port for of, each in ports_bound if _SERVES.get((of, each.what)) == role]
    meant = " or ".join(map(str, alike or numbers))
    return f"that service listens on port {meant}" if meant else ""


@keep_last
def named_services(processes: tuple[LaunchProcess, ...]) -> dict[str, list[LaunchProcess]]:
    """Return the processes of each Compose service by its name; "": the other processes."""
    named: dict[str, list[LaunchProcess]] = {}
    for process in processes:
        named.setdefault(service_of(process.command), []).append(process)
    return named


@keep_last
def _listening(processes: tuple[LaunchProcess, ...]) -> Listening:
    """Return every port at which the launch itself listens, with the addresses that are bound."""
    local: Listening = {}
    for process, each in zip(processes, ports_of(processes), strict=True):
        for port in each:
            if isinstance(port.port, int):
                key = _SERVES.get((process.kind, port.what), ""), port.port
                local[key] = (*local.get(key, ()), _bound_address(process, port.what))
    return local


def _bound_address(process: LaunchProcess, what: str) -> str:
    """Return the address at which a master binds its RPC port on the host, as its flags say; "" for
    other ports, a name, another network, or what a file or an interface decides.
    """
    values = [value_of(process.arguments, name) for name in ("rpc_interface", "config_path")]
    if what != "RPC port" or any(values) or network_of(process.command) or process.unread:
        return ""
    word = value_of(process.arguments, "rpc_address")
    text = "0.0.0.0" if word is None else "" if word.unresolved else word.text
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def services(processes: tuple[LaunchProcess, ...]) -> tuple[Service, ...]:
    """Return everything that ``processes`` talk to, each address once, and the addresses under
    which their stores register.
    """
    local = _listening(processes)
    # How others of the launch call a service of Compose, or what a Kubernetes object is called.
    names = {network_of(process.command).rpartition("/")[2] for process in processes}
    by_address: dict[tuple[object, ...], Service] = {}
    for process in processes:
        for service in _resolvable(process, _services_of(process, local), names):
            host = service.name or str(service.host)
            key = (service.kind, host, service.port, service.path)
            by_address.setdefault(key, service)
    return tuple(by_address.values())


def _resolvable(
    process: LaunchProcess, talks_to: Iterator[Service], names: set[str]
) -> Iterator[Service]:
    """Yield the services that ``process`` talks to, with the host as this machine can look it up.

    Args:
        names: Hosts that the launch itself starts. If the process has a container's own network,
            services on ``names`` are left out. Any other name can be looked up only in the
            container: ``host`` is then Unknown, and ``name`` has the text. IP addresses stay as
            they are.
    """
    network = network_of(process.command)
    for service in talks_to:
        host = service.host
        if not network or isinstance(host, Unknown) or _is_address(host):
            yield service
        elif host.partition(".")[0] not in names:
            yield service._replace(host=_UNSEEN, name=host)


# The reason is the same for all of them, so that one line says it of all.
_UNSEEN = Unknown("looked up inside of the container, not on this host", advice=RUN_INSIDE)


def _is_address(host: str) -> bool:
    """Return whether ``host`` is an IP address that means the same on this host: no loopback."""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return False


def _services_of(process: LaunchProcess, local: Listening) -> Iterator[Service]:
    """Yield each address that a process needs: services it talks to, and the one by which others
    find the process.

    Args:
        local: As for ``_service``.
    """
    server = process.server
    store = server.store if server is not None else None
    if store is not None and not store.error:
        master = store.settings["master_server_address"]
        yield from _master(process, master, local)
        if store.value("check_server") is True:
            yield from _health(process, master, store.settings["master_metrics_port"], local)
        yield from _metadata(process, store.settings["metadata_server"], local)
        if store.value("standalone_storage") is True:
            client = store.settings["client_server_address"]
            yield from _at_setting(process, "client", client, CLIENT_PORT, local)
        yield from _advertised(process, store.settings["local_hostname"])
    if server is not None:
        first = server.arguments.settings["dist_init_addr"]
        # The node of rank 0 listens there itself.
        here = server.value("node_rank") == 0
        for service in _at_setting(process, "dist-init", first, None, local):
            yield service._replace(own=here)
    if process.kind is ProcessKind.ROUTER:
        yield from _workers(process, local)
    for store_client in process.stores:
        if store_client.master == "":
            continue
        yield from _master(process, SettingValue(store_client.master, process.name), local)
        origin = process.name
        if process.kind is ProcessKind.CLIENT:
            flag = value_of(process.arguments, "metadata_server")
            origin = Default("default of --metadata_server") if flag is None else str(flag.origin)
        clients = (ProcessKind.CLIENT, ProcessKind.STORE_SERVICE)
        if process.kind in clients or process.consumer is not None:
            yield from _metadata(process, SettingValue(store_client.metadata, origin), local)
        both = (store_client.hostname, store_client.master)
        here = (isinstance(text, str) and split_address(text).host in OWN_HOST for text in both)
        if not all(here):
            yield from _advertised(process, SettingValue(store_client.hostname, process.name))


def _master(process: LaunchProcess, setting: SettingValue, local: Listening) -> Iterator[Service]:
    """Yield the master at the address of a setting; of an address with a scheme, the servers that
    hold the leader's address.

    Args:
        local: As for ``_service``.
    """
    value = setting.value
    if isinstance(value, Unknown) or not value or "://" not in str(value):
        port = None if isinstance(value, Unknown) else MASTER_PORT
        yield from _at_setting(process, "master", setting, port, local)
        return
    # High availability: the address is that of the store in which the leader is written.
    scheme, _, rest = str(value).partition("://")
    for part in endpoints(rest):
        yield _service(process, f"metadata-{scheme}", part, None, setting, local)


def _health(
    process: LaunchProcess, master: SettingValue, port: SettingValue, local: Listening
) -> Iterator[Service]:
    """Yield the admin port of the master that a server asks for its health.

    Nothing if the master's address is not known, empty or has a scheme.
    """
    if not isinstance(master.value, str) or "://" in master.value or not master.value:
        return
    host = split_address(master.value).host
    number = port.value if isinstance(port.value, int) else None
    origin, is_own = port.origin, ("master-admin", number) in local
    yield Service("master-admin", host, number, "/health", process.name, origin, is_own)


def _metadata(process: LaunchProcess, setting: SettingValue, local: Listening) -> Iterator[Service]:
    """Yield the metadata servers that a setting names; nothing for P2PHANDSHAKE and for an empty
    setting.

    Args:
        local: As for ``_service``.
    """
    value = setting.value
    if value in (None, "", PEER_TO_PEER):
        return
    if isinstance(value, Unknown):
        yield from _at_setting(process, "metadata-http", setting, None, local)
        return
    scheme, separator, rest = str(value).partition("://")
    # Without a scheme it is an etcd (transfer_metadata_plugin.cpp).
    role = _METADATA_KINDS.get(scheme, f"metadata-{scheme}") if separator else "metadata-etcd"
    default = {"http": 80, "https": 443}.get(scheme if separator else "")
    for part in endpoints(rest if separator else str(value)):
        yield _service(process, role, part, default, setting, local)


class RouterTarget(NamedTuple):
    """A server that a router is told of.

    Attributes:
        mode: Prefill, decode.
        bootstrap: Its port or None.
    """

    mode: str
    address: Address
    bootstrap: int | Unknown | None
    word: Word


def router_targets(process: LaunchProcess) -> Iterator[RouterTarget]:
    """Yield the servers of ``--prefill URL [BOOTSTRAP_PORT]`` and ``--decode URL`` whose URL is
    known.

    Source: sglang_router 0.3.2 router_args.py, _parse_prefill_urls. Older releases have a flag for
    the ports, --prefill-bootstrap-ports: each port is then Unknown.
    """
    arguments = process.arguments if process.kind is ProcessKind.ROUTER else ()
    apart = any(word.text.startswith("--prefill-bootstrap-ports") for word in arguments)
    elsewhere: int | Unknown | None = Unknown("--prefill-bootstrap-ports") if apart else None
    mode = ""
    for place, word in enumerate(arguments):
        text, following = word.text, arguments[place + 1 : place + 2]
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
            port_text = following[0].text
            if port_text.isdecimal():
                bootstrap = int(port_text)
            elif following[0].unresolved:
                bootstrap = why_unresolved(following[0])
        yield RouterTarget(mode, address, bootstrap, word)


def _workers(process: LaunchProcess, local: Listening) -> Iterator[Service]:
    """Yield the servers that a router's arguments name: every http, https or grpc URL."""
    for word in process.arguments:
        scheme, separator, rest = word.text.partition("://")
        if separator and scheme in ("http", "https", "grpc"):
            host = why_unresolved(word) if word.unresolved else rest
            setting = SettingValue(host, str(word.origin))
            default = None if word.unresolved else 80
            yield from _at_setting(process, "worker", setting, default, local)


def _advertised(process: LaunchProcess, setting: SettingValue) -> Iterator[Service]:
    """Yield the name under which a store registers; nothing for "", 0.0.0.0 and localhost."""
    value = setting.value
    if value in (None, "", "localhost", "0.0.0.0"):  # the last is mooncake_client's own default
        return
    host = value if isinstance(value, Unknown) else split_address(str(value)).host
    binds = process.kind is ProcessKind.CLIENT
    yield Service("advertised", host, None, "", process.name, setting.origin, True, "", binds)


def _at_setting(
    process: LaunchProcess, role: str, setting: SettingValue, default: int | None, local: Listening
) -> Iterator[Service]:
    """Yield the service at the address of a setting; nothing if the setting is empty.

    Args:
        role: The kind of service, such as master.
        default: The port if the address has none.
        local: As for ``_service``.
    """
    if isinstance(setting.value, Unknown):
        yield Service(role, setting.value, default, "", process.name, setting.origin, False)
    elif setting.value:
        yield _service(process, role, str(setting.value), default, setting, local)


def _service(
    process: LaunchProcess,
    role: str,
    text: str,
    default: int | None,
    setting: SettingValue,
    local: Listening,
) -> Service:
    """Return the service at the address ``text``, with port ``default`` if the address has none.

    Args:
        role: The kind of service.
        local: Kinds and ports that the launch itself serves.
    """
    address = split_address(text)
    port = default if address.port is None else address.port
    bound = local.get((role, port or 0))
    service = Service(role, address.host, port, address.path, process.name, setting.origin)
    seen = bound is not None and "" not in bound and not network_of(process.command)
    return service._replace(own=bound is not None, bound=bound or () if seen else ())


def master_address(text: str) -> str:
    """Return a master's ``host:port`` in one form; any other text stays as it is."""
    if "://" in text:
        return text
    host, port, _ = split_address(text)
    return f"{host}:{MASTER_PORT if port is None else port}"
