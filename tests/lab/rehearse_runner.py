"""Rehearses launches inside the guest, and counts the pages that it leaves taken.

Started with the path of a file of orders; writes one line of JSON per answer. Emulated, a Python
that starts takes seconds, so the command is a fork of this process, which has loaded it already.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.lab.supervisor import environment, set_pools, used_pages

PLACE = Path("/run/rehearse")
UID = 1000
# What a rehearsal may bring with it; the guest's own is not the launch's.
OURS = ("MC_", "MOONCAKE_", "NIC_NODES")


def command(order: dict[str, Any], output: Path) -> int:
    """The command's exit code; what it prints is in ``output``."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 71
    try:
        with output.open("wb") as file, Path(f"{output}.err").open("wb") as errors:
            os.dup2(file.fileno(), 1)
            os.dup2(errors.fileno(), 2)
        for name in [name for name in os.environ if name.startswith(OURS)]:
            del os.environ[name]
        os.environ.update(environment({**order, "environment": {}}))
        if order["memlock_kib"] is not None:
            limit = 1024 * order["memlock_kib"]
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
        from preflight.preflight_command import run

        script = PLACE / "launch.sh"
        code = run(["rehearse", "--json", *order["words"], str(script)])
        sys.stdout.flush()
    finally:
        os._exit(code)


def rehearse(order: dict[str, Any]) -> dict[str, Any]:
    refused = set_pools(order["pools"], 0)
    (PLACE / "launch.sh").write_text(order["script"])
    output = PLACE / "output"
    began = time.monotonic()
    code = command(order, output)
    text = output.read_text(errors="replace")
    answer = None
    with contextlib.suppress(ValueError):
        answer = json.loads(text)
    return {
        "rehearsal": order["id"],
        "code": code,
        "answer": answer,
        "said": refused or ("" if answer else text[-1500:]),
        "errors": Path(f"{output}.err").read_text(errors="replace")[-1500:],
        "left": used_pages(),
        "seconds": round(time.monotonic() - began, 2),
    }


def prepare(readable: list[str]) -> None:
    """Both devices in one subnet, so that values get from either to the other."""
    PLACE.mkdir()
    for path in readable:
        for folder in (Path(path), *Path(path).parents):
            if folder.stat().st_mode & 0o005 != 0o005:
                folder.chmod(folder.stat().st_mode | 0o055)
    for number in (0, 1):
        nic = f"eth{number}"
        for words in (f"ip addr flush dev {nic}", f"ip addr add 10.0.2.{number + 1}/24 dev {nic}"):
            subprocess.run(words.split(), check=True)


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    prepare(orders["readable"])
    for name in ("rehearse_command", "rehearse_json", "rehearsal_run"):
        import_module(f"preflight.rehearsal.{name}")  # once for all the forks
    for name in ("written_launch", "shell_script"):
        import_module(f"preflight.launches.{name}")
    for order in orders["rehearsals"]:
        print(json.dumps(rehearse(order)), flush=True)


if __name__ == "__main__":
    main()
