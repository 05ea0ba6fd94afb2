"""Archives: read whole into memory within limits, written the same for the same content."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tarfile import TarFile, TarInfo

# What a recorded host may take; the largest of hwloc's have 12,000 entries and 10 MB. Each bound
# is held before what it bounds is built: some hundred bytes can be packed to ask for gigabytes.
MOST_BYTES = 64 * 2**20  # of the archive, once unpacked
MOST_ENTRIES = 50_000  # members, and the folders that their names imply
MOST_NAME_BYTES = 32 * 2**20  # of all those names
LONGEST_NAME_BYTES = 1024  # sysfs's longest have 200
MOST_NAME_PARTS = 64  # sysfs's deepest have 20
LONGEST_HEADER_BYTES = 16 * 2**10  # what a member may say beside its block: a name, a link, owners
MOST_PAX_RECORDS = 64
XZ_MEMORY_BYTES = 80 * 2**20  # xz -9 needs 65 MiB


class ArchiveError(Exception):
    """A file that is no complete archive; the message is a sentence for the user."""


class Archive(NamedTuple):
    """Members by absolute name ("/proc/meminfo"), the one folder that holds all taken off."""

    files: dict[str, bytes]
    links: dict[str, str]
    modes: dict[str, int]
    folders: frozenset[str]


class _RefusedError(ArchiveError):
    """Over a bound. ``args[0]``: which."""


class _Blocks(io.BytesIO):
    """An unpacked archive, of which no header is read that is longer than any host's."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= LONGEST_HEADER_BYTES:
            raise _RefusedError(f"a header of over {LONGEST_HEADER_BYTES >> 10} KiB")
        return super().read(size)


def read_archive(path: str) -> Archive:
    """Read a tar, plain or compressed with gzip, bzip2 or xz. Raises ArchiveError."""
    import lzma
    import tarfile
    import zlib

    broken = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)
    try:
        # Unpacked to its end, which holds the checksum of the compressed whole.
        blocks = _Blocks(_unpacked(path))
        with tarfile.open(fileobj=blocks, mode="r:") as tar:
            found = _members(tar)
    except _RefusedError as error:
        raise ArchiveError(f"{path}: more than a host's facts: {error}") from None
    except (*broken, RecursionError) as error:
        if isinstance(error, OSError) and error.filename == path:
            raise ArchiveError(f"{path}: {error.strerror}") from None
        reason = str(error) or type(error).__name__
        if isinstance(error, tarfile.ReadError) and not blocks.tell() > tarfile.BLOCKSIZE:
            raise ArchiveError(f"{path}: no tar archive, plain, gzip, bzip2 or xz") from None
        raise ArchiveError(f"{path}: not a whole tar archive: {reason}") from None
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from None
    if not found.files:
        raise ArchiveError(f"{path}: an archive without files")
    return _without_top(found)


def _unpacked(path: str) -> bytes:
    with open(path, "rb") as file:
        magic = file.read(6)
        file.seek(0)
        if magic == b"\xfd7zXZ\0":
            content = _xz_content(file)
        elif magic.startswith(b"\x1f\x8b"):
            import gzip

            content = gzip.GzipFile(fileobj=file).read(MOST_BYTES + 1)
        elif magic.startswith(b"BZh"):
            import bz2

            content = bz2.BZ2File(file).read(MOST_BYTES + 1)
        else:
            content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _RefusedError(f"over {MOST_BYTES >> 20} MiB")
    if _most_members(content) > MOST_ENTRIES:
        raise _RefusedError(f"over {MOST_ENTRIES} files and folders")
    return content


def _most_members(content: bytes) -> int:
    """Count the blocks that look like a member's: tarfile takes 30 us for each that it reads."""
    kinds, magics = content[156::512], content[257::512]
    return sum(
        magic == ord("u") and kind in b"\x000125"
        for kind, magic in zip(kinds, magics, strict=False)
    )


def _xz_content(file: io.BufferedReader) -> bytes:
    """Return the unpacked content of ``file``, at most one byte more than is allowed.

    The memory that it takes is limited: the module's own reader takes as much as the file asks for.
    """
    import lzma

    found = bytearray()
    data = file.read(2**16)
    while data and len(found) <= MOST_BYTES:
        stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_BYTES)
        while not stream.eof and len(found) <= MOST_BYTES:
            if stream.needs_input and not data:
                data = file.read(2**16)
                if not data:
                    raise EOFError("the compressed stream ends before its end")
            found += stream.decompress(data, MOST_BYTES + 1 - len(found))
            data = b""
        data = stream.unused_data.lstrip(b"\0") or file.read(2**16).lstrip(b"\0")
    return bytes(found)


class _Names:
    """Counts names and the folders that they imply, each once."""

    def __init__(self) -> None:
        self._known = {"/"}
        self._bytes = 0

    def take(self, member: TarInfo) -> str:
        """Return a member's absolute name."""
        longest = max(len(member.name), len(member.linkname))
        if longest > LONGEST_NAME_BYTES or member.name.count("/") > MOST_NAME_PARTS:
            raise _RefusedError(
                f"a name of over {LONGEST_NAME_BYTES} bytes or {MOST_NAME_PARTS} parts"
            )
        if len(member.pax_headers) > MOST_PAX_RECORDS:
            raise _RefusedError(f"a member with over {MOST_PAX_RECORDS} records")
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ArchiveError(f"has a member outside of itself: {member.name!r}")
        name = folder = "/" + "/".join(parts)
        while folder not in self._known:
            self._known.add(folder)
            self._bytes += len(folder)
            folder = folder.rpartition("/")[0] or "/"
        if len(self._known) > MOST_ENTRIES or self._bytes > MOST_NAME_BYTES:
            raise _RefusedError(f"over {MOST_ENTRIES} files and folders")
        return name


def _members(tar: TarFile) -> Archive:
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    modes: dict[str, int] = {}
    folders: set[str] = set()
    names = _Names()
    left_bytes = MOST_BYTES
    for count, member in enumerate(iter(tar.next, None)):
        vars(tar)["members"].clear()  # tarfile keeps them all, a kilobyte each
        name = names.take(member)
        left_bytes -= member.size
        if left_bytes < 0:
            raise _RefusedError(f"over {MOST_BYTES >> 20} MiB")
        if count >= MOST_ENTRIES:
            raise _RefusedError(f"over {MOST_ENTRIES} files and folders")
        if member.isdir():
            folders.add(name)
            modes[name] = stat.S_IFDIR | member.mode
        elif member.issym():
            links[name] = member.linkname
        elif member.islnk():
            files[name] = files.get("/" + member.linkname.strip("./"), b"")
        elif member.isreg():
            files[name] = _content(tar, member)
            modes[name] = stat.S_IFREG | member.mode
    return Archive(files, links, modes, frozenset(folders - {"/"}))


def _content(tar: TarFile, member: TarInfo) -> bytes:
    content = tar.extractfile(member)
    if content is None:
        return b""
    found = b"".join(iter(lambda: content.read(LONGEST_HEADER_BYTES), b""))
    if len(found) < member.size:
        raise EOFError(f"it ends within {member.name}")
    return found


def _without_top(found: Archive) -> Archive:
    """Return ``found`` without the one folder that all its names are in.

    hwloc's archives have it, called as the host; ours and plain ones do not.
    """
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
    """Return a gzipped tar of ``files``, by relative name, in order; always the same bytes."""
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
    """Write a file completely, or not at all. Raises OSError.

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
    """Return whether a path exists and is not a regular file, or names a stream of this process."""
    if os.path.dirname(path) in ("/dev", "/dev/fd", "/proc/self/fd"):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
