"""The only module that changes a host: kernel files, drop-ins, and what is put back of them."""

from __future__ import annotations

import os
from contextlib import suppress

# A crash leaves at most this beside a file; the next write of it, apply and undo take it away.
PART = ".mooncake-part"
_ENCODING = ("utf-8", "surrogateescape")  # any bytes survive being saved and put back


class Writer:
    """Writes below ``prefix``, "" for the machine itself. Every method may raise OSError."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix.rstrip("/")

    def is_link(self, path: str) -> bool:
        return os.path.islink(self.locate(path))

    def locate(self, path: str) -> str:
        return self._prefix + path

    def value(self, path: str, text: str) -> None:
        """Write a kernel file in one piece; one that is not there is not made."""
        handle = os.open(self.locate(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)

    def file(self, path: str, content: str, mode: int = 0o644, folder_mode: int = 0o755) -> None:
        """Write a file completely, or leave it as it was."""
        place = self.locate(path)
        folder = os.path.dirname(place)
        os.makedirs(folder, folder_mode, exist_ok=True)
        self.discard_part(path)
        part = self._part(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(part, flags, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode(*_ENCODING))
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError, PermissionError):  # the owner stays
                    before = os.lstat(place)
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), mode)
            os.replace(part, place)
        except BaseException:
            os.unlink(part)
            raise
        _sync(folder)

    def _part(self, path: str) -> str:
        folder, name = os.path.split(self.locate(path))
        return os.path.join(folder, f".{name}{PART}")

    def discard_part(self, path: str) -> None:
        """Remove the part that a crash left of writing ``path``."""
        part = self._part(path)
        if os.path.lexists(part):
            os.unlink(part)

    def link(self, path: str, target: str) -> None:
        place = self.locate(path)
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
        os.symlink(target, place)
        _sync(os.path.dirname(place))

    def remove(self, path: str) -> None:
        os.unlink(self.locate(path))
        _sync(os.path.dirname(self.locate(path)))

    def content(self, path: str) -> tuple[str, int] | None:
        """Return a file's whole content and permissions, or None if it does not exist."""
        try:
            with open(self.locate(path), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o7777
                return file.read().decode(*_ENCODING), mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    def target(self, path: str) -> str | None:
        """Return where a symbolic link leads; None if it does not exist."""
        try:
            return os.readlink(self.locate(path))
        except OSError:
            return None

    def may_write(self, kind: str, path: str) -> bool:
        """Return whether this user may write a kernel file, or into a file's folder."""
        place = self.locate(path)
        if kind == "value":
            return os.access(place, os.W_OK)
        folder = os.path.dirname(place)
        while not os.path.isdir(folder) and folder not in ("/", ""):
            folder = os.path.dirname(folder)
        return os.access(folder, os.W_OK | os.X_OK)


def _sync(folder: str) -> None:
    """Wait until a renamed file is on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
