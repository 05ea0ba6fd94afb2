"""Running a release's own classes: a runner of this folder, beside the unpacked wheel."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from sglang_wheels import environment, unpacked

from tests.paths import ROOT


def answers_of(runner: str, version: str, order: Any) -> list[Any]:
    """Hand ``order`` to ``tests.traces.RUNNER`` for a release; return each line that it prints."""
    finished = subprocess.run(
        [str(environment()), "-m", f"tests.traces.{runner}", str(unpacked(version))],
        input=json.dumps(order),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return [json.loads(line) for line in finished.stdout.splitlines()]
