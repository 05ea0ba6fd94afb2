"""A host from the files of an archive, held in memory: links between them are followed there."""

from __future__ import annotations

import stat
from collections.abc import Mapping

from checks.base.root import CALLS_FILE, Root
from checks.base.unknown import Unknown, known, or_unknown

# As the kernel's own limit (include/linux/namei.h, MAXSYMLINKS).
MOST_LINKS = 40
_ABSENT = "No such file or directory"


class TreeRoot(Root):
    """files: contents by absolute name. links: what a symbolic link says. modes: of those with one.

    Folders are those that files, links and ``folders`` imply.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        links: Mapping[str, str],
        modes: Mapping[str, int],
        folders: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self._files = files
        self._links = links
        self._modes = modes
        self._entries: dict[str, set[str]] = {"/": set()}
        for folder in folders:
            self._entries.setdefault(folder, set())
        for name in (*files, *links, *folders):
            self._enter(name)

    def _enter(self, name: str) -> None:
        while name != "/":
            folder, _, entry = name.rpartition("/")
            folder = folder or "/"
            known = self._entries.setdefault(folder, set())
            if entry in known:
                return
            known.add(entry)
            name = folder

    @property
    def live(self) -> bool:
        return False

    def locate(self, name: str) -> str:
        """Return a path below which nothing is: these files are not on this machine."""
        return f"/dev/null/{name.lstrip('/')}"

    @or_unknown
    def text(self, name: str) -> str | Unknown:
        real = known(self.link(name))
        if real in self._files:
            return self._files[real].decode("utf-8", "replace")
        return Unknown(f"{name}: Is a directory")

    @or_unknown
    def names(self, name: str) -> tuple[str, ...] | Unknown:
        real = known(self.link(name))
        if real in self._entries:
            return tuple(sorted(self._entries[real]))
        return Unknown(f"{name}: Not a directory", absent=True)

    @or_unknown
    def mode(self, name: str) -> int | Unknown:
        real = known(self.link(name))
        plain = stat.S_IFDIR | 0o755 if real in self._entries else stat.S_IFREG | 0o644
        return self._modes.get(real, plain)

    def link(self, name: str) -> str | Unknown:
        parts = [part for part in reversed(name.split("/")) if part]
        real: list[str] = []
        followed = 0
        while parts:
            part = parts.pop()
            if part == ".":
                continue
            if part == "..":
                real = real[:-1]
                continue
            path = "/" + "/".join([*real, part])
            target = self._links.get(path)
            if target is None:
                if path not in self._files and path not in self._entries:
                    return Unknown(f"{name}: {_ABSENT}", absent=True)
                if parts and path in self._files:
                    return Unknown(f"{name}: Not a directory", absent=True)
                real.append(part)
                continue
            followed += 1
            if followed > MOST_LINKS:
                return Unknown(f"{name}: Too many levels of symbolic links")
            if target.startswith("/"):
                real = []
            parts += [step for step in reversed(target.split("/")) if step]
        return "/" + "/".join(real)

    def _load_calls(self) -> dict[str, object] | Unknown:
        if f"/{CALLS_FILE}" not in self._files:
            return Unknown("only the machine itself can tell, and these are files")
        return super()._load_calls()
