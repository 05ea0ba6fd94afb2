"""What a trace is like, and writing one without its text; and traces that are made: four kinds of
traffic, which stand in where nothing was recorded yet, and say so.
"""

import json
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count, islice, pairwise
from math import log
from typing import Any, NamedTuple

from preflight.base.plain_data import fields, plain
from preflight.base.program import data_file
from preflight.base.text import filled, fitted_table
from preflight.cache_sizing.traces.curve import Curve, CurveCounter
from preflight.cache_sizing.traces.formats import Request, Trace, chained

# Parts of the trace that are looked at by themselves.
WINDOWS = 10
# Requests between two words to who watches.
TOLD_EVERY = 2000
# Lengths are counted to 2%: a tail of any length takes some hundred numbers.
_STEP = 1.02


class Spread(NamedTuple):
    """How a length in tokens is spread: about half are up to ``median``, 95% up to ``p95``.

    Attributes:
        most: The longest.
    """

    mean: float
    median: int
    p95: int
    most: int


class Window(NamedTuple):
    """A part of the trace, its requests in order.

    Attributes:
        accesses: Blocks of its requests.
        new: Blocks that no request before had.
    """

    requests: int
    accesses: int
    new: int


class TraceDescription(NamedTuple):
    """What a trace is like.

    Attributes:
        input, output: Lengths of prompts and answers.
        span_seconds: None if no time is recorded.
        conversations: None if none is named.
        windows: Ten to twenty parts with as many requests each, and the rest; fewer for a trace of
            few requests, () if only a sample of the blocks was followed.
    """

    trace: Trace
    requests: int
    input: Spread
    output: Spread
    span_seconds: float | None
    conversations: int | None
    curve: Curve
    windows: tuple[Window, ...]


class _LengthCounter:
    """Counts lengths in tokens, in steps of 2%: any number of lengths takes little memory."""

    def __init__(self) -> None:
        self._steps, self._counts, self._sum, self._most = [0.0], [0], 0, 0

    def add(self, tokens: int) -> None:
        self._sum, self._most = self._sum + tokens, max(self._most, tokens)
        while self._steps[-1] < tokens:
            self._steps.append(max(self._steps[-1] + 1, self._steps[-1] * _STEP))
            self._counts.append(0)
        self._counts[bisect_left(self._steps, tokens)] += 1

    def spread(self) -> Spread:
        total = sum(self._counts)
        return Spread(self._sum / max(1, total), self._at(0.5), self._at(0.95), self._most)

    def _at(self, part: float) -> int:
        """Return the length (within 2%) that a ``part`` (0 to 1) of all lengths does not exceed."""
        wanted, seen = part * sum(self._counts), 0
        for step, number in zip(self._steps, self._counts, strict=True):
            seen += number
            if seen >= wanted:
                return min(self._most, int(step))
        return self._most


def describe_trace(trace: Trace, tell: Callable[[str], None]) -> TraceDescription:
    """Read the whole trace, once, and describe it.

    Args:
        tell: Called with a line of progress.

    Raises:
        UsageError: For a bad record.
    """
    counter = CurveCounter()
    inputs, outputs = _LengthCounter(), _LengthCounter()
    sessions: set[int] = set()
    # Blocks and distinct blocks up to the end of each part, which is ``size`` requests.
    marks, size = [(0, 0)], 1
    times: list[float] = []
    requests = 0
    for requests, request in enumerate(trace.requests, 1):
        inputs.add(request.input_tokens)
        outputs.add(request.output_tokens)
        if request.session is not None:
            sessions.add(request.session)
        if request.seconds is not None:
            times[1:] = [request.seconds]
        counter.take(request.blocks)
        if requests % size == 0:
            marks.append((counter.accesses, counter.distinct or 0))
            if len(marks) > 2 * WINDOWS:
                marks, size = marks[::2], 2 * size
        if requests % TOLD_EVERY == 0:
            tell(f"{trace.name}: {requests:,} requests")
    pairs = pairwise(marks)
    windows = [Window(size, seen - before, new - known) for (before, known), (seen, new) in pairs]
    accesses, known = marks[-1]
    if counter.distinct is None:
        windows = []
    elif rest := requests - size * len(windows):
        windows.append(Window(rest, counter.accesses - accesses, counter.distinct - known))
    span = times[-1] - times[0] if len(times) > 1 else None
    talks = len(sessions) or None
    spreads = inputs.spread(), outputs.spread()
    return TraceDescription(trace, requests, *spreads, span, talks, counter.curve(), tuple(windows))


def mooncake_lines(trace: Trace, salt: bytes) -> Iterator[str]:
    """Yield each request as a JSON line of Mooncake's format.

    Blocks and sessions are hashed with ``salt``; if ``salt`` is secret, their names cannot be
    guessed.
    """
    for request in trace.requests:
        record: dict[str, Any] = {
            "timestamp": None if request.seconds is None else round(request.seconds * 1000),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "block_size": trace.block_tokens,
            "hash_ids": [salted(block, salt) for block in request.blocks],
            "session": None if request.session is None else salted(request.session, salt),
        }
        yield json.dumps({name: value for name, value in record.items() if value is not None})


def salted(name: int, salt: bytes) -> int:
    """Return a salted hash of ``name`` in 53 bits: larger numbers break in some readers of JSON."""
    size = max(8, name.bit_length() // 8 + 1)
    digest = blake2b(name.to_bytes(size, "big", signed=True), digest_size=7, key=salt).digest()
    return int.from_bytes(digest, "big") >> 3


def description_text(about: TraceDescription, width: int) -> str:
    """Return the description as text, without a final newline."""
    curve, block = about.curve, about.trace.block_tokens
    lines = [f"{about.trace.name} ({about.trace.format}): {about.requests:,} requests"]
    if about.span_seconds:
        rate = about.requests / about.span_seconds
        lines[0] += f" over {about.span_seconds:,.0f} s, {rate:,.2f} a second"
    if about.conversations is not None:
        asked = about.requests / about.conversations
        lines.append(f"{about.conversations:,} conversations, {asked:.1f} requests each")
    distinct = "" if curve.distinct is None else f", {curve.distinct:,} of them distinct"
    lines.append(f"{curve.accesses:,} blocks of {block} tokens{distinct}")
    lines.append(
        f"{100 * curve.ceiling:.1f}% of all blocks were seen before; the least cache that answers "
        f"so many holds {(curve.size_for(curve.ceiling) or 0) * block:,} tokens, for half of them "
        f"{(curve.size_for(curve.ceiling / 2) or 0) * block:,}"
    )
    lines += [f"note: {note}" for note in about.trace.notes]
    lengths = [
        [name, *(f"{round(number):,}" for number in each)]
        for name, each in (("prompt", about.input), ("answer", about.output))
    ]
    parts = ["\n".join(filled(line, width) for line in lines)]
    heads = ["tokens of a", "mean", "median", "95% below", "most"]
    parts.append(fitted_table(lengths, heads, width, right=range(1, 5)))
    rows, upto, known = [], 0, 0
    for part in about.windows:
        upto, known = upto + part.requests, known + part.new
        again = f"{100 * (1 - part.new / part.accesses if part.accesses else 0.0):.1f}%"
        rows.append([f"{upto:,}", f"{part.accesses:,}", again, f"{known * block:,}"])
    if rows:
        heads = ["requests", "blocks", "seen before", "distinct tokens so far"]
        parts.append(fitted_table(rows, heads, width, right=range(4)))
    return "\n\n".join(parts)


def description_object(about: TraceDescription) -> dict[str, Any]:
    """Return the description as the JSON object of ``schemas/trace-v1.schema.json``."""
    return {
        **fields(about.trace, "name", "format", "block_tokens"),
        **fields(about, "requests", "input", "output", "span_seconds", "conversations"),
        **fields(about.curve, "accesses", "distinct", "ceiling", "sampled"),
        "windows": plain(about.windows),
        "notes": list(about.trace.notes),
    }


class Lengths(NamedTuple):
    """Log-normal lengths in tokens: half are below ``median``.

    Attributes:
        spread: The standard deviation of the logarithm; 0 if all are the same.
    """

    median: int
    spread: float = 0.0

    def draw(self, rng: random.Random) -> int:
        if not self.spread:
            return self.median
        return max(1, int(rng.lognormvariate(log(self.median), self.spread)))


class Profile(NamedTuple):
    """One kind of generated traffic.

    Attributes:
        shared: Tokens that all prompts begin with.
        turns: Mean number of questions in a conversation.
        question, answer: Lengths of each.
        pause_seconds: Mean time from a question to the next.
        per_second: Conversations that begin.
        documents: How many exist; the n-th is chosen about 1/n as often as the first.
        document: Length of each.
        chosen: How many a conversation begins with.
    """

    about: str
    shared: int
    turns: float
    question: Lengths
    answer: Lengths
    pause_seconds: float
    per_second: float
    document: Lengths = Lengths(0)
    documents: int = 0
    chosen: int = 0


@cache
def profiles() -> dict[str, Profile]:
    """Return the kinds of generated traffic by name, from ``workloads.json``."""
    with open(data_file("workloads.json", "cache_sizing/traces"), encoding="utf-8") as file:
        rows: dict[str, dict[str, Any]] = json.load(file)
    for row in rows.values():
        row |= {key: Lengths(*each) for key, each in row.items() if isinstance(each, list)}
    return {name: Profile(**row) for name, row in rows.items()}


class _Talk:
    """The text of a conversation so far, as blocks: each names a page and all pages before it."""

    def __init__(self, page: int) -> None:
        self._page, self.tokens, self._parts = page, 0, [0]
        self.blocks: list[int] = []

    def add(self, part: int, tokens: int) -> None:
        """Add ``tokens`` of text ``part``: the same part in the same place has the same blocks."""
        self.tokens += tokens
        self._parts.append(hash((part, self._parts[-1], tokens)))
        while len(self.blocks) < self.tokens // self._page:
            at = self.blocks[-1] if self.blocks else 0
            self.blocks += chained([hash((at, self._parts[-1], len(self.blocks)))], "")

    def request(self, output: int, seconds: float, session: int) -> Request:
        return Request(self.blocks[:], max(1, self.tokens), output, seconds, session)


def profile_trace(name: str, page_tokens: int, requests: int, seed: int) -> Trace:
    """Return a trace made by ``profiles()[name]``, not recorded: the same for the same seed."""
    profile = profiles()[name]
    note = f"made, not recorded: {profile.about} (seed {seed})"
    every = islice(_profile_requests(profile, page_tokens, seed), requests)
    return Trace(name, "generated", page_tokens, every, (note,))


def _profile_requests(profile: Profile, page: int, seed: int) -> Iterator[Request]:
    """Yield the profile's requests in the order of time, without end.

    Args:
        page: Tokens of a page.
    """
    rng = random.Random(seed)
    # (when, number of the conversation, its prompt so far, questions to come)
    waiting: list[tuple[float, int, _Talk, int]] = []
    begun, numbers = 0.0, count(1)
    sizes = [profile.document.draw(rng) for _ in range(profile.documents)]
    while True:
        while not waiting or begun <= waiting[0][0]:
            talk = _Talk(page)
            talk.add(0, profile.shared)
            left = 1 + (int(rng.expovariate(1 / (profile.turns - 0.5))) if profile.turns > 1 else 0)
            number = next(numbers)
            for _ in range(profile.chosen):
                # The n-th document with a chance of about 1/n.
                document = min(len(sizes), int(len(sizes) ** rng.random())) - 1
                talk.add(2 * document + 2, sizes[document])
            heappush(waiting, (begun, number, talk, left))
            begun += rng.expovariate(profile.per_second)
        now, number, talk, left = heappop(waiting)
        of_talk = 2 * number + 1  # even numbers are parts that all share
        talk.add(of_talk, profile.question.draw(rng))
        answer = profile.answer.draw(rng)
        yield talk.request(answer, now, number)
        if left > 1:
            talk.add(of_talk, answer)
            later = now + rng.expovariate(1 / profile.pause_seconds)
            heappush(waiting, (later, number, talk, left - 1))
