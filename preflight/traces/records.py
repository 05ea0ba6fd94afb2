"""A trace's file as records, each with its line: packed or not, JSON, a list, a table, or a log.

``formats`` says what a record means. Errors are UsageErrors that name the line.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, TextIO

from preflight.base import shell
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within

# Characters of one line: a prompt of a million tokens as numbers is about 8 million.
_LONGEST_LINE = 256 << 20

Record = Mapping[str, Any]


def read_records(name: str) -> Iterator[tuple[int, Record]]:
    """Yield each record with its line: JSON lines, one JSON list, a table of commas, or a log.

    Lines of a log that hold no request are passed over.
    """
    with closing(_open(name)) as file:
        lines = _lines(name, file)
        number, first = next(lines, (0, ""))
        every = chain([(number, first)], lines)
        heads = [head.strip() for head in first.split(",")]
        if first.startswith("["):
            yield from _listed(name, every)
        elif first.startswith("{"):
            for number, text in every:
                yield number, _object(name, number, json.loads, text)
        elif "input_length" in heads:
            for number, text in lines:
                yield number, _object(name, number, partial(_cells, heads), text)
        else:
            for number, text in every if first else ():
                if record := _logged(text):
                    yield number, record


def _open(name: str) -> TextIO:
    if name == "-":
        return sys.stdin
    try:
        # A pipe to which nobody writes would be waited for without an end.
        return within(limit_seconds(), f"--trace {name}", lambda: _unpacked(name))
    except OSError as error:
        raise UsageError(f"--trace {name}: {error.strerror or error}") from None


def _unpacked(name: str) -> TextIO:
    if name.endswith(".gz"):
        import gzip

        return gzip.open(name, "rt", encoding="utf-8")
    if name.endswith(".xz"):
        import lzma

        return lzma.open(name, "rt", encoding="utf-8")
    if name.endswith(".zst"):
        return _open_zst(name)
    return open(name, encoding="utf-8")


def _open_zst(name: str) -> TextIO:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        install = shell.line([sys.executable, "-m", "pip", "install", "zstandard>=0.20"])
        unpack = shell.line(["zstd", "-dc", name])
        raise UsageError(
            f"--trace {name}: zstandard, which reads .zst, is not installed: {install}, or give "
            f"--trace - and {unpack} before a pipe"
        ) from None
    return io.TextIOWrapper(io.BufferedReader(_Zst(name, zstandard)), encoding="utf-8")


class _Zst(io.RawIOBase):
    """A .zst file unpacked: all of its frames, and an error where the last one is cut off.

    The package's own reader ends at the first frame, and says nothing of one that is cut off.
    """

    def __init__(self, name: str, zstandard: Any) -> None:
        self._file, self._zstandard = io.FileIO(name), zstandard
        self._frame: Any = None
        self._packed = self._text = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            packed = self._packed or self._file.read(1 << 16)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the file ends within a frame: it is cut off")
                return 0
            self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
            self._text, self._packed = self._frame.decompress(packed), b""
            if self._frame.eof:
                self._frame, self._packed = None, self._frame.unused_data
        count = min(len(buffer), len(self._text))
        buffer[:count], self._text = self._text[:count], self._text[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _object(name: str, number: int, read: Callable[[str], Any], text: str) -> Record:
    where = f"--trace {name}, line {number}"
    try:
        found = read(text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", str(error))
        raise UsageError(f"{where}: {text[:40]!r}: not JSON ({why})") from None
    if not isinstance(found, dict):
        raise UsageError(f"{where}: {text[:40]!r}: must be an object with a request")
    return found


def _listed(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Record]]:
    """Yield the objects of one list, read as far as each needs."""
    decoder, held, number = json.JSONDecoder(), "", 0
    found: Any
    for number, text in lines:
        held = f"{held}\n{text}".lstrip("[, \n\t\r")
        while held and held[0] != "]":
            try:
                found, end = decoder.raw_decode(held)
            except ValueError:
                break  # the rest of it is to come
            if not isinstance(found, dict):
                where = f"--trace {name}, line {number}"
                raise UsageError(f"{where}: {held[:40]!r}: must be an object with a request")
            yield number, found
            held = held[end:].lstrip(", \n\t\r")
        if len(held) > _LONGEST_LINE:
            break
    if held and held[0] != "]":
        raise UsageError(f"--trace {name}, line {number}: {held[:40]!r}: not JSON")


# SGLang's --log-requests (level 2 or 3) and vLLM's --enable-log-requests, as text. What SGLang says
# when a request has ended holds it once more.
_IDS = re.compile(
    r"(?:input_ids|prompt_token_ids)['\"]?\s*[=:]\s*\[((?:[0-9]{1,18}, ?)*[0-9]{1,18})\]"
)
_ENDED = "Finish: obj="


def _logged(text: str) -> Record | None:
    found = None if _ENDED in text else _IDS.search(text)
    return {"token_ids": [int(each) for each in found[1].split(",")]} if found else None


def _lines(name: str, file: TextIO) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        while text := file.readline(_LONGEST_LINE):
            number += 1
            if len(text) == _LONGEST_LINE:
                longest = f"longer than {_LONGEST_LINE:,} characters"
                raise UsageError(f"--trace {name}, line {number}: {longest}: not one request")
            if text := text.strip():
                yield number, text
    except UsageError:
        raise
    except (OSError, EOFError, ValueError) as error:  # also of gzip and of UTF-8
        raise UsageError(f"--trace {name}, after line {number}: {error}") from None
    except Exception as error:  # lzma and zstandard have errors of their own
        if type(error).__name__ not in ("LZMAError", "ZstdError"):
            raise
        raise UsageError(f"--trace {name}, after line {number}: {error}") from None


def _cells(heads: list[str], text: str) -> Record:
    import csv

    cells = next(csv.reader([text]))
    if len(cells) != len(heads):
        raise ValueError(f"{len(cells)} cells under {len(heads)} heads")
    return {head: _cell(cell) for head, cell in zip(heads, cells, strict=True)}


def _cell(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
