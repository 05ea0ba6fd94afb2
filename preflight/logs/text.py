"""A log as blocks of whole lines, whatever its bytes: memory stays bounded on gigabytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol

# Read and searched at once: large enough that searching a block costs little beside its bytes.
BLOCK_BYTES = 1 << 20
# A line longer than this is cut: no line of a log is, binary junk may be.
LONGEST_LINE_BYTES = 4 << 20

# Read of one log at most: a log of days has less, and a stream without an end is left one day.
MOST_LOG_BYTES = 16 << 30

# Colours and cursor movements of a terminal (ECMA-48 CSI), hyperlinks and titles (OSC).
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)?)"
)


class ByteReader(Protocol):
    """What is read from: ``sys.stdin.buffer``, ``open(path, "rb")``."""

    def read(self, size: int, /) -> bytes: ...


class Bounded:
    """A stream that ends after ``most_bytes``; ``cut`` tells that there was more."""

    def __init__(self, stream: ByteReader, most_bytes: int = MOST_LOG_BYTES) -> None:
        self._stream, self._left = stream, most_bytes
        self.cut = False

    def read(self, size: int, /) -> bytes:
        if self._left:
            chunk = self._stream.read(min(size, self._left))
            self._left -= len(chunk)
            return chunk
        self.cut = self.cut or bool(self._stream.read(1))
        return b""


def why_no_log(handle: int) -> str:
    """Why what is open as ``handle`` is no log, "" for a file, a pipe, a terminal and /dev/null.

    Other devices have no end: /dev/zero would be read for ever. Raises OSError.
    """
    import os
    import stat

    status = os.fstat(handle)
    if stat.S_ISBLK(status.st_mode):
        return "a block device, and no log: give the log's file"
    if not stat.S_ISCHR(status.st_mode) or os.isatty(handle):
        return ""
    null = os.stat(os.devnull).st_rdev
    return "" if status.st_rdev == null else "a device, and no log: give the log's file"


def read_blocks(stream: ByteReader) -> Iterator[str]:
    """The text of ``stream`` in blocks that end with a line's end; wrong bytes are replaced.

    For ``explain_log`` in place of lines. Raises OSError as the stream does.
    """
    rest = b""
    while chunk := stream.read(BLOCK_BYTES):
        chunk = rest + chunk
        end = chunk.rfind(b"\n") + 1
        if not end and len(chunk) >= LONGEST_LINE_BYTES:
            end = len(chunk)
        rest = chunk[end:]
        if end:
            yield chunk[:end].decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def blocks(lines: Iterable[str]) -> Iterator[str]:
    """Lines, or blocks of lines, with or without their ends, as blocks for searching."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line if line.endswith("\n") else line + "\n")
        size += len(line)
        if size >= BLOCK_BYTES:
            yield _plain("".join(held))
            held, size = [], 0
    if held:
        yield _plain("".join(held))


def _plain(block: str) -> str:
    return _ESCAPES.sub("", block) if "\x1b" in block else block
