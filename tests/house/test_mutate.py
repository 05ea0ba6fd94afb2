"""Mutated launches, hosts, archives, reports, logs, traces: an answer or a refusal."""

import os
import subprocess
import sys

import pytest

from tests.builders.examples import some
from tests.paths import ROOT

pytestmark = pytest.mark.slow

COUNT = len(some(range(400), 2))
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
