"""The rates of ``measure --only transfer`` beside the wheel's own benchmark.

All in one run, over TCP to another process of this host, one object at a time: a ratio of 1 means
that measuring costs nothing. ``transfer_engine_bench`` is the wheel's, with one thread and batches
of one: it takes one block again and again, which a processor's cache holds if the block is small.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.real.conftest import install_release
from tests.real.measures import bench_rate, bench_target, measure, rates_of

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 64 * MIB)
ROUNDS = 2


def main() -> None:
    wheel = install_release("0.3.13.post1")
    print(f"transfer engine {wheel.version} over TCP, GB/s, and measure's ratio to the benchmark")
    print("op    MiB  measure  bench  ratio")
    steps = [(op, size) for op in ("write", "read") for size in SIZES]
    rows: dict[tuple[str, int], list[tuple[float, float]]] = {step: [] for step in steps}
    for _ in range(ROUNDS):
        _, answer = measure(wheel, "--only", "transfer", "--budget", "12s")
        ours = rates_of(answer, "transfer")
        with (
            tempfile.TemporaryDirectory() as folder,
            bench_target(wheel, Path(folder)) as target,
        ):  # an engine beside those that are measured takes time
            for step in steps:
                rows[step].append((ours[step], bench_rate(wheel, target, *step)))
    for (op, size), pairs in rows.items():
        own, theirs = (median(column) / 1e9 for column in zip(*pairs, strict=True))
        print(f"{op:<5} {size // MIB:>3} {own:>8.2f} {theirs:>6.2f} {own / theirs:>6.2f}")


if __name__ == "__main__":
    main()
