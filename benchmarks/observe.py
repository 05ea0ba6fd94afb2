"""What ``mooncake-preflight observe`` costs the process that it looks at.

A process with some memory and many mappings runs a loop and counts its turns: one that only writes
to memory, one that maps and unmaps, which waits while the kernel lists mappings. Prints the ratio
of its rate while it is looked at, one look after the other, to its rate while the other processor
computes something else: what the reading itself costs it; and what follows for ``--watch 30``. The
rates of the best of many short windows are compared, in which
nobody else took the processor.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from preflight.cli.observe import observe_host
from preflight.command_inputs.launch_words import LaunchWords

ROUNDS, WINDOW_SECONDS = 30, 0.25
MAPPINGS, TOUCHED_BYTES = 2000, 256 << 20
LOOP = """
import mmap, sys, time
kind, mappings, touched = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
# Neighbours of other rights are not merged.
kept = [mmap.mmap(-1, 4096, flags=private, prot=1 + number % 2) for number in range(mappings)]
memory = mmap.mmap(-1, touched, flags=private)
for place in range(0, touched, 4096):
    memory[place] = 1
turns, end = 0, time.monotonic() + 0.01
while True:
    for _ in range(200):
        if kind == "maps":
            mmap.mmap(-1, 1 << 16, flags=private).close()
        else:
            memory[turns * 4096 % touched] = 1
        turns += 1
    if time.monotonic() > end:
        print(turns, flush=True)
        turns, end = 0, time.monotonic() + 0.01
"""


def main() -> int:
    processors = sorted(os.sched_getaffinity(0))
    own, other = processors[0], processors[-1]
    for kind in ("writes", "maps"):
        words = ["mooncake_client", "-c", LOOP, kind, str(MAPPINGS), str(TOUCHED_BYTES)]
        with subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE) as process:
            os.sched_setaffinity(process.pid, {other})
            os.sched_setaffinity(0, {own})
            assert process.stdout is not None
            process.stdout.readline()
            os.set_blocking(process.stdout.fileno(), False)
            rates: dict[str, list[float]] = {"computing": [], "looking": []}
            looks = 0
            for _ in range(ROUNDS):
                for how, found in rates.items():
                    process.stdout.read()
                    start = time.monotonic()
                    end = time.monotonic() + WINDOW_SECONDS
                    while time.monotonic() < end:
                        if how == "looking":
                            observe_host((process.pid,), LaunchWords())
                            looks += 1
                        else:
                            sum(range(10000))
                    turns = sum(map(int, (process.stdout.read() or b"0").split()))
                    found.append(turns / (time.monotonic() - start))
            process.kill()
        best = {how: statistics.quantiles(found, n=10)[-1] for how, found in rates.items()}
        ratio, looks_a_second = best["looking"] / best["computing"], looks / ROUNDS / WINDOW_SECONDS
        print(f"{kind}: {ratio:.3f} of its rate, at {looks_a_second:.0f} looks a second")
        print(f"  at one look in 30 s: {1 - (1 - ratio) / looks_a_second / 30:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
