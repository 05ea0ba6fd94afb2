"""Ctrl-C before a program has come to its own code: silence, and the exit code of an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.cli.main import NAME

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 11):
    import tomllib

# A real signal, when the import of the module in argv[1] begins.
INTERRUPTED = """
import importlib.abc, os, signal, sys
place, function = sys.argv.pop(1), sys.argv.pop(1)
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == place:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from preflight.cli import entry
getattr(entry, function)()
"""


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("preflight", "click"),
        ("preflight", "preflight.cli.main"),
        ("preflight", "preflight.base.command_frame"),
        ("sizing", "click"),
        ("sizing", "preflight.cli.sizing"),
        ("sizing", "preflight.cli.options"),
    ],
)
def test_an_interrupt_while_modules_are_imported_is_silent(function: str, place: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, place, function, "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("function", "place", "words", "code", "schema"),
    [
        ("preflight", "click", ("check", "--json"), 130, "check"),
        ("preflight", "preflight.cli.main", ("fit", "--json"), 130, "fit"),
        ("preflight", "click", ("plan", "--format", "json"), 130, "plan"),
        ("preflight", "click", ("check", "--json", "--exit-protocol", "slurm-prolog"), 0, "check"),
        ("sizing", "preflight.cli.options", ("--json",), 130, "sizing"),
    ],
)
def test_an_interrupt_while_modules_are_imported_has_its_object(
    function: str, place: str, words: tuple[str, ...], code: int, schema: str
) -> None:
    """As on every other way out; and a prolog that is interrupted drains no node."""
    command = [sys.executable, "-c", INTERRUPTED, place, function, *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(ran.stdout)
    assert (found["schema"], found["error"]) == (f"{NAME}/{schema}/v1", "interrupted")
    assert (ran.returncode, found["exit_code"], ran.stderr) == (code, code, "")


def test_without_an_interrupt_it_is_the_program() -> None:
    command = [sys.executable, "-c", INTERRUPTED, "no.such.module", "sizing", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0
    assert "version" in ran.stdout


def test_nothing_is_imported_before_the_interrupt_is_caught() -> None:
    """Else a Ctrl-C in that time would end in a traceback."""
    code = "import sys; before = set(sys.modules); import preflight.cli.entry; "
    code += "print(sorted(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(["preflight", "preflight.cli", "preflight.cli.entry"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11 and newer")
def test_both_programs_start_there() -> None:
    project = Path(__file__).parents[1] / "pyproject.toml"
    scripts = tomllib.loads(project.read_text())["project"]["scripts"]
    assert set(scripts.values()) == {"preflight.cli.entry:preflight", "preflight.cli.entry:sizing"}


def test_a_pipe_that_says_nothing_is_left_by_an_interrupt(tmp_path: Path) -> None:
    """explain waits for a log that comes in by a named pipe; Ctrl-C ends the wait."""
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    code = "from preflight.cli.entry import preflight; preflight()"
    command = [sys.executable, "-c", code, "explain", "--log", str(pipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with open(pipe, "wb"):  # returns once explain has opened it
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    assert complaint.strip() == "mooncake-preflight: interrupted"
