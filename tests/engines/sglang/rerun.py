"""Runs the cases on SGLang's real classes, and records them anew:

PYTHONPATH=tools python -m tests.engines.sglang.rerun
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from sglang_wheels import environment, unpacked

from tests.engines.sglang.cases import CASES, VERSIONS

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
TOOLS = HERE.parents[1] / "tools"


def run(version: str, cases: list[dict[str, object]]) -> dict[str, Any]:
    """What the real classes of ``version`` allocate for ``cases``, by case."""
    finished = subprocess.run(
        [str(environment()), str(HERE / "runner.py"), str(unpacked(version))],
        input=json.dumps(cases),
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(finished.stderr[-2000:])
    results: dict[str, Any] = json.loads(finished.stdout)
    return results


def run_all(version: str) -> dict[str, Any]:
    return run(version, [case.as_json() for case in CASES if case.runs_on(version)])


def main() -> None:
    lines = []
    for version in VERSIONS:
        results = run_all(version)
        rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in results.items())
        lines.append(f" {json.dumps(version)}: {{\n" + ",\n".join(rows) + "\n }")
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
