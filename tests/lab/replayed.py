"""Checks of a capture, by the program as it is here."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from preflight.check.report import EXIT_CODES
from preflight.cli.main import run
from tests.rows import in_texts


def replayed(capture: Path, *words: str) -> tuple[dict[str, Any], ...]:
    """The rows that are no skips, for the capture's own launch or the one in ``words``."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = run(["check", "--json", "--root", str(capture), *words])
    assert code in EXIT_CODES.values(), output.getvalue()
    findings = json.loads(output.getvalue())["findings"]
    return tuple(in_texts(row) for row in findings if row["status"] != "skip")
