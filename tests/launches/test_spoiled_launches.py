"""A launch with a part that cannot be read never passes, whatever stands in its place."""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.builders.launched import written

LAUNCHES = Path(__file__).parents[1] / "data" / "launches"
# Nothing of it fails on the recorded host: what keeps it from a pass is what is not read.
FITS = """\
ulimit -l unlimited
export MC_TCP_BIND_ADDRESS=127.0.0.1
PORT=30000
for i in 0 1; do echo "$i"; done
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --port $PORT
"""
# What may stand in a launch and say nothing of what it sets or starts.
SPOILERS = ('eval "$SPOILED"', 'source "$SPOILED"', "if ( then", "echo 'never closes")
# unknown, or certain to fail; no program that is known is left.
NEVER_PASSES = (2, 3, 64)


def spoiled(text: str, made: random.Random) -> str:
    """Return a script with a span of its lines, up to five, replaced by what cannot be read."""
    lines = text.split("\n")
    first = made.randrange(len(lines))
    count = made.randrange(1, 6)
    return "\n".join([*lines[:first], made.choice(SPOILERS), *lines[first + count :]])


def check(path: Path) -> int:
    """Return the exit code of ``check`` of a launch on the recorded host."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return int(run(["check", "--root", "demo:h800", str(path)]) or 0)
        except SystemExit as end:
            return int(end.code or 0)


def test_what_is_spoiled_passes_whole(tmp_path: Path) -> None:
    assert check(written(tmp_path, FITS)) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "count", "seed"),
    [([FITS], 20, 1), ([FITS, *(p.read_text() for p in sorted(LAUNCHES.glob("*.sh")))], 25, 2)],
    ids=["what fits", "all"],
)
def test_no_spoiled_launch_passes(texts: list[str], count: int, seed: int, tmp_path: Path) -> None:
    made = random.Random(seed)
    for _ in range(count):
        path = written(tmp_path, spoiled(made.choice(texts), made))
        assert check(path) in NEVER_PASSES, path.read_text()
