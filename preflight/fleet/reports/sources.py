"""The texts to be merged: files, folders and standard input, plain or gzip, split into reports.

A text holds one object, or several: one a line (JSON lines), or each from a line ``{`` to a line
``}``, as ``check --json`` prints them. Nothing is kept in memory but the report at hand.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import BinaryIO, NamedTuple, cast

from preflight.base.within import LateError, limit_seconds, within
from preflight.fleet.reports.rows import Trouble, Unusable

STDIN = "-"
STDIN_NAME = "standard input"
# A node with hundreds of devices has a report of less than one MiB.
LARGEST_REPORT_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


class Text(NamedTuple):
    """What may be one report. line: where it begins, 0 where the source holds nothing else."""

    source: str
    line: int
    content: bytes


def given_texts(paths: Sequence[str]) -> Iterator[Text | Unusable]:
    """Return the texts of paths that a user typed. Raises UsageError where none of them is there.

    One that is missing beside others is named: its node may have failed to write it.
    """
    from preflight.base.usage_error import UsageError

    def there(path: str) -> bool:
        try:
            return path == STDIN or within(limit_seconds(), path, partial(os.path.lexists, path))
        except LateError:
            return True

    if not any(map(there, paths)):
        raise UsageError(f"{', '.join(paths)}: no such file or folder")
    return texts(paths)


def texts(paths: Sequence[str]) -> Iterator[Text | Unusable]:
    """Yield each text of each path, folders in the order of their names.

    Never raises for a path.
    """
    for path in paths:
        if path == STDIN:
            stream = getattr(sys.stdin, "buffer", None)
            if stream is None:
                yield Unusable(STDIN_NAME, 0, Trouble.UNREADABLE, "standard input is closed")
            else:
                yield from _of_stream(STDIN_NAME, stream)
            continue
        try:
            folder = within(limit_seconds(), path, partial(os.path.isdir, path))
            yield from _of_folder(path) if folder else _of_file(path)
        except LateError as late:
            yield _late(path, late)


def _of_folder(path: str) -> Iterator[Text | Unusable]:
    """Yield the texts of every file below, but those whose names begin with a dot."""
    failed: list[Unusable] = []

    def refuse(error: OSError) -> None:
        failed.append(_unreadable(str(error.filename), error))

    seen = False
    walk = os.walk(path, onerror=refuse)
    while (step := within(limit_seconds(), path, partial(next, walk, None))) is not None:
        folder, folders, files = step
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            for found in _of_file(os.path.join(folder, name), regular=True):
                seen = True
                yield found
    if not seen and not failed:
        yield Unusable(path, 0, Trouble.EMPTY, "no file in this folder")
    yield from failed


def _of_file(path: str, regular: bool = False) -> Iterator[Text | Unusable]:
    """Yield the texts of a file. regular: none of a socket or a pipe, which would never end."""

    def opened() -> BinaryIO | None:
        if regular and os.path.exists(path) and not os.path.isfile(path):  # a dead link is named
            return None
        return open(path, "rb")

    try:
        file = within(limit_seconds(), path, opened)
    except LateError as late:
        yield _late(path, late)
        return
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        yield _unreadable(path, error)
        return
    if file is None:
        return
    with file:
        if _is_device(file):
            yield Unusable(path, 0, Trouble.UNREADABLE, "it is a device, which may never end")
        else:
            yield from _of_stream(path, file)


def _is_device(file: BinaryIO) -> bool:
    """Tell whether a file is a device that gives data for as long as anybody reads: /dev/zero."""
    mode = os.fstat(file.fileno()).st_mode
    endless = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    return endless and not (file.isatty() or os.path.samefile(file.fileno(), os.devnull))


def _of_stream(source: str, stream: BinaryIO) -> Iterator[Text | Unusable]:
    """Yield the stream's texts; where it broke off, the last one says why."""
    failed: list[Unusable] = []
    chunks = _chunks(source, stream, failed)
    start = b""
    for chunk in chunks:
        start += chunk
        if len(start) > LARGEST_REPORT_BYTES:
            yield from _split(source, _lines(chain((start,), chunks)))
            break
    else:
        if start.strip():
            yield from _of_whole(source, start)
        elif not failed:
            yield Unusable(source, 0, Trouble.EMPTY, "nothing in it")
    yield from failed


def _of_whole(source: str, content: bytes) -> Iterator[Text | Unusable]:
    """Yield the texts of a content that is all there: usually one report on one line."""
    if b"\n" not in content.rstrip() or _is_one(content):
        yield Text(source, 0, content)
        return
    pieces = list(_split(source, _lines((content,))))
    # A file of one report is about the node that it is named after, on however many lines.
    alone = len(pieces) == 1 and isinstance(pieces[0], Text)
    yield from [Text(source, 0, content)] if alone else pieces


def _is_one(content: bytes) -> bool:
    """Return whether several lines are one object or list, or the beginning of a list."""
    import json

    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return content.lstrip().partition(b"\n")[0].strip() == b"["
    return True


def _chunks(source: str, stream: BinaryIO, failed: list[Unusable]) -> Iterator[bytes]:
    """Yield the stream's bytes, unpacked where it is gzip, of one or several members."""
    import gzip
    import zlib

    reader: io.BufferedReader | gzip.GzipFile
    reader = io.BufferedReader(cast("io.RawIOBase", stream), _CHUNK_BYTES)
    try:
        if reader.peek(2).startswith(_GZIP):
            reader = gzip.GzipFile(fileobj=reader)
        while chunk := reader.read1(_CHUNK_BYTES):
            yield chunk
    except EOFError:
        failed.append(Unusable(source, 0, Trouble.TRUNCATED, "its gzip data end too early"))
    except zlib.error as error:
        failed.append(Unusable(source, 0, Trouble.UNREADABLE, f"no gzip data: {error}"))
    except OSError as error:
        failed.append(_unreadable(source, error))


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number, line); None in place of a line that is larger than any report."""
    number, rest, too_large = 1, b"", False
    for chunk in chunks:
        *whole, end = chunk.split(b"\n")
        for part in whole:
            large = too_large or len(rest) + len(part) > LARGEST_REPORT_BYTES
            yield number, None if large else rest + part
            number, rest, too_large = number + 1, b"", False
        too_large = too_large or len(rest) + len(end) > LARGEST_REPORT_BYTES
        rest = b"" if too_large else rest + end
    if rest or too_large:
        yield number, None if too_large else rest


def _split(source: str, lines: Iterable[tuple[int, bytes | None]]) -> Iterator[Text | Unusable]:
    """Yield one text a line, or from a line ``{`` to the next line ``}``."""
    large = f"more than {LARGEST_REPORT_BYTES >> 20} MiB"
    start, held, held_bytes = 0, list[bytes](), 0
    for number, line in lines:
        if line is None:
            yield Unusable(source, number, Trouble.TOO_LARGE, f"one line of {large}")
            continue
        if held and line.startswith(b"{"):  # the one before never ended: what it holds is indented
            yield Text(source, start, b"\n".join(held))
            held = []
        if held or line.rstrip() == b"{":
            start, held_bytes = (start, held_bytes + len(line)) if held else (number, 0)
            held.append(line)
            if held_bytes > LARGEST_REPORT_BYTES:
                yield Unusable(source, start, Trouble.TOO_LARGE, large)
                held = []
            elif line.rstrip() == b"}":
                yield Text(source, start, b"\n".join(held))
                held = []
        elif line.strip():
            yield Text(source, number, line)
    if held:
        yield Text(source, start, b"\n".join(held))


def _late(path: str, late: LateError) -> Unusable:
    return Unusable(path, 0, Trouble.UNREADABLE, str(late))


def _unreadable(path: str, error: Exception) -> Unusable:
    reason = error.strerror if isinstance(error, OSError) else None
    return Unusable(path, 0, Trouble.UNREADABLE, reason or str(error))
