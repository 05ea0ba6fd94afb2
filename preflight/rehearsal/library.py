"""The Mooncake that a rehearsal runs: where it lies, and which release it is."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from checks.base.installed import installed_mooncake
from checks.base.unknown import Unknown

PIP = (
    "python3 -m pip install mooncake-transfer-engine (-cuda13 for CUDA 13, -non-cuda without a GPU)"
)
# Asks another interpreter for its import path, which is all that its packages are found by.
_PATH = "import sys; print('\\n'.join(sys.path))"
_LIMIT_SECONDS = 60


class Library(NamedTuple):
    """python: the interpreter. folder: what ``mooncake`` lies in. distribution: the wheel's name.

    others: more Mooncakes on the same path, which the first hides.
    """

    python: str
    folder: str
    distribution: str
    version: str
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.distribution} {self.version}"

    def program(self, name: str) -> str:
        """A program of the wheel, as ``mooncake_master``."""
        return os.path.join(self.folder, "mooncake", name)


def find_library(python: str | None) -> Library | Unknown:
    """The Mooncake of ``python``, or of the Python that runs this."""
    path = tuple(sys.path) if python is None else _path_of(python)
    if isinstance(path, Unknown):
        return path
    who = "the Python that runs this" if python is None else python
    for folder in path:
        folder = os.path.abspath(folder or ".")
        if not os.path.isfile(os.path.join(folder, "mooncake", "__init__.py")):
            continue
        found = installed_mooncake([folder]) or installed_mooncake(path)
        if not found:
            return Unknown(f"{folder}/mooncake is of no wheel: its version is not known")
        (distribution, version), *more = found
        others = tuple(" ".join(one) for one in more)
        return Library(python or sys.executable, folder, distribution, version, others)
    return Unknown(
        f"Mooncake is not installed in {who}, so nothing can be rehearsed: {PIP}, or name the "
        "interpreter that has it with --python"
    )


def _path_of(python: str) -> tuple[str, ...] | Unknown:
    import subprocess

    try:
        done = subprocess.run(
            [python, "-c", _PATH],
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Unknown(f"--python {python}: cannot be run: {error}")
    if done.returncode:
        return Unknown(f"--python {python}: is no Python: {done.stderr.strip()[-200:]}")
    return tuple(line for line in done.stdout.splitlines() if line)
