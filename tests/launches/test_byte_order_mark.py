"""A byte order mark before a launch: what the field's readers make of it, and what is said."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from preflight.launches.launch_files import read_source

MARK = "\ufeff"
SERVER = "python3 -m sglang.launch_server --model-path m --tp-size 2"
COMPOSE = f"services:\n  a:\n    image: sglang\n    command: {SERVER}\n"
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def notes(path: Path, text: str) -> dict[str, str]:
    """The reader's notices of a launch, by id."""
    path.write_text(text, encoding="utf-8")
    return {note.id: note.text for note in read_source(str(path), {}).notes}


@pytest.mark.slow
@needs_bash
@pytest.mark.parametrize(
    ("line", "id_"),
    [
        ("export A=1", "byte-order-mark"), ("A=1", "byte-order-mark"), ("", "byte-order-mark"),
        ("#!/bin/bash", "byte-order-mark"), ("# A launch", "byte-order-mark"),
    ],
)  # fmt: skip
def test_the_notice_says_what_bash_says_of_a_lost_line(tmp_path: Path, line: str, id_: str) -> None:
    """bash itself complains with the sentence that is quoted, and goes on."""
    found = notes(tmp_path / "run.sh", f"{MARK}{line}\n{SERVER}\n")
    assert set(found) == {id_}
    script = tmp_path / "real.sh"
    script.write_text(f"{MARK}{line}\necho goes on: ${{A:-unset}}\n", encoding="utf-8")
    ran = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert ran.stdout == "goes on: unset\n"
    said = ran.stderr.partition("line 1: ")[2].strip().replace(MARK, r"\ufeff")
    assert said in found[id_]


@pytest.mark.slow
@needs_bash
def test_a_program_on_the_first_line_is_not_started(tmp_path: Path) -> None:
    found = notes(tmp_path / "run.sh", f"{MARK}{SERVER} \\\n  --port 1\n")
    assert set(found) == {"program-behind-mark"}
    assert r"\ufeffpython3: command not found" in found["program-behind-mark"]
    ran = subprocess.run(
        ["bash", "-c", f"{MARK}echo started"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (127, "")


def test_what_is_read_is_what_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{MARK}export A=1\n{SERVER}\n", encoding="utf-8")
    (command,) = read_source(str(path), {}).commands
    assert command.environment["A"].text == "1"


@pytest.mark.parametrize("name", ["compose.yaml", "compose.json"])
def test_readers_of_yaml_skip_the_mark_and_nothing_is_said(tmp_path: Path, name: str) -> None:
    """Compose and kubectl read JSON as YAML too."""
    service = {"services": {"a": {"command": SERVER}}}
    text = COMPOSE if name.endswith("yaml") else json.dumps(service)
    assert yaml.safe_load(MARK + text) == yaml.safe_load(text)
    found = notes(tmp_path / name, MARK + text)
    assert not {"byte-order-mark", "program-behind-mark"} & set(found)


def test_an_env_file_loses_the_mark_as_with_docker(tmp_path: Path) -> None:
    """docker run and docker-compose 1.29 take A for the name."""
    script, given = tmp_path / "run.sh", tmp_path / "a.env"
    script.write_text(f"{SERVER}\n", encoding="utf-8")
    given.write_text(f"{MARK}A=1\n", encoding="utf-8")
    reading = read_source(str(script), {}, [str(given)])
    assert reading.commands[0].environment["A"].text == "1"
    assert reading.notes == ()
