"""The ports that a launch's processes bind, and those that engines publish for them.

Sources: Mooncake ``mooncake-store/src/master.cpp`` and ``real_client_main.cpp`` (flags), SGLang's
own arguments.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.framework.needs import BoundPort
from checks.framework.pages import Default
from checks.framework.unknown import Unknown
from preflight.engines.programs.mooncake_flags import is_on, value_of
from preflight.engines.programs.sglang_arguments import port_value, why_unresolved
from preflight.engines.programs.store_service_config import SERVICE_PORT
from preflight.launches.container import Published
from preflight.launches.launchers import starts_anew
from preflight.processes.containers import network_of, pod_of
from preflight.processes.processes import LaunchProcess, ProcessKind, keep_last, with_router

# What listens where when nothing is said.
MASTER_PORT = 50051
MASTER_METRICS_PORT = 9003
METADATA_PORT = 8080
CLIENT_PORT = 50052
CLIENT_HTTP_PORT = 9300
ROUTER_PORT = 30000
# Of sglang.srt.disaggregation.mini_lb and launch_lb (LBArgs).
BALANCER_PORT = 8000

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
# A store that registers here with a master that is here has its peers here.
OWN_HOST = ("localhost", "127.0.0.1")


class Address(NamedTuple):
    """``host:port/path`` taken apart; port None if none is written."""

    host: str
    port: int | None
    path: str = ""


def ports(process: LaunchProcess) -> Iterator[BoundPort]:
    """Yield the ports that ``process`` binds by a flag, a setting or a default, not at random."""
    command = process.command
    network, pod = network_of(command), pod_of(command)
    open_word = next(process.open_words, None)
    for port in _own_ports(process):
        unsure = isinstance(port.origin, Default) and open_word is not None
        why = f"{open_word.text} ({open_word.origin})" if unsure and open_word is not None else ""
        placed = port._replace(network=network, pod=pod, unless=why)
        yield placed._replace(waited=command.waited, turn=command.turn)


@keep_last
def ports_of(processes: Sequence[LaunchProcess]) -> list[list[BoundPort]]:
    """Return the fixed ports that each process binds."""
    return [[*ports(process)] for process in processes]


def all_ports(
    processes: Sequence[LaunchProcess], others: Sequence[Published] = ()
) -> Iterator[BoundPort]:
    """Yield the ports that processes bind and engines bind for them, in the order of the processes.

    Args:
        others: Published ports of containers whose program the launch does not show; they are
            yielded last. A port at which the processes of one server meet is yielded only if
            something else of the launch wants it too.
    """
    inner = [_inner_ports(process) for process in processes]
    of_each = ports_of(processes)
    wanted = {_network_port(port) for each in of_each for port in each}
    met = Counter((host, _network_port(port)) for bound in inner for host, port in bound)
    for process, fixed, bound in zip(processes, of_each, inner, strict=True):
        yield from fixed
        for host, port in bound:
            stores = port.what != OF_DP_ATTENTION  # which binds one address alone
            if (stores and _network_port(port) in wanted) or met[host, _network_port(port)] > 1:
                yield port
        command = process.command
        if any(map(starts_anew, command.wrappers)):
            continue  # published by an engine of another host
        for published in command.published:
            yield _published(published)._replace(waited=command.waited, turn=command.turn)
    yield from map(_published, others)


def _network_port(port: BoundPort) -> tuple[str, int | Unknown]:
    return port.network, port.port


def _inner_ports(process: LaunchProcess) -> list[tuple[str, BoundPort]]:
    """Return (host, port) for each port at which the processes of an SGLang server meet.

    host: "" for this host.

    Returns:
        Empty for any other program, and for a server whose node rank is not 0.
    """
    server, command = process.server, process.command
    if server is None or server.value("node_rank") != 0:
        return []
    settings, at = server.arguments.settings, server.value("dist_init_addr")
    host, first = "", None
    meetings: list[tuple[str, str, int]] = []
    if isinstance(at, str):
        host, first, _ = split_address(at)
    name = "nccl_port" if at is None else "dist_init_addr"
    store = server.value("nccl_port") if at is None else first
    if isinstance(store, int) and STORE_ELSEWHERE not in server.environment:
        meetings.append((f"--{name.replace('_', '-')}", settings[name].origin, store))
    http = server.value("port")
    if at is None and isinstance(http, int) and process.kind is ProcessKind.SGLANG:
        name, first = "port", http + DP_ATTENTION_OFFSET
    attention_dp = server.attention_dp
    apart = isinstance(attention_dp, int) and attention_dp > 1
    if apart and first is not None and first <= HIGHEST_FIRST_PORT:
        origin = f"counted from {settings[name].origin}"
        meetings += [(OF_DP_ATTENTION, origin, first + offset) for offset in DP_ATTENTION_PORTS]
    port = BoundPort("", 0, process.name, "", network_of(command), pod=pod_of(command), inner=True)
    port = port._replace(waited=command.waited, turn=command.turn)
    host = "" if host in OWN_HOST else host
    return [
        (host, port._replace(what=what, origin=seen, port=number))
        for what, seen, number in meetings
    ]


def _published(port: Published) -> BoundPort:
    what = port.what if isinstance(port.port, Unknown) else f"{port.what} {port.port}"
    return BoundPort(what, port.port, port.owner, port.origin, pod=port.pod, address=port.address)


def _own_ports(process: LaunchProcess) -> Iterator[BoundPort]:
    """Yield the ports that a process binds itself, each as its flag or default says."""
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
        yield _flag_port(process, what, flag, default)


def _fixed_ports(process: LaunchProcess) -> Iterator[tuple[str, str, int]]:
    """Yield (name, flag, default) for each port of a Mooncake program, metadata server or router;
    nothing for other programs.
    """
    if process.kind is ProcessKind.MASTER:
        rpc = "port" if value_of(process.arguments, "rpc_port") is None else "rpc_port"
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


def split_address(text: str) -> Address:
    """Split ``user@host:80/x?y`` or ``[::1]:80``; user and query are dropped.

    Without a port, port is None. A port that is no number stays in the host.
    """
    rest, slash, path = text.strip().partition("?")[0].partition("/")
    rest, path = rest.rpartition("@")[2], slash + path
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


def _argument_port(process: LaunchProcess, what: str, name: str) -> BoundPort:
    assert process.server is not None
    setting = process.server.arguments.settings[name]
    value = setting.value
    number = value if isinstance(value, int | Unknown) else Unknown(f"{name} {value!r}: no number")
    return BoundPort(what, number, process.name, setting.origin)


def _flag_port(process: LaunchProcess, what: str, flag: str, default: int) -> BoundPort:
    """Return the port that a flag gives, or its default; its number is Unknown if the flag's value
    is not known.

    Args:
        what: The port's name, for a person.
    """
    word = value_of(process.arguments, flag)
    if word is None:
        return BoundPort(what, default, process.name, Default(f"default of --{flag}"))
    if word.unresolved:
        return BoundPort(what, why_unresolved(word), process.name, str(word.origin))
    number = port_value(word.text, f"--{flag}")
    return BoundPort(what, number, process.name, f"--{flag} at {word.origin}")
