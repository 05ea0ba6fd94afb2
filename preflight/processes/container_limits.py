"""What a launch's own container settings hand to its processes, as checks ask for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.base.needs import UNLIMITED, ContainerLimits, GivenGpus, SetLimit
from checks.base.units import GIB, KIB, MIB
from checks.base.unknown import Unknown
from preflight.launches.container import ContainerSettings, Size, named_gpus
from preflight.launches.source import Command, Word

_PAGE_UNITS = {"Ki": KIB, "Mi": MIB, "Gi": GIB}
# What device plugins of Kubernetes call whole GPUs.
_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
# What gives a container a GPU without --gpus: a runtime of OCI, or the device's own node.
_GPU_RUNTIME = re.compile("nvidia|amd|ascend|habana")
_GPU_NODE = re.compile(r"/dev/(?:nvidia(\d+)$|nvidia|kfd|dri|davinci|accel|dxg)")
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
        gpus=_gpus(settings, command.environment.get("NVIDIA_VISIBLE_DEVICES")),
        own_users=settings.own_users,
    )


def _gpus(settings: ContainerSettings, variable: Word | None) -> GivenGpus | Unknown | None:
    """Return what is asked for, or NVIDIA_VISIBLE_DEVICES; None where neither tells the GPUs."""
    for name in _GPU_RESOURCES:
        if count := settings.resources.get(name):
            return GivenGpus(int(count)) if count.isdecimal() else Unknown(f"{name}: {count}")
    if settings.gpus is not None:
        return settings.gpus
    if variable is not None and variable.unresolved:
        return Unknown(f"NVIDIA_VISIBLE_DEVICES is {variable.text}")
    named = "" if variable is None else variable.text
    if named not in ("", "void", "none"):
        return named_gpus(named.split(","))
    # Without the variable an image names its own; devices of a privileged one need none.
    if named and not settings.privileged and not settings.devices:
        return GivenGpus(0) if settings.engine != "kubernetes" else None
    nodes = [match for text in settings.devices if (match := _GPU_NODE.match(text))]
    if not nodes and _GPU_RUNTIME.search(settings.runtime or "") is None:
        return None
    return GivenGpus(None, tuple(node[1] for node in nodes if node[1]))


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
