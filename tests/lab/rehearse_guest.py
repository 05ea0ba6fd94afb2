"""The rehearsals of the guest that measures pages: what it runs after its experiments."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.lab.fittings import Fitting
from tests.lab.measure import preload
from tests.lab.rehearsals import Rehearsal
from tests.real.conftest import Wheel

HERE = Path(__file__).parent
# Emulated, some 3 seconds on a machine that does nothing else.
SECONDS_EACH = 20
# Twice rehearsed, and sized before.
SECONDS_EACH_FITTING = 90

Rehearsed = Mapping[str, Mapping[str, Any]]


def rehearsals_script(
    rehearsals: Iterable[Rehearsal], fittings: Iterable[Fitting], wheel: Wheel, folder: Path
) -> str:
    """Lines of sh that rehearse them all, or none; the devices are up by then."""
    wanted = [asdict(one) for one in rehearsals]
    sized = [asdict(one) for one in fittings]
    if not wanted and not sized:
        return ""
    # For user 1000, who has a limit.
    programs = (sys.executable, str(Path(sys.executable).resolve()), str(HERE), str(wheel.folder))
    orders = {"readable": programs, "rehearsals": wanted, "fittings": sized}
    file = folder / "rehearsals.json"
    file.write_text(json.dumps(orders))
    # The devices are this guest's, and its rdma-core is older than what Mooncake asks for.
    exports = {
        "PYTHONPATH": f"{wheel.folder}:{HERE.parents[1]}",
        "LD_PRELOAD": str(preload()),
        "RDMAV_HUGEPAGES_SAFE": "1",
    }
    words = [f"{name}={shlex.quote(text)}" for name, text in exports.items()]
    program = shlex.join([sys.executable, str(HERE / "rehearse_runner.py"), str(file)])
    return f"env {' '.join(words)} {program} 2>&1\n"


def rehearsed_in(folder: Path) -> Rehearsed:
    """What each came to, by its id, from the guest's answers in ``folder``; fittings as well."""
    lines = (folder / "answers").read_text(errors="replace").splitlines()
    starts = ('{"rehearsal"', '{"fitting"')
    answers = [json.loads(line) for line in lines if line.startswith(starts)]
    return {next(iter(answer.values())): answer for answer in answers}
