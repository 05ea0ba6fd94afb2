"""Traces of requests in the formats that record them: one request after the other.

A file is records, each with its line: packed or not, JSON, a list, a table, or a log. Errors are
UsageErrors that name the line. A request is its blocks. What names a block here names all blocks
before it too, as the keys of a prefix cache do, whatever the trace's own numbers mean: the same
block behind another prefix is another block. So a block that is cached has all that stand before it
cached, and requests form a tree. No text and no token is kept.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import chain, islice
from typing import Any, NamedTuple, TextIO

from checks.framework.regex import regex
from preflight.base import shell
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within

# Characters of one line: a prompt of a million tokens as numbers is about 8 million.
_LONGEST_LINE = 256 << 20

Record = Mapping[str, Any]


def read_records(name: str) -> Iterator[tuple[int, Record]]:
    """Read a trace file; yield (line number, record).

    It may hold JSON lines, one JSON list, a table with commas, or a log, of which lines without
    token ids are skipped. Raises UsageError.
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
                match = None if _ENDED in text else _IDS.search(text)
                if match:
                    yield number, {"token_ids": [int(each) for each in match[1].split(",")]}


def _open(name: str) -> TextIO:
    """Open a trace, ``-`` for standard input.

    Raises:
        UsageError: If it cannot be opened in time.
    """
    if name == "-":
        return sys.stdin
    try:
        # A pipe to which nobody writes would be waited for without an end.
        return within(limit_seconds(), f"--trace {name}", lambda: _unpacked(name))
    except OSError as error:
        raise UsageError(f"--trace {name}: {error.strerror or error}") from None


def _unpacked(name: str) -> TextIO:
    """Open a file as text and unpack .gz and .xz; .zst raises UsageError.

    Raises OSError.
    """
    if module := {".gz": "gzip", ".xz": "lzma"}.get(name[-3:]):
        opened: TextIO = import_module(module).open(name, "rt", encoding="utf-8")
        return opened
    if name.endswith(".zst"):
        unpack = shell.line(["zstd", "-dc", name])
        raise UsageError(
            f"--trace {name}: .zst is not read here: give --trace - and {unpack} before a pipe"
        )
    return open(name, encoding="utf-8")


def _object(name: str, number: int, read: Callable[[str], Any], text: str) -> Record:
    """Parse one record with ``read``; raise UsageError if that fails or gives no object."""
    where = f"--trace {name}, line {number}"
    try:
        record = read(text)
    except (ValueError, RecursionError) as error:
        why = getattr(error, "msg", str(error))
        raise UsageError(f"{where}: {text[:40]!r}: not JSON ({why})") from None
    if not isinstance(record, dict):
        raise UsageError(f"{where}: {text[:40]!r}: must be an object with a request")
    return record


def _listed(name: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Record]]:
    """Yield (line number, object) for each object of a JSON list, without reading the whole list
    first.

    Raises:
        UsageError: For an item that is no object, and for text that is no JSON.
    """
    decoder, rest, number = json.JSONDecoder(), "", 0
    record: Any
    for number, text in lines:
        rest = f"{rest}\n{text}".lstrip("[, \n\t\r")
        while rest and rest[0] != "]":
            try:
                record, end = decoder.raw_decode(rest)
            except ValueError:
                break  # the rest of it is to come
            if not isinstance(record, dict):
                where = f"--trace {name}, line {number}"
                raise UsageError(f"{where}: {rest[:40]!r}: must be an object with a request")
            yield number, record
            rest = rest[end:].lstrip(", \n\t\r")
        if len(rest) > _LONGEST_LINE:
            break
    if rest and rest[0] != "]":
        raise UsageError(f"--trace {name}, line {number}: {rest[:40]!r}: not JSON")


# SGLang's --log-requests (level 2 or 3) and vLLM's --enable-log-requests, as text. What SGLang says
# when a request has ended holds it once more.
_IDS = regex(r"(?:input_ids|prompt_token_ids)['\"]?\s*[=:]\s*\[((?:[0-9]{1,18}, ?)*[0-9]{1,18})\]")
_ENDED = "Finish: obj="


def _lines(name: str, file: TextIO) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) for each line that is not blank.

    Raises:
        UsageError: For a line that is too long, and for text that cannot be read.
    """
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
    except Exception as error:  # also of gzip and of UTF-8; lzma has an error of its own
        known = isinstance(error, OSError | EOFError | ValueError)
        if not known and type(error).__name__ != "LZMAError":
            raise
        raise UsageError(f"--trace {name}, after line {number}: {error}") from None


def _cells(heads: list[str], text: str) -> Record:
    """Parse one line of a table as a record.

    Raises:
        ValueError: If a cell is missing or extra.
    """
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


# Tokens of one request: more is a slip of the pen.
_MOST_TOKENS = 1 << 31
# Requests by which the size of a trace's blocks is told, where it does not say it.
_LOOKED_AT = 200
# What later records refer to: turns and their conversation, blocks and what names them.
Earlier = dict[Any, Any]


class Request(NamedTuple):
    """One prompt as its blocks.

    A number in ``blocks`` names a block and all blocks before it; the last block may be short.

    Attributes:
        seconds: When it came.
        seconds, session: None if not recorded.
    """

    blocks: list[int]
    input_tokens: int
    output_tokens: int
    seconds: float | None
    session: int | None = None


class Trace(NamedTuple):
    """A trace that is open.

    Attributes:
        requests: Can be read once, and are parsed as they are read.
        block_tokens: Of each block but a request's last.
    """

    name: str
    format: str
    block_tokens: int
    requests: Iterator[Request]
    notes: tuple[str, ...] = ()


class Format(NamedTuple):
    """One format of traces.

    Attributes:
        fields: A record that has all of these is of this format.
        block_tokens: The format's own block size; 0 if tokens are recorded, and pages decide.
        read: Turns (record, block size, what earlier records left) into requests.
        note: For the user.
    """

    name: str
    fields: tuple[str, ...]
    block_tokens: int
    read: Callable[[Record, int, Earlier], Iterable[Request]]
    note: str = ""


class LineError(ValueError):
    """A record's field is invalid: its text tells the field, its value and the rule."""


def open_trace(name: str, page_tokens: int, block_tokens: int | None = None) -> Trace:
    """Open ``name`` (``-`` for standard input), and tell its format by its first record.

    Args:
        page_tokens: The launch's page, used as the block size if nothing else says one.
        block_tokens: Given by the user; None to take it from the trace.

    Raises:
        UsageError: Without a record, or for an unknown format; reading the requests does for a bad
            record.
    """
    records = read_records(name)
    first = list(islice(records, _LOOKED_AT))
    if not first:
        raise UsageError(f"--trace {name}: holds no request")
    line, record = first[0]
    form = next((each for each in FORMATS if all(f in record for f in each.fields)), None)
    if form is None:
        known = "; ".join(f"{each.name}: {', '.join(each.fields)}" for each in FORMATS)
        has = ", ".join(sorted(record)[:8]) or "no field"
        raise UsageError(f"--trace {name}, line {line}: has {has}: of no known format ({known})")
    size = block_tokens or _block_tokens(form, [each for _, each in first]) or page_tokens
    requests = _requests(name, form, size, chain(first, records))
    return Trace(name, form.name, size, requests, (form.note,) if form.note else ())


def _requests(
    name: str, form: Format, size: int, records: Iterator[tuple[int, Record]]
) -> Iterator[Request]:
    """Yield the requests of all records.

    Args:
        size: Tokens of a block.

    Raises:
        UsageError: With file and line.
    """
    earlier: Earlier = {}
    where = ""
    try:
        for line, record in records:
            where = f"--trace {name}, line {line}"
            yield from form.read(record, size, earlier)
    except LineError as error:
        raise UsageError(f"{where}: {error}") from None


# ---- fields ----


def _count(record: Record, field: str, least: int) -> int:
    """Return a field as a number of tokens, 0 if missing.

    Raises:
        LineError: For anything but a whole number from ``least`` up.
    """
    value = record.get(field, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST_TOKENS:
        raise LineError(
            f'"{field}": {value!r:.60}: must be a whole number of tokens, {least} to {_MOST_TOKENS}'
        )
    return value


def _seconds(record: Record, per_second: int) -> float | None:
    """Return ``timestamp / per_second``, in seconds; None without one.

    Raises LineError.
    """
    value = record.get("timestamp")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        unit = "seconds" if per_second == 1 else "milliseconds"
        raise LineError(f'"timestamp": {value!r:.60}: must be a number of {unit}')
    return value / per_second


def _list(record: Record, field: str) -> list[Any]:
    value = record.get(field)
    if not isinstance(value, list):
        raise LineError(f'"{field}": {value!r:.60}: must be a list')
    return value


def chained(parts: list[Any], field: str) -> list[int]:
    """Return a number for each part that names the part and all parts before it, the same in every
    run.

    Args:
        field: For messages.

    Raises:
        LineError: If a part is neither a whole number nor a text.
    """
    name, names = 0, []
    for part in parts:
        if type(part) is not int:
            if not isinstance(part, str):
                raise LineError(f'"{field}": {part!r:.60}: must be whole numbers, or texts')
            part = int.from_bytes(
                blake2b(part.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
            )
        # -1 and -2 have the same hash.
        name = hash((name, part) if part >= 0 else (name, ~part, 1))
        names.append(name)
    return names


# ---- formats ----


def _block_tokens(form: Format, records: list[Record]) -> int:
    """Return the tokens of a block: as the records say, else the format's own if the lengths allow
    it, else the most that they allow.

    Returns:
        0 if tokens are recorded.
    """
    named = [size for each in records if isinstance(size := each.get("block_size"), int)]
    if named and 0 < named[0] <= _MOST_TOKENS:
        return named[0]
    lengths = [
        (length, len(hashes))
        for each in records
        if isinstance(hashes := each.get("hash_ids"), list)
        and isinstance(length := each.get("input_length"), int)
    ]
    for size in (form.block_tokens, *(1 << bit for bit in range(16, -1, -1) if lengths)):
        if all(_fits(length, count, size) for length, count in lengths):
            return size
    return form.block_tokens


def _fits(length: int, count: int, size: int) -> bool:
    """Return whether ``count`` blocks make a prompt, with or without a last one that is short."""
    return count in (length // size, -(-length // size))


def _hashed(record: Record, size: int, earlier: Earlier) -> Iterable[Request]:
    """Read a record of the Mooncake or Qwen-Bailian format, which names its blocks by ``hash_ids``,
    as one request.

    A turn has the session of its parent in ``earlier``. Raises LineError.
    """
    length = _count(record, "input_length", 1)
    hashes = _list(record, "hash_ids")
    unit = record.get("block_size")
    if unit is not None and unit != size:
        raise LineError(f'"block_size": {unit!r:.60}: must be {size}, as in the lines before')
    if not _fits(length, len(hashes), size):
        raise LineError(
            f'"hash_ids" are {len(hashes)}: "input_length" {length} is {-(-length // size)} blocks '
            f"of {size} tokens (--trace-block-tokens says another size)"
        )
    blocks = chained(hashes, "hash_ids")
    output = _count(record, "output_length", 0)
    if "chat_id" not in record:
        return (Request(blocks, length, output, _seconds(record, 1000), _session(record)),)
    turn, before = record["chat_id"], record.get("parent_chat_id", -1)
    if not isinstance(turn, int) or not isinstance(before, int):
        raise LineError(f'"chat_id": {turn!r:.60}: must be a number, and "parent_chat_id" too')
    earlier[turn] = session = earlier.get(before, turn)
    return (Request(blocks, length, output, _seconds(record, 1), session),)


def _session(record: Record) -> int | None:
    session = record.get("session")
    return None if session is None else chained([session], "session")[0]


def _tokens(record: Record, size: int, earlier: Earlier) -> Iterable[Request]:
    """Read token ids as one request, in pages of ``size`` tokens.

    Raises LineError.
    """
    field = next((name for name in _TOKEN_FIELDS if name in record), _TOKEN_FIELDS[0])
    tokens = _list(record, field)
    wrong = next((each for each in tokens if type(each) is not int), None if tokens else tokens)
    if wrong is not None:
        raise LineError(f'"{field}": {wrong!r:.60}: must be the whole numbers of one prompt')
    pages = [hash(tuple(tokens[at - size : at])) for at in range(size, len(tokens) + 1, size)]
    output = _count(record, "output_length", 0)
    seconds = _seconds(record, 1000)
    return (Request(chained(pages, field), len(tokens), output, seconds, _session(record)),)


def _logged_json(record: Record, size: int, earlier: Earlier) -> Iterable[Request]:
    """Read a record of SGLang's --log-requests-format json as one request; an event other than
    "request.received" gives none.

    Raises LineError.

    Args:
        size: Tokens of a page.
    """
    if record.get("event") != "request.received":
        return ()
    obj, came = record.get("obj"), record.get("timestamp")
    if not isinstance(obj, dict):
        raise LineError(f'"obj": {obj!r:.60}: must be an object')
    try:
        milliseconds = datetime.fromisoformat(came).timestamp() * 1000 if came else None
    except (TypeError, ValueError):
        raise LineError(f'"timestamp": {came!r:.60}: must be a time, as 2026-01-31T10:00') from None
    if isinstance(obj.get("input_ids"), list):
        return _tokens({"input_ids": obj["input_ids"], "timestamp": milliseconds}, size, earlier)
    text = obj.get("text")
    if not isinstance(text, str):
        raise LineError(
            '"obj": has neither "input_ids" nor "text": log with --log-requests-level 3'
        )
    seconds = None if milliseconds is None else milliseconds / 1000
    return (_text_request(text, size, 0, None)._replace(seconds=seconds),)


def _speaker_and_text(turn: Any, field: str) -> tuple[str, str]:
    """Return a turn's speaker and text.

    Raises LineError.

    Args:
        field: Of the turns, for messages.
    """
    if isinstance(turn, dict):
        who, what = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if isinstance(who, str) and isinstance(what, str):
            return who, what
    raise LineError(
        f'"{field}": {turn!r:.60}: must be turns, as {{"from": "human", "value": "..."}} or '
        '{"role": "user", "content": "..."}'
    )


def _conversation(record: Record, size: int, earlier: Earlier) -> Iterable[Request]:
    """Read a conversation: one request for each answer, whose prompt is all text before.

    Without answers it gives one request with all text; without text, none. Raises LineError.
    """
    field = "conversations" if "conversations" in record else "messages"
    turns = [_speaker_and_text(turn, field) for turn in _list(record, field)]
    earlier["talks"] = session = earlier.get("talks", 0) + 1
    before, requests = "", []
    for who, what in turns:
        if who in ("gpt", "assistant", "chatgpt", "bing", "bard") and before:
            requests.append(_text_request(before, size, len(what), session))
        before += f"\n{who}: {what}"
    if not requests and before:
        requests.append(_text_request(before, size, 0, session))
    return requests


def _text_request(text: str, size: int, answer: int, session: int | None) -> Request:
    """Return the request of a prompt's text, cut into pages by its letters.

    Args:
        answer: In letters.
    """
    wide = size * LETTERS_PER_TOKEN
    pages = [text[at - wide : at] for at in range(wide, len(text) + 1, wide)]
    length = max(1, len(text) // LETTERS_PER_TOKEN)
    return Request(chained(pages, ""), length, answer // LETTERS_PER_TOKEN, None, session)


def _event(record: Record, size: int, earlier: Earlier) -> Iterable[Request]:
    """Read a KV event of vLLM or SGLang as one request: the stored blocks, behind their parents in
    ``earlier``.

    An event that stores no block gives no request. Raises LineError.
    """
    if record.get("type") != "BlockStored":
        return ()
    unit, at = record.get("block_size"), record.get("parent_block_hash")
    if unit != size:
        raise LineError(f'"block_size": {unit!r:.60}: must be {size}, as in the events before')
    hashes = _list(record, "block_hashes")
    # For their checks: an event's hashes are chained already.
    names = chained(hashes, "block_hashes")
    chained([] if at is None else [at], "parent_block_hash")
    for each in hashes:
        earlier.setdefault(each, at)
        at = each
    path: dict[Any, None] = {}
    while at is not None:
        if at in path:
            raise LineError(f'"block_hashes": {at!r:.60}: comes before itself')
        path[at] = None
        at = earlier.get(at)
    if not names:
        return ()
    blocks = chained([*path][::-1], "block_hashes")
    return (Request(blocks, len(blocks) * size, 0, _seconds(record, 1)),)


# English text comes to about four letters a token with the tokenizers of today.
LETTERS_PER_TOKEN = 4
_TOKEN_FIELDS = ("token_ids", "prompt_token_ids", "input_ids")
_NO_TOKENIZER = f"no tokenizer: {LETTERS_PER_TOKEN} letters are taken for a token"
_NO_TOKENIZER += "; conversations follow each other, as no time is recorded"
_ALL_FOUND = "KV events name what was stored: a request that found all of its blocks left none"
FORMATS = (
    Format("Qwen-Bailian", ("hash_ids", "input_length", "chat_id"), 16, _hashed),
    Format("Mooncake", ("hash_ids", "input_length"), 512, _hashed),
    Format("KV events", ("type", "block_hashes"), 16, _event, _ALL_FOUND),
    *(Format("token ids", (field,), 0, _tokens) for field in _TOKEN_FIELDS),
    Format("SGLang's request log", ("event", "obj"), 0, _logged_json),
    *(
        Format("conversations", (field,), 0, _conversation, _NO_TOKENIZER)
        for field in ("conversations", "messages")
    ),
)
