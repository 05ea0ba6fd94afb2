"""How long the command takes, against the least that any click program takes.

Prints the ratio of the whole process to ``python -c "import click"``, and that of check of a launch
to check alone, both of each run in turn. Run it with
the Python of an environment that this project is installed in, not in editable form: an editable
install adds an import hook of its own to every start.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROUNDS = 40
QUICK_START = (
    "--tp-size 4 --hicache-size 64gb --global-segment-size 8gb --arena-pool-size 56gb "
    "--available-hugetlb 512gb --json"
)


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    sizing = str(Path(sysconfig.get_path("scripts")) / "mooncake-hicache-sizing")
    bare = [sys.executable, "-c", "import click"]
    ours = [sizing, *QUICK_START.split()]
    for command in (bare, ours):
        seconds(command)
    pairs = [(seconds(bare), seconds(ours)) for _ in range(ROUNDS)]
    ratio = statistics.median(our / least for least, our in pairs)
    print(f"import click: {1000 * statistics.median(least for least, _ in pairs):.0f} ms (median)")
    print(f"whole command: {1000 * statistics.median(our for _, our in pairs):.0f} ms (median)")
    print(f"ratio: {ratio:.2f} (median of {ROUNDS} pairs; to stay below 1.6)")


if __name__ == "__main__":
    main()
