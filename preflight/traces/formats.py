"""Traces of requests as they are recorded, read line by line: one request after the other.

A request is its blocks. What names a block here names all blocks before it too, as the keys of a
prefix cache do, whatever the trace's own numbers mean: the same block behind another prefix is
another block. So a block that is cached has all that stand before it cached, and requests form a
tree. No text and no token is kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from hashlib import blake2b
from importlib import import_module
from itertools import chain, islice
from typing import Any, NamedTuple, TextIO

from preflight.base.usage_error import UsageError

# Characters of one line: a prompt of a million tokens as numbers is about 8 million.
_LONGEST_LINE = 256 << 20
# Tokens of one request: more is a slip of the pen.
_MOST_TOKENS = 1 << 31
# Requests by which the size of a trace's blocks is told, where it does not say it.
_LOOKED_AT = 200

Record = Mapping[str, Any]
# The conversation of each turn that was read.
Sessions = dict[int, int]


class Request(NamedTuple):
    """One prompt, as its blocks from the first on.

    seconds: when it came, from the trace's own zero; None where it is not recorded. session: the
    conversation that it is of; None where that is not recorded. The last block may be short.
    """

    blocks: list[int]
    input_tokens: int
    output_tokens: int
    seconds: float | None
    session: int | None = None


class Trace(NamedTuple):
    """requests: read as they are asked for, once. block_tokens: of each but a request's last."""

    name: str
    format: str
    block_tokens: int
    requests: Iterator[Request]
    notes: tuple[str, ...] = ()


class Format(NamedTuple):
    """One format. fields: those that tell it from the others. block_tokens: 0 for the launch's."""

    name: str
    fields: tuple[str, ...]
    block_tokens: int
    read: Callable[[Record, int, Sessions], Request]
    note: str = ""


class LineError(ValueError):
    """What a record says cannot be meant: the field, its value and the rule."""


def open_trace(name: str, page_tokens: int, block_tokens: int | None = None) -> Trace:
    """Open ``name`` (``-`` for standard input) and tell its format by its first record.

    page_tokens: of the launch, by which tokens become blocks. block_tokens: of the trace, where it
    does not say it itself. Raises UsageError, as the requests do when they are read.
    """
    records = _records(name, _open(name))
    first = list(islice(records, _LOOKED_AT))
    if not first:
        raise UsageError(f"--trace {name}: holds no request")
    line, record = first[0]
    found = next((each for each in FORMATS if all(f in record for f in each.fields)), None)
    if found is None:
        known = "; ".join(f"{each.name}: {', '.join(each.fields)}" for each in FORMATS)
        said = ", ".join(sorted(record)[:8]) or "no field"
        raise UsageError(f"--trace {name}, line {line}: has {said}: of no known format ({known})")
    size = block_tokens or found.block_tokens or page_tokens
    if found.read is _hashed:
        size = block_tokens or _told_size([each for _, each in first], found.block_tokens)
    requests = _requests(name, found, size, chain(first, records))
    return Trace(name, found.name, size, requests, (found.note,) if found.note else ())


def _requests(
    name: str, found: Format, size: int, records: Iterator[tuple[int, Record]]
) -> Iterator[Request]:
    sessions: Sessions = {}
    for line, record in records:
        yield _read(found, record, size, sessions, f"--trace {name}, line {line}")


def _read(found: Format, record: Record, size: int, sessions: Sessions, where: str) -> Request:
    try:
        return found.read(record, size, sessions)
    except LineError as error:
        raise UsageError(f"{where}: {error}") from None


# ---- lines ----


def _open(name: str) -> TextIO:
    if name == "-":
        return sys.stdin
    try:
        if name.endswith(".gz"):
            import gzip

            return gzip.open(name, "rt", encoding="utf-8")
        if name.endswith(".xz"):
            import lzma

            return lzma.open(name, "rt", encoding="utf-8")
        if name.endswith(".zst"):
            return _open_zst(name)
        return open(name, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--trace {name}: {error.strerror or error}") from None


def _open_zst(name: str) -> TextIO:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise UsageError(
            f"--trace {name}: reading .zst needs the package zstandard: install it, or give "
            f"--trace - and zstd -dc {name} before a pipe"
        ) from None
    file: TextIO = zstandard.open(name, "rt", encoding="utf-8")
    return file


def _records(name: str, file: TextIO) -> Iterator[tuple[int, Record]]:
    """Each record with its line; lines are JSON objects, or a table of commas with its heads."""
    heads: list[str] = []
    with closing(file):
        for number, text in _lines(name, file):
            if number == 1 and text[:1] not in "{[":
                heads = [head.strip() for head in text.split(",")]
                continue
            where = f"--trace {name}, line {number}"
            try:
                found = _cells(heads, text) if heads else json.loads(text)
            except (ValueError, RecursionError) as error:
                why = getattr(error, "msg", str(error))
                raise UsageError(f"{where}: {text[:40]!r}: not JSON ({why})") from None
            if not isinstance(found, dict):
                raise UsageError(f"{where}: {text[:40]!r}: must be an object with a request")
            yield number, found


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


# ---- fields ----


def _count(record: Record, field: str, least: int) -> int:
    value = record.get(field, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST_TOKENS:
        raise LineError(
            f'"{field}": {value!r:.60}: must be a whole number of tokens, {least} to {_MOST_TOKENS}'
        )
    return value


def _seconds(record: Record, per_second: int) -> float | None:
    value = record.get("timestamp")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        unit = "seconds" if per_second == 1 else "milliseconds"
        raise LineError(f'"timestamp": {value!r:.60}: must be a number of {unit}')
    return value / per_second


def _list(record: Record, field: str) -> list[Any]:
    value = record[field]
    if not isinstance(value, list):
        raise LineError(f'"{field}": {value!r:.60}: must be a list')
    return value


def chained(parts: list[Any], field: str) -> list[int]:
    """Name each part with all before it. Numbers are of 61 bits, from one run to the next alike."""
    name, found = 0, []
    for part in parts:
        if type(part) is not int:
            if not isinstance(part, str):
                raise LineError(f'"{field}": {part!r:.60}: must be whole numbers, or texts')
            part = int.from_bytes(blake2b(part.encode(), digest_size=8).digest(), "big")
        name = hash((name, part))
        found.append(name)
    return found


# ---- formats ----


def _told_size(records: list[Record], usual: int) -> int:
    """The size of block that fits the first requests: the format's own, else a power of two."""
    sizes = [record.get("block_size") for record in records]
    if isinstance(sizes[0], int) and 0 < sizes[0] <= _MOST_TOKENS:
        return sizes[0]
    lengths = [
        (record.get("input_length"), len(hashes))
        for record in records
        if isinstance(hashes := record.get("hash_ids"), list)
    ]
    known = [(length, count) for length, count in lengths if isinstance(length, int)]
    for size in (usual, *(1 << bit for bit in range(16, -1, -1))):
        if all(_fits(length, count, size) for length, count in known):
            return size
    return usual


def _fits(length: int, count: int, size: int) -> bool:
    """Whether so many blocks are a prompt's, with the last one short or without it."""
    return count in (length // size, -(-length // size))


def _hashed(record: Record, size: int, sessions: Sessions) -> Request:
    length = _count(record, "input_length", 1)
    hashes = _list(record, "hash_ids")
    own = record.get("block_size")
    if own is not None and own != size:
        raise LineError(f'"block_size": {own!r:.60}: must be {size}, as in the lines before')
    if not _fits(length, len(hashes), size):
        raise LineError(
            f'"hash_ids" are {len(hashes)}: "input_length" {length} is {-(-length // size)} blocks '
            f"of {size} tokens (--trace-block-tokens says another size)"
        )
    blocks = chained(hashes, "hash_ids")
    output = _count(record, "output_length", 0)
    if "chat_id" not in record:
        return Request(blocks, length, output, _seconds(record, 1000), _session(record))
    turn, before = record["chat_id"], record.get("parent_chat_id", -1)
    if not isinstance(turn, int) or not isinstance(before, int):
        raise LineError(f'"chat_id": {turn!r:.60}: must be a number, and "parent_chat_id" too')
    sessions[turn] = session = sessions.get(before, turn)
    return Request(blocks, length, output, _seconds(record, 1), session)


def _session(record: Record) -> int | None:
    given = record.get("session")
    return None if given is None else chained([given], "session")[0]


FORMATS = (
    Format("Qwen-Bailian", ("hash_ids", "input_length", "chat_id"), 16, _hashed),
    Format("Mooncake", ("hash_ids", "input_length"), 512, _hashed),
)
