"""How many hosts a launch is for, by its groups and the copies of its pods."""

from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.processes.processes import LaunchProcess
from preflight.sglang.launch import server_ranks
from preflight.sizing.launch_sizing import LaunchSizing


class LaunchHosts(NamedTuple):
    """note: a sentence for the user; "" for a launch of one host."""

    hosts: int
    note: str = ""


def launch_hosts(sizing: LaunchSizing, gpus: int) -> LaunchHosts:
    """Return how many hosts run servers as this one does, with the store that they share.

    gpus: of this host; 0 if that is not known. Copies of a pod are on hosts of their own where
    no host has the GPUs for two; else how many share a host is not known, and one is counted.
    """
    taken = sizing.group
    if taken is not None and taken.group.in_turn:
        return LaunchHosts(1)
    caching = [process for process in sizing.whole if _caches(process)]
    numbers = range(len(sizing.whole)) if taken is None else taken.group.numbers
    kinds = {_kind(process) for process in caching if process.number in numbers}
    caching = [process for process in caching if _kind(process) in kinds]
    by_host = [caching]
    if taken is not None:
        by_host = [[each for each in caching if each.number in group.own] for group in taken.groups]
    hosts, shared = 0, 0
    for servers in by_host:
        copies = max((_copies(server) for server in servers), default=0)
        alone = all(2 * _ranks(server) > gpus > 0 for server in servers)
        hosts += copies if alone else min(1, copies)
        shared = max(shared, 0 if alone else copies)
    if shared > 1:
        note = f"of {shared} copies of a server it is not known how many share a host"
        return LaunchHosts(max(1, hosts), f"{note}, and one is counted: --nodes says it")
    spans = {process.server.number("nnodes") for process in caching if process.server is not None}
    if hosts < 2 or any(not isinstance(span, int) or hosts % span for span in spans):
        return LaunchHosts(1)
    what = f"the launch is for {hosts} hosts like this one that share the store"
    return LaunchHosts(hosts, f"{what}: --nodes says another number")


def _caches(process: LaunchProcess) -> bool:
    server = process.server
    backend = server.value("hicache_storage_backend") if server and server.hicache else None
    return bool(backend == "mooncake")


def _kind(process: LaunchProcess) -> tuple[str, str]:
    """Return the model, and prefill or decode: servers that cache the same have both alike."""
    server = process.server
    return ("", "") if server is None else (str(server.value("model_path")), server.mode)


def _copies(process: LaunchProcess) -> int:
    place = process.command.place
    on_one_host = place is not None and place.kind == "service"
    return 1 if on_one_host else process.command.copies


def _ranks(process: LaunchProcess) -> int:
    ranks = None if process.server is None else server_ranks(process.server)
    return 0 if ranks is None or isinstance(ranks, Unknown) else ranks.here
