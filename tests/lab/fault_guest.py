"""Runs faults in one guest and returns what the checks, and the real launches, said."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.lab.faults import (
    CLIENT_PORT,
    FAULTS,
    HEALTHY,
    IN_PLACE_OF,
    LAUNCHES,
    PORTS,
    STARTED,
    Fault,
)
from tests.lab.guest import CACHE, run_in_guest
from tests.lab.measure import preload
from tests.real.conftest import Wheel, install

HERE = Path(__file__).parent
# A server of 1 GB of L2 is admitted only where more than 10 GiB are free. Memory that the guest
# does not touch costs nothing here.
NODE_MIB = 8192
# What is installed does not change from fault to fault, and reading it takes longer, emulated, than
# all the rest. One healthy host is looked at in full.
WITHOUT_SOFTWARE = ("--skip", "software.*")
# What the store service imports beside Mooncake.
BESIDE_AIOHTTP = (
    "aiohappyeyeballs aiosignal attrs frozenlist idna multidict propcache requests yarl "
    "typing_extensions"
).split()
WORST_FIRST = ("fail", "unknown", "warn")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What one check said: rows of everything but skips. defect: why there is no answer."""

    rows: tuple[Row, ...] = ()
    defect: str = ""

    @property
    def statuses(self) -> dict[str, str]:
        """By check that does not pass, the worst of what it said."""
        worst: dict[str, str] = {}
        for status in WORST_FIRST:
            for row in self.rows:
                if row["status"] == status:
                    worst.setdefault(str(row["check"]), status)
        return worst


@dataclass(frozen=True)
class Seen:
    """What happened with one fault; what was not tried is None or empty.

    done: the lines of the remedy that were run, with exit status and output. impossible: what the
    guest lacks, so that nothing was broken. defect: what went wrong with the experiment itself.
    then: what was said of it broken when it was mended; None where that is ``broken`` itself."""

    broken: Answer
    mended: Answer | None = None
    then: Answer | None = None
    done: tuple[Row, ...] = ()
    broken_start: Row = field(default_factory=dict)
    mended_start: Row = field(default_factory=dict)
    capture: bytes = b""
    impossible: str = ""
    defect: str = ""


def healthy_of(fault: Fault) -> Fault:
    """The same launch, by the same user, on the guest as it is before anything is broken."""
    words = (f"healthy: {fault.launch}", f"as user {fault.user}" * bool(fault.user))
    return Fault(
        " ".join(filter(None, (*words, *fault.arguments))),
        {},
        fault.launch,
        user=fault.user,
        arguments=fault.arguments,
        mends=False,
        starts="ok",
    )


HEALTHY_LAUNCHES = tuple(dict.fromkeys(map(healthy_of, (*FAULTS, Fault("", {}, "master")))))
# The full check, with what is installed; recorded; and for real.
IN_FULL = Fault(
    "healthy: in full", {}, mends=False, in_full=True, captured=True, starts="ok", user=1000
)


def run_faults(
    faults: Iterable[Fault], wheel: Wheel, folder: Path, limit_seconds: float
) -> dict[str, Seen]:
    """One boot, all ``faults`` in their order; by their ids, those that the guest came to."""
    orders = {
        "launches": {**LAUNCHES, **STARTED},
        "healthy": HEALTHY,
        "readable": [
            sys.executable,
            str(Path(sys.executable).resolve()),
            str(HERE),
            str(wheel.folder),
        ],
        "faults": [_order(with_arguments(fault)) for fault in faults],
    }
    file = folder / "orders.json"
    file.write_text(json.dumps(orders))
    lines = run_in_guest(_script(wheel, file), folder, limit_seconds, NODE_MIB)
    answers = [json.loads(line) for line in lines if line.startswith('{"id"')]
    found = {answer["id"]: answer for answer in answers}
    prepared = found.pop("prepare", {"status": "not there", "said": "\n".join(lines[-20:])})
    assert prepared["status"] == 0, f"the guest could not be made healthy: {prepared}"
    return {name: _seen(answer) for name, answer in found.items()}


def _order(fault: Fault) -> dict[str, Any]:
    """started: the launch that is started for real, with ``packages`` beside Mooncake; port: where
    it answers then."""
    started = started_of(fault)
    packages = str(install("aiohttp", "3.14.5", *BESIDE_AIOHTTP)) if started == "service" else ""
    port = PORTS.get(started, CLIENT_PORT)
    return {**asdict(fault), "started": started, "port": port, "packages": packages}


def started_of(fault: Fault) -> str:
    """Return the launch that is started for real: the fault's own, or what stands for it."""
    return IN_PLACE_OF.get(fault.launch, fault.launch)


def with_arguments(fault: Fault) -> Fault:
    more = () if fault.in_full else WITHOUT_SOFTWARE
    return replace(fault, arguments=(*more, *fault.arguments))


def _script(wheel: Wheel, orders: Path) -> str:
    exports = {
        "PATH": f"{wheel.folder}/mooncake:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": f"{HERE.parents[1]}:{wheel.folder}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/root",
        "RDMAV_HUGEPAGES_SAFE": "1",
        "NIC_NODES": "/run/lab/nic-nodes",
        "NIC_NODES_LIBRARY": str(preload()),
    }
    lines = [f"export {name}={shlex.quote(text)}" for name, text in exports.items()]
    lines += [
        "ulimit -n 1048576; ulimit -l unlimited",
        "for n in 0 1; do",
        "mkdir -p $NIC_NODES/rxe$n /run/lab/user; echo $n > $NIC_NODES/rxe$n/numa_node",
        "done",
        # For users alone: root in a container has none as a rule, and root here has none either.
        f"install -m 4755 {_sudo()} /run/lab/user/sudo",
        "rm -f /usr/bin/sudo /usr/local/bin/sudo",
        f"exec {shlex.join([sys.executable, str(HERE / 'fault_runner.py'), str(orders)])} 2>&1",
    ]
    return "\n".join(lines)


def _sudo() -> Path:
    """What sudo does where a user may do anything, without its configuration."""
    program = CACHE / "sudo"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        text = (
            "#include <unistd.h>\nint main(int n, char **words) {\n"
            "if (n < 2 || setgid(0) || setuid(0)) return 1;\n"
            "execvp(words[1], words + 1); return 127; }\n"
        )
        command = ["gcc", "-O1", "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=text, text=True, check=True, capture_output=True)
    return program


def _seen(answer: Mapping[str, Any]) -> Seen:
    mended, captured = answer.get("mended"), answer.get("capture", {})
    defect = answer.get("defect", "")
    if captured.get("code"):
        defect = f"capture: {captured['output']}"
    return Seen(
        _answer(answer.get("broken", {})),
        None if mended is None else _answer(mended),
        None,
        tuple(answer.get("done", ())),
        answer.get("broken_start", {}),
        answer.get("mended_start", {}),
        base64.b64decode(captured.get("content", "")),
        answer.get("impossible", ""),
        defect,
    )


def _answer(answer: Mapping[str, Any]) -> Answer:
    return Answer(tuple(answer.get("rows", ())), answer.get("defect", ""))
