"""Mutated launches, hosts, archives, reports, logs, traces: an answer or a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.slow

COUNT = 1000
PARTS = 2


def _mutate(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.mutate", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_no_mutated_input_breaks_it(part: int) -> None:
    """Those of a night: ``python -m tests.mutate --count 100000 --resume FILE``."""
    process = _mutate("--count", str(COUNT), "--part", f"{part}/{PARTS}")
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out[-4000:]
    assert out.endswith(f"{COUNT // PARTS} cases, 0 failures\n")


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    for count, cases in (("3", 3), ("5", 2)):
        process = _mutate("--count", count, "--resume", str(file))
        out, _ = process.communicate(timeout=300)
        assert out.endswith(f"{cases} cases, 0 failures\n"), out
    assert json.loads(file.read_text()) == {"next": 5, "failures": []}
