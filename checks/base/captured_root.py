"""A host from answers that were recorded: what was never asked is unknown, not absent."""

from __future__ import annotations

from typing import Any, TypeVar

from checks.base.recording import Answers
from checks.base.root import Root, call_key
from checks.base.unknown import Unknown

Answer = TypeVar("Answer")


class CapturedRoot(Root):
    """Gives ``answers`` back as the recorded host gave them."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self.answers = answers

    @property
    def live(self) -> bool:
        return False

    def locate(self, name: str) -> str:
        """A path below which nothing is: these files are not on this machine."""
        return f"/dev/null/{name.lstrip('/')}"

    def text(self, name: str) -> str | Unknown:
        return self._file(self.answers.texts, name)

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        return self._file(self.answers.folders, name)

    def link(self, name: str) -> str | Unknown:
        return self._file(self.answers.links, name)

    def mode(self, name: str) -> int | Unknown:
        return self._file(self.answers.modes, name)

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        key = call_key(name, *arguments)
        return self.answers.calls.get(key, Unknown(f"{key}: not in this capture"))

    def _file(self, known: dict[str, Answer], name: str) -> Answer | Unknown:
        if name in known:
            return known[name]
        if self._missing(name):
            return Unknown(f"{name}: No such file or directory", absent=True)
        return Unknown(f"{name}: not in this capture")

    def _missing(self, name: str) -> bool:
        """Whether a folder above it was listed without it, or is itself known to be missing."""
        parts = name.strip("/").split("/")
        for depth, part in enumerate(parts):
            above = "/" + "/".join(parts[:depth])
            entries = self.answers.folders.get(above)
            if isinstance(entries, Unknown):
                if entries.absent:
                    return True
            elif entries is not None and part not in entries:
                return True
        return False
