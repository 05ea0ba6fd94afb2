"""What the few commands write that launches ask their host: how it is called, and what it has."""

from __future__ import annotations

from collections.abc import Callable

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.numa.nodes import parse_cpu_list

_HOSTNAME = frozenset(("hostname", "uname -n", "hostnamectl hostname"))
_GPUS = frozenset(
    (
        "nvidia-smi -L | wc -l",
        "nvidia-smi --list-gpus | wc -l",
        "nvidia-smi --query-gpu=name --format=csv,noheader | wc -l",
        "nvidia-smi --query-gpu=index --format=csv,noheader | wc -l",
    )
)


def is_known(command: str) -> bool:
    """Return whether a host can be asked for the output of a command."""
    plain = _plain(command)
    return plain in _HOSTNAME or plain in _GPUS or plain in ("hostname -s", "nproc")


def _plain(command: str) -> str:
    return " ".join(command.replace("2>/dev/null", " ").replace("2> /dev/null", " ").split())


def host_words(root: Root) -> Callable[[str], str | None]:
    """Return what tells the output of a command on the host below ``root``; None: not known."""

    def words(command: str) -> str | None:
        command = _plain(command)
        if command in _HOSTNAME or command == "hostname -s":
            name = root.text("/proc/sys/kernel/hostname")
            if isinstance(name, Unknown):
                return None
            return name.strip().partition(".")[0] if command == "hostname -s" else name.strip()
        if command == "nproc":
            online = root.text("/sys/devices/system/cpu/online")
            return None if isinstance(online, Unknown) else _count(online)
        if command in _GPUS:
            gpus = root.names("/proc/driver/nvidia/gpus")
            return None if isinstance(gpus, Unknown) else str(len(gpus))
        return None

    return words


def _count(text: str) -> str | None:
    """Return how many numbers a list has: ``0-3,8`` is five. None where it is no list."""
    try:
        numbers = parse_cpu_list(text)
    except ValueError:
        return None
    return str(len(numbers)) if numbers else None
