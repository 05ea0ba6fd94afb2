"""Ctrl-C before a program has come to its own code: silence, and the exit code of an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import mooncake_preflight
from preflight.base import exit_codes
from preflight.cli.commands import PROTOCOLS
from preflight.cli.main import NAME
from preflight.verdict.report import NPD_BYTES, refusal_code, refusal_line
from tests.paths import ROOT

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def run(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


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
import mooncake_preflight
getattr(mooncake_preflight, function)()
"""


@pytest.mark.parametrize(
    ("function", "place", "words", "code", "schema"),
    [
        ("preflight", "click", ("--version",), 130, ""),
        ("preflight", "preflight.base.command_frame", ("--version",), 130, ""),
        ("sizing", "preflight.cli.options", ("--version",), 130, ""),
        ("preflight", "click", ("check", "--json"), 130, "check"),
        ("preflight", "preflight.cli.main", ("fit", "--json"), 130, "fit"),
        ("preflight", "click", ("plan", "--format", "json"), 130, "plan"),
        # A prolog that is interrupted drains no node.
        ("preflight", "click", "check --json --output - --format slurm-prolog".split(), 0, "check"),
        ("sizing", "preflight.cli.options", ("--json",), 130, "sizing"),
    ],
)
def test_an_interrupt_while_modules_are_imported_is_silent_or_has_its_object(
    function: str, place: str, words: Sequence[str], code: int, schema: str
) -> None:
    """As on every other way out."""
    command = [sys.executable, "-c", INTERRUPTED, place, function, *words]
    ran = run(command)
    assert (ran.returncode, ran.stderr) == (code, "")
    found = json.loads(ran.stdout or "{}")
    assert found.get("schema", "") == (schema and f"{NAME}/{schema}/v1")
    if schema:
        reason = found["error" if function == "sizing" else "reason"]
        assert (found["exit_code"], reason) == (code, "interrupted")


def test_the_module_is_the_program() -> None:
    """A gate that is started so and says nothing would be a pass that nobody gave."""
    command = [sys.executable, "-m", "mooncake_preflight", "exec", "--", "false"]
    environment = {**os.environ, "MOONCAKE_PREFLIGHT_MODE": "off"}
    assert run(command, cwd=ROOT, env=environment).returncode == 1


def test_both_programs_start_there() -> None:
    project = ROOT / "pyproject.toml"
    scripts = tomllib.loads(project.read_text())["project"]["scripts"]
    assert set(scripts.values()) == {"mooncake_preflight:preflight", "mooncake_preflight:sizing"}


def test_a_pipe_that_says_nothing_is_left_by_an_interrupt(tmp_path: Path) -> None:
    """explain waits for a log that comes in by a named pipe; Ctrl-C ends the wait."""
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    code = "from mooncake_preflight import preflight; preflight()"
    command = [sys.executable, "-c", code, "explain", "--log", str(pipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with open(pipe, "wb"):  # returns once explain has opened it
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    assert complaint.strip() == "mooncake-preflight: interrupted"


START = "import sys; sys.path.insert(0, sys.argv.pop(1)); import mooncake_preflight; "
START += "mooncake_preflight.preflight()"


def _with_foreign(
    folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run with ``folder`` in front of everything on the path, by PYTHONPATH."""
    path = os.pathsep.join((str(folder), str(ROOT)))
    command = [sys.executable, "-c", START, str(folder), *words]
    return run(command, env={**os.environ, "PYTHONPATH": path, **environment}, cwd="/")


@pytest.mark.parametrize("name", ["checks", "preflight"])
@pytest.mark.parametrize("as_package", [False, True])
def test_a_foreign_package_of_the_same_name_is_not_taken(
    tmp_path: Path, name: str, as_package: bool
) -> None:
    place = tmp_path / name / "__init__.py" if as_package else tmp_path / f"{name}.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text("raise SystemExit(1)\n")
    ran = _with_foreign(tmp_path, "explain", "--advisories")
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = _with_foreign(tmp_path, "exec", "--", "true")
    assert ran.returncode == 0


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A folder with a package of another in place of one that this program needs."""
    (tmp_path / "click.py").write_text("import no_such_module\n")
    return tmp_path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_cannot_be_imported_is_no_verdict(broken: Path, protocol: str) -> None:
    """A prolog drains no node, a monitor says unknown; the file in the way is named."""
    words = ("check", "--format", protocol, "--", "true")
    ran = _with_foreign(broken, *words)
    assert ran.returncode == refusal_code(exit_codes.DEFECT, protocol)
    assert ran.stderr.count("\n") == 1
    assert str(broken / "click.py") in ran.stderr
    message = ran.stderr.strip().removeprefix("mooncake-preflight: ")
    line = refusal_line(message, protocol)
    assert ran.stdout == ("" if line is None else f"{line}\n")
    answered = _with_foreign(broken, *words[:3], "--json")
    assert json.loads(answered.stdout)["exit_code"] == answered.returncode == ran.returncode


@pytest.mark.parametrize(
    ("words", "mode", "code"),
    [
        ((), "off", 7),
        ((), "warn", 7),
        ((), "enforce", 7),
        (("--fail-on", "unknown"), "off", 7),
        (("--fail-on=unknown",), "warn", 7),
        (("--fail-on", "unknown"), "enforce", exit_codes.DEFECT),
    ],
)
def test_what_cannot_be_imported_is_no_verdict_on_a_server(
    broken: Path, words: tuple[str, ...], mode: str, code: int
) -> None:
    command = ("exec", *words, "--", "sh", "-c", "exit 7")
    ran = _with_foreign(broken, *command, MOONCAKE_PREFLIGHT_MODE=mode)
    assert ran.returncode == code
    assert bool(ran.stderr) is (mode != "off")


def test_the_codes_of_the_start_are_those_of_the_program() -> None:
    """They stand there twice, as nothing may be imported before they are needed."""
    found = {name: refusal_code(exit_codes.DEFECT, name) for name in PROTOCOLS}
    taken = mooncake_preflight.NO_VERDICT
    assert found == {name: taken.get(name, (exit_codes.DEFECT, ""))[0] for name in PROTOCOLS}
    assert mooncake_preflight.DEFECT == exit_codes.DEFECT
    assert mooncake_preflight.INTERRUPTED == exit_codes.INTERRUPTED
    assert mooncake_preflight.NPD_BYTES == NPD_BYTES


TERMINATED = INTERRUPTED.replace("SIGINT", "SIGTERM")


@pytest.mark.parametrize("place", ["click", "preflight.cli.main", "preflight.verdict.answer"])
def test_a_termination_has_its_object_and_its_code(place: str) -> None:
    """The first process of a container has no default action: unshare makes one."""
    words = ["check", "--json", "--", "mooncake_master"]
    command = [sys.executable, "-c", TERMINATED, place, "preflight", *words]
    for before in ([], ["unshare", "--pid", "--fork"]):
        ran = run([*before, *command])
        if "unshare failed" in ran.stderr:
            pytest.skip("no process namespace of its own without root")
        found = json.loads(ran.stdout)
        assert (ran.returncode, found["exit_code"], found["reason"]) == (143, 143, "interrupted")


# A real signal, at the instant that argv[1] names: argv[2].
AT = """
import os, signal, sys
import click
import mooncake_preflight
place, number = sys.argv.pop(1), int(sys.argv.pop(1))
whole = click.echo
def echo(text="", file=None, nl=True, err=False, color=None):
    whole(text, file, nl, err, color)
    if place == ("a refusal is said" if err else "an answer is said"):
        os.kill(os.getpid(), number)
click.echo = echo
mooncake_preflight.preflight()
"""
REFUSED = ("fleet", "merge", "--json", "/nope")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("place", "code"), [("a refusal is said", None), ("an answer is said", exit_codes.USAGE)]
)
def test_a_signal_finds_one_object_whenever_it_comes(
    place: str, code: int | None, number: int
) -> None:
    """Where the answer stands already, its exit code too: it is the one in the object."""
    command = [sys.executable, "-c", AT, place, f"{int(number)}", *REFUSED]
    ran = run(command)
    found = json.loads(ran.stdout)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code or 128 + number, False)
    assert found["exit_code"] == ran.returncode


def test_a_defect_on_the_way_out_is_no_verdict() -> None:
    """A traceback would end with 1, which is what check says of a warning."""
    code = "import preflight.cli.main as m, mooncake_preflight\n"
    code += "def main(): raise RuntimeError('what')\n"
    code += "m.main = main\nmooncake_preflight.preflight()"
    command = [sys.executable, "-c", code, "check"]
    ran = run(command)
    assert (ran.returncode, ran.stdout) == (exit_codes.DEFECT, "")
    assert "RuntimeError: what" in ran.stderr
    assert "Traceback" not in ran.stderr
