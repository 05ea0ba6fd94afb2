"""What a launch's own container settings hand to its processes, as checks ask for it."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.needs import GPU_RESOURCES, UNLIMITED, ContainerLimits, GivenGpus, SetLimit
from checks.base.regex import regex
from checks.base.units import GIB, KIB, MIB
from checks.base.unknown import Unknown
from preflight.launches.container import ContainerSettings, Size, named_gpus
from preflight.launches.source import Command, Word

_PAGE_UNITS = {"Ki": KIB, "Mi": MIB, "Gi": GIB}
# What gives a container a GPU without --gpus: a runtime of OCI, or the device's own node.
_GPU_RUNTIME = regex("nvidia|amd|ascend|habana")
_GPU_NODE = regex(r"/dev/(?:nvidia(\d+)$|nvidia|kfd|dri|davinci|accel|dxg)")
# The nodes of RDMA devices, or a folder that they are in; and a rule of the device cgroup that has
# them all: Linux gives them the major number 231 (include/rdma/ib_verbs.h, IB_UVERBS_MAJOR).
_VERBS_NODE = regex(r"/dev(?:/infiniband(?:/uverbs\d+)?)?/?$")
_VERBS_RULE = regex(r"a|c (?:\*|231):\* r?.*w")
# Docker's networks that are a namespace, into which no plugin moves a device.
_OWN_NETWORKS = ("bridge", "default", "none")
# A memory volume without a size may take what the container, or else the host, has.
_NO_LIMIT_BYTES = 1 << 62


def container_limits(command: Command) -> ContainerLimits | None:
    """Return the container's settings that are known; None if ``command`` runs in none."""
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
        verbs_nodes=_verbs_nodes(settings),
        own_network=settings.engine in ("docker", "compose")
        and settings.network in (None, *_OWN_NETWORKS),
    )


def _verbs_nodes(settings: ContainerSettings) -> tuple[str, ...] | Unknown:
    """Return the device files or folders by which a container opens RDMA devices."""
    engine = settings.engine
    # enroot, which pyxis starts, shows the host's /dev unless ENROOT_RESTRICT_DEV says otherwise.
    if settings.privileged or engine == "pyxis":
        return ("/dev",)
    nodes = [text for text in settings.devices if _VERBS_NODE.match(text)]
    mounted = [mount for mount in settings.mounts if _VERBS_NODE.match(mount.source)]
    if mounted and any(_VERBS_RULE.match(rule) for rule in settings.device_rules):
        nodes += [mount.source for mount in mounted]
    if nodes:
        return tuple(nodes)
    if engine == "kubernetes":
        if any("rdma" in name or "hca" in name for name in settings.resources):
            return ("/dev/infiniband",)
        return Unknown(
            "the pod is not privileged and asks for no resource named rdma: whether another "
            "resource, a claim or the runtime gives it /dev/infiniband is not known"
        )
    if not engine:
        return Unknown("the launch does not show what the container is given: no docker run")
    if engine not in ("docker", "compose"):
        return Unknown(f"no --device /dev/infiniband: whether {engine}'s own configuration has it")
    if mounted:
        why = "is a volume, which Docker lets nobody open unless its daemon is rootless"
        return Unknown(f"{mounted[0].source} {why}")
    elsewhere = [text for text in settings.devices if not text.startswith("/")]
    if settings.runtime not in (None, "", "runc"):
        elsewhere.append(f"the runtime {settings.runtime}")
    if settings.image.startswith("$"):  # unquoted, it may be options and the image
        elsewhere.append(settings.image)
    if elsewhere:
        return Unknown(f"whether {elsewhere[0]} gives it /dev/infiniband is not known")
    return ()


def _gpus(settings: ContainerSettings, variable: Word | None) -> GivenGpus | Unknown | None:
    """Return the GPUs asked for, else NVIDIA_VISIBLE_DEVICES; None if neither tells them."""
    resources = [name for name in GPU_RESOURCES if name in settings.resources]
    resources.sort(key=lambda name: settings.resources[name] == "0")  # of another maker, then
    for name in resources:
        count = settings.resources[name]
        others = [other for other in GPU_RESOURCES if other != name]
        beside = (other for other in others if other in settings.pod_resources)
        asked = () if count == "0" else (name,)
        known = count.isdecimal()
        gpus = GivenGpus(int(count), (), (*asked, *beside)) if known else None
        return gpus or Unknown(f"{name}: {count}")
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
    in_order = []
    for name, bounds in command.container.ulimits.items() if command.container else ():
        if name in ("data", "fsize"):
            soft, hard = (None if bound == UNLIMITED else bound for bound in bounds)
            in_order.append(SetLimit(name, soft, hard, origin, raises=True))
    return (*in_order, *command.limits)


def unknown_settings(command: Command) -> Iterator[tuple[str, Unknown]]:
    """Yield the settings that are written and cannot be read, by name."""
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
    """Return the limits by page size in bytes, from ``2Mi`` and the like."""
    limits: dict[int, int] = {}
    for size, limit in settings.hugepages_bytes.items():
        number, unit = size[:-2], size[-2:]
        if unit in _PAGE_UNITS and number.isdecimal() and not isinstance(limit, Unknown):
            limits[int(number) * _PAGE_UNITS[unit]] = limit
    return limits
