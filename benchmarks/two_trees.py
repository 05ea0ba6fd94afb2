"""How much processor time commands take in this tree, as ratios to another tree of this project.

    git worktree add --detach ../old COMMIT
    python benchmarks/two_trees.py ../old . launch.sh another.yaml

Each command runs in both trees in turn, with the same Python; what is printed is the median of the
ratios of each turn. Both trees compile their modules in a first run, which is not counted.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 15
PROGRAM = "import sys; sys.path.insert(0, {tree!r}); import mooncake_preflight as m; m.{name}()"
SIZING = (
    "--tp-size 4 --hicache-size 64gb --global-segment-size 8gb --arena-pool-size 56gb "
    "--available-hugetlb 512gb"
).split()
HOST = ("--root", "demo:h800")


def cpu_seconds(tree: str, name: str, words: list[str]) -> float:
    """Run a command of a tree; return the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = PROGRAM.format(tree=tree, name=name)
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program, *words]
    subprocess.run(command, capture_output=True, env=environment)  # a verdict is an exit code
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each command."""
    old, new, *launches = (str(Path(path).resolve()) for path in sys.argv[1:])
    commands = [("check", "preflight", ["check", *HOST])]
    commands += [
        ("check --only", "preflight", ["check", *HOST, "--only", "hugetlb.shortage"]),
        ("sizing", "sizing", SIZING),
    ]
    for launch in launches:
        name = Path(launch).name
        commands.append((f"check {name}", "preflight", ["check", *HOST, launch]))
        commands.append((f"fit {name}", "preflight", ["fit", *HOST, launch]))
    for shown, name, words in commands:
        pairs = []
        for turn in range(ROUNDS + 1):
            pair = cpu_seconds(old, name, words), cpu_seconds(new, name, words)
            if turn:
                pairs.append(pair)
        ratio = statistics.median(now / before for before, now in pairs)
        before, now = (1000 * statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        print(f"{shown}: {before:.0f} ms before, {now:.0f} ms now, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
