"""The file tree that facts are read from: the live machine, or a folder laid out like one."""

from __future__ import annotations

import os

from checks.unknown import Unknown


class Root:
    """Reads files below ``path`` by their usual absolute names; never raises for a missing file."""

    def __init__(self, path: str = "/") -> None:
        self._prefix = path.rstrip("/")

    def locate(self, name: str) -> str:
        """The real path of ``name`` (absolute, as on the live machine) below this root."""
        return self._prefix + name

    def text(self, name: str) -> str | Unknown:
        try:
            with open(self.locate(name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError as error:
            return self._unknown(name, error)

    def integer(self, name: str) -> int | Unknown:
        """A file that holds one decimal number, as sysfs counters do."""
        content = self.text(name)
        if isinstance(content, Unknown):
            return content
        try:
            return int(content)
        except ValueError:
            return Unknown(f"{name}: not a number: {content.strip()[:40]!r}")

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        """The entries of a folder, sorted."""
        try:
            return tuple(sorted(os.listdir(self.locate(name))))
        except OSError as error:
            return self._unknown(name, error)

    @staticmethod
    def _unknown(name: str, error: OSError) -> Unknown:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        return Unknown(f"{name}: {error.strerror or error}", absent)
