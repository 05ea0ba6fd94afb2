"""RDMA objects, asked of a soft-RoCE device in one guest."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.lab.guest import LateGuestError, run_in_guest

# It takes some 30 s. One in some hundred runs hung, in the emulator or in soft-RoCE: a second run
# tells that from a binding that hangs, which hangs in both.
LIMIT_SECONDS = 200
SCRIPT = """\
ip link set lo up
card=$(ls /sys/class/net | grep -v lo | head -1)
ip link set $card up
ip addr add 10.9.9.1/24 dev $card
rdma link add rxe0 type rxe netdev $card
sleep 1
export PYTHONPATH={tree} PYTHONDONTWRITEBYTECODE=1
{python} -m tests.lab.verbs_runner
"""


def run_verbs(folder: Path) -> list[dict[str, Any]]:
    """Return what the objects said."""
    script = SCRIPT.format(tree=Path(__file__).parents[2], python=sys.executable)
    try:
        lines = run_in_guest(script, folder, LIMIT_SECONDS)
    except LateGuestError as error:
        warnings.warn(str(error), stacklevel=1)
        lines = run_in_guest(script, folder, LIMIT_SECONDS)
    return [json.loads(line) for line in lines]
