"""Takes a log apart into the processes that wrote it, and finds the patterns: read once, in blocks.

Each literal of the patterns is looked for in the whole block, and only where one stands is a
regular expression tried on the line around it: what a log does not hold costs next to nothing.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from checks.framework.regex import regex
from checks.host_snapshot.secrets import clean_text
from preflight.server_logs.patterns import Pattern, PatternHit, Stage, read_patterns

# A regular expression is tried on so much of the line before and after its literal.
_BEFORE, _AFTER = 400, 1600
# An excerpt is shown so long, a named value so long; so many names are kept of one pattern.
_LONGEST_EXCERPT, _LONGEST_VALUE, MOST_NAMES = 300, 200, 8
# A secret is known by its name before it, or the host behind it: so much is looked at.
_MOST_CLEANED = 8000
MOST_RANKS = 64
_DIGITS = "0123456789"
_CONTROL = regex(r"[\x00-\x1f\x7f-\x9f]+")


class Search:
    """Searches a process's log, block by block, for patterns and errors that no pattern knows."""

    def __init__(self) -> None:
        """Begin with no line read.

        last: the last line with text. end: the last time in the log.
        """
        self.lines = 0
        self.last = UnknownText("line", "", 0)
        self.end: tuple[float | None, str] = (None, "")
        self._characters = 0
        self._found: dict[str, _Matches] = {}
        self._unknown: OrderedDict[str, UnknownText] = OrderedDict()
        self._first_error: list[UnknownText] = []

    @property
    def hits(self) -> dict[str, PatternHit]:
        return {id_: matches.hit() for id_, matches in self._found.items()}

    @property
    def unknown(self) -> list[UnknownText]:
        """The errors that no pattern knows, in the order in which they were last seen."""
        every = (*self._first_error, *self._unknown.values())
        return [each._replace(text=_excerpt(each.text, 0)) for each in every]

    def add(self, block: str, numbers: Sequence[int] | None = None) -> None:
        """Search a block of whole lines.

        Args:
            numbers: The number of each line in the log; None if the block comes right behind the
                one before.
        """
        # Most words of the patterns are in no block of a log: that is quicker told by its
        # distinct words than by looking for nearly 900 literals in all of it. Digits make most of
        # them distinct, and tell nothing apart.
        vocabulary_words = set(_without_digits(block).split())
        in_vocabulary = cache("\n".join(vocabulary_words).__contains__)
        counted: set[tuple[str, int]] = set()
        known: set[int] = set()
        explained: set[int] = set()

        ends: list[int] = []
        before_block = self.lines

        def line_of(at: int) -> int:
            if not ends:
                lengths = map(len, block.split("\n"))
                ends.extend(accumulate(lengths, lambda end, length: end + length + 1))
            before = bisect_left(ends, at)
            return numbers[before] if numbers is not None else before_block + before + 1

        for group in _all_groups():
            if group.inner <= vocabulary_words and all(map(in_vocabulary, group.outer)):
                self._add_group(group, block, counted, known, explained, line_of)
        for matches in self._found.values():
            matches.number_last_line(self._characters)
        heads = {head for errors in _GLOG_ERRORS for head in errors.findall(block)}
        needles = (*heads, *filter(in_vocabulary, _FAULT_WORDS))
        self._add_unknown(block, needles, known, line_of)
        self._end_of(block, line_of)
        self.lines += block.count("\n")
        self._characters += len(block)

    def _add_group(
        self,
        group: _Group,
        block: str,
        counted: set[tuple[str, int]],
        known: set[int],
        explained: set[int],
        line_of: Callable[[int], int],
    ) -> None:
        """Count the lines of the block that match a pattern of the group.

        Line starts are added to ``known`` for each match, to ``explained`` for patterns with a
        cause; ``counted`` avoids counting a line twice.

        Args:
            line_of: The line number of a position in the block.
        """
        literal = group.literal
        at = block.find(literal)
        while at >= 0:
            start, end = _line_around(block, at)
            text = block[max(start, at - _BEFORE) : min(end, at + _AFTER)]
            # A line is told by one row of the families, and by none where a table knows it.
            patterns = () if group.of_family and start in explained else group.patterns
            for pattern in patterns:
                # A line that holds two of a pattern's literals counts once.
                if (pattern.id, start) in counted:
                    break
                # A slice was made, not positions: ^ and $ mean this line.
                match = _compile(pattern.regex).search(text)
                if match is None:
                    continue
                head = _GLOG_HEAD.search(text, 0, 200) if pattern.process else None
                if head and head[1] == "I" and pattern.stage is not Stage.HARMLESS:
                    continue  # a family is about faults, and this is none
                known.add(start)
                if pattern.cause:
                    explained.add(start)
                if len(pattern.find) > 1:
                    counted.add((pattern.id, start))
                matches = self._found.get(pattern.id)
                if matches is None:
                    matches = self._found[pattern.id] = _Matches(match)
                position = self._characters + at
                if position < matches.first_at:
                    matches.first_at, matches.first = position, match
                    matches.line = line_of(at)
                    matches.excerpt = _excerpt(block[start:end], at - start)
                matches.add(position, match, line_of)
                break
            at = block.find(literal, end)

    def _add_unknown(
        self, block: str, needles: Iterable[str], known: set[int], line_of: Callable[[int], int]
    ) -> None:
        """Collect the lines that hold a needle and look like faults, but match no pattern.

        Args:
            known: Starts of lines that are done with; updated.
            line_of: The line number of a position.
        """
        for needle in needles:
            at = block.find(needle)
            while at >= 0:
                start, end = _line_around(block, at)
                if start not in known:
                    known.add(start)
                    fault = _fault_kind(block[start : min(end, start + _AFTER)])
                    if fault:
                        self._count_unknown(fault, block[start:end], line_of(at))
                at = block.find(needle, max(end, at + 1))

    def _count_unknown(self, fault: str, line: str, number: int) -> None:
        """Count a line that no pattern knows, together with lines that differ only in numbers.

        Keeps the text of the latest line. Of more than ``MOST_UNKNOWN`` kinds of lines, the one
        that was seen longest ago is dropped, but not the first error of all.

        Args:
            fault: As ``_fault_kind``.
        """
        template = _VARYING.sub("", line[:_LONGEST_EXCERPT])
        before = self._unknown.pop(template, None)
        if before is None or number >= before.last_line:
            text = line[:_MOST_CLEANED]  # an excerpt of each would take long
            times, first = (before.times + 1, before.line) if before else (1, number)
            before = UnknownText(fault, text, first, number, times, time_of(line))
        else:
            before = before._replace(times=before.times + 1, line=min(number, before.line))
        self._unknown[template] = before
        if len(self._unknown) > MOST_UNKNOWN:
            _, left_out = self._unknown.popitem(last=False)
            errors = [each for each in (*self._first_error, left_out) if each.fault == "error"]
            self._first_error = sorted(errors, key=lambda each: each.line)[:1]

    def _end_of(self, block: str, line_of: Callable[[int], int]) -> None:
        """Remember the last line with text, and the last time in the block's last 200 lines."""
        end, text = len(block), ""
        for _ in range(_MOST_BACK):
            start = block.rfind("\n", 0, max(end - 1, 0)) + 1
            line = block[start:end].strip()
            if line and not text:
                text = line
                number = line_of(start)
                self.last = UnknownText("line", _excerpt(line, 0), number, number)
            if line and (time := time_of(line))[1]:
                self.end = time
                return
            end = start
            if not start:
                return


class UnknownText(NamedTuple):
    """A line that no pattern knows; of lines that differ in numbers alone, the last.

    Attributes:
        fault: "exception", "error" (glog's E or F, or such a level), or "line" (one that speaks of
            an error).
        line, last_line: Numbers of the first and the last such line.
        time: As ``time_of``.
    """

    fault: str
    text: str
    line: int
    last_line: int = 0
    times: int = 1
    time: tuple[float | None, str] = (None, "")


# So many kinds of unknown lines are kept, the last ones; so far back is a time looked for.
MOST_UNKNOWN, _MOST_BACK = 200, 200
_VARYING = regex(r"0x[0-9a-f]+|\d+|[0-9a-f]{8,}")
# Two, as a fixed letter is looked for much faster than one of two.
_GLOG_ERRORS = [regex(rf"{level}(?:20\d\d)?[01]\d[0-3]\d(?= \d\d:)") for level in "EF"]
_FAULT_WORDS = ("rror", "xception", "ailed", "ailure", "FATAL", "CRITICAL", "RROR")
_GLOG_HEAD = regex(
    r"(?<![\w/])([IWEF])(?:20\d\d)?[01]\d[0-3]\d \d\d:\d\d:\d\d\.\d+ +\d+ ([\w./-]+):\d+\]"
)
_CALM = regex(
    r"\b(?:INFO|DEBUG|WARNING|NOTICE|[A-Z]\w*Warning)\b"
    r"|[\"']?level[\"']?[=:] ?[\"']?(?:info|warn|debug)"
    r"|server_args=|Traceback \(most recent|exception was the direct|handling of the above|HTTP/1"
)
_LOUD = regex(
    r"\b(?:[Ee]rror|ERROR|FATAL|CRITICAL|[Ff]ailed|FAILED|[Ff]ailure|[Ee]xception)(?![\w-])"
    r"(?!s?\w*[\"']?\s*[=:]\s*[\"']?(?:0|None|null|[Ff]alse|\[\]|\{\})(?![\w.]))"
)
_EXCEPTION = regex(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout)(?:: |:?\s*$)")


_VLLM_HEAD = regex(
    r"(?:\([\w-]+ pid=\d+\) )+ERROR \d\d-\d\d \d\d:\d\d:\d\d \[[\w/]+\.py:\d+\] (?=.)"
)
_BRACKETS = regex(r"^\[[^\]]{0,80}\] ")


def is_exception(line: str) -> bool:
    """Return whether a line is the last one of a traceback, whatever stands in brackets before."""
    return _EXCEPTION.match(_BRACKETS.sub("", line)) is not None


def _fault_kind(line: str) -> str:
    """Tell which fault an unknown line shows: "exception", "error" or "line"; "" for no fault."""
    head = _GLOG_HEAD.search(line, 0, 200)
    if head is not None:
        return "error" if head[1] in "EF" else ""
    of_vllm = _VLLM_HEAD.match(line)
    if of_vllm is not None:  # each line of a traceback has it
        return _fault_kind(line[of_vllm.end() :]) or (
            "" if line[of_vllm.end()] in " T" else "error"
        )
    if _EXCEPTION.match(line):
        return "exception"
    if line[:1].isspace() or _CALM.search(line) or not _LOUD.search(line):
        return ""
    return "error" if re.search(r"\b(?:ERROR|FATAL|CRITICAL)\b", line) else "line"


_TIME = regex(
    r"[IWEF](?:20\d\d)?(?P<m>[01]\d)(?P<d>[0-3]\d) (?P<t>\d\d:\d\d:\d\d)\."
    r"|\d{4}-(?P<m2>[01]\d)-(?P<d2>[0-3]\d)[T ](?P<t2>\d\d:\d\d:\d\d)"
    r"|\b(?P<n>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<d3>\d{1,2}) "
    r"(?P<t3>\d\d:\d\d:\d\d)"
)
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def time_of(line: str) -> tuple[float | None, str]:
    """Return the time in the first 120 characters of a line: seconds since New Year (each month has
    31 days), and a text such as ``08-22 10:11:12``.

    (None, "") if the line has no time.
    """
    match = _TIME.search(line, 0, 120)
    if match is None:
        return None, ""
    month = match["m"] or match["m2"] or str(_MONTHS.index(match["n"]) + 1)
    day, clock = match["d"] or match["d2"] or match["d3"], match["t"] or match["t2"] or match["t3"]
    hours, minutes, seconds = clock.split(":")
    days = int(month) * 31 + int(day)
    text = f"{int(month):02}-{int(day):02} {clock}"
    return ((days * 24 + int(hours)) * 60 + int(minutes)) * 60.0 + int(seconds), text


_RANK = regex(r"\b(?:[DPE]P\d+ )*TP\d+(?: [PE]P\d+)*\b")
# Source files of glog whose process is told by their name.
_SPEAKERS = (
    (regex(r"^(?:master_client|client_service)"), "client"),
    (
        regex(
            r"^(?:master|segment|rpc_service|http_metadata_server|redis_leader|etcd_leader|"
            r"hot_standby|k8s_lease|oplog|allocator|tenant|ha_)"
        ),
        "master",
    ),
    (regex(r"^real_client_main"), "mooncake_client"),
)


def speaker_of(line: str, otherwise: str) -> str:
    """Name the process that printed a line.

    A glog line: by its source file, ``client`` for any file that is not known. Other lines: by
    their rank, or ``otherwise`` if they have none.
    """
    head = _GLOG_HEAD.search(line, 0, 300)
    if head is not None:
        file = head[2].rsplit("/", 1)[-1]
        return next((name for names, name in _SPEAKERS if names.match(file)), "client")
    rank = _RANK.search(line, 0, 80)
    return rank[0] if rank is not None else otherwise


class _Matches:
    """All matches of one pattern so far.

    Within a block they may come out of order.
    """

    def __init__(self, match: re.Match[str]) -> None:
        """Begin with no match counted.

        Args:
            match: Any match of the pattern, for its groups.
        """
        self.times = 0
        self.line = self.last_line = 0
        self.excerpt = ""
        self.first_at, self.last_at = sys.maxsize, -1
        self.first = self.last = match
        self.names: dict[str, int] = {}
        self.ranks: set[str] = set()
        self._line_of: Callable[[int], int] | None = None
        self._named = [key for key in match.re.groupindex if key.rstrip(_DIGITS) == "name"]

    def add(self, position: int, match: re.Match[str], line_of: Callable[[int], int]) -> None:
        """Count a match; remember the first, the last, names and ranks.

        Args:
            position: In the log.
        """
        self.times += 1
        if position > self.last_at:
            self.last_at, self.last, self._line_of = position, match, line_of
        if len(self.ranks) < MOST_RANKS and (rank := _RANK.search(match.string, 0, 80)):
            self.ranks.add(rank[0])
        if self._named and len(self.names) < MOST_NAMES:
            name = _groups(match).get("name")
            if name:
                self.names[name] = min(position, self.names.get(name, position))

    def number_last_line(self, block_at: int) -> None:
        """Set the line number of the last match.

        Args:
            block_at: Where the block begins in the log.
        """
        if self._line_of is not None:
            self.last_line = self._line_of(self.last_at - block_at)
            self._line_of = None

    def hit(self) -> PatternHit:
        """Return all matches as one record."""
        first, last = _groups(self.first), _groups(self.last)
        names = tuple(sorted(self.names, key=lambda name: self.names[name]))
        times = time_of(self.first.string), time_of(self.last.string)
        counts = (self.times, self.line, self.excerpt, first, last, names, self.last_line)
        return PatternHit(*counts, *times, self.first.string, tuple(sorted(self.ranks)))


class _Group:
    """The patterns of one literal, and the words by which a block without the literal is skipped.

    inner: the literal's words with a space on both sides, which stand in a block as they are.
    outer: its first and last word, which may be parts of longer words.
    """

    def __init__(self, literal: str, patterns: tuple[Pattern, ...]) -> None:
        """Split the literal into words without digits.

        Args:
            patterns: All of families, or none.
        """
        self.literal = literal
        self.patterns = patterns
        self.of_family = bool(patterns[0].process)
        parts = _without_digits(f"\0{literal}\0").split()
        self.inner = frozenset(parts[1:-1])
        self.outer = {parts[0].strip("\0"), parts[-1].strip("\0")}


def _without_digits(text: str) -> str:
    return text.encode("utf-8", "replace").translate(None, b"0123456789").decode()


@cache
def _all_groups() -> list[_Group]:
    """Group all patterns by the literal that they look for; groups of families are at the end."""
    by_literal: dict[tuple[bool, str], list[Pattern]] = {}
    for pattern in read_patterns():
        for literal in pattern.find:
            by_literal.setdefault((bool(pattern.process), literal), []).append(pattern)
    groups = (_Group(key[1], tuple(of)) for key, of in by_literal.items())
    return sorted(groups, key=lambda group: group.of_family)


@cache
def _compile(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def _line_around(block: str, at: int) -> tuple[int, int]:
    """Return the start and end of the line at ``at``; a carriage return ends a line too."""
    start = block.rfind("\n", 0, at) + 1
    end = block.find("\n", at)
    back = block.rfind("\r", start, at) + 1
    forth = block.find("\r", at, end)
    return max(start, back), end if forth < 0 else forth


def _groups(match: re.Match[str]) -> dict[str, str]:
    """Return the named groups that matched, made fit to print: control characters become spaces,
    long values are cut, a port that is one byte becomes a number, ``name2`` becomes ``name``.
    """
    groups = {}
    for key, value in match.groupdict().items():
        if value is not None:
            # Mooncake up to 0.3.12 prints a port as the byte itself.
            byte = len(value) == 1 and value < " "
            plain = str(ord(value)) if byte else clean_text(_CONTROL.sub(" ", value))
            groups[key.rstrip(_DIGITS)] = plain[:_LONGEST_VALUE].strip()
    return groups


def _excerpt(line: str, at: int) -> str:
    """Return the line without control characters and secrets, shortened to the part around
    position ``at``.
    """
    line = clean_text(line[:_MOST_CLEANED])
    if len(line) > _LONGEST_EXCERPT:
        start = max(0, min(at - 80, len(line) - _LONGEST_EXCERPT))
        line = line[start : start + _LONGEST_EXCERPT]
    return _CONTROL.sub(" ", line).strip()


# Read and searched at once: large enough that searching a block costs little beside its bytes.
BLOCK_BYTES = 1 << 20
# A line longer than this is cut: no line of a log is, binary junk may be.
LONGEST_LINE_BYTES = 4 << 20

# Read of one log at most: a log of days has less, and a stream without an end is left one day.
MOST_LOG_BYTES = 16 << 30

# Colours and cursor movements of a terminal (ECMA-48 CSI), hyperlinks and titles (OSC).
_ESCAPES = regex(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)?)")


class ByteReader(Protocol):
    """What is read from: ``sys.stdin.buffer``, ``open(path, "rb")``."""

    def read(self, size: int, /) -> bytes: ...


class Bounded:
    """A stream that ends after ``most_bytes``; ``cut`` tells that there was more."""

    def __init__(self, stream: ByteReader, most_bytes: int = MOST_LOG_BYTES) -> None:
        self._stream, self._left = stream, most_bytes
        self.cut = False

    def read(self, size: int, /) -> bytes:
        """Read until ``most_bytes`` are read; then return b"", and set ``cut`` if more follows."""
        if self._left:
            chunk = self._stream.read(min(size, self._left))
            self._left -= len(chunk)
            return chunk
        self.cut = self.cut or bool(self._stream.read(1))
        return b""


def why_no_log(handle: int) -> str:
    """Say why an open file is no log: a block device, or another device such as /dev/zero.

    Returns "" for a file, a pipe, a terminal and /dev/null. Raises OSError.
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


# What a file of these begins with is packed, and what unpacks it.
_PACKED = {b"\x1f\x8b": "zcat", b"\xfd7zXZ": "xzcat"}
_PACKED |= {b"\x28\xb5\x2f\xfd": "zstdcat", b"BZh": "bzcat"}
# Share of a text's beginning that can be no text: a program has a third or more, a log a few
# wrong bytes. NUL is not counted: logrotate's copytruncate leaves a hole before the lines.
_MOST_WRONG_SHARE = 0.1
_WRONG = regex(r"[\x01-\x07\x0e-\x1a\x1c-\x1f\ufffd]")


def why_no_text(path: str, beginning: bytes) -> str:
    """Say why a file with this beginning is no log, and what to do; "" for a text."""
    for mark, unpack in _PACKED.items():
        if beginning.startswith(mark):
            return f"packed: {unpack} {path} | mooncake-preflight explain"
    text = beginning.replace(b"\0", b"").decode("utf-8", "replace")
    wrong = len(_WRONG.findall(text))
    return "a binary file, and no log" if wrong > _MOST_WRONG_SHARE * len(text) else ""


def read_blocks(stream: ByteReader) -> Iterator[str]:
    """Yield the text of a stream in blocks of whole lines; only a very long line is cut.

    Bytes that are no UTF-8 are replaced, NUL bytes left out.
    """
    rest = b""
    while chunk := stream.read(BLOCK_BYTES):
        # A log that was cut while it was written to begins with a hole, which has no end to a line.
        chunk = rest + chunk.translate(None, b"\0")
        end = chunk.rfind(b"\n") + 1
        if not end and len(chunk) >= LONGEST_LINE_BYTES:
            end = len(chunk)
        rest = chunk[end:]
        if end:
            yield chunk[:end].decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def blocks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines, or blocks of lines, into blocks of about 1 MiB; terminal escapes are removed."""
    waiting: list[str] = []
    size = 0
    for line in lines:
        waiting.append(line if line.endswith("\n") else line + "\n")
        size += len(line)
        if size >= BLOCK_BYTES:
            yield _without_escapes("".join(waiting))
            waiting, size = [], 0
    if waiting:
        yield _without_escapes("".join(waiting))


def _without_escapes(block: str) -> str:
    return _ESCAPES.sub("", block) if "\x1b" in block else block


# kubectl logs --prefix; docker compose logs; a line of a container's file below /var/log/pods.
_PREFIXES = (
    regex(r"\[pod/(?P<name>[^\]\s]{1,200})\] "),
    regex(r"(?P<name>[A-Za-z0-9][\w.-]{0,80}?) *\| "),
    regex(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] "),
)
# Lines of a block that are looked at, and the share of them that has a prefix where it is one.
_LOOKED_AT, _LEAST_SHARE = 40, 0.6
# The names of a process in journalctl -o json and in Docker's files, the best first.
_NAMES = ("CONTAINER_NAME", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER")
MOST_PROCESSES = 200
OTHERS = "others"

# The text of one process, and the number of each of its lines.
Part = tuple[str, str, "list[int] | None"]


def parts(blocks: Iterable[str]) -> Iterator[Part]:
    """Yield (process, text, line numbers) for each process in each block, by its lines' prefix.

    The prefix is cut off; a line without prefix is of the process before. Processes beyond 200 are
    named ``OTHERS``. A block without prefixes is yielded whole, with process "" and None.
    """
    names: set[str] = set()
    line = 1
    for block in blocks:
        prefix = _prefix(block)
        if prefix is None:
            yield "", block, None
            line += block.count("\n")
            continue
        texts: defaultdict[str, list[str]] = defaultdict(list)
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        name = ""
        for number, text in enumerate(block.split("\n")[:-1], line):
            if prefix == "json":
                named, text = _message(text, name)
            else:
                match = prefix.match(text)
                named = match.groupdict().get("name", "") if match else name
                text = text[match.end() :] if match else text
            name = named if named in names or len(names) < MOST_PROCESSES else OTHERS
            names.add(name)
            for each in text.split("\n"):
                texts[name].append(each)
                numbers[name].append(number)
        for name, own_lines in texts.items():
            yield name, "\n".join(own_lines) + "\n", numbers[name]
        line += block.count("\n")


def _prefix(block: str) -> Any:
    """Return the prefix of most lines in a block: an expression or "json"; None if they have
    none.
    """
    lines = [line for line in block[:20_000].split("\n")[:_LOOKED_AT] if line.strip()]
    least = _LEAST_SHARE * len(lines)
    for prefix in _PREFIXES:
        if lines and sum(prefix.match(line) is not None for line in lines) >= least:
            return prefix
    json_lines = sum(line[:1] == "{" and ('"MESSAGE"' in line or '"log"' in line) for line in lines)
    return "json" if lines and json_lines >= least else None


def _message(text: str, name: str) -> tuple[str, str]:
    """Return the process and the message of one JSON line of a journal or of Docker; process "" if
    the line names none.

    A text that is no JSON object is returned unchanged, with ``name``.
    """
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return name, text
    if not isinstance(row, Mapping):
        return name, text
    message = row.get("MESSAGE", row.get("log", text))
    if isinstance(message, list):  # bytes that are no UTF-8
        message = bytes(each for each in message if isinstance(each, int) and 0 <= each < 256)
        message = message.decode("utf-8", "replace")
    return next((str(row[key]) for key in _NAMES if row.get(key)), ""), str(message).rstrip("\n")
