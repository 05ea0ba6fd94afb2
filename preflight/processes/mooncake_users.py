"""Which processes of a launch load Mooncake's library, and so read its environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from preflight.launches.source import Word
from preflight.processes.processes import Kind, LaunchProcess, SglangServer

_PROGRAMS = (Kind.STORE_SERVICE, Kind.CLIENT, Kind.MASTER)
# Wrappers that leave a process on its host, with its host's files and ports.
_LOCAL = frozenset(
    "bash builtin catchsegv chrt command conda dash doas dumb-init env exec flock gosu ionice "
    "mamba micromamba nice nohup nsys numactl pipenv pixi poetry prlimit runuser setpriv setsid sh "
    "stdbuf strace su sudo systemd-run taskset time timeout tini uv uvx".split()
)


def uses_mooncake(process: LaunchProcess) -> bool:
    """The store, disaggregation or expert parallelism over Mooncake, or a program of its own."""
    if process.server is not None:
        return _server_uses_mooncake(process.server)
    return process.kind in _PROGRAMS


def store_clients(process: LaunchProcess) -> bool:
    """Whether a process is a client of the Mooncake store."""
    if process.server is not None:
        return process.server.store is not None
    return process.kind in (Kind.STORE_SERVICE, Kind.CLIENT)


def settings_of(
    processes: tuple[LaunchProcess, ...],
    names: tuple[str, ...],
    reads: Callable[[LaunchProcess], bool] = uses_mooncake,
) -> Iterator[tuple[LaunchProcess, str, Word]]:
    """Each resolved setting of one of ``names`` that a process which ``reads`` them has.

    Once for each place where it is written, with the first such process.
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
    if server.store is not None:
        return True
    transfers = server.mode in ("prefill", "decode")
    backend = server.value("disaggregation_transfer_backend")
    return (transfers and backend == "mooncake") or "mooncake" in (
        server.value("moe_a2a_backend"),
        server.value("elastic_ep_backend"),
        server.value("encoder_transfer_backend"),
    )


def store_devices(process: LaunchProcess) -> str | None:
    """The device names that a store client is given; None where it is none, or they are unknown."""
    if process.server is not None:
        store = process.server.store
        value = None if store is None else store.value("device_name")
    else:
        value = None if process.store is None else process.store.devices
    return value if isinstance(value, str) else None


def place(process: LaunchProcess) -> tuple[tuple[str, ...], ...] | None:
    """What stands around a process: two with the same share files and ports.

    Empty on the host itself; None where it cannot be told: behind ssh, or in ``docker run``.
    """
    around = tuple(
        wrapper
        for wrapper in process.command.wrappers
        if wrapper and wrapper[0].rpartition("/")[2] not in _LOCAL
    )
    named = (("docker", "compose"), ("docker", "exec"))
    known = all(wrapper[0] == "kubernetes" or wrapper[:2] in named for wrapper in around)
    return around if known else None


def offloads(process: LaunchProcess) -> bool:
    """Whether a store client offloads to SSD, as far as is known."""
    if process.server is not None:
        store = process.server.store
        return store is not None and store.value("enable_ssd_offload") is True
    return process.store is not None and process.store.offload is True
