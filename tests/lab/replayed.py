"""Checks of a capture, on this machine, with the program as it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from preflight.check.report import EXIT_CODES


def replayed(capture: Path, *words: str) -> tuple[dict[str, Any], ...]:
    """The rows that are no skips, for the capture's own launch or the one in ``words``."""
    program = [sys.executable, "-m", "preflight.cli.main", "check", "--json"]
    done = subprocess.run(
        [*program, "--root", str(capture), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in EXIT_CODES.values(), done.stdout + done.stderr
    return tuple(row for row in json.loads(done.stdout)["findings"] if row["status"] != "skip")
