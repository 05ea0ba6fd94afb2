"""The reports in files, folders and standard input, plain or gzip: each object of check's JSON.

Several may stand in one text, and other lines around them, as in the log of a pod. Of ``srun
--label``, which cuts long lines and mixes those of all tasks, each task's pieces are joined: within
JSON an end of line says nothing.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from checks.framework.regex import regex
from preflight.base.within import LateError, limit_seconds, within
from preflight.fleet.base.decode import no_constant, short
from preflight.fleet.base.node_sets import is_name
from preflight.fleet.reports.rows import Trouble, Unusable

STDIN = "-"
STDIN_NAME = "standard input"
# Ten thousand reports of a hundred kilobytes each.
LARGEST_TEXT_BYTES = 1 << 30
# Of a long text so much is read before the reports in it are.
PIECE_BYTES = 16 << 20
_GZIP = b"\x1f\x8b"
# A line that begins with a report: within a report there is none.
_CUT = rb'\n(?=\{\s*"schema"\s*:\s*"mooncake-preflight/)'
_LABELLED_BYTES = rb"(?m)^ *[0-9]+: *\{"
_START = regex(r'\{\s*"schema"\s*:\s*"mooncake-preflight/')
_LABEL = regex(r" *([0-9]+): ?(.*)")
_LABELLED = regex(r"^ *[0-9]+: *\{", re.MULTILINE)
# A report names its machine near its end; the answer of another command, nowhere.
_NAME = regex(r'"machine"\s*:\s*\{\s*"name"\s*:\s*"([^"\\]*)"')
_ENDINGS = regex(r"(\.(json|jsonl|ndjson|log|out|txt|gz))+$", re.IGNORECASE)
_DECODER = json.JSONDecoder(parse_constant=no_constant)


class FoundReport(NamedTuple):
    """One report in a text, as a JSON object.

    Attributes:
        line: Where it begins, 0 if the source holds nothing else.
    """

    source: str
    line: int
    document: Any


def given_reports(paths: Sequence[str]) -> Iterator[FoundReport | Unusable]:
    """Yield the reports of a command line's paths.

    Raises:
        UsageError: If no path exists.
    """
    from preflight.base.usage_error import UsageError

    def there(path: str) -> bool:
        try:
            return path == STDIN or within(limit_seconds(), path, partial(os.path.lexists, path))
        except LateError:
            return True

    if not any(map(there, paths)):
        raise UsageError(f"{', '.join(paths)}: no such file or folder")
    return reports_of(paths)


def reports_of(paths: Sequence[str]) -> Iterator[FoundReport | Unusable]:
    """Yield the reports of each path, "-" for standard input; of a folder, file by file in the
    order of their names.

    Never raises.
    """
    for path in paths:
        if path == STDIN:
            yield from _of_stream(STDIN_NAME, sys.stdin.buffer)
            continue
        try:
            folder = within(limit_seconds(), path, partial(os.path.isdir, path))
            yield from _of_folder(path) if folder else _of_file(path)
        except LateError as late:
            yield Unusable(path, 0, Trouble.UNREADABLE, str(late))


def _of_folder(path: str) -> Iterator[FoundReport | Unusable]:
    """Yield the reports of every file below a folder, sorted by name, without hidden files.

    Folders that cannot be read are yielded last, as Unusable. A folder without files is one
    Unusable.
    """
    failed: list[Unusable] = []

    def refuse(error: OSError) -> None:
        failed.append(_unreadable(str(error.filename), error))

    seen = False
    walk = os.walk(path, onerror=refuse)
    while (step := within(limit_seconds(), path, partial(next, walk, None))) is not None:
        folder, folders, files = step
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            for report in _of_file(os.path.join(folder, name), regular=True):
                seen = True
                yield report
    if not seen and not failed:
        yield Unusable(path, 0, Trouble.EMPTY, "no file in this folder")
    yield from failed


def _of_file(path: str, regular: bool = False) -> Iterator[FoundReport | Unusable]:
    """Yield the reports of a file; one Unusable if it cannot be opened.

    Args:
        regular: Skip sockets and pipes, which may never end.
    """

    def opened() -> BinaryIO | None:
        if regular and os.path.exists(path) and not os.path.isfile(path):  # a dead link is named
            return None
        return open(path, "rb")

    try:
        file = within(limit_seconds(), path, opened)
    except LateError as late:
        yield Unusable(path, 0, Trouble.UNREADABLE, str(late))
        return
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        yield _unreadable(path, error)
        return
    if file is None:
        return
    with file:
        yield from _of_stream(path, file)


def _of_stream(source: str, stream: BinaryIO) -> Iterator[FoundReport | Unusable]:
    """Yield a stream's reports, plain or gzip.

    A last Unusable says why reading ended early.
    """
    import gzip
    import io
    import zlib

    failed, size, line, rest, labelled = None, 0, 0, bytearray(), False
    try:
        reader: Any = io.BufferedReader(stream)
        if reader.peek(2).startswith(_GZIP):
            reader = gzip.GzipFile(fileobj=reader)
        while size <= LARGEST_TEXT_BYTES and (chunk := reader.read1(1 << 20)):
            rest += chunk
            size += len(chunk)
            if len(rest) < PIECE_BYTES or labelled:
                continue
            labelled = re.search(_LABELLED_BYTES, rest) is not None
            cuts = [] if labelled else [match.end() for match in re.finditer(_CUT, rest)]
            if cuts:
                piece = bytes(rest[: cuts[-1]])
                del rest[: cuts[-1]]
                yield from reports_in(source, piece, line or 1)
                line = (line or 1) + piece.count(b"\n")
    except EOFError:
        failed = Unusable(source, 0, Trouble.TRUNCATED, "its gzip data end too early")
    except zlib.error as error:
        failed = Unusable(source, 0, Trouble.UNREADABLE, f"no gzip data: {error}")
    except OSError as error:
        failed = _unreadable(source, error)
    if size > LARGEST_TEXT_BYTES:
        more = f"more than {LARGEST_TEXT_BYTES >> 20} MiB: give several files"
        failed = Unusable(source, 0, Trouble.TOO_LARGE, more)
    for report in reports_in(source, bytes(rest), line):
        empty = isinstance(report, Unusable) and report.trouble is Trouble.EMPTY
        if failed is None or not empty:
            yield report
    if failed is not None:
        yield failed


def reports_in(
    source: str, content: bytes, first_line: int = 0
) -> Iterator[FoundReport | Unusable]:
    """Yield each report in a text, a broken one as Unusable; one Unusable if no report begins in
    the text.

    Args:
        source: The text's name, for messages.
        content: The text in UTF-8, no longer packed.
        first_line: Where it begins in a longer text; 0 if it is the whole.
    """
    text = content.decode("utf-8-sig", "replace")
    any_report = first_line > 0
    for task in _tasks(text) if _LABELLED.search(text) else (text,):
        at, line, counted = 0, first_line or 1, 0
        begin, end = len(task) - len(task.lstrip()), len(task.rstrip())
        while (start := _START.search(task, at)) is not None:
            any_report = True
            line += task.count("\n", counted, start.start())
            counted = start.start()
            try:
                document, at = _DECODER.raw_decode(task, start.start())
            except (ValueError, RecursionError) as error:
                nearest = _START.search(task, start.end())
                at = len(task) if nearest is None else nearest.start()
                alone = nearest is None and start.start() == begin and not first_line
                broken = _broken(source, line, task[start.start() : at], error)
                name = broken.name or (name_of(source) if alone else "")
                yield broken._replace(line=0 if alone else line, name=name)
            else:
                alone = start.start() == begin and at >= end and not first_line
                yield FoundReport(source, 0 if alone and task is text else line, document)
    if not any_report:
        yield _foreign(source, text.strip())


def _tasks(text: str) -> list[str]:
    """Return the output of each task of ``srun --label``, joined; no lines without a label."""
    pieces: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if (match := _LABEL.fullmatch(line)) is not None:
            pieces.setdefault(match[1], []).append(match[2])
    return ["".join(each) for each in pieces.values()]


def _broken(source: str, line: int, text: str, error: Exception) -> Unusable:
    """Return the Unusable, with a reason, for a text that begins as a report and does not parse."""
    if isinstance(error, RecursionError):
        return Unusable(source, line, Trouble.TOO_DEEP, "more levels than any report has")
    named = _NAME.search(text)
    name = named[1] if named is not None and is_name(named[1]) else ""
    if isinstance(error, json.JSONDecodeError):
        reason = f"it ends after {len(text.rstrip().encode())} bytes, within the report"
        return Unusable(source, line, Trouble.TRUNCATED, reason, name)
    return Unusable(source, line, Trouble.NOT_JSON, str(error)[:80], name)


def _foreign(source: str, text: str) -> Unusable:
    """Return the Unusable for a text without any report; the reason shows how the text begins."""
    if not text:
        return Unusable(source, 0, Trouble.EMPTY, "nothing in it")
    if "\0" in text or "\ufffd" in text[:4096]:
        return Unusable(source, 0, Trouble.FOREIGN, "bytes that are no text")
    begins = f"no answer of check --json in it; it begins with {short(text[:40])}"
    return Unusable(source, 0, Trouble.FOREIGN, begins)


def name_of(source: str) -> str:
    """Return the node of a file's name: ``reports/gpu001.json.gz`` is of gpu001; "" if none."""
    name = _ENDINGS.sub("", os.path.basename(source))
    return name if is_name(name) else ""


def _unreadable(path: str, error: Exception) -> Unusable:
    reason = error.strerror if isinstance(error, OSError) else None
    return Unusable(path, 0, Trouble.UNREADABLE, reason or str(error))
