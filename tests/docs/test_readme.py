"""The README shows what the program really prints."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.cli.main import run as run_preflight
from tests.builders.hosts import GIB, Host
from tests.builders.synthetic import PATIENCE_SECONDS, build_host
from tests.checks.test_synthetic import FITTED, LAUNCH
from tests.paths import ROOT
from tests.sizing.test_sizing_command import run

README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_every_line_of_the_example_is_printed(tmp_path: Path) -> None:
    blocks = [block.strip("\n") for block in README.split("```")[1::2]]
    example = next(block for block in blocks if block.startswith("$ mooncake-hicache-sizing"))
    command, *shown = example.splitlines()
    advice = next(block for block in blocks if "[drop-arena]" in block).splitlines()
    Host(memory_bytes=2048 * GIB).write(tmp_path)
    printed = run(shlex.split(command)[2:], root=tmp_path).out.splitlines()
    assert printed[: len(shown)] == shown
    start = printed.index(advice[0])
    assert printed[start : start + len(advice)] == advice


def test_the_example_of_check_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A complete synthetic host, a user without CAP_IPC_LOCK, and the limit of most logins."""
    blocks = [block.strip("\n") for block in README.split("```")[1::2]]
    example = next(block for block in blocks if block.startswith("$ mooncake-preflight check"))
    command, *shown = example.splitlines()
    limited = replace(FITTED, memlock=("8388608", "8388608"), uid=1000, capabilities=0)
    (tmp_path / "host").mkdir()
    build_host(tmp_path / "host", limited)
    (tmp_path / "launch.sh").write_text(f"{LAUNCH}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    versions = ["--mooncake-version", "0.3.13.post1", "--sglang-version", "0.5.23"]
    patience = ["--timeout", str(PATIENCE_SECONDS)]
    assert run_preflight([*shlex.split(command)[2:], *versions, *patience]) == 2
    printed = capsys.readouterr().out.splitlines()[: len(shown)]
    # How many checks there are is no promise of the README.
    uncounted = [re.sub(r"\d+ (pass|skip)", r"\1", line) for line in (printed[0], shown[0])]
    assert uncounted[0] == uncounted[1]
    assert printed[1:] == shown[1:]
