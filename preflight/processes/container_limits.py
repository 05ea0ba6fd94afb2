"""What a launch's own container settings hand to its processes, as checks ask for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.base.needs import UNLIMITED, ContainerLimits, SetLimit
from checks.base.units import GIB, KIB, MIB
from checks.base.unknown import Unknown
from preflight.launches.container import ContainerSettings, Size
from preflight.launches.source import Command, Word

_PAGE_UNITS = {"Ki": KIB, "Mi": MIB, "Gi": GIB}
_DEVICES = re.compile(r'"device=([^"]+)"|device=([^,"]+)')
# A memory volume without a size may take what the container, or else the host, has.
_NO_LIMIT_BYTES = 1 << 62


def container_limits(command: Command) -> ContainerLimits | None:
    """Return the settings of the container that ``command`` runs in; None where it runs in none.

    What a variable that is not set would decide is left out here: see ``unknown_settings``.
    """
    settings = command.container
    if settings is None:
        return None
    shm_bytes, host_ipc = _shm(settings)
    return ContainerLimits(
        str(command.origin),
        settings.engine or "docker",
        memlock_bytes=_soft(settings, "memlock"),
        nofile=_soft(settings, "nofile"),
        shm_bytes=shm_bytes,
        host_ipc=host_ipc,
        host_network=settings.network == "host",
        privileged=settings.privileged,
        user=settings.user or None,
        capabilities=tuple(name.upper().removeprefix("CAP_") for name in settings.cap_add),
        devices=settings.devices,
        security_options=settings.security_opt,
        memory_bytes=_known(settings.memory_bytes),
        hugepages_bytes=_hugepages(settings),
        gpus=_gpus(settings.gpus, command.environment.get("NVIDIA_VISIBLE_DEVICES")),
    )


def _gpus(asked: str | None, variable: Word | None) -> str | None:
    """Return the GPUs of ``--gpus`` or NVIDIA_VISIBLE_DEVICES; None where neither tells them."""
    if asked is None:
        if variable is None or variable.unresolved or variable.text in ("", "void", "none"):
            return None
        named = variable.text
    else:
        match = _DEVICES.search(asked)
        if match is None:  # a count: the first ones
            return None if "$" in asked else "all"
        named = match.group(1) or match.group(2)
    # CUDA counts those that it is given in the order of their addresses.
    parts = [part.strip() for part in named.split(",")]
    in_order = all(part.isdecimal() for part in parts)
    found = sorted(parts, key=int) if in_order else parts
    return None if "$" in named or (not in_order and len(parts) > 1) else ",".join(found)


def set_limits(command: Command) -> tuple[SetLimit, ...]:
    """Return the limits that the launch sets: its container's sizes, and then those within."""
    origin = str(command.origin)
    found = []
    for name, bounds in command.container.ulimits.items() if command.container else ():
        if name in ("data", "fsize"):
            soft, hard = (None if bound == UNLIMITED else bound for bound in bounds)
            found.append(SetLimit(name, soft, hard, origin, raises=True))
    return (*found, *command.limits)


def unknown_settings(command: Command) -> Iterator[tuple[str, Unknown]]:
    """Settings that are written and cannot be read, by name."""
    settings = command.container
    if settings is None:
        return
    values: list[tuple[str, Size]] = [
        ("shm size", settings.shm_size_bytes),
        ("memory limit", settings.memory_bytes),
        *((f"hugepages-{size}", limit) for size, limit in settings.hugepages_bytes.items()),
        *((f"ulimit {name}", limits[0]) for name, limits in settings.ulimits.items()),
    ]
    for name, value in values:
        if isinstance(value, Unknown):
            yield name, value


def _known(size: Size) -> int | None:
    return None if isinstance(size, Unknown) else size


def _soft(settings: ContainerSettings, name: str) -> int | None:
    limits = settings.ulimits.get(name)
    return None if limits is None else _known(limits[0])


def _shm(settings: ContainerSettings) -> tuple[int | None, bool]:
    """Return the size of /dev/shm, and whether it is the host's."""
    if settings.ipc == "host":
        return None, True
    mounted = settings.mount_at("/dev/shm")
    if mounted is None:
        return _known(settings.shm_size_bytes), False
    if mounted.kind == "bind":
        return None, True
    size = _known(mounted.size_bytes)
    return (_known(settings.memory_bytes) or _NO_LIMIT_BYTES) if size is None else size, False


def _hugepages(settings: ContainerSettings) -> dict[int, int]:
    """``2Mi`` and its like as bytes."""
    found: dict[int, int] = {}
    for size, limit in settings.hugepages_bytes.items():
        number, unit = size[:-2], size[-2:]
        if unit in _PAGE_UNITS and number.isdecimal() and not isinstance(limit, Unknown):
            found[int(number) * _PAGE_UNITS[unit]] = limit
    return found
