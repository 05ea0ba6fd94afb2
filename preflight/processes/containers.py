"""What a container means for its processes: the limits that checks ask for, and where files lie."""

from __future__ import annotations

from collections.abc import Iterator

from checks.framework.needs import GPU_RESOURCES, UNLIMITED, ContainerLimits, GivenGpus, SetLimit
from checks.framework.regex import regex
from checks.framework.units import GIB, KIB, MIB
from checks.framework.unknown import Unknown
from preflight.launches.container import ContainerSettings, Size, named_gpus
from preflight.launches.source import Command, ReadFile, Word, file_reader
from preflight.launches.wrappers import is_gate

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
    """Return the limits, GPUs and devices that the launch gives the container of ``command``.

    In the record, a size that is not written or cannot be read is None.

    Returns:
        None without a container.
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
        verbs_nodes=_verbs_nodes(settings),
        own_network=settings.engine in ("docker", "compose")
        and settings.network in (None, *_OWN_NETWORKS),
        pids=_known(settings.pids),
    )


def _verbs_nodes(settings: ContainerSettings) -> tuple[str, ...] | Unknown:
    """Return the device files or folders by which a container opens RDMA devices; () if it
    certainly gets none.

    Returns:
        Unknown if the engine, a resource or the runtime may give it some.
    """
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
    """Return the GPUs that a container is given.

    The first source that names some is taken: resources, ``--gpus``, NVIDIA_VISIBLE_DEVICES
    (``variable``), device files, the runtime.

    Returns:
        None if no source names any, Unknown if the text of a source is not known.
    """
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


def limits_set_by(command: Command) -> tuple[SetLimit, ...]:
    """Return the limits that the launch sets by setrlimit(2), in order: data and fsize of the
    container, then those set by its commands.

    ``container_limits`` has the container's other limits.
    """
    origin = str(command.origin)
    in_order = []
    for name, bounds in command.container.ulimits.items() if command.container else ():
        if name in ("data", "fsize"):
            soft, hard = (None if bound == UNLIMITED else bound for bound in bounds)
            in_order.append(SetLimit(name, soft, hard, origin, raises=True))
    return (*in_order, *command.limits)


def unknown_settings(command: Command) -> Iterator[tuple[str, Unknown]]:
    """Yield (name, reason) for each size or ulimit of the container that is written and cannot be
    read.

    Of a ulimit, only the soft value is looked at.
    """
    settings = command.container
    if settings is None:
        return
    values: list[tuple[str, Size]] = [
        ("shm size", settings.shm_size_bytes),
        ("memory limit", settings.memory_bytes),
        ("pids limit", settings.pids),
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
    """Return the size of /dev/shm in bytes, and whether it is the host's.

    The size is None if it is not known, not written, or the host's. A volume in memory without a
    size takes the container's memory limit.
    """
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
    """Return the HugeTLB limits that are known, in bytes, by page size in bytes (from ``2Mi``)."""
    limits: dict[int, int] = {}
    for size, limit in settings.hugepages_bytes.items():
        number, unit = size[:-2], size[-2:]
        if unit in _PAGE_UNITS and number.isdecimal() and not isinstance(limit, Unknown):
            limits[int(number) * _PAGE_UNITS[unit]] = limit
    return limits


# Wrappers that leave a process on its host, with its host's files and ports.
_LOCAL = frozenset(
    "accelerate ash bash builtin catchsegv chrt command conda coverage dash dumb-init env "
    "exec flock gdb gosu hatch ionice ksh ltrace mamba micromamba ncu nice nohup nsys numactl pdm "
    "perf pipenv pixi poetry prlimit py-spy runuser rye screen script setpriv setsid sh "
    "stdbuf strace su sudo systemd-run taskset time timeout tini tmux uv uvx valgrind "
    "watch xvfb-run zsh".split()
)

_RUN_INSIDE = "run this check inside the container: its files are seen there"


def place_of(command: Command) -> tuple[tuple[str, ...], ...] | None:
    """Return where a command runs; equal places share their files, and () is the host itself.

    ``docker exec`` is known.

    Returns:
        None if a wrapper, such as ssh, srun or docker run, takes the command to a place that is not
        known.
    """
    wrappers = (wrapper for wrapper in command.wrappers if wrapper and not is_gate(wrapper))
    around = tuple(wrapper for wrapper in wrappers if wrapper[0].rpartition("/")[2] not in _LOCAL)
    if any(wrapper[:2] != ("docker", "exec") for wrapper in around):
        return None
    place = command.place
    if place is None:
        return around
    return ((place.kind, *place.name, *filter(None, [place.container])), *around)


def network_of(command: Command) -> str:
    """Return a name for the network in which a command binds its ports; "" for the host's network.

    Commands with equal names share one network.
    """
    settings, place = command.container, command.place
    if settings is None:
        return "" if place_of(command) is not None else f"where {command.origin} runs"
    if settings.network == "host":
        return ""
    if settings.network is not None and settings.network.startswith(("service:", "container:")):
        return settings.network.partition(":")[2]
    if place is not None and place_of(command) is not None:
        return " ".join(place.name)  # the containers of a pod share its network
    return f"the container of {command.origin}"


def service_of(command: Command) -> str:
    """Return the name by which other containers of a Compose project call a command, or ""."""
    container = command.container
    compose = container is not None and container.engine == "compose"
    return network_of(command).rpartition("/")[2] if compose else ""


def pod_of(command: Command) -> str:
    """Return the Kubernetes pod that a command runs in, or ""."""
    place = command.place
    return " ".join(place.name) if place is not None and place.kind == "pod" else ""


def host_path(command: Command, path: str) -> str | Unknown:
    """Return the path on the host of the file that the process of ``command`` calls ``path``.

    Returns:
        Unknown if no bind mount of its container holds the file, or the process runs at a place
        that is not read here.
    """
    settings = command.container
    if settings is not None:
        return _mounted(settings, path)
    if place_of(command) == ():
        return path
    why = f"{path} lies where {command.origin} runs, whose files are not read here"
    return Unknown(why, advice="run this check where it runs: its files are seen there")


def _mounted(settings: ContainerSettings, path: str) -> str | Unknown:
    """Return the host's path of a file in a container; Unknown if no bind mount holds it."""
    below = [(mount, mount.target.rstrip("/") + "/") for mount in settings.mounts]
    around = [mount for mount, top in below if path == mount.target or path.startswith(top)]
    if not around:
        why = f"{path} lies in the container's image, whose files are not read here"
        return Unknown(why, advice=_RUN_INSIDE)
    mount = max(around, key=lambda mount: len(mount.target))
    if mount.kind != "bind" or not mount.source.startswith("/"):
        why = "and where that is on the host is not known"
        return Unknown(f"{path} lies in a volume of the container, {why}", advice=_RUN_INSIDE)
    rest = path[len(mount.target.rstrip("/")) :]
    return (mount.source.rstrip("/") + rest) or "/"


def command_file_reader(command: Command, read_file: ReadFile) -> ReadFile:
    """Return a function that reads a file by the name that the process of ``command`` has for it.

    A file that the launch itself writes comes first; any other is read on the host, through the
    bind mounts of a container. The function returns Unknown for a file that it cannot reach.
    """
    plain = command.container is None and place_of(command) == ()

    def mounted(name: str) -> str | Unknown:
        path = name if plain or not name.startswith("/") else host_path(command, name)
        return path if isinstance(path, Unknown) else read_file(path)

    there = file_reader(command.files, mounted) if command.files else mounted

    def read(name: str) -> str | Unknown:
        """Return the text of a file; Unknown if it cannot be read, or for a ~ that no shell has
        expanded.
        """
        if not name.startswith("~/"):
            return there(name)
        why = "a shell expands it only at the start of a word or of an assignment's value"
        why = f"{name}: ~ has reached the program as it is: {why}"
        return Unknown(why, advice=f"write $HOME{name[1:]} in the launch")

    return read
