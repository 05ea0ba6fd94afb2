"""Traces that are made, not recorded: four kinds of traffic.

The kinds are rounded from what their users describe, not copied from any trace: they stand in
where nothing was recorded yet, and say so. The same seed makes the same trace.
"""

import json
import random
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, islice
from math import log
from typing import Any, NamedTuple

from preflight.base.program import data_file
from preflight.traces.formats import Request, Trace, chained


class Lengths(NamedTuple):
    """Tokens of a log-normal distribution: half are below ``median``. spread: of its logarithm."""

    median: int
    spread: float = 0.0

    def draw(self, rng: random.Random) -> int:
        if not self.spread:
            return self.median
        return max(1, int(rng.lognormvariate(log(self.median), self.spread)))


class Profile(NamedTuple):
    """One kind of traffic.

    shared: tokens that all prompts begin with. documents: how many there are for a conversation to
    begin with, the n-th asked for 1/n as often as the first (0: it has one of its own), document:
    tokens of each, chosen: how many a question takes, anew each time. turns: mean questions of a
    conversation. pause_seconds: mean from an answer to the next question. per_second: conversations
    that begin.
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


def _profile(row: dict[str, Any]) -> Profile:
    """Return a row as a profile: a list is the median and the spread of lengths."""
    lengths = {name: Lengths(*value) for name, value in row.items() if isinstance(value, list)}
    return Profile(**row | lengths)


with open(data_file("workloads.json"), encoding="utf-8") as _file:
    PROFILES = {name: _profile(row) for name, row in json.load(_file).items()}


class _Talk:
    """A prompt that grows, as names of its pages."""

    def __init__(self, page: int) -> None:
        self._page, self.tokens, self._parts = page, 0, [0]
        self.blocks: list[int] = []

    def add(self, part: int, tokens: int) -> None:
        """Add ``tokens`` to the text: the same part in the same place is the same text."""
        self.tokens += tokens
        self._parts.append(hash((part, self._parts[-1], tokens)))
        while len(self.blocks) < self.tokens // self._page:
            at = self.blocks[-1] if self.blocks else 0
            self.blocks += chained([hash((at, self._parts[-1], len(self.blocks)))], "")

    def request(self, output: int, seconds: float, session: int) -> Request:
        return Request(self.blocks[:], max(1, self.tokens), output, seconds, session)


def profile_trace(name: str, page_tokens: int, requests: int, seed: int) -> Trace:
    """Return a trace of one of ``PROFILES``, in the order of time."""
    profile = PROFILES[name]
    note = f"made, not recorded: {profile.about} (seed {seed})"
    every = islice(_profile_requests(profile, page_tokens, seed), requests)
    return Trace(name, "generated", page_tokens, every, (note,))


def _profile_requests(profile: Profile, page: int, seed: int) -> Iterator[Request]:
    """Yield the profile's requests in the order of time, without end. page: tokens of a page."""
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
        own = 2 * number + 1  # even numbers are parts that all share
        talk.add(own, profile.question.draw(rng))
        answer = profile.answer.draw(rng)
        yield talk.request(answer, now, number)
        if left > 1:
            talk.add(own, answer)
            later = now + rng.expovariate(1 / profile.pause_seconds)
            heappush(waiting, (later, number, talk, left - 1))
