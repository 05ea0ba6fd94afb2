"""Runs the cases on SGLang's real classes: ``python -m tests.sglang.rerun`` records them anew.

Makes an environment with CPU torch and unpacks the wheels, both below ``.cache/sglang``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

from tests.sglang.cases import CASES, VERSIONS

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
CACHE = HERE.parents[1] / ".cache" / "sglang"
# What the modules of the host pools import that no stand-in replaces.
PACKAGES = (
    "torch==2.13.0 numpy msgspec psutil packaging orjson pybase64 requests pydantic transformers "
    "pyzmq fastapi tqdm pillow aiohttp starlette setproctitle"
).split()
# The newest Python that all the wheels are for.
WHEEL_PYTHON = "3.11"


def environment() -> Path:
    """A Python with torch; made once."""
    folder = CACHE / "environment"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True)
        _pip(python, "install", *PACKAGES)
        (folder / "installed").touch()
    return python


def unpacked(version: str) -> Path:
    """The folder of a release's sources; unpacked once."""
    folder = CACHE / version
    if not (folder / "unpacked").exists():
        wheels = CACHE / "wheels"
        _pip(
            Path(sys.executable),
            "download",
            "--no-deps",
            "--only-binary=:all:",
            f"--python-version={WHEEL_PYTHON}",
            f"--dest={wheels}",
            f"sglang=={version}",
        )
        with zipfile.ZipFile(next(wheels.glob(f"sglang-{version}-*.whl"))) as wheel:
            wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith("sglang/srt/")])
        (folder / "unpacked").touch()
    return folder


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", *arguments, "--quiet"], check=True, timeout=1800)


def run(version: str, cases: list[dict[str, object]]) -> dict[str, Any]:
    """What the real classes of ``version`` allocate for ``cases``, by case."""
    finished = subprocess.run(
        [str(environment()), str(HERE / "runner.py"), str(unpacked(version))],
        input=json.dumps(cases),
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
