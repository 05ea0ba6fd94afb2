"""The default answer over real launches: short, and no wider than the terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.paths import ROOT

pytestmark = pytest.mark.slow

LAUNCHES = sorted(
    path
    for folder in ("launches", "silent")
    for path in (ROOT / "tests/data" / folder).iterdir()
    if path.suffix in (".sh", ".yaml", ".sbatch", ".bash", ".service", ".py")
)
MOST_LINES = 45
# Of longer ones the verdict itself is wider than 80 columns.
LONGEST_NAME = 24
STEP = re.compile(r" ?\d+\. (.*)")


# A wider terminal has fewer lines and more room: a few show that the width is asked for.
@pytest.mark.parametrize(
    ("path", "width"),
    [*((path, 80) for path in LAUNCHES), *((path, 100) for path in LAUNCHES[::8])],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_answer_is_a_page(
    path: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands alone may be wider: they are to be copied."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(path.parent)
    run(["check", "--root", "demo:h800", path.name])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= MOST_LINES
    if len(path.name) < LONGEST_NAME and lines and not lines[0].startswith("PASS"):
        assert lines[1].strip().startswith("read: ")  # the verdict takes one line
    assert [line for line in lines if len(line) > width and not line.startswith("      ")] == []
    steps = [step[1] for line in lines if (step := STEP.fullmatch(line))]
    assert len(set(steps)) == len(steps)
    assert [step for step in steps if ":" not in step and "(" not in step] == []
