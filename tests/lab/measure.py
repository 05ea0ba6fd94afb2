"""Runs a list of experiments in one guest and returns what each process said and took."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.lab.experiments import Experiment
from tests.lab.guest import CACHE, run_in_guest
from tests.real.conftest import Wheel

HERE = Path(__file__).parent
# Room for a segment of 4.125 GiB, which the last of the rehearsals have, beside the wheels of six
# releases, which lie in memory too, and the tenth that a rehearsal leaves alone; and six processors
# for them. What is not touched takes nothing of the host's memory.
NODE_MIB, NODE_CPUS = 3072, 3


@dataclass(frozen=True)
class Measured:
    """said: per process, "ok", what setup returned, an exception, or the exit code.

    It ends with the first process that failed, unless all were started at once. pages: in use on
    each node while those that live were there."""

    said: tuple[str, ...]
    pages: tuple[int, int]
    log: str = ""
    seconds: float = 0.0


def measure(
    experiments: Iterable[Experiment],
    wheels: Mapping[str, Wheel],
    folder: Path,
    then: str = "",
    more_seconds: float = 0,
) -> dict[str, Measured]:
    """By the experiment's id. ``wheels``: by release. ``then``: lines of sh to run after them."""
    wanted = list(experiments)
    orders = {
        "preload": str(preload()),
        "experiments": [_order(experiment, wheels[experiment.release]) for experiment in wanted],
    }
    file = folder / "orders.json"
    file.write_text(json.dumps(orders))
    supervisor = shlex.join([sys.executable, str(HERE / "supervisor.py"), str(file)])
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    script = f"export PATH={path} PYTHONDONTWRITEBYTECODE=1 HOME=/root\n"
    script += f"{supervisor} 2>&1 || exit\n{then}"
    limit_seconds = 600 + 25 * len(wanted) + more_seconds
    lines = run_in_guest(script, folder, limit_seconds, NODE_MIB, NODE_CPUS)
    measured: dict[str, Measured] = {}
    for line in lines:
        if line.startswith('{"id"'):
            answer = json.loads(line)
            name, said, (first, second) = (answer.pop(key) for key in ("id", "said", "pages"))
            measured[name] = Measured(tuple(said), (first, second), **answer)
    return measured


def _order(experiment: Experiment, wheel: Wheel) -> dict[str, Any]:
    libraries = ":".join(str(path) for path in wheel.libraries)
    variables = {"PYTHONPATH": str(wheel.folder), "LD_LIBRARY_PATH": libraries}
    return {
        **asdict(experiment),
        "environment": experiment.environment(),
        "library": {
            "environment": {name: text for name, text in variables.items() if text},
            "master": wheel.command("mooncake_master"),
        },
    }


def preload() -> Path:
    """The library that gives soft-RoCE devices their NUMA nodes."""
    library = CACHE / "nic_nodes.so"
    source = HERE / "nic_nodes.c"
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        CACHE.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
    return library
