"""The rates of ``measure`` beside others', each two in turn in one run, on this host.

Transfers over TCP beside the wheel's own ``transfer_engine_bench`` (one thread, batches of one),
puts and gets beside a plain loop on the same segment, the time until a client is ready beside a
start, on huge pages (as root; vm.nr_hugepages is 0 afterwards), files beside ``fio`` if that is
installed. A ratio of 1 means that measuring costs nothing. What else the host does moves the rates
of a pair: the median of the ratios of ROUNDS pairs counts.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.real.conftest import HugePages, Store, install_release
from tests.real.measures import Pair, ready_pair, storage_pair, store_pairs, transfer_pair

MIB = 1 << 20
ROUNDS = 9


def compare(what: str, size: int, pair: Pair) -> None:
    """Print the medians of both, and of their ratios; each round has another one first.

    Rates are printed in GB/s; for what is ready, seconds.
    """
    rounds: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        first, second = pair if number % 2 else reversed(pair)
        rates = first(), second()
        rounds.append(rates if number % 2 else rates[::-1])
    ours, theirs = (
        median(column) / (1 if what == "ready" else 1e9) for column in zip(*rounds, strict=True)
    )
    ratios = sorted(own / other for own, other in rounds)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(
        f"{what:<10} {size / MIB:>6.2f} {ours:>8.2f} {theirs:>6.2f} {median(ratios):>6.2f} {spread}"
    )


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    wheel = install_release("0.3.13.post1")
    print(f"transfer engine {wheel.version} over TCP, GB/s; files in {folder}")
    print("what         MiB  measure  other  ratio  range")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        here = Path(scratch)
        for op in ("write", "read"):
            for size in (MIB, 16 * MIB, 64 * MIB):
                with transfer_pair(wheel, op, size, here) as pair:
                    compare(op, size, pair)
        for size in (256 << 10, 4 * MIB):
            store, calls = Store(wheel, here), 1024 * MIB // size // ROUNDS // 2
            with store_pairs(wheel, store.address, size, min(100, calls), here) as pairs:
                for op, pair in pairs.items():
                    compare(op, size, pair)
            store.stop()
        for size in (256, 1024, 2048, 4096):
            pages = HugePages()
            if os.geteuid() or pages.set(size // 2 + 16, 0, 0):
                continue
            store = Store(wheel, here)
            pair = ready_pair(wheel, store.address, size * MIB, here)
            pair[1]()  # a virtual machine's new pages come at a tenth of the speed
            compare("ready", size * MIB, pair)
            store.stop()
            pages.set(0, 0, 0)
        for op in ("write", "read") if shutil.which("fio") else ():
            compare(f"file {op}", MIB, storage_pair(op, here))


if __name__ == "__main__":
    main()
