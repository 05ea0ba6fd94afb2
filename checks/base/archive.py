"""Archives: read whole into memory within limits, written the same for the same content."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import io

# What a recorded host may take; the largest of hwloc's have 12,000 entries and 10 MB. Each bound
# is held before what it bounds is built: some hundred bytes can be packed to ask for gigabytes.
MOST_BYTES = 64 * 2**20  # of the archive, once unpacked
MOST_ENTRIES = 50_000  # members, and the folders that their names imply
MOST_NAME_BYTES = 32 * 2**20  # of all those names
LONGEST_NAME_BYTES = 1024  # sysfs's longest have 200
MOST_NAME_PARTS = 64  # sysfs's deepest have 20
LONGEST_HEADER_BYTES = 16 * 2**10  # what a member may say beside its block: a name, a link, owners
MOST_PAX_RECORDS = 64  # of a member; GNU tar writes 3, and 10 with what SELinux and ACLs add
MOST_RECORDS = 250_000
MOST_HEADERS = 100_000  # members, and what they say beside their blocks
MOST_STREAMS = 4096  # that are packed one behind the other: bgzip makes 1,024 of 64 MiB
BLOCK_BYTES = 512
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


def read_archive(path: str) -> Archive:
    """Read a tar, plain or compressed with gzip, bzip2 or xz. Raises ArchiveError."""
    import lzma
    import zlib

    try:
        # Unpacked to its end, which holds the checksum of the compressed whole.
        content = _unpacked(path)
        first = content[:BLOCK_BYTES]
        if not first or (first.strip(b"\0") and not _is_header(first)):
            raise ArchiveError("no tar archive, plain, gzip, bzip2 or xz")
        found = _members(content)
    except _RefusedError as error:
        raise ArchiveError(f"{path}: more than a host's facts: {error}") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError) as error:
        if isinstance(error, OSError) and error.filename == path:
            raise ArchiveError(f"{path}: {error.strerror}") from None
        reason = str(error) or type(error).__name__
        raise ArchiveError(f"{path}: not a whole tar archive: {reason}") from None
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from None
    if not found.files:
        raise ArchiveError(f"{path}: an archive without files")
    return _without_top(found)


class _Gzip:
    """Unpacks one stream of gzip, asked as the decompressors of bzip2 and xz are."""

    def __init__(self) -> None:
        import zlib

        self._stream = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, most_bytes: int) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail + data, most_bytes)


def _unpacked(path: str) -> bytearray:
    with open(path, "rb") as file:
        magic = file.read(6)
        file.seek(0)
        content = _streams(file, magic)
    if len(content) > MOST_BYTES:
        raise _RefusedError(f"over {MOST_BYTES >> 20} MiB")
    return content


def _streams(file: io.BufferedReader, magic: bytes) -> bytearray:
    """Return the unpacked content of ``file``, at most one byte more than is allowed.

    The memory that it takes is limited: the modules' own readers take as much as the file asks for.
    """
    import bz2
    import lzma

    if not magic.startswith((b"\xfd7zXZ\0", b"\x1f\x8b", b"BZh")):
        return bytearray(file.read(MOST_BYTES + 1))
    found = bytearray()
    data = file.read(2**16)
    for _ in range(MOST_STREAMS):
        if not data or len(found) > MOST_BYTES:
            return found
        stream: Any = (
            lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_BYTES)
            if magic[0] == 0xFD
            else bz2.BZ2Decompressor()
            if magic[0] == ord("B")
            else _Gzip()
        )
        while not stream.eof and len(found) <= MOST_BYTES:
            if stream.needs_input and not data:
                data = file.read(2**16)
                if not data:
                    raise EOFError("the compressed stream ends before its end")
            found += stream.decompress(data, MOST_BYTES + 1 - len(found))
            data = b""
        data = stream.unused_data.lstrip(b"\0") or file.read(2**16).lstrip(b"\0")
    raise _RefusedError(f"over {MOST_STREAMS} compressed streams")


class _Names:
    """Counts names and the folders that they imply, each once."""

    def __init__(self) -> None:
        self._known = {"/"}
        self._bytes = 0

    def take(self, given: str, link: str) -> str:
        """Return a member's absolute name."""
        if max(len(given), len(link)) > LONGEST_NAME_BYTES or given.count("/") > MOST_NAME_PARTS:
            raise _RefusedError(
                f"a name of over {LONGEST_NAME_BYTES} bytes or {MOST_NAME_PARTS} parts"
            )
        name = folder = _absolute(given)
        if ".." in name.split("/"):
            raise ArchiveError(f"has a member outside of itself: {given!r}")
        while folder not in self._known:
            self._known.add(folder)
            self._bytes += len(folder)
            folder = folder.rpartition("/")[0] or "/"
        if len(self._known) > MOST_ENTRIES or self._bytes > MOST_NAME_BYTES:
            raise _RefusedError(f"over {MOST_ENTRIES} files and folders")
        return name


def _absolute(name: str) -> str:
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


def _is_header(block: bytes | bytearray) -> bool:
    """Return whether a block has the sum of its bytes, its sum's own field counted as blanks."""
    if len(block) < BLOCK_BYTES:
        return False
    others = block[:148] + b" " * 8 + block[156:]
    plain = sum(others)
    # Some counted bytes above 127 as negative.
    signed = plain - 256 * sum(byte > 127 for byte in others) if not others.isascii() else plain
    try:
        return _number(block[148:156]) in (plain, signed)
    except ValueError:
        return False


def _number(field: bytes | bytearray) -> int:
    """Return what a field says, in octal digits or in base 256."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (field[0] == 0xFF) * (1 << 8 * (len(field) - 1))
    return int(bytes(field.partition(b"\0")[0]).strip() or b"0", 8)


def _text(field: bytes | bytearray) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


class _Reader:
    """Steps over the blocks of a tar. Each bound is held before what it bounds is built."""

    def __init__(self, content: bytearray) -> None:
        self._content = content
        self._view = memoryview(content)
        self._at = 0
        self._headers = self._records = 0
        self.said: dict[str, str] = {}  # of the next member, in headers in front of it

    def header(self) -> bytearray | None:
        """Return the next header; None at the end."""
        block = self._content[self._at : self._at + BLOCK_BYTES]
        if not block.strip(b"\0"):
            return None
        if not _is_header(block):
            raise ValueError(f"no header at byte {self._at}")
        self._headers += 1
        if self._headers > MOST_HEADERS:
            raise _RefusedError(f"over {MOST_HEADERS} headers")
        self._at += BLOCK_BYTES
        return block

    def content(self, size: int, name: str) -> bytes:
        """Return what stands behind a header."""
        if size < 0:
            raise ValueError(f"{name} has a size of {size}")
        if self._at + size > len(self._content):
            raise EOFError(f"it ends within {name}")
        found = self._view[self._at : self._at + size].tobytes()
        self._at += -(-size // BLOCK_BYTES) * BLOCK_BYTES
        return found

    def extension(self, kind: bytes, size: int) -> None:
        """Take what stands in front of a member: its long name or link, or its records."""
        if size > LONGEST_HEADER_BYTES:
            raise _RefusedError(f"a header of over {LONGEST_HEADER_BYTES >> 10} KiB")
        content = self.content(size, "a header")
        if kind in b"LK":
            self.said["path" if kind == b"L" else "linkpath"] = _text(content)
            return
        while content.strip(b"\0"):
            count, _, _ = content.partition(b" ")
            length = int(count) if len(count) < 6 else 0
            record, content = content[len(count) + 1 : length], content[max(length, 1) :]
            key, equals, value = record.partition(b"=")
            if not equals or not value.endswith(b"\n"):
                raise ValueError("a record of its headers is broken")
            self._records += 1
            if len(self.said) >= MOST_PAX_RECORDS:
                raise _RefusedError(f"a member with over {MOST_PAX_RECORDS} records")
            if self._records > MOST_RECORDS:
                raise _RefusedError(f"over {MOST_RECORDS} records of members")
            if kind != b"g":
                self.said[_text(key)] = _text(value[:-1])


def _members(content: bytearray) -> Archive:
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    modes: dict[str, int] = {}
    folders: set[str] = set()
    names, reader, count = _Names(), _Reader(content), 0
    while (block := reader.header()) is not None:
        kind, size = bytes(block[156:157]), _number(block[124:136])
        if kind in (b"L", b"K", b"x", b"X", b"g"):
            reader.extension(kind, size)
            continue
        said, reader.said = reader.said, {}
        if kind == b"S" or any(key.startswith("GNU.sparse.") for key in said):
            raise _RefusedError("a sparse file")
        given, link = _text(block[:100]), said.get("linkpath", _text(block[157:257]))
        if block[257:263] == b"ustar\0" and block[345]:
            given = f"{_text(block[345:500])}/{given}"
        given = said.get("path", given)
        if "size" in said:
            size = int(said["size"]) if len(said["size"]) < 16 else MOST_BYTES + 1
        name = names.take(given, link)
        count += 1
        if count > MOST_ENTRIES:
            raise _RefusedError(f"over {MOST_ENTRIES} files and folders")
        mode = stat.S_IMODE(_number(block[100:108]))
        if kind == b"5" or (kind == b"\0" and given.endswith("/")):
            folders.add(name)
            modes[name] = stat.S_IFDIR | mode
        elif kind == b"2":
            links[name] = link
        elif kind == b"1":
            files[name] = files.get(_absolute(link), b"")
        elif kind not in (b"3", b"4", b"6"):  # what is of no known kind has content, too
            if size > MOST_BYTES:
                raise _RefusedError(f"over {MOST_BYTES >> 20} MiB")
            behind = reader.content(size, given)
            if kind in (b"0", b"\0", b"7"):
                files[name] = behind
                modes[name] = stat.S_IFREG | mode
    return Archive(files, links, modes, frozenset(folders - {"/"}))


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
