"""How long ``mooncake-preflight fit`` takes.

Prints, for each goal: the wall time and the processor time on a synthetic host with 8 GPUs and 8
NICs on two NUMA nodes, which is the largest there is, and the ratio of its processor time to that
of ``check`` of the same launch there, and of ``python -c "import click"``; all are medians of
processes that run in turn. Run it with
the Python of an environment that this project is installed in, not in editable form: an editable
install adds an import hook to every start.
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

ROUNDS = 10
MOST_SECONDS = 1.0
SCRIPT = """\
export MC_STORE_USE_HUGEPAGE=1 MOONCAKE_MASTER=127.0.0.1:1
export MOONCAKE_GLOBAL_SEGMENT_SIZE=64gb MC_MMAP_ARENA_POOL_SIZE=56gb
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 8 --page-size 64 \\
  --enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake
"""


def seconds(command: list[str]) -> tuple[float, float]:
    """Wall time, and processor time of the process and its own."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    program = str(Path(sysconfig.get_path("scripts")) / "mooncake-preflight")
    with tempfile.TemporaryDirectory() as folder:
        root = build_host(Path(folder) / "host", gpu_host())
        script = Path(folder) / "launch.sh"
        script.write_text(SCRIPT)
        where = ["--root", str(root), str(script)]
        check = [program, "check", *where]
        click = [sys.executable, "-c", "import click"]
        for goal in ("best", "l2", "pool", "balanced"):
            fit = [program, "fit", "--goal", goal, *where]
            for command in (click, check, fit):
                seconds(command)  # the files are in the page cache, and compiled
            rounds = [(seconds(click), seconds(check), seconds(fit)) for _ in range(ROUNDS)]
            wall = statistics.median(ours[0] for *_, ours in rounds)
            processor = statistics.median(ours[1] for *_, ours in rounds)
            ratio = statistics.median(ours[1] / theirs[1] for _, theirs, ours in rounds)
            clicks = statistics.median(ours[1] / theirs[1] for theirs, _, ours in rounds)
            print(
                f"--goal {goal}: {1000 * wall:.0f} ms (to stay below {1000 * MOST_SECONDS:.0f}), "
                f"{1000 * processor:.0f} ms of processor time, {ratio:.2f} times check, "
                f"{clicks:.0f} times import click"
            )


if __name__ == "__main__":
    main()
