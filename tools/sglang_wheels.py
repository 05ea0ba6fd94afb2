"""SGLang's wheels and a Python with CPU torch for them, below ``.cache/sglang``; made once."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "sglang"
# What the modules of the host pools import that no stand-in replaces.
PACKAGES = (
    "torch==2.13.0 numpy msgspec psutil packaging orjson pybase64 requests pydantic transformers "
    "pyzmq fastapi tqdm pillow aiohttp starlette setproctitle"
).split()
# The newest Python that all the wheels are for.
WHEEL_PYTHON = "3.11"


def environment() -> Path:
    """Return a Python with torch; made once."""
    folder = CACHE / "environment"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True)
        _pip(python, "install", *PACKAGES)
        (folder / "installed").touch()
    return python


def unpacked(version: str) -> Path:
    """Return the folder of a release's Python sources; unpacked once."""
    folder = CACHE / version
    if not (folder / "unpacked").exists():
        wheels = CACHE / "wheels"
        if not any(wheels.glob(f"sglang-{version}-*.whl")):
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
            wheel.extractall(folder, [n for n in wheel.namelist() if n.endswith(".py")])
        (folder / "unpacked").touch()
    return folder


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", *arguments, "--quiet"], check=True, timeout=1800)
