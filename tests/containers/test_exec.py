"""The gate as process 1 of a container: the server takes its place, with all that belongs to it."""

from __future__ import annotations

import json
import shlex
from itertools import count

import pytest

from tests.containers.container import DEFAULT_PROFILE, Limits, Machine, product

pytestmark = pytest.mark.containers

GATE = shlex.split(product("exec", "--"))
SERVER = ("mooncake_master", "--rpc_port", "50999")
REFUSED = (
    "python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-14B", "--hicache-size",
    "100000", "--enable-hierarchical-cache",
)  # fmt: skip
ROOT = Limits(refused=DEFAULT_PROFILE)
USER = Limits(user=1000, refused=DEFAULT_PROFILE)
NUMBERS = count()


@pytest.mark.parametrize(("limits", "signal", "code"), [(ROOT, "TERM", 55), (USER, "INT", 42)])
def test_signals_reach_the_server(
    containers: Machine, limits: Limits, signal: str, code: int
) -> None:
    """It is process 1 itself, alone, and ends by its own handler with its own exit code."""
    name = f"mooncake-gate-{next(NUMBERS)}"
    gate = containers.start(limits, *GATE, *SERVER, "--wait", name=name)
    assert gate.stdout
    started = json.loads(gate.stdout.readline())
    containers.kill(name, signal)
    out, _ = gate.communicate(timeout=60)
    assert started["pid"] == 1
    assert started["processes"] == [1]
    assert started["zombies"] == ""
    assert json.loads(out) == {"signal": f"SIG{signal}"}
    assert gate.returncode == code


@pytest.mark.parametrize(("limits", "code"), [(ROOT, 0), (USER, 78), (ROOT, 255)])
def test_the_exit_code_is_the_servers(containers: Machine, limits: Limits, code: int) -> None:
    """And its environment is the container's: the gate leaves nothing of its own."""
    limits = Limits(**{**vars(limits), "environment": {"CODE": str(code), "ODD": "x\ty"}})
    gate = containers.start(limits, *GATE, *SERVER)
    out, _ = gate.communicate(timeout=60)
    assert gate.returncode == code
    environment = json.loads(out)["environment"]
    assert environment["ODD"] == "x\ty"
    assert {name for name in environment if name.startswith("MOONCAKE")} == set()


@pytest.mark.parametrize("limits", [ROOT, USER])
def test_a_refusal_is_78_and_the_server_never_ran(containers: Machine, limits: Limits) -> None:
    """With the reason on standard error, where a container's log has it."""
    gate = containers.start(limits, *GATE, *REFUSED)
    out, errors = gate.communicate(timeout=60)
    assert (gate.returncode, out) == (78, "")
    assert "not started" in errors
    assert "memory.host" in errors
