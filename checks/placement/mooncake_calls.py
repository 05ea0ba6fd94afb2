"""What only an installed Mooncake can tell of itself: its own program code, in a child."""

from __future__ import annotations

from typing import Any

# Loading the library takes a second; opening each of many NICs and CUDA's start take longer.
LIMIT_SECONDS = 60
_MARK = "topology:"
# The engine listens on a port of its own choice while it lives, and registers no memory.
_PROGRAM = f"""
import sys
from mooncake.engine import TransferEngine
if not hasattr(TransferEngine, "get_local_topology"):
    sys.exit("this Mooncake has no get_local_topology, which 0.3.6 and later have")
answer = TransferEngine().get_local_topology(*filter(None, sys.argv[1:]))
print("\\n{_MARK}" + answer.replace("\\n", " "), flush=True)
"""


def local_topology(interpreter: str, devices: str, *variables: str) -> Any:
    """``TransferEngine.get_local_topology``: location -> [preferred, others].

    devices: names joined by commas, "" for all. variables: ``NAME=value`` of its environment, in
    which no other variable of Mooncake's is. Raises OSError with what the child said.
    """
    import json
    import os
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name[:3] != "MC_"}
    for variable in variables:
        name, _, value = variable.partition("=")
        environment[name] = value
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROGRAM, devices],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{interpreter}: no answer within {LIMIT_SECONDS} s") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1][:300] if lines else f"exit code {done.returncode}"
        raise OSError(f"{interpreter}: {why}")
    return json.loads(answers[-1].removeprefix(_MARK))
