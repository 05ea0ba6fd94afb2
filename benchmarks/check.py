"""How long ``mooncake-preflight check`` takes, and how much memory.

Prints, with and without a launch: the wall time on this machine, its ratio to ``python -c "import
click"``, and the time on a synthetic host with 8 GPUs and 8 NICs on two NUMA nodes; each the median
of processes that run in turn. Run it with the Python of an environment that this project is
installed in, not in editable form: an editable install adds an import hook to every start.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.builders.synthetic import build_host, gpu_host

ROUNDS = 20
MOST_SECONDS = 0.35
MOST_MIB = 60
LAUNCH = (
    "-- MC_STORE_USE_HUGEPAGE=1 MOONCAKE_MASTER=127.0.0.1:1 python3 -m sglang.launch_server "
    "--model-path Qwen/Qwen3-14B --tp 8 --enable-hierarchical-cache --hicache-size 30 "
    "--hicache-storage-backend mooncake"
).split()


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def median(samples: list[float]) -> float:
    return statistics.median(samples)


def main() -> None:
    check = [str(Path(sysconfig.get_path("scripts")) / "mooncake-preflight"), "check", "--json"]
    bare = [sys.executable, "-c", "import click"]
    with tempfile.TemporaryDirectory() as folder:
        root = build_host(Path(folder) / "host", gpu_host())
        for name, launch, most in (("no launch", [], 3.5), ("a launch", LAUNCH, 4.5)):
            commands = [
                bare,
                [*check, *launch],
                [*check, "--root", str(root), *launch],
            ]
            for command in commands:
                seconds(command)  # the files are in the page cache, and compiled
            rounds = [[seconds(command) for command in commands] for _ in range(ROUNDS)]
            click, here, there = (median(list(column)) for column in zip(*rounds, strict=True))
            ratio = median([ours / least for least, ours, _ in rounds])
            print(f"{name}:")
            print(f"  this machine: {1000 * here:.0f} ms (to stay below {1000 * MOST_SECONDS:.0f})")
            least = f"import click ({1000 * click:.0f} ms)"
            print(f"  ratio to {least}: {ratio:.2f} (to stay below {most})")
            print(f"  8 GPUs, 8 NICs, 2 nodes: {1000 * there:.0f} ms, {there / here:.2f} times")
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"peak memory of any of them: {peak_mib:.0f} MiB (to stay below {MOST_MIB})")


if __name__ == "__main__":
    main()
