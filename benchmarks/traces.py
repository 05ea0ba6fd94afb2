"""How fast the exact curve is counted, in block accesses a second of one core.

Takes a trace's file, or makes one of bench_multiturn's kind. Where libcachesim is installed, the
ratio to its replay of ten sizes is printed too, both in one run. Times are the processor's.

A number in place of a file, as 1e9, is one of accesses: the curve of a sample, and its memory.
"""

from __future__ import annotations

import gc
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from preflight.cache_sizing.traces.curve import CurveCounter, optimum
from preflight.cache_sizing.traces.formats import chained, open_trace

SIZES = [500, 1000, 2000, 4000, 8000, 12_000, 16_000, 32_000, 64_000, 128_000]
ROUNDS = 5


def made(clients: int = 1000, rounds: int = 24) -> list[list[int]]:
    """Clients in turn, each with one block more of a conversation of its own."""
    talks = [chained([client, *range(rounds)], "") for client in range(clients)]
    return [talk[: turn + 2] for turn in range(rounds) for talk in talks]


def growing(accesses: float) -> Iterator[list[int]]:
    """Conversations that grow, each time a request with all before it; some end, others begin."""
    rng, asked, name = random.Random(0), 0, 0
    talks: list[list[int]] = [[] for _ in range(4000)]
    while asked < accesses:
        at = rng.randrange(len(talks))
        if rng.random() < 0.03:
            talks[at] = []
        talk = talks[at]
        for _ in range(rng.randint(20, 60)):
            name = hash((name, 0))
            talk.append(name)
        asked += len(talk)
        yield talk


def sampled(accesses: float) -> None:
    start, counter = time.process_time(), CurveCounter()
    for blocks in growing(accesses):
        counter.take(blocks)
    curve, seconds = counter.curve(), time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{curve.accesses:,} accesses: {seconds:.0f} s, {curve.accesses / seconds:,.0f} accesses/s "
        f"with their making, {peak} MiB at most; one standard error {100 * curve.error:.2f} points"
    )


def counted(requests: list[list[int]]) -> tuple[float, CurveCounter]:
    start = time.process_time()
    counter = CurveCounter()
    for blocks in requests:
        counter.take(blocks)
    counter.curve()
    return time.process_time() - start, counter


def libcachesim_seconds(requests: list[list[int]]) -> float | None:
    """Ten replays of its LRU, which is written in C, from the file that it reads fastest."""
    try:
        library: Any = import_module("libcachesim")
    except ImportError:
        return None
    numbers: dict[int, int] = {}
    with tempfile.NamedTemporaryFile() as file:
        for blocks in requests:
            for block in blocks:
                number = numbers.setdefault(block, len(numbers) + 1)
                file.write(struct.pack("<IQIq", 0, number, 1, -1))
        file.flush()
        start = time.process_time()
        for size in SIZES:
            reader = library.TraceReader(file.name, library.TraceType.ORACLE_GENERAL_TRACE)
            library.LRU(cache_size=size).process_trace(reader)
        return time.process_time() - start


def main() -> None:
    gc.disable()  # as the command does
    named = sys.argv[1:]
    if named and named[0][0].isdigit() and not Path(named[0]).exists():
        sampled(float(named[0]))
        return
    requests = [each.blocks for each in open_trace(named[0], 64).requests] if named else made()
    print(f"{Path(named[0]).name if named else 'clients in turn'}: {len(requests):,} requests")
    seconds, counter = min((counted(requests) for _ in range(ROUNDS)), key=lambda each: each[0])
    rate = counter.accesses / seconds
    print(f"exact curve: {seconds:.3f} s, {rate:,.0f} accesses/s (to stay above 1,000,000)")
    start = time.process_time()
    for size in SIZES:
        optimum(counter.uses or [], size)
    print(f"optimum at ten sizes: {time.process_time() - start:.3f} s")
    other = libcachesim_seconds(requests)
    if other is None:
        print("libcachesim is not installed: no ratio")
    else:
        print(f"libcachesim, ten sizes: {other:.3f} s, {other / seconds:.1f} times as long")


if __name__ == "__main__":
    main()
