"""How long ``read`` takes for a script of 1 MB, and whether 2 MB take more than twice as long.

A row for published launches, and one for each shape that was made to be slow. Seconds are those of
the processor: of the whole command, and of its shell reader alone; the ratio is of the whole
command, 2 MB over 1 MB. "64": it starts nothing, or is too long to be a launch.
"""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from preflight.cli.main import run
from preflight.launches.shell_script import read_script
from preflight.launches.source import SourceError
from tests.launches.test_reader_fuzz import NASTY, shaped

MEGABYTE = 10**6
ROUNDS = 2
LAUNCHES = Path(__file__).parents[1] / "tests" / "data" / "launches"


def seconds(work: Callable[[], object]) -> float:
    """The least time of a few rounds."""
    taken = []
    for _ in range(ROUNDS):
        gc.collect()
        gc.disable()  # as the command does
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
        gc.enable()
    return min(taken)


def read_alone(text: str) -> None:
    with contextlib.suppress(SourceError):
        read_script(text, "launch.sh", {"A": "a b"})


def whole(path: Path) -> int:
    """Run the command; return its exit code."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return run(["read", "--timeout", "600", str(path)])


def main() -> None:
    published = "\n".join(path.read_text() for path in sorted(LAUNCHES.glob("*.sh")))
    shapes = {"published launches": published + "\n", **{repr(piece): piece for piece in NASTY}}
    slowest, steepest = 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launch.sh"
        for name, piece in shapes.items():
            taken = []
            for size in (2, 1):
                path.write_text(shaped(piece, size * MEGABYTE))
                taken.append(seconds(partial(whole, path)))
            twice, once = taken
            alone = seconds(partial(read_alone, path.read_text()))
            # Below a tenth of a second the ratio says how precise the clock is.
            ratio = twice / max(once, 0.1)
            slowest, steepest = max(slowest, once), max(steepest, ratio)
            refused = "  64" if whole(path) == 64 else ""
            print(
                f"{name:28} {once:.2f} s for 1 MB ({alone:.2f} s to read the shell)   "
                f"{ratio:.1f} times that for 2 MB{refused}",
                flush=True,
            )
    print(f"{'at most':28} {slowest:.2f} s for 1 MB   {steepest:.1f} times that for 2 MB")


if __name__ == "__main__":
    main()
