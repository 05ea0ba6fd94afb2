"""A byte order mark before a launch: what the field's readers make of it, and what is said."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from preflight.launches.launch_files import read_source
from preflight.launches.source import Reading

MARK = "\ufeff"
SERVER = "python3 -m sglang.launch_server --model-path m --tp-size 2"
COMPOSE = f"services:\n  a:\n    image: sglang\n    command: {SERVER}\n"


def read(path: Path, text: str) -> Reading:
    path.write_text(f"{MARK}{text}", encoding="utf-8")
    return read_source(str(path), {})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("line", ["A=1", "", "#!/bin/bash"])
def test_the_notice_says_what_bash_says_of_a_lost_line(tmp_path: Path, line: str) -> None:
    """bash itself complains with the sentence that is quoted, and goes on."""
    (note,) = read(tmp_path / "run.sh", f"{line}\n{SERVER}\n").notes
    assert note.id == "byte-order-mark"
    script = tmp_path / "real.sh"
    script.write_text(f"{MARK}{line}\necho goes on: ${{A:-unset}}\n", encoding="utf-8")
    ran = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert ran.stdout == "goes on: unset\n"
    assert ran.stderr.partition("line 1: ")[2].strip().replace(MARK, r"\ufeff") in note.text


def test_a_program_on_the_first_line_is_not_started(tmp_path: Path) -> None:
    (note,) = read(tmp_path / "run.sh", f"{SERVER} \\\n  --port 1\n").notes
    assert note.id == "program-behind-mark"
    assert r"\ufeffpython3: command not found" in note.text


def test_what_is_read_is_what_was_meant(tmp_path: Path) -> None:
    (command,) = read(tmp_path / "run.sh", f"export A=1\n{SERVER}\n").commands
    assert command.environment["A"].text == "1"


def test_readers_of_yaml_skip_the_mark_and_nothing_is_said(tmp_path: Path) -> None:
    assert yaml.safe_load(MARK + COMPOSE) == yaml.safe_load(COMPOSE)
    assert read(tmp_path / "compose.yaml", COMPOSE).notes == ()
