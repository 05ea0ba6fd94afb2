"""The rehearsals of the guest that measures pages: what it runs after its experiments."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.lab.measure import preload
from tests.lab.rehearsals import Fitting, Rehearsal
from tests.real.conftest import Wheel

HERE = Path(__file__).parent
# Emulated, some 3 seconds on a machine that does nothing else.
SECONDS_EACH = 20
# Twice rehearsed, and sized before.
SECONDS_EACH_FITTING = 90

# That of a rehearsal that names none, and of all fittings.
FIRST_RELEASE = "0.3.13.post1"

Rehearsed = Mapping[str, Mapping[str, Any]]


def rehearsals_script(
    rehearsals: Iterable[Rehearsal],
    fittings: Iterable[Fitting],
    wheels: Mapping[str, Wheel],
    folder: Path,
    captured: bool = False,
) -> str:
    """Lines of sh that rehearse them all, or none; the devices are up by then.

    ``wheels``: by release, ``FIRST_RELEASE`` and what the rehearsals name. captured: with a capture
    of the guest before each."""
    wanted = [
        {**asdict(one), "captured": captured, "library": _library(wheels[one.release])}
        for one in sorted(rehearsals, key=lambda one: one.processors)
    ]
    sized = [{**asdict(one), "captured": captured} for one in fittings]
    if not wanted and not sized:
        return ""
    wheel = wheels[FIRST_RELEASE]
    # For user 1000, who has a limit.
    folders = [str(one.folder) for one in wheels.values()]
    programs = (sys.executable, str(Path(sys.executable).resolve()), str(HERE), *folders)
    orders = {"readable": programs, "rehearsals": wanted, "fittings": sized}
    file = folder / "rehearsals.json"
    file.write_text(json.dumps(orders))
    exports = {"PYTHONPATH": f"{wheel.folder}:{HERE.parents[1]}", "LD_PRELOAD": str(preload())}
    words = [f"{name}={shlex.quote(text)}" for name, text in exports.items()]
    program = shlex.join([sys.executable, str(HERE / "rehearse_runner.py"), str(file)])
    return f"env {' '.join(words)} {program} 2>&1\n"


def _library(wheel: Wheel) -> dict[str, Any] | None:
    """What brings a process another wheel than the one that it was started with."""
    if wheel.version == FIRST_RELEASE:
        return None
    libraries = ":".join(str(path) for path in wheel.libraries)
    path = f"{wheel.folder}:{HERE.parents[1]}"
    return {
        "folder": str(wheel.folder),
        "environment": {"PYTHONPATH": path, "LD_LIBRARY_PATH": libraries},
    }


def rehearsed_in(folder: Path) -> Rehearsed:
    """What each came to, by its id, from the guest's answers in ``folder``; fittings as well."""
    lines = (folder / "answers").read_text(errors="replace").splitlines()
    starts = ('{"rehearsal"', '{"fitting"')
    answers = [json.loads(line) for line in lines if line.startswith(starts)]
    return {next(iter(answer.values())): answer for answer in answers}
