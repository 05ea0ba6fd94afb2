"""Running a release's own classes: a runner of this folder, beside the unpacked wheel."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from sglang_wheels import environment, unpacked

from tests.paths import ROOT


def on_sglang(test: Any) -> Any:
    """Mark a test that runs SGLang's own classes; it is skipped where nobody asks for that."""
    why = "installs torch and SGLang's wheels: set MOONCAKE_PREFLIGHT_SGLANG=1"
    wanted = os.environ.get("MOONCAKE_PREFLIGHT_SGLANG")
    return pytest.mark.sglang(pytest.mark.skipif(not wanted, reason=why)(test))


def answers_of(runner: str, version: str, order: Any) -> list[Any]:
    """Hand ``order`` to ``tests.cache_sizing.traces.RUNNER`` for a release; return each line that
    it prints."""
    finished = subprocess.run(
        [str(environment()), "-m", f"tests.cache_sizing.traces.{runner}", str(unpacked(version))],
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
