"""The rates of ``measure --only transfer`` beside a plain loop and the wheel's own benchmark.

All in one run, over TCP to another process of this host, one object at a time: a ratio of 1 means
that measuring costs nothing. ``transfer_engine_bench`` is the wheel's, with one thread and batches
of one. Machines that are busy move all three.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.real.conftest import Wheel, install_release
from tests.real.measures import measure, plain_rate, plain_server, rates_of

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 64 * MIB)
SECONDS, ROUNDS = 1, 2
_LISTENS = re.compile(rb"listening on 127\.0\.0\.1:(\d+)")
_RATE = re.compile(r"throughput ([\d.]+) GB/s")
_BENCH = (
    "--metadata_server=P2PHANDSHAKE --local_server_name=127.0.0.1 --protocol=tcp "
    "--buffer_size=268435456 --batch_size=1 --threads=1"
).split()


@contextmanager
def bench_target(wheel: Wheel) -> Iterator[str]:
    """Where the benchmark's target listens."""
    command = [wheel.command("transfer_engine_bench"), "--mode=target", *_BENCH]
    with tempfile.TemporaryFile() as log:
        target = subprocess.Popen(command, env=wheel.environment({}), stdout=log, stderr=log)
        try:
            found = None
            while found is None and target.poll() is None:
                time.sleep(0.2)
                log.seek(0)
                found = _LISTENS.search(log.read())
            yield "" if found is None else f"127.0.0.1:{found[1].decode()}"
        finally:
            target.kill()
            target.wait()


def bench_rate(wheel: Wheel, where: str, op: str, size: int) -> float:
    """Bytes a second of the benchmark, 0 where it says none."""
    order = [f"--segment_id={where}", f"--operation={op}", f"--block_size={size}"]
    done = subprocess.run(
        [wheel.command("transfer_engine_bench"), *_BENCH, *order, f"--duration={SECONDS}"],
        env=wheel.environment({}), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    found = _RATE.search(done.stderr + done.stdout)
    return float(found[1]) * 1e9 if found else 0.0


def main() -> None:
    wheel = install_release("0.3.13.post1")
    print(f"transfer engine {wheel.version} over TCP, GB/s, and measure's ratio to each")
    print("op    MiB  measure  plain  bench  to plain  to bench")
    steps = [(op, size) for op in ("write", "read") for size in SIZES]
    rows: dict[tuple[str, int], list[tuple[float, float, float]]] = {step: [] for step in steps}
    for _ in range(ROUNDS):
        words = ("--only", "transfer", "--budget", f"{4 + 8 * SECONDS}s")
        _, answer = measure(wheel, *words)
        ours = rates_of(answer, "transfer")
        with plain_server(wheel) as where:  # an engine beside those that are measured takes time
            plain = {step: plain_rate(wheel, where, *step, SECONDS) for step in steps}
        with bench_target(wheel) as target:
            bench = {step: bench_rate(wheel, target, *step) for step in steps}
        for step in steps:
            rows[step].append((ours[step], plain[step], bench[step]))
    for (op, size), found in rows.items():
        own, loop, theirs = (median(column) / 1e9 for column in zip(*found, strict=True))
        ratio = f"{own / theirs:>9.2f}" if theirs else "        -"
        print(
            f"{op:<5} {size // MIB:>3} {own:>8.2f} {loop:>6.2f} {theirs:>6.2f} "
            f"{own / loop:>9.2f} {ratio}"
        )


if __name__ == "__main__":
    main()
