"""Real launches with a part that cannot be read: whatever stands in its place, none of them passes.

``python -m tests.launches.spoiled --count 2000 FILE...`` tries so many; a few run with the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from preflight.cli.main import run

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
    """Return the exit code of ``check`` of a launch on the made host."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return int(run(["check", "--root", "demo:h800", str(path)]) or 0)
        except SystemExit as end:
            return int(end.code or 0)


def passes(files: list[Path], count: int, seed: int) -> Iterator[tuple[int, str]]:
    """Yield the exit code and the text of each spoiled launch that passes or only warns."""
    made = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(count):
            file = made.choice(files)
            text = spoiled(file.read_text(), made)
            path = Path(folder) / "launch.sh"
            path.write_text(text)
            code = check(path)
            if code not in NEVER_PASSES:
                yield code, text


def main() -> int:
    """Try ``--count`` spoiled launches; print those that pass."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=2000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("files", nargs="+", type=Path)
    given = options.parse_args()
    found: Counter[int] = Counter()
    for code, text in passes(given.files, given.count, given.seed):
        found[code] += 1
        print(f"--- exit {code}\n{text}")
    print(f"{given.count} spoiled launches, {sum(found.values())} pass: {dict(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "80")
    sys.exit(main())
