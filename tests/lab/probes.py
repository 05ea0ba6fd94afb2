"""What is probed in a guest with two soft-RoCE devices, each under limits of its own."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.core import runs_live
from tests.lab.guest import run_in_guest

HERE = Path(__file__).parent
MIB, GIB = 1 << 20, 1 << 30
SPEND = 256 * MIB
VERBS_SECONDS = 200
# Where Debian puts pyverbs, for its own Python: seen by this one where it is the same release.
DISTRIBUTION = "/usr/lib/python3/dist-packages"
BOTH, ONE = "rxe0,rxe1", "rxe0"
# The last steps take seconds here: long enough to be broken off once the first are held.
LONG = ("--region", "4mb", "--up-to", "4gb")


def memlock(name: str, devices: str, limit: int, region: str = "16mb") -> dict[str, Any]:
    words = ["--json", "--device", devices, "--region", region, "--up-to", "4gb"]
    return {"id": name, "words": words, "user": True, "memlock": limit}


def cgroup(name: str, *lines: tuple[str, str], region: str = "1mb") -> dict[str, Any]:
    words = ["--json", "--device", ONE, "--region", region, "--up-to", "1gb"]
    return {"id": name, "words": words, "cgroup": lines}


MEMLOCK = (
    memlock("one NIC, nothing", ONE, 0),
    memlock("one NIC, less than a region", ONE, 8 * MIB),
    memlock("one NIC, one region", ONE, 16 * MIB),
    memlock("one NIC, a page short of two", ONE, 32 * MIB - 4096),
    memlock("one NIC, 500 MiB", ONE, 500 * MIB),
    memlock("one NIC, 1 MiB steps", ONE, 777 * MIB + 12345, "1mb"),
    memlock("two NICs, one region each", BOTH, 32 * MIB),
    memlock("two NICs, half of the second", BOTH, 48 * MIB),
    memlock("two NICs, 256 MiB", BOTH, 256 * MIB),
    memlock("two NICs, 1000 MiB", BOTH, 1000 * MIB),
    memlock("two NICs, 5 MB steps", BOTH, 777 * MIB, "5mb"),
)
OBJECTS = "rxe0 hca_object={}"
CGROUP = (
    cgroup("objects 1", ("inner", OBJECTS.format(1))),
    cgroup("objects 2", ("inner", OBJECTS.format(2))),
    cgroup("objects 6", ("inner", OBJECTS.format(6))),
    cgroup("objects 6 above", (".", OBJECTS.format(6))),
    cgroup("objects 9, and 5 above", ("inner", OBJECTS.format(9)), (".", OBJECTS.format(5))),
)
OTHERS = (
    {"id": "no limit", "words": ["--json", "--device", BOTH, "--up-to", "1gb"]},
    {"id": "spend", "words": ["--json", "--device", ONE, "--up-to", "8gb", "--spend", "64mb"]},
    {"id": "huge pages", "words": ["--json", "--device", ONE, "--page", "2m", "--up-to", "2gb"]},
    {"id": "no huge pages", "words": ["--json", "--page", "1g", "--spend", "1100mb"]},
    cgroup("no handle", ("inner", "rxe0 hca_handle=0")),
    {"id": "neighbour", "words": ["--json"], "neighbour": True},
    {"id": "beside a neighbour", "words": ["--json", "--force", "--up-to", "64mb"],
        "neighbour": True},
    {"id": "interrupt", "words": ["--json", *LONG], "how": "interrupt"},
    {"id": "kill", "words": ["--json", *LONG], "how": "kill"},
    {"id": "crash", "words": ["--json", *LONG], "how": "crash"},
    {"id": "interrupted user", "words": [*LONG], "how": "interrupt", "user": True, "memlock": -1},
)  # fmt: skip
ORDERS = (*MEMLOCK, *CGROUP, *OTHERS)


def ids(orders: Iterable[dict[str, Any]]) -> list[str]:
    return [order["id"] for order in orders]


def libraries() -> list[str]:
    """The bindings of libibverbs that are installed here."""
    found = ["CtypesDevice"]
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    there = any(tag in path.name for path in Path(DISTRIBUTION, "pyverbs").glob("*.so"))
    return ["PyverbsDevice", *found] if there else found


class Probed(dict[str, Any]):
    """By id; what was not run is skipped."""

    def __missing__(self, name: str) -> dict[str, Any]:
        pytest.skip(f"{name}: runs with MOONCAKE_PREFLIGHT_LAB=all")


def run_live_probes(folder: Path) -> Probed:
    live = [order for order in ORDERS if runs_live(str(order["id"]))]
    return Probed(run_probes(live, folder, 600 + 20 * len(live)))


def run_probes(
    orders: Iterable[dict[str, Any]], folder: Path, limit_seconds: float
) -> dict[str, Any]:
    """Return what each came to, by its id; what is then known of devices is under "measured". Under
    "verbs": what each binding of ``libraries`` said."""
    file = folder / "orders.json"
    file.write_text(json.dumps(list(orders)))
    runner = shlex.join([sys.executable, str(HERE / "probe_runner.py"), str(file)])
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # One in some hundred runs of a binding hung: a second tells that from one that always hangs.
    verbs = shlex.join([sys.executable, "-m", "tests.lab.verbs_runner", *libraries()])
    verbs = f"PYTHONPATH=$PYTHONPATH:{DISTRIBUTION} timeout {VERBS_SECONDS} {verbs}"
    script = (
        f"export PATH={path} PYTHONDONTWRITEBYTECODE=1 HOME=/root "
        f"PYTHONPATH={shlex.quote(str(HERE.parents[1]))}\n"
        f"chmod 755 /root; {runner} 2>&1 && ({verbs} || {verbs})\n"
    )
    lines = run_in_guest(script, folder, limit_seconds, 3072)
    answers = [json.loads(line) for line in lines if line.startswith('{"id"')]
    said = [json.loads(line) for line in lines if line.startswith('{"library"')]
    return {**{answer["id"]: answer for answer in answers}, "verbs": said[-len(libraries()) :]}
