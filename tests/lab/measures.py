"""What is measured in a guest with two soft-RoCE devices, each in a network of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.lab.guest import run_in_guest
from tests.lab.rehearse_guest import FIRST_RELEASE
from tests.real.conftest import install_release
from tests.real.rehearse_launches import store

# Emulated, and beside other guests, the library takes most of a minute to load.
LIMIT_SECONDS, BUDGET = 1800, "4m"
LAUNCHES = {
    "healthy": store(MOONCAKE_DEVICE="rxe0"),
    "wrong GID": store(MOONCAKE_DEVICE="rxe0", MC_GID_INDEX="9"),
    "TCP forced": store(MOONCAKE_DEVICE="rxe0", MC_FORCE_TCP="1"),
    "rails apart": store(MOONCAKE_DEVICE="rxe0,rxe1"),
}
SCRIPT = """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={tree}:{wheel}
ip link set lo up
for n in 0 1; do
  ip link set eth$n up; ip addr add 10.9.$n.1/24 dev eth$n
  rdma link add rxe$n type rxe netdev eth$n
done
sleep 1
"""


def run_measures(folder: Path) -> dict[str, Any]:
    """Return the answer of each launch's transfers."""
    wheel = install_release(FIRST_RELEASE)
    script = SCRIPT.format(tree=Path(__file__).parents[2], wheel=wheel.folder)
    words = "-m preflight measure --json --only transfer --spend 64mb"
    words += f" --timeout 300 --budget {BUDGET}"
    for number, text in enumerate(LAUNCHES.values()):
        launch = folder / f"launch-{number}.sh"
        launch.write_text(text)
        script += f"{sys.executable} {words} {launch} | tr -d '\\n'; echo\n"
    lines = run_in_guest(script, folder, LIMIT_SECONDS)
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    return dict(zip(LAUNCHES, answers, strict=True))
