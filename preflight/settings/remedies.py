"""What mends a finding, as lines to copy on the host where it was made.

A setting is one object; this is its rendering for a shell, in the place where ``check`` ran: the
bare machine, a Docker or Podman container, a Kubernetes pod. What belongs to a container that the
launch itself describes is said in that description's words. A line that starts with ``#`` is for
the reader: it cannot be run where he is, or need not be for this launch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from checks.base.finding import Kind, Setting

if TYPE_CHECKING:
    from checks.base.finding import Finding
    from checks.base.needs import LaunchNeeds
    from checks.run.facts import Facts

CONTAINERS = ("docker", "podman", "kubernetes")
_CONTAINERD_DROP_IN = "/etc/systemd/system/containerd.service.d/10-memlock.conf"
_LIMITS_FILE = "/etc/security/limits.d/90-mooncake.conf"
_SYSCTL_FILE = "/etc/sysctl.d/90-mooncake.conf"
# The file that Mooncake's own guide names.
_HUGEPAGES_FILE = "/etc/sysctl.d/90-mooncake-hugepages.conf"
# Written once and done: they order something instead of setting it.
_ORDERS = ("vm.drop_caches", "vm.compact_memory")
_SEARCH_PATHS = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
_SUDO = re.compile(r"(?<![^\s|;&(])sudo +")
# Commands that change the host, however they are written in a setting.
_OF_ROOT = ("ip ", "rdma ", "nvidia-smi ", "setpci ")
# What a network namespace has of its own, so that a container may set it for itself.
_NAMESPACED = ("net.", "kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.")


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
        """Who starts containers here: ``docker run`` and ``podman run`` take the same words."""
        return "podman" if self.container == "podman" else "docker"


def commands(
    settings: Iterable[Setting], context: Context, described: Context | None = None
) -> tuple[str, ...]:
    """The lines for all ``settings``, each once, in order.

    described: of the container that the settings are about, where the launch describes it.
    """
    lines: list[str] = []
    for setting in settings:
        own = setting.kind in _OF_A_CONTAINER and " of " not in setting.name
        place = described if own and described is not None else context
        lines += _RENDERINGS[setting.kind](setting, place)
    return tuple(dict.fromkeys(lines))


def described_containers(needs: LaunchNeeds | None) -> dict[str, Context]:
    """The containers that the launch itself describes, by where each is written."""
    return {
        process.container.origin: Context(process.container.runtime, systemd=False)
        for process in (needs.processes if needs is not None else ())
        if process.container is not None
    }


def mending(finding: Finding, context: Context, containers: dict[str, Context]) -> tuple[str, ...]:
    """The lines for one finding; ``containers`` as ``described_containers`` has them.

    Processes are called after where they are written: ``compose.yaml:25 rank 0``.
    """
    subject = f"{finding.subject} "
    there = (place for origin, place in containers.items() if subject.startswith(f"{origin} "))
    return commands(finding.settings, context, next(there, None))


def context_of(facts: Facts) -> Context:
    """Where the facts were read; what cannot be told is taken as the machine itself."""
    from checks.base.unknown import Unknown

    system, limits = facts.topic("system"), facts.topic("limits")
    user = Unknown("") if isinstance(limits, Unknown) else limits.euid
    root = not isinstance(user, Unknown) and user == 0
    if isinstance(system, Unknown):
        return Context("", root)
    kind, distribution = system.container.kind, system.distribution
    name = "" if isinstance(distribution, Unknown) else distribution
    return Context("" if kind == "none" else kind, root, kind == "none", _package_tool(name))


def _package_tool(distribution: str) -> str:
    words = distribution.lower()
    if any(name in words for name in ("debian", "ubuntu")):
        return "apt-get"
    if any(
        name in words for name in ("rhel", "fedora", "centos", "rocky", "alma", "amzn", "alinux")
    ):
        return "dnf"
    return ""


def _quote(text: str) -> str:
    """One word for a shell, on one line that a terminal shows as it is."""
    if text.isprintable():
        return shlex.quote(text)
    shown = (char if char.isprintable() and char not in "\\'" else _escaped(char) for char in text)
    return f"$'{''.join(shown)}'"


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def _sysctl(setting: Setting, context: Context) -> list[str]:
    name, value = setting.name, setting.wanted
    word = _quote(f"{name}={value}")
    if context.container and name.startswith(_NAMESPACED):
        if context.container == "kubernetes":
            return [f"# in the pod: securityContext.sysctls: [{{name: {name}, value: {value!r}}}]"]
        return [f"# start the container with: {context.engine} run --sysctl {word} ..."]
    lines = [*_on_the_host(context), f"{context.sudo}sysctl -w {word}"]
    if name not in _ORDERS:
        file = _HUGEPAGES_FILE if "hugepages" in name else _SYSCTL_FILE
        lines.append(f"# to keep it after a reboot: {name} = {value} in {file}")
    return lines


def _write(setting: Setting, context: Context) -> list[str]:
    """A file of /sys or /proc; ``tee`` because a redirection would be made without sudo."""
    value, path = _quote(setting.wanted), _quote(setting.name)
    write = f"echo {value} > {path}" if context.root else f"echo {value} | sudo tee {path}"
    return [*_on_the_host(context), write]


def _cgroup(setting: Setting, context: Context) -> list[str]:
    """A limit of the cgroup; the runtime that made the cgroup writes it again at the next start."""
    file = setting.name.rpartition("/")[2]
    value = setting.wanted
    if context.container == "kubernetes":
        field = _kubernetes_resource(file)
        if field:
            return [f"# in the pod: resources.limits.{field}: {_kubernetes_amount(value)}"]
        return ["# the node's administrator has to change it: a pod cannot", *_note_write(setting)]
    if context.container in ("docker", "podman"):
        option = {
            "memory.max": f"--memory={value} --memory-swap=-1",
            "memory.limit_in_bytes": f"--memory={value} --memory-swap=-1",
            "cpuset.mems": f"--cpuset-mems={value}",
        }.get(file)
        if option and value != "max":
            return [f"# on the host: {context.engine} update {option} CONTAINER"]
        if option:
            return [f"# start the container without {option.partition('=')[0]}"]
        return ["# on the host, in the cgroup of this container:", *_note_write(setting)]
    return _write(setting, context)


def _note_write(setting: Setting) -> list[str]:
    return [f"# echo {_quote(setting.wanted)} > {setting.name}"]


def _kubernetes_resource(file: str) -> str:
    if file in ("memory.max", "memory.limit_in_bytes", "memory.high"):
        return "memory"
    if file.startswith("hugetlb."):
        size = file.split(".")[1].removesuffix("B")
        return f"hugepages-{size}i" if size[-1:] in ("M", "G", "K") else ""
    return ""


def _kubernetes_amount(value: str) -> str:
    return "(none, or the node's own)" if value == "max" else value


def _ulimit(setting: Setting, context: Context) -> list[str]:
    name, _, unit = setting.name.partition(" of ")
    value = setting.wanted
    if unit:
        return _unit_limit(name, value, unit, context)
    number = "-1" if value == "unlimited" else value
    if context.container == "compose":
        return [f"# in the service: ulimits: {{{name}: {number}}}"]
    if context.container in ("docker", "podman"):
        return [f"# start the container with: {context.engine} run --ulimit {name}={number} ..."]
    if context.container == "kubernetes":
        drop_in = f"[Service]\\nLimit{name.upper()}={_systemd(value)}\\n"
        folder = _CONTAINERD_DROP_IN.rpartition("/")[0]
        return [
            "# Kubernetes has no field for it: on the node, then start the pod anew:",
            f"# sudo mkdir -p {folder}",
            f"# printf '{drop_in}' | sudo tee {_CONTAINERD_DROP_IN}",
            "# sudo systemctl daemon-reload && sudo systemctl restart containerd",
        ]
    lines = [f"{context.sudo}prlimit --pid $$ --{name}={value}:{value}"]
    if context.systemd:
        lines.append(f"# to keep it, in a unit: Limit{name.upper()}={_systemd(value)}")
    lines.append(f"# to keep it, for logins: '* - {name} {value}' in {_LIMITS_FILE}")
    return lines


def _unit_limit(name: str, value: str, unit: str, context: Context) -> list[str]:
    """The limit that a service hands on to what it starts."""
    folder = f"/etc/systemd/system/{unit}.d"
    drop_in = f"[Service]\\nLimit{name.upper()}={_systemd(value)}\\n"
    lines = [
        f"{context.sudo}mkdir -p {folder}",
        f"printf '{drop_in}' | {context.sudo}tee {folder}/10-{name}.conf",
        f"{context.sudo}systemctl daemon-reload && {context.sudo}systemctl restart {unit}",
    ]
    host = _on_the_host(context)
    return [*host, *(f"# {line}" for line in lines)] if host else lines


def _systemd(value: str) -> str:
    return "infinity" if value == "unlimited" else value


def _environment(setting: Setting, context: Context) -> list[str]:
    name = setting.name
    if not setting.wanted:
        return [f"unset {name}"]
    # A search path is added to: what it had stays reachable.
    rest = f"${{{name}:+:${name}}}" if name in _SEARCH_PATHS else ""
    return [f"export {name}={_quote(setting.wanted)}{rest}"]


def _flag(setting: Setting, context: Context) -> list[str]:
    name = setting.name if setting.name.startswith("-") else f"--{setting.name}"
    if setting.wanted:
        return [f"# in the launch: {name} {_quote(setting.wanted)}"]
    return [f"# in the launch, without: {name}" if setting.now else f"# in the launch: {name}"]


def _shm(setting: Setting, context: Context) -> list[str]:
    size = setting.wanted
    if context.container == "compose":
        return [f"# in the service, where it has no ipc: host: shm_size: '{size}'"]
    if context.container in ("docker", "podman"):
        return [
            f"# start the container with: {context.engine} run --shm-size={size} ...",
            "# (without --ipc=host, which takes the host's /dev/shm whatever --shm-size says)",
        ]
    if context.container == "kubernetes":
        return [
            f"# in the pod: an emptyDir {{medium: Memory, sizeLimit: {size}}} mounted at /dev/shm"
        ]
    return [
        f"{context.sudo}mount -o remount,size={size} /dev/shm",
        f"# to keep it after a reboot, in /etc/fstab: tmpfs /dev/shm tmpfs size={size} 0 0",
    ]


def _device(setting: Setting, context: Context) -> list[str]:
    path = _quote(setting.name)
    if context.container == "compose":
        return [f"# in the service: devices: ['{setting.name}:{setting.name}']"]
    if context.container in ("docker", "podman"):
        return [f"# start the container with: {context.engine} run --device={path} ..."]
    if context.container == "kubernetes":
        return [f"# in the pod: {setting.name} comes with its device plugin's resource"]
    return [f"{context.sudo}chmod a+rw {path}"]


def _capability(setting: Setting, context: Context) -> list[str]:
    name = setting.name.removeprefix("CAP_")
    if context.container == "compose":
        return [f"# in the service: cap_add: [{name}]"]
    if context.container in ("docker", "podman"):
        return [f"# start the container with: {context.engine} run --cap-add={name} ..."]
    if context.container == "kubernetes":
        return [
            f"# in the pod, which has to run as user 0: securityContext.capabilities.add: [{name}]"
        ]
    low = name.lower()
    return [
        f"# start the launch with: sudo setpriv --reuid=$(id -u) --regid=$(id -g) --init-groups "
        f"--inh-caps=+{low} --ambient-caps=+{low} ..."
    ]


def _security(setting: Setting, context: Context) -> list[str]:
    word = f"{setting.name}={setting.wanted}" if setting.wanted else setting.name
    if context.container == "kubernetes":
        profile = setting.wanted.capitalize() or setting.name
        return [f"# in the pod: securityContext.seccompProfile.type: {profile}"]
    if context.container == "compose":
        return [f"# in the service: security_opt: ['{word.replace('=', ':', 1)}']"]
    return [f"# start the container with: {context.engine} run --security-opt {word} ..."]


def _module(setting: Setting, context: Context) -> list[str]:
    """A module takes its options when it is loaded: one that is there has to go first."""
    name, options = setting.name, setting.wanted
    lines = _on_the_host(context)
    if setting.now:
        lines.append(f"{context.sudo}modprobe -r {name}")
    lines.append(f"{context.sudo}modprobe {name} {options}".rstrip())
    lines.append(f"# to keep it after a reboot: {name} in /etc/modules-load.d/mooncake.conf")
    if options:
        lines.append(f"# and: options {name} {options} in /etc/modprobe.d/mooncake.conf")
    return lines


def _kernel_argument(setting: Setting, context: Context) -> list[str]:
    word = f"{setting.name}={setting.wanted}" if setting.wanted else setting.name
    return [f"# on the kernel command line of the host, then reboot: {word}"]


def _package(setting: Setting, context: Context) -> list[str]:
    if not context.packages:
        return [f"# install the package {setting.name}"]
    return [f"{context.sudo}{context.packages} install -y {_quote(setting.name)}"]


def _command(setting: Setting, context: Context) -> list[str]:
    """As it stands, but for sudo: root has no need of it, and in a container often none at all."""
    lines = (setting.wanted or setting.name).splitlines()
    if context.root:
        return [_SUDO.sub("", line) for line in lines]
    return [f"sudo {line}" if line.startswith(_OF_ROOT) else line for line in lines]


def _on_the_host(context: Context) -> list[str]:
    return ["# on the host, outside of this container:"] if context.container else []


# What a container's description says, and no command on the host.
_OF_A_CONTAINER = (Kind.ULIMIT, Kind.SHM_SIZE, Kind.DEVICE, Kind.CAPABILITY, Kind.SECURITY)
_RENDERINGS: dict[Kind, Callable[[Setting, Context], list[str]]] = {
    Kind.SYSCTL: _sysctl,
    Kind.SYSFS: _write,
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
}
