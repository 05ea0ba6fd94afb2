"""Archives, read whole within limits, written the same for the same content; a host from a tar."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from checks.framework.root import CALLS_FILE, NOWHERE, Root, refused_by_kernel
from checks.framework.unknown import NoFile, Unknown, or_unknown, require

# What a recorded host may take; the largest of hwloc's have 12,000 entries and 10 MB. Each bound
# is held before what it bounds is built: some hundred bytes can be packed to ask for gigabytes.
MOST_BYTES = 64 * 2**20  # of the archive, once unpacked
MOST_ENTRIES = 50_000
MOST_NAME_BYTES = 64 * 2**20  # of all names, and of the folders that they imply
LONGEST_HEADER_BYTES = 16 * 2**10  # what a member may say beside its block: a name, a link, owners
MOST_HEADER_BYTES = 16 * 2**20  # of all those; GNU tar writes 300 bytes a member with SELinux


class ArchiveError(Exception):
    """A file that is no complete archive; the message is a sentence for the user."""


class Archive(NamedTuple):
    """A tar's members by absolute name ("/proc/meminfo").

    If one folder holds all members, as in hwloc's archives, its name is cut off (``_without_top``).
    """

    files: dict[str, bytes]
    links: dict[str, str]
    modes: dict[str, int]
    folders: frozenset[str]


_TOO_MUCH = "more than a host's facts: "
_BROKEN = (EOFError, MemoryError, OverflowError, RecursionError, ValueError, tarfile.TarError)


def read_archive(path: str) -> Archive:
    """Read a tar's members, plain or packed by gzip, bzip2 or xz.

    Raises:
        ArchiveError: If the file is unreadable, no whole tar, without files, or larger than a
            host's facts.
    """
    import lzma
    import zlib

    try:
        archive = _read_members(_unpack(path))
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from None
    except OSError as error:
        if error.filename == path:
            raise ArchiveError(f"{path}: {error.strerror}") from None
        raise ArchiveError(f"{path}: not a whole tar archive: {error}") from None
    except (*_BROKEN, zlib.error, lzma.LZMAError) as error:
        why = str(error) or type(error).__name__
        raise ArchiveError(f"{path}: not a whole tar archive: {why}") from None
    if not archive.files:
        raise ArchiveError(f"{path}: an archive without files")
    return _without_top(archive)


def _unpack(path: str) -> bytes:
    """Read a file and return the tar in it, decompressed.

    Errors of the decompressor are not caught.

    Raises:
        ArchiveError: If the tar is larger than ``MOST_BYTES`` or has a sparse file.
    """
    import bz2
    import gzip
    import lzma

    openers: dict[bytes, Callable[[str], Any]] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ\0": lzma.open,
    }
    with open(path, "rb") as file:
        magic = file.read(6)
    opener = next((each for sign, each in openers.items() if magic.startswith(sign)), None)
    with open(path, "rb") if opener is None else opener(path) as unpacked:
        content = bytes(unpacked.read(MOST_BYTES + 1))
    if len(content) > MOST_BYTES:
        raise ArchiveError(f"{_TOO_MUCH}over {MOST_BYTES >> 20} MiB")
    if b"GNU.sparse." in content:  # whose map may be millions of numbers
        raise ArchiveError(f"{_TOO_MUCH}a sparse file")
    return content


# Headers that say more of the member behind them: its name, its link, its records.
_BESIDE = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _Bounds:
    """Counts what the headers of one archive announce, before any of it is read."""

    entries = name_bytes = header_bytes = 0

    def header(self, member: tarfile.TarInfo) -> None:
        """Count a header before what it announces is read.

        Raises:
            ArchiveError: If no recorded host has such a header: a sparse file, a negative size, or
                too many bytes of names and links.
        """
        if member.size < 0:
            raise ArchiveError(f"not a whole tar archive: {member.name} of {member.size} bytes")
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise ArchiveError(f"{_TOO_MUCH}a sparse file")
        if member.type in _BESIDE:
            # Those of the whole archive are copied for each member.
            self.header_bytes += member.size * (64 if member.type == tarfile.XGLTYPE else 1)
            if member.size > LONGEST_HEADER_BYTES or self.header_bytes > MOST_HEADER_BYTES:
                most = f"{LONGEST_HEADER_BYTES >> 10} KiB"
                raise ArchiveError(f"{_TOO_MUCH}a header of over {most}, or many")

    def member(self, name: str) -> None:
        """Count a member.

        Raises:
            ArchiveError: For too many members, or a name with "..".
        """
        if ".." in name.split("/"):
            raise ArchiveError(f"has a member outside of itself: {name!r}")
        self.entries += 1
        self.name_bytes += len(name) * (1 + name.count("/"))
        if self.entries > MOST_ENTRIES or self.name_bytes > MOST_NAME_BYTES:
            raise ArchiveError(f"{_TOO_MUCH}over {MOST_ENTRIES} files and folders")


def _read_members(content: bytes) -> Archive:
    """Read the members of the tar ``content``; devices and pipes are left out.

    Errors of tarfile are not caught.

    Raises:
        ArchiveError: If the tar is not whole or exceeds the bounds.
    """
    archive = Archive({}, {}, {}, frozenset())
    folders: set[str] = set()
    bounds = _Bounds()

    class Header(tarfile.TarInfo):
        """A header that is refused before what it announces is read."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
            header = super().frombuf(buf, encoding, errors)
            bounds.header(header)
            return header

    try:
        tar = tarfile.TarFile(fileobj=io.BytesIO(content), tarinfo=Header)
    except tarfile.ReadError:
        raise ArchiveError("no tar archive, plain, gzip, bzip2 or xz") from None
    with tar:
        while (member := tar.next()) is not None:
            # Each is read once, and together they take more than their files.
            tar.members.clear()  # type: ignore[attr-defined]
            bounds.member(member.name)
            name = _absolute(member.name)
            if member.isdir():
                folders.add(name)
                archive.modes[name] = stat.S_IFDIR | stat.S_IMODE(member.mode)
            elif member.issym():
                archive.links[name] = member.linkname
            elif member.islnk():
                archive.files[name] = archive.files.get(_absolute(member.linkname), b"")
            elif member.isreg():
                file = tar.extractfile(member)
                archive.files[name] = b"" if file is None else file.read()
                archive.modes[name] = stat.S_IFREG | stat.S_IMODE(member.mode)
        # A header that is damaged ends an archive, as tarfile reads it.
        if content[tar.offset :].strip(b"\0"):
            raise ArchiveError(f"not a whole tar archive: no header at byte {tar.offset}")
    return archive._replace(folders=frozenset(folders - {"/"}))


def _absolute(name: str) -> str:
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


def _without_top(archive: Archive) -> Archive:
    """Return the archive with its one top folder cut off the names, as hwloc's archives have one.

    Unchanged if it has several top folders, or if the only one is proc, sys, etc, dev or a file.
    """
    names = {*archive.files, *archive.links, *archive.folders}
    tops = {name.split("/", 2)[1] for name in names}
    if len(tops) != 1 or tops & {"proc", "sys", "etc", "dev"}:
        return archive
    top = f"/{tops.pop()}"
    if top in archive.files:
        return archive

    def cut(name: str) -> str:
        return name[len(top) :] or "/"

    return Archive(
        {cut(name): content for name, content in archive.files.items()},
        {cut(name): target for name, target in archive.links.items()},
        {cut(name): mode for name, mode in archive.modes.items()},
        frozenset(cut(name) for name in archive.folders) - {"/"},
    )


def archive_bytes(files: Mapping[str, bytes]) -> bytes:
    """Return ``files`` (content by relative name) as a gzipped tar; same files, same bytes."""
    import gzip

    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def write_whole(path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file completely, or not at all.

    Raises OSError.

    A file that exists keeps its mode, and its owner if that is permitted. A pipe or a device is
    written to, never replaced. If ``path`` is a link, the file behind the link is written.

    Args:
        mode: Used if the file is new.
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
            _keep_owner_and_mode(path, file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _keep_owner_and_mode(path: str, handle: int, mode: int) -> None:
    """Give a new file the mode, and if permitted the owner, of the file at ``path`` that it
    replaces.

    Args:
        handle: The new file's descriptor.
        mode: Used if no file is at ``path``.
    """
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
    """Tell whether a path lies in /dev or /proc/self/fd, or exists and is no regular file."""
    if os.path.dirname(path) in ("/dev", "/dev/fd", "/proc/self/fd"):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


# As the kernel's own limit (include/linux/namei.h, MAXSYMLINKS).
MOST_LINKS = 40


class TreeRoot(Root):
    """A root in memory, which answers from the members of an archive."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        links: Mapping[str, str],
        modes: Mapping[str, int],
        folders: frozenset[str] = frozenset(),
    ) -> None:
        """Keep the members, all by absolute name, and list the entries of each folder.

        Args:
            links: The text of each link.
            folders: Needed for empty folders only.
        """
        super().__init__(NOWHERE)
        self._files = files
        self._links = links
        self._modes = modes
        self._entries: dict[str, set[str]] = {"/": set()}
        for folder in folders:
            self._entries.setdefault(folder, set())
        for name in (*files, *links, *folders):
            self._enter(name)

    def _enter(self, name: str) -> None:
        """Add ``name`` to the entries of its folder, and so each folder to the folder above."""
        while name != "/":
            folder, _, entry = name.rpartition("/")
            folder = folder or "/"
            entries = self._entries.setdefault(folder, set())
            if entry in entries:
                return
            entries.add(entry)
            name = folder

    @or_unknown
    def text(self, name: str) -> str | Unknown:
        real = require(self.link(name))
        if real in self._files:
            return self._files[real].decode("utf-8", "replace")
        return NoFile(f"{name}: Is a directory")

    @or_unknown
    def names(self, name: str) -> tuple[str, ...] | Unknown:
        real = require(self.link(name))
        if real in self._entries:
            return tuple(sorted(self._entries[real]))
        return refused_by_kernel(name, errno.ENOTDIR)

    @or_unknown
    def mode(self, name: str) -> int | Unknown:
        real = require(self.link(name))
        plain = stat.S_IFDIR | 0o755 if real in self._entries else stat.S_IFREG | 0o644
        return self._modes.get(real, plain)

    def link(self, name: str) -> str | Unknown:
        """Return the real path of ``name``: links, "." and ".." are followed as realpath does.

        Returns:
            Unknown if it does not exist, or after more than ``MOST_LINKS`` links.
        """
        parts = [part for part in reversed(name.split("/")) if part]
        real: list[str] = []
        followed = 0
        while parts:
            part = parts.pop()
            if part in (".", ".."):
                real = real[:-1] if part == ".." else real
                continue
            path = "/" + "/".join([*real, part])
            target = self._links.get(path)
            if target is None:
                if path not in self._files and path not in self._entries:
                    return refused_by_kernel(name, errno.ENOENT)
                if parts and path in self._files:
                    return refused_by_kernel(name, errno.ENOTDIR)
                real.append(part)
                continue
            followed += 1
            if followed > MOST_LINKS:
                return refused_by_kernel(name, errno.ELOOP)
            if target.startswith("/"):
                real = []
            parts += [step for step in reversed(target.split("/")) if step]
        return "/" + "/".join(real)

    def _load_calls(self) -> dict[str, object] | Unknown:
        if f"/{CALLS_FILE}" not in self._files:
            return Unknown("only the machine itself can tell, and these are files")
        return super()._load_calls()
