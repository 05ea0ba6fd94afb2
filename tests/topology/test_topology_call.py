"""Asking an installed Mooncake, in a process of its own: what comes back whatever it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import checks.placement.mooncake_topology as calls
from checks.base.root import Root
from checks.base.unknown import Unknown

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``mooncake.engine`` of the test's own, for the child alone."""
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "engine.py"


def test_the_answer_is_read_behind_what_the_library_prints(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process's own environment: this program's Mooncake settings are not the launch's."""
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    engine.write_text(
        "import os, sys\n"
        "print('a log line', flush=True)\n"
        "class TransferEngine:\n"
        "    def get_local_topology(self, devices='all'):\n"
        "        names = [name for name in sorted(os.environ) if name.startswith('MC_')]\n"
        "        import json\n"
        "        return json.dumps({devices: [names, []]}, indent=1)\n"
    )
    ask = calls.local_topology
    assert ask(sys.executable, "", "MC_TE_FILTERS=a=b") == {"all": [["MC_TE_FILTERS"], []]}
    assert ask(sys.executable, "mlx5_0,mlx5_1") == {"mlx5_0,mlx5_1": [[], []]}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class TransferEngine: pass\n", "has no get_local_topology, which 0.3.6 and later have"),
        ("import os\nos.abort()\n", "exit code -6"),
        ("raise ImportError('libcuda.so.1: not there')\n", "libcuda.so.1: not there"),
    ],
)
def test_why_there_is_no_answer_is_said(engine: Path, code: str, said: str) -> None:
    engine.write_text(code)
    answer = Root().call("mooncake.local_topology", sys.executable, "")
    assert isinstance(answer, Unknown)
    assert said in answer.reason


def test_one_that_hangs_is_ended(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LIMIT_SECONDS", 1)
    engine.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(OSError, match="no answer within 1 s"):
        calls.local_topology(sys.executable, "")


def test_no_such_interpreter_is_unknown() -> None:
    assert isinstance(Root().call("mooncake.local_topology", "/no/python", ""), Unknown)
