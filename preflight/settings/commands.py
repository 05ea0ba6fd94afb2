"""What mends a finding, as lines to copy on the host where it was made.

A setting is one object; this is its rendering for a shell, in the place where ``check`` ran: the
bare machine, a Docker or Podman container, a Kubernetes pod. What belongs to a container that the
launch itself describes is said in that description's words. A line that starts with ``#`` is for
the reader: it cannot be run where he is, or need not be for this launch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from checks.base.finding import Fill, Kind, Setting
from checks.base.unknown import Unknown
from preflight.base import shell
from preflight.base.shell import Line, comment, quote
from preflight.settings.targets import (
    CONTAINERD,
    LIMITS_FILE,
    MODPROBE_FILE,
    MODULES_FILE,
    NOT_OF_A_CONTAINER,
    NR_HUGEPAGES,
    ORDERS,
    SYSCTL_FILE,
    drop_in,
    limit_line,
    restart,
)

if TYPE_CHECKING:
    from checks.run.facts import Facts

CONTAINERS = ("docker", "podman", "kubernetes")
# Where a description has a container's variables, and how.
_VARIABLE_OF = {
    "compose": ("the service's environment", "{}: {}"),
    "pyxis": ("the job's environment", "{}: {}"),
    "kubernetes": ("the container's env", "- {{name: {}, value: {}}}"),
}
_SEARCH_PATHS = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
# What a network namespace has of its own, so that a container may set it for itself.
_NAMESPACED = ("net.", "kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")
Lines = list[Line]


class Context(NamedTuple):
    """Where the commands are to be run.

    container: "" on the machine itself, else docker, podman, kubernetes, or another runtime's name;
    compose for a service that a compose file describes.
    root: user 0, who needs no sudo. systemd: units hand limits on here. packages: apt-get, dnf, "".
    """

    container: str = ""
    root: bool = False
    systemd: bool = True
    packages: str = ""

    @property
    def sudo(self) -> str:
        return "" if self.root else "sudo "

    @property
    def engine(self) -> str:
        """Return who starts containers here; docker and podman take the same words."""
        return "podman" if self.container == "podman" else "docker"


def commands(settings: Iterable[Setting], context: Context) -> tuple[Line, ...]:
    """Return the lines for all ``settings``, each once, in order.

    What belongs to a container that the launch describes is said in that description's words.
    """
    lines: Lines = []
    for setting in settings:
        own = _of_the_container(setting, Context())
        place = Context(own, systemd=False) if own else context
        anew = _restarts(setting, context)
        for one in _RENDERINGS[setting.kind](setting, place):
            root = _as_root(setting, context) and one.does != "by hand"
            told = (one.does, one.argv, one.file, one.content, root, anew, one.starts)
            lines.append(Line(one, *told))
    return shell.together(lines)


_TAKES = {"pod": "in a new pod", "container": "in a new container", "host": "then a reboot"}


def takes(settings: Iterable[Setting], context: Context) -> tuple[str, ...]:
    """Return what the settings take: ``as root``, ``in a new container``, ``then a reboot``."""
    found: list[str] = []
    for setting in settings:
        root = "as root" if _as_root(setting, context) else ""
        found += filter(None, (root, _TAKES.get(_restarts(setting, context))))
    return tuple(dict.fromkeys(found))


def _of_the_container(setting: Setting, context: Context) -> str:
    """Return which kind of container a setting is of, "" for none."""
    if setting.kind is Kind.ENVIRONMENT:  # within a container its shell sets them too
        return setting.described_by
    own = setting.kind in _OF_A_CONTAINER and not setting.unit
    return (setting.described_by or context.container) if own else ""


def _as_root(setting: Setting, context: Context) -> bool:
    mine = setting.kind in _BY_ROOT or setting.as_root
    return mine and not _of_the_container(setting, context)


def _restarts(setting: Setting, context: Context) -> str:
    """Return what has to be started anew for a setting, as ``shell.Line`` has it."""
    place = _of_the_container(setting, context)
    if place:
        return "pod" if place == "kubernetes" else "container"
    if setting.kind is Kind.KERNEL_ARGUMENT:
        return "host"
    return setting.unit or ("launch" if setting.kind in _OF_THE_LAUNCH else "")


def context_of(facts: Facts) -> Context:
    """Return where the facts were read; what cannot be told is taken as the machine itself."""
    system, limits = facts.topic("system"), facts.topic("limits")
    user = Unknown("") if isinstance(limits, Unknown) else limits.euid
    root = not isinstance(user, Unknown) and user == 0
    if isinstance(system, Unknown):
        return Context("", root)
    container, distribution = system.container, system.distribution
    name = "" if isinstance(distribution, Unknown) else distribution
    kind = container.kind if container.inside else ""
    return Context(kind, root, not container.inside, _package_tool(name))


def _package_tool(distribution: str) -> str:
    words = distribution.lower()
    if any(name in words for name in ("debian", "ubuntu")):
        return "apt-get"
    if any(
        name in words for name in ("rhel", "fedora", "centos", "rocky", "alma", "amzn", "alinux")
    ):
        return "dnf"
    return ""


def _sysctl(setting: Setting, context: Context) -> Lines:
    name, value = setting.name, setting.wanted
    word = f"{name}={value}"
    if context.container and name.startswith(_NAMESPACED):
        if context.container == "kubernetes":
            text = f"in the pod: securityContext.sysctls: [{{name: {name}, value: {value!r}}}]"
            return [comment(text)]
        return _start(context, "--sysctl", word)
    lines = [*_on_the_host(context), shell.line(("sysctl", "-w", word), context.sudo)]
    # Whether a pool of this machine lasts, and what to write, is hugetlb.after-reboot's to say.
    if name not in ORDERS and (context.container or name != NR_HUGEPAGES):
        lines.append(comment(f"to keep it after a reboot: {name} = {value} in {SYSCTL_FILE}"))
    return lines


def _boot_sysctl(setting: Setting, context: Context) -> Lines:
    """Return the lines that append a setting to its file.

    It is added at the end: the last line of a file wins, and other lines of it are kept.
    """
    lines = _on_the_host(context)
    if setting.origin:  # install takes a link away where cp would write through it
        words = ("install", "-m", "644", setting.origin, setting.file)
        lines.append(shell.line(words, context.sudo))
    line = f"{setting.name} = {setting.wanted}"
    # The empty line ends one that an editor left open.
    return [*lines, shell.append(("", line), setting.file, context.sudo)]


def _sysfs(setting: Setting, context: Context) -> Lines:
    """Write a file of /sys or /proc."""
    return [*_on_the_host(context), shell.write(setting.wanted, setting.name, context.sudo)]


def _cgroup(setting: Setting, context: Context) -> Lines:
    """Return the lines that set a limit of the cgroup.

    The runtime that made the cgroup writes it again at the next start.
    """
    file, value = setting.name.rpartition("/")[2], setting.wanted
    by_hand = comment(shell.write(value, setting.name))
    if context.container == "kubernetes":
        field = _kubernetes_resource(file)
        if field:
            amount = "(none, or the node's own)" if value == "max" else value
            return [comment(f"in the pod: resources.limits.{field}: {amount}")]
        return [comment("the node's administrator has to change it: a pod cannot"), by_hand]
    if context.container in ("docker", "podman"):
        options = {
            "memory.max": (f"--memory={value}", "--memory-swap=-1"),
            "memory.limit_in_bytes": (f"--memory={value}", "--memory-swap=-1"),
            "cpuset.mems": (f"--cpuset-mems={value}",),
        }.get(file)
        if options and value != "max":
            return [
                comment(f"on the host: {context.engine} update {shell.line(options)} CONTAINER")
            ]
        if options:
            return [comment(f"start the container without {options[0].partition('=')[0]}")]
        return [comment("on the host, in the cgroup of this container:"), by_hand]
    return _sysfs(setting, context)


def _kubernetes_resource(file: str) -> str:
    if file in ("memory.max", "memory.limit_in_bytes", "memory.high"):
        return "memory"
    if file.startswith("hugetlb."):
        size = file.split(".")[1].removesuffix("B")
        return f"hugepages-{size}i" if size[-1:] in ("M", "G", "K") else ""
    return ""


def _ulimit(setting: Setting, context: Context) -> Lines:
    name, value = setting.name, setting.wanted
    if setting.unit:
        lines = _unit_limit(name, value, setting.unit, context.sudo)
        return [*_on_the_host(context), *map(comment, lines)] if context.container else lines
    number = "-1" if value == "unlimited" else value
    if name in NOT_OF_A_CONTAINER and context.container in ("compose", "docker", "podman"):
        return [
            comment(
                f"no container engine knows --ulimit {name}: raise it in the unit of the daemon"
            )
        ]
    if context.container == "compose":
        return [comment(f"in the service: ulimits: {{{name}: {number}}}")]
    if context.container in ("docker", "podman"):
        return _start(context, "--ulimit", f"{name}={number}")
    if context.container == "kubernetes":
        return [
            comment("Kubernetes has no field for it: on the node, then start the pod anew:"),
            *map(comment, _unit_limit(name, value, CONTAINERD, "sudo ")),
        ]
    words = ("prlimit", "--pid", Fill.SHELL_PID, f"--{name}={value}:{value}")
    lines = [shell.line(words, context.sudo)]
    if context.systemd:
        lines.append(comment(f"to keep it, in a unit: {limit_line(name, value)}"))
    # Two lines: one would be wider than a terminal, and what goes into the file is copied whole.
    lines.append(comment(f"to keep it, for logins, in {LIMITS_FILE}:"))
    lines.append(comment(f"  * - {name} {value}"))
    return lines


def _unit_limit(name: str, value: str, unit: str, sudo: str) -> Lines:
    """Return the lines that set the limit which a service hands on to what it starts."""
    path = drop_in(unit)
    reload, again = ("systemctl", "daemon-reload"), restart(unit)
    both = f"{shell.line(reload, sudo)} && {shell.line(again, sudo)}"
    return [
        shell.line(("mkdir", "-p", path.rpartition("/")[0]), sudo),
        shell.append(("[Service]", limit_line(name, value)), path, sudo),
        Line(both, "run", ("sh", "-c", f"{shell.line(reload)} && {shell.line(again)}")),
    ]


def _environment(setting: Setting, context: Context) -> Lines:
    name = setting.name
    if not is_variable(name):
        return [
            comment(f"{name!r} is not a valid name of a variable: set it where the launch does")
        ]
    if setting.described_by:  # its container gets it from there, and from no shell
        place, pair = _VARIABLE_OF.get(setting.described_by, ("the container's -e", ""))
        if not setting.wanted:
            return [comment(f"take {name} out of {place}")]
        if not pair:
            return _start(context, "-e", f"{name}={setting.wanted}")
        return [comment(f"in {place}: {pair.format(name, json.dumps(setting.wanted))}")]
    if not setting.wanted:
        return [Line(f"unset {name}")]
    # A search path is added to: what it had stays reachable.
    rest = f"${{{name}:+:${name}}}" if name in _SEARCH_PATHS else ""
    return [Line(f"export {name}={quote(setting.wanted)}{rest}")]


def is_variable(name: str) -> bool:
    """Return whether a shell takes ``name`` as the name of a variable."""
    return name.isascii() and name.isidentifier()


def _flag(setting: Setting, context: Context) -> Lines:
    name = setting.name if setting.name.startswith("-") else f"--{setting.name}"
    if setting.wanted:
        return [comment(f"in the launch: {name} {quote(setting.wanted)}")]
    return [comment(f"in the launch{', without' if setting.now else ''}: {name}")]


def _shm(setting: Setting, context: Context) -> Lines:
    size = setting.wanted
    if context.container == "compose":
        return [comment(f"in the service, where it has no ipc: host: shm_size: '{size}'")]
    if context.container in ("docker", "podman"):
        return [
            *_start(context, f"--shm-size={size}"),
            comment(
                "(without --ipc=host, which takes the host's /dev/shm whatever --shm-size says)"
            ),
        ]
    if context.container == "kubernetes":
        volume = f"{{medium: Memory, sizeLimit: {size}}}"
        return [comment(f"in the pod: an emptyDir {volume} mounted at /dev/shm")]
    return [
        shell.line(("mount", "-o", f"remount,size={size}", "/dev/shm"), context.sudo),
        comment(f"to keep it after a reboot, in /etc/fstab: tmpfs /dev/shm tmpfs size={size} 0 0"),
    ]


def _device(setting: Setting, context: Context) -> Lines:
    path, kind = setting.name, _of_the_container(setting, context)
    if kind == "compose":
        return [comment(f"in the service: devices: ['{path}:{path}']")]
    if kind in ("docker", "podman"):
        return _start(context, f"--device={path}")
    if kind == "kubernetes":
        return [comment(f"in the pod: {path} comes with its device plugin's resource")]
    if setting.words and not context.container:
        return [shell.line(setting.words, context.sudo)]
    if not setting.now:  # it is not there, and no mode of it lets anybody in
        return [
            comment(
                f"{path} does not exist here: start the service that makes it, or run where it "
                "exists"
            )
        ]
    return [shell.line(("chmod", "a+rw", path), context.sudo)]


def _capability(setting: Setting, context: Context) -> Lines:
    name = setting.name.removeprefix("CAP_")
    if context.container == "compose":
        return [comment(f"in the service: cap_add: [{name}]")]
    if context.container in ("docker", "podman"):
        return _start(context, f"--cap-add={name}")
    if context.container == "kubernetes":
        where = "in the pod, which has to run as user 0"
        return [comment(f"{where}: securityContext.capabilities.add: [{name}]")]
    low = name.lower()
    return [
        comment(
            "start the launch with: sudo setpriv --reuid=$(id -u) --regid=$(id -g) --init-groups "
            f"{shell.line((f'--inh-caps=+{low}', f'--ambient-caps=+{low}'))} ..."
        )
    ]


def _security(setting: Setting, context: Context) -> Lines:
    word = f"{setting.name}={setting.wanted}" if setting.wanted else setting.name
    if context.container == "kubernetes":
        profile = setting.wanted.capitalize() or setting.name
        return [comment(f"in the pod: securityContext.seccompProfile.type: {profile}")]
    if context.container == "compose":
        return [comment(f"in the service: security_opt: ['{word.replace('=', ':', 1)}']")]
    return _start(context, "--security-opt", word)


def _start(context: Context, *words: str) -> Lines:
    """Return what a container has to be started with, for the reader."""
    return [shell.start(context.engine, words)]


def _module(setting: Setting, context: Context) -> Lines:
    """Return the lines that load a kernel module with its options.

    One that is loaded has to go first, as options are taken at loading.
    """
    name, options = setting.name, setting.wanted.split()
    lines = _on_the_host(context)
    if setting.now:
        lines.append(shell.line(("modprobe", "-r", name), context.sudo))
    lines.append(shell.line(("modprobe", name, *options), context.sudo))
    lines.append(comment(f"to keep it after a reboot: {name} in {MODULES_FILE}"))
    if options:
        lines.append(comment(f"and: options {name} {setting.wanted} in {MODPROBE_FILE}"))
    return lines


def _kernel_argument(setting: Setting, context: Context) -> Lines:
    word = f"{setting.name}={setting.wanted}" if setting.wanted else setting.name
    return [comment(f"on the kernel command line of the host, then reboot: {word}")]


def _package(setting: Setting, context: Context) -> Lines:
    if not context.packages:
        return [comment(f"install the package {setting.name}")]
    return [shell.line((context.packages, "install", "-y", setting.name), context.sudo)]


def _command(setting: Setting, context: Context) -> Lines:
    return [shell.line(setting.words, context.sudo if setting.as_root else "")]


def _of_container(setting: Setting, context: Context) -> Lines:
    wanted = f"{setting.kind.value}: {setting.wanted}"
    return [comment(f"for the container, see plan --format docker, compose or k8s: {wanted}")]


def _on_the_host(context: Context) -> Lines:
    return [comment("on the host, outside of this container:")] if context.container else []


_BY_ROOT = (
    Kind.SYSCTL,
    Kind.BOOT_SYSCTL,
    Kind.SYSFS,
    Kind.CGROUP,
    Kind.ULIMIT,
    Kind.SHM_SIZE,
    Kind.DEVICE,
    Kind.MODULE,
    Kind.KERNEL_ARGUMENT,
    Kind.PACKAGE,
)
_OF_THE_LAUNCH = (Kind.ENVIRONMENT, Kind.FLAG, Kind.ULIMIT)
# What a container's description says, and no command on the host.
_OF_A_CONTAINER = (Kind.ULIMIT, Kind.SHM_SIZE, Kind.DEVICE, Kind.CAPABILITY, Kind.SECURITY)
_RENDERINGS: dict[Kind, Callable[[Setting, Context], Lines]] = {
    Kind.SYSCTL: _sysctl,
    Kind.BOOT_SYSCTL: _boot_sysctl,
    Kind.SYSFS: _sysfs,
    Kind.CGROUP: _cgroup,
    Kind.ULIMIT: _ulimit,
    Kind.ENVIRONMENT: _environment,
    Kind.FLAG: _flag,
    Kind.SHM_SIZE: _shm,
    Kind.DEVICE: _device,
    Kind.CAPABILITY: _capability,
    Kind.SECURITY: _security,
    Kind.MODULE: _module,
    Kind.KERNEL_ARGUMENT: _kernel_argument,
    Kind.PACKAGE: _package,
    Kind.COMMAND: _command,
    **dict.fromkeys(
        (Kind.GPUS, Kind.NETWORK, Kind.IPC, Kind.MEMORY, Kind.HUGEPAGES), _of_container
    ),
}
