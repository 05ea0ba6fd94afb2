"""Asks a root each question once, and keeps the answers: one state of the host, and a capture."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from checks.framework.root import Root, call_key
from checks.framework.unknown import Unknown

Answer = TypeVar("Answer")


# What every kernel and system has of a part of the files, so that a recording without it recorded
# nothing of that part. What is below none of these is a part by the first word of its name.
_SIGNS = {
    "/proc/self/cgroup": "/proc/self/cgroup",
    "/proc/self": "/proc/self",
    "/proc/sys": "/proc/sys",
    "/etc/sysctl.d": "/etc/sysctl.d",
    "/sys/bus/pci": "/sys/bus/pci/devices",
    "/sys/class": "/sys/class/net",
    "/sys/devices/system": "/sys/devices/system",
    "/sys/kernel": "/sys/kernel",
}
# The same of single names: which classes a kernel has follows from its modules; a PCI function has
# a link to its IOMMU group, and every kernel with IOMMUs the folder of groups. "": the name itself,
# as every port has its table of GIDs.
_ONES = {
    "/sys/class/infiniband": "/sys/module",
    "/sys/class/infiniband_verbs": "/sys/module",
    "iommu_group": "/sys/kernel/iommu_groups",
    "gids": "",
}


class Answers(NamedTuple):
    """What a root answered, by the name that was asked for; Unknown with its reason included."""

    texts: dict[str, str | Unknown]  # whole files
    folders: dict[str, tuple[str, ...] | Unknown]  # their entries, sorted
    links: dict[str, str | Unknown]  # real names
    modes: dict[str, int | Unknown]  # ``st_mode``
    calls: dict[str, Any | Unknown]  # plain data, by ``call_key``


def no_answers() -> Answers:
    """Return an empty record to fill."""
    return Answers({}, {}, {}, {}, {})


class RecordingRoot(Root):
    """A root that passes each question to ``inner`` once, and keeps the answers in ``answers``."""

    def __init__(self, inner: Root) -> None:
        super().__init__()
        self._inner = inner
        self.answers = no_answers()

    @property
    def live(self) -> bool:
        return self._inner.live

    def locate(self, name: str) -> str:
        return self._inner.locate(name)

    def text(self, name: str) -> str | Unknown:
        return _once(self.answers.texts, name, lambda name: self._ask(name, self._inner.text))

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        return _once(self.answers.folders, name, lambda name: self._ask(name, self._inner.names))

    def link(self, name: str) -> str | Unknown:
        return _once(self.answers.links, name, lambda name: self._ask(name, self._inner.link))

    def mode(self, name: str) -> int | Unknown:
        return _once(self.answers.modes, name, lambda name: self._ask(name, self._inner.mode))

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        key = call_key(name, *arguments)
        return _once(self.answers.calls, key, lambda _: self._inner.call(name, *arguments))

    def _ask(self, name: str, ask: Callable[[str], Answer | Unknown]) -> Answer | Unknown:
        """Return the answer to ``ask(name)``; ask: a method of the inner root.

        In a folder of files, an answer "does not exist" may only mean that a whole part was not
        recorded. It becomes Unknown "not recorded" if the name that shows this part (``_SIGNS``,
        ``_ONES``) is missing too. Answers of the live machine are never changed.
        """
        answer = ask(name)
        if self.live or not isinstance(answer, Unknown) or not answer.absent:
            return answer
        part = next((part for part in _SIGNS if f"{name}/".startswith(f"{part}/")), "")
        sign = _SIGNS.get(part) or "/" + name.split("/")[1]
        for key in (name, name.rpartition("/")[2]):
            sign = (_ONES[key] or name) if key in _ONES else sign
        there = self._inner.link(sign)
        if isinstance(there, Unknown) and there.absent:
            return Unknown(f"{name}: not recorded" + f", nor is {sign}" * (sign != name))
        return answer


def _once(known: dict[str, Answer], key: str, ask: Callable[[str], Answer]) -> Answer:
    """Return the known answer for ``key``, or ask; of two threads both get the first answer."""
    return known[key] if key in known else known.setdefault(key, ask(key))
