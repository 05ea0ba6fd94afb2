"""How long reading a script of 1 MB takes, and whether 2 MB take more than twice as long.

A row for published launches, and one for each shape that was made to be slow. Seconds are those of
the processor; the last column is the time of 2 MB over that of 1 MB.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from preflight.launches.shell_script import read_script
from tests.launches.test_reader_fuzz import NASTY, shaped

MEGABYTE = 10**6
ROUNDS = 2
LAUNCHES = Path(__file__).parents[1] / "tests" / "data" / "launches"


def seconds(text: str) -> float:
    """The least time of a few readings."""
    taken = []
    for _ in range(ROUNDS):
        gc.collect()
        start = time.process_time()
        read_script(text, "launch.sh", {"A": "a b"})
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    published = "\n".join(path.read_text() for path in sorted(LAUNCHES.glob("*.sh")))
    shapes = {"published launches": published + "\n", **NASTY}
    slowest, steepest = 0.0, 0.0
    for name, piece in shapes.items():
        once, twice = (seconds(shaped(piece, size * MEGABYTE)) for size in (1, 2))
        # Below a tenth of a second the ratio says how precise the clock is.
        ratio = twice / max(once, 0.1)
        slowest, steepest = max(slowest, once), max(steepest, ratio)
        print(f"{name:28} {once:.2f} s for 1 MB   {ratio:.1f} times that for 2 MB")
    print(f"{'at most':28} {slowest:.2f} s for 1 MB   {steepest:.1f} times that for 2 MB")


if __name__ == "__main__":
    main()
