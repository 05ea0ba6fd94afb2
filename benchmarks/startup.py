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
LAUNCH = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 4 --hicache-size 64 "
    "--enable-hierarchical-cache --hicache-storage-backend mooncake"
)


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL)  # a verdict is an exit code
    return time.perf_counter() - start


def compare(first: list[str], second: list[str], most: float) -> None:
    """Print how much longer the second takes than the first, each run in turn."""
    for command in (first, second):
        seconds(command)
    pairs = [(seconds(first), seconds(second)) for _ in range(ROUNDS)]
    for number, command in enumerate((first, second)):
        words = " ".join(Path(word).name for word in command[:3])
        print(
            f"{words}: {1000 * statistics.median(pair[number] for pair in pairs):.0f} ms (median)"
        )
    ratio = statistics.median(longer / shorter for shorter, longer in pairs)
    print(f"ratio: {ratio:.2f} (median of {ROUNDS} pairs; to stay below {most})")


def main() -> None:
    scripts = Path(sysconfig.get_path("scripts"))
    sizing = str(scripts / "mooncake-hicache-sizing")
    compare([sys.executable, "-c", "import click"], [sizing, *QUICK_START.split()], 1.6)
    check = [str(scripts / "mooncake-preflight"), "check"]
    compare(check, [*check, "--", *LAUNCH.split()], 1.7)


if __name__ == "__main__":
    main()
