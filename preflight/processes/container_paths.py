"""Where a file lies that a process opens: on its host, in a volume, or where nobody can look."""

from __future__ import annotations

from checks.base.unknown import Unknown
from preflight.launches.container import ContainerSettings
from preflight.launches.source import Command, ReadFile, reads_written

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
    """Return where a command runs: equal places share their files; () on the host."""
    wrappers = filter(None, command.wrappers)
    around = tuple(wrapper for wrapper in wrappers if wrapper[0].rpartition("/")[2] not in _LOCAL)
    if any(wrapper[:2] != ("docker", "exec") for wrapper in around):
        return None
    place = command.place
    if place is None:
        return around
    return ((place.kind, *place.name, *filter(None, [place.container])), *around)


def network_of(command: Command) -> str:
    """Return the name of the network that a command binds its ports in; "" for its host's own."""
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
    """Return the name by which the others of a Compose project call a command, or ""."""
    container = command.container
    compose = container is not None and container.engine == "compose"
    return network_of(command).rpartition("/")[2] if compose else ""


def pod_of(command: Command) -> str:
    """Return the Kubernetes pod that a command runs in, or ""."""
    place = command.place
    return " ".join(place.name) if place is not None and place.kind == "pod" else ""


def host_path(command: Command, path: str) -> str | Unknown:
    """Return the host's path of a file of a process; Unknown if no volume tells it."""
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


def reads_in(command: Command, read_file: ReadFile) -> ReadFile:
    """Return a reader of the files that a process of this command opens."""
    there = _reads_there(command, read_file)

    def read(name: str) -> str | Unknown:
        """Return the text of a file; Unknown for a ~ that no shell has expanded."""
        if not name.startswith("~/"):
            return there(name)
        why = "a shell expands it only at the start of a word or of an assignment's value"
        why = f"{name}: ~ has reached the program as it is: {why}"
        return Unknown(why, advice=f"write $HOME{name[1:]} in the launch")

    return read


def _reads_there(command: Command, read_file: ReadFile) -> ReadFile:
    """Return a reader of files as a command sees them: written, mounted, or the host's."""
    if command.files:
        return reads_written(command.files, reads_in(command._replace(files={}), read_file))

    def read(name: str) -> str | Unknown:
        """Return the text of a file, by the path that the container has for it."""
        if not name.startswith("/"):
            return read_file(name)
        path = host_path(command, name)
        return path if isinstance(path, Unknown) else read_file(path)

    plain = command.container is None and place_of(command) == ()
    return read_file if plain else read
