"""Archives: read whole into memory within limits, written the same for the same content."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tarfile import TarFile

# More than any recorded host has (hwloc's largest: 12,000 entries, 10 MB); a bomb has more.
MOST_BYTES = 64 * 2**20
MOST_ENTRIES = 500_000


class ArchiveError(Exception):
    """A file that is no archive, or no whole one: the message is a sentence for the user."""


class Archive(NamedTuple):
    """Members by absolute name ("/proc/meminfo"), the one folder that holds all taken off."""

    files: dict[str, bytes]
    links: dict[str, str]
    modes: dict[str, int]
    folders: frozenset[str]


def read_archive(path: str) -> Archive:
    """A tar, plain or compressed with gzip, bzip2 or xz. Raises ArchiveError."""
    import lzma
    import tarfile
    import zlib

    broken = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)
    try:
        with tarfile.open(path, "r:*") as tar:
            found = _members(tar, path)
            rest = tar.fileobj
            # What follows the last member holds the checksum of the compressed whole.
            while rest is not None and rest.read(2**20):
                pass
    except broken as error:
        if isinstance(error, OSError) and error.filename == path:
            raise ArchiveError(f"{path}: {error.strerror}") from None
        reason = str(error) or type(error).__name__
        if "could not be opened" in reason:  # tarfile names what each compression made of it
            raise ArchiveError(f"{path}: no tar archive, plain, gzip, bzip2 or xz") from None
        raise ArchiveError(f"{path}: not a whole tar archive: {reason}") from None
    if not found.files:
        raise ArchiveError(f"{path}: an archive without files")
    return _without_top(found)


def _members(tar: TarFile, path: str) -> Archive:
    import stat

    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    modes: dict[str, int] = {}
    folders: set[str] = set()
    left_bytes = MOST_BYTES
    for count, member in enumerate(tar):
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ArchiveError(f"{path}: has a member outside of itself: {member.name!r}")
        name = "/" + "/".join(parts)
        left_bytes -= member.size
        if left_bytes < 0 or count >= MOST_ENTRIES:
            raise ArchiveError(f"{path}: more than a host's facts: over {MOST_BYTES >> 20} MiB")
        if member.isdir():
            folders.add(name)
            modes[name] = stat.S_IFDIR | member.mode
        elif member.issym():
            links[name] = member.linkname
        elif member.islnk():
            files[name] = files.get("/" + member.linkname.strip("./"), b"")
        elif member.isreg():
            content = tar.extractfile(member)
            files[name] = b"" if content is None else content.read()
            modes[name] = stat.S_IFREG | member.mode
    return Archive(files, links, modes, frozenset(folders - {"/"}))


def _without_top(found: Archive) -> Archive:
    """hwloc's archives hold a folder with the host's name, ours and plain ones hold none."""
    names = {*found.files, *found.links, *found.folders}
    tops = {name.split("/", 2)[1] for name in names}
    if len(tops) != 1 or tops & {"proc", "sys", "etc", "dev"}:
        return found
    top = f"/{tops.pop()}"
    if top in found.files:
        return found

    def cut(name: str) -> str:
        return name[len(top) :] or "/"

    return Archive(
        {cut(name): content for name, content in found.files.items()},
        {cut(name): target for name, target in found.links.items()},
        {cut(name): mode for name, mode in found.modes.items()},
        frozenset(cut(name) for name in found.folders) - {"/"},
    )


def archive_bytes(files: Mapping[str, bytes]) -> bytes:
    """A gzipped tar of ``files``, by relative name, in their order; the same for the same files."""
    import gzip
    import io
    import tarfile

    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def write_whole(path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file that is either there whole or not at all. Raises OSError.

    mode: of a file that was not there; one that was keeps its own, and its owner where that may be.
    A pipe or a device (``/dev/stdout``, ``/dev/null``) is written to and never replaced; a link
    stays one, and what it leads to is the file.
    """
    import tempfile

    if is_stream(path):
        with open(path, "wb") as stream:
            stream.write(content)
        return
    path = os.path.realpath(path)
    folder = os.path.dirname(path) or "."
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            _as_before(path, file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _as_before(path: str, handle: int, mode: int) -> None:
    """Give a file, by its handle, the owner and mode of the one that it takes the place of."""
    from contextlib import suppress

    try:
        before = os.stat(path)
    except FileNotFoundError:
        os.fchmod(handle, mode)
        return
    with suppress(PermissionError):
        os.fchown(handle, before.st_uid, before.st_gid)
    os.fchmod(handle, stat.S_IMODE(before.st_mode))


def is_stream(path: str) -> bool:
    """True for what is there and no regular file, and for the names of a process's own streams."""
    if os.path.dirname(path) in ("/dev", "/dev/fd", "/proc/self/fd"):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
