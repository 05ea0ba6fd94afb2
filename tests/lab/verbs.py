"""The bindings of libibverbs, each asked in one guest."""

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
# Where Debian puts pyverbs, for its own Python: seen by this one where it is the same release.
DISTRIBUTION = "/usr/lib/python3/dist-packages"
SCRIPT = """\
ip link set lo up
card=$(ls /sys/class/net | grep -v lo | head -1)
ip link set $card up
ip addr add 10.9.9.1/24 dev $card
rdma link add rxe0 type rxe netdev $card
sleep 1
export PYTHONPATH={tree}:{distribution} PYTHONDONTWRITEBYTECODE=1
{python} -m tests.lab.verbs_runner {libraries}
"""


def libraries() -> list[str]:
    """The bindings that are installed here."""
    found = ["CtypesDevice"]
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    there = any(tag in path.name for path in Path(DISTRIBUTION, "pyverbs").glob("*.so"))
    return ["PyverbsDevice", *found] if there else found


def run_verbs(folder: Path) -> list[dict[str, Any]]:
    """Return what each binding said."""
    script = SCRIPT.format(
        tree=Path(__file__).parents[2],
        distribution=DISTRIBUTION,
        python=sys.executable,
        libraries=" ".join(libraries()),
    )
    try:
        lines = run_in_guest(script, folder, LIMIT_SECONDS)
    except LateGuestError as error:
        warnings.warn(str(error), stacklevel=1)
        lines = run_in_guest(script, folder, LIMIT_SECONDS)
    return [json.loads(line) for line in lines]
