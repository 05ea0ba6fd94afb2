"""Who uses a device now: open contexts and regions, and the processes, as far as they show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from checks.base.unknown import Unknown
from checks.rdma.facts import Nic
from checks.run.facts import Facts

_MOST_SHOWN = 3


class Users(NamedTuple):
    """contexts, regions: of all processes of the host, None where they cannot be counted.

    processes: those that this user sees with the device open, ``name (pid)``.
    """

    device: str
    contexts: int | None
    regions: int | None
    processes: tuple[str, ...]

    @property
    def text(self) -> str:
        if self.contexts is None:
            return f"{self.device}: whether others use it cannot be told"
        found = f"{self.device} is in use: {self.contexts} open, {self.regions} memory regions"
        names = ", ".join(self.processes[:_MOST_SHOWN])
        more = len(self.processes) - _MOST_SHOWN
        if more > 0:
            names += f" and {more} more"
        return f"{found} ({names})" if names else found


def users_of(facts: Facts, nics: tuple[Nic, ...]) -> Iterator[Users]:
    """The devices that somebody uses; one whose users cannot be counted is one of them."""
    kernel = facts.rdma.kernel
    for nic in nics:
        counts = {} if isinstance(kernel, Unknown) else kernel.resources.get(nic.name)
        if isinstance(kernel, Unknown) or counts is None:
            yield Users(nic.name, None, None, ())
        elif counts.get("ctx", 0) or counts.get("mr", 0):
            openers = tuple(_openers(nic.uverbs))
            yield Users(nic.name, counts.get("ctx", 0), counts.get("mr", 0), openers)


def _openers(uverbs: str | None) -> Iterator[str]:
    node = f"/dev/infiniband/{uverbs}"
    for pid in sorted((name for name in os.listdir("/proc") if name.isdecimal()), key=int):
        name = _name_of_opener(pid, node)
        if name:
            yield f"{name} ({pid})"


def _name_of_opener(pid: str, node: str) -> str:
    """The process's name where it has ``node`` open; "" where not, or where that is hidden."""
    try:
        links = os.listdir(f"/proc/{pid}/fd")
        if not any(os.readlink(f"/proc/{pid}/fd/{link}") == node for link in links):
            return ""
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
