"""How long reading a script of 1 MB takes, for published launches and for shapes made to be slow.

Prints seconds per MB for each. Time goes into what a script says, not into how it is made: a shape
with a command in every four characters takes longest.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from preflight.shell_script import read_script
from tests.test_reader_fuzz import NASTY

MEGABYTE = 10**6
LAUNCHES = Path(__file__).parents[1] / "tests" / "launches"


def seconds(text: str) -> float:
    start = time.perf_counter()
    read_script(text, "launch.sh", {"A": "a b"})
    return time.perf_counter() - start


def main() -> None:
    published = "\n".join(path.read_text() for path in sorted(LAUNCHES.glob("*.sh")))
    shapes = {"published launches": published + "\n", **NASTY}
    worst = 0.0
    for name, piece in shapes.items():
        taken = seconds(piece * (MEGABYTE // len(piece)))
        worst = max(worst, taken)
        print(f"{name:28} {taken:.2f} s/MB")
    print(f"{'worst':28} {worst:.2f} s/MB")


if __name__ == "__main__":
    main()
