"""Env files in Docker's form: no quotes, no expansion, the last line wins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from preflight.launches.env_files import env_file_settings, read_env_file, read_small_file
from preflight.launches.shell_script import read_script
from preflight.launches.source import Origin
from tests.tables import each_row


@each_row(
    ("text", "expected"),
    [
        ("A=1\nB=2", {"A": "1", "B": "2"}), ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("# A=1\n  # B=2\nC=3", {"C": "3"}), ("A=1 # no comment", {"A": "1 # no comment"}),
        ("A=x=y", {"A": "x=y"}), ("A=", {"A": ""}), ("  A=1 ", {"A": "1 "}),
        ("A='x y'", {"A": "'x y'"}), ("A=$HOME", {"A": "$HOME"}), ("A=1\nA=2", {"A": "2"}),
        ("CALLER\nNOBODY", {"CALLER": "c"}), ("\ufeffA=1", {"A": "1"}),
        ("export A=1\n=x\nB=2", {"B": "2"}), ("", {}),
    ],
)  # fmt: skip
def test_lines(text: str, expected: dict[str, str]) -> None:
    variables, _ = read_env_file(text, "prod.env", {"CALLER": "c"})
    assert {name: word.text for name, word in variables.items()} == expected


def test_origins_and_notes() -> None:
    variables, notes = read_env_file('A="8gb"\n\nexport B=1\nC', "prod.env", {"C": "c"})
    assert variables["A"].origin == Origin("prod.env", 1)
    assert variables["C"].origin == Origin("prod.env", 4)
    assert [(note.id, note.origin.line) for note in notes] == [
        ("env-file-quotes", 1),
        ("env-file-name", 3),
    ]
    assert "write A=8gb" in notes[0].text


def test_only_small_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A=1")
    assert read_small_file(str(tmp_path / "a")) == "A=1"
    for path in (str(tmp_path), str(tmp_path / "b"), "/dev/zero", "a\0b", ""):
        assert read_small_file(path) is None


_LINES = "# a comment\nMOONCAKE_MASTER=10.0.0.5:50051\n\nMOONCAKE_PROTOCOL=rdma\nEMPTY=\n"


@pytest.mark.slow
@each_row(
    "file",
    [
        _LINES, "A=\"40gb\"\nB='x'\n", 'A="a b"\n', "export A=1\n", "A=$HOME\nB=`id`\n", "A=a#b\n",
        "A=1 # why\n", "A=*\n", "A=a\\nb\n",
    ],
)  # fmt: skip
@each_row(
    "command",
    [
        "grep -v '^#' .env | xargs", "cat .env | xargs -0", "cat .env|xargs", "xargs < .env",
        "cat .env", "egrep -v '^#' .env | xargs -d '\\n'", "cut -d= -f1 .env",
        "grep -v '^#' .env | xargs; touch ran", "grep -v '^#' .env | xargs > out",
    ],
)  # fmt: skip
def test_the_lines_of_an_env_file_are_what_bash_exports(
    command: str, file: str, tmp_path: Path
) -> None:
    """``export $(grep -v '^#' .env | xargs)``: what is read is what bash makes; else it is told."""
    script = f"A=own\nexport $({command}) > said 2>&1\n"
    reading = read_script(
        f"{script}x\n", "s", {}, beside=lambda name: file if name == ".env" else None
    )
    (read,) = (each.environment for each in reading.commands if each.words[0].text == "x")
    if any(note.id == "source-not-read" for note in reading.notes):
        return
    (tmp_path / ".env").write_text(file)
    ran = subprocess.run(
        ["bash", "-c", f"{script}env -0"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    made = dict(line.partition("=")[::2] for line in ran.stdout.split("\0") if line)
    for name in ("PATH", "PWD", "SHLVL", "_"):
        made.pop(name, None)
    assert {name: word.text for name, word in read.items()} == made


@pytest.mark.parametrize(
    "command", ["grep -v '^#' .env | xargs", "cat .env|xargs -0", "xargs < .env"]
)
def test_the_ways_that_everybody_writes_are_read(command: str) -> None:
    near = {".env": "A=1\nB=x:2\n"}.get
    assert env_file_settings(command, near) == "A=1\nB=x:2"


@pytest.mark.parametrize(
    "line",
    [
        "source /opt/site/mooncake.env",
        "export $(./settings.py)",
        'while read -r line; do export "$line"; done < .env',
        'eval "$(site-settings)"',
    ],
)
def test_what_a_program_needs_is_unknown_behind_what_is_not_read(line: str) -> None:
    """SGLang ends without a master: a file that is not here may name it."""
    (command,) = read_script(f"{line}\nx\n", "s", {}, beside=lambda name: None).commands
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("MOONCAKE_MASTER",)
    (command,) = read_script(
        f"export MOONCAKE_MASTER=h:1\n{line}\nx\n", "s", {}, beside=lambda name: None
    ).commands
    assert command.environment["MOONCAKE_MASTER"].text == "h:1"


def test_a_stream_that_nobody_named_is_not_opened() -> None:
    """A pipe of ours that a running process names by its own number: reading it would hang."""
    reading, writing = os.pipe()
    try:
        assert read_small_file(f"/dev/fd/{reading}") is None
    finally:
        os.close(reading)
        os.close(writing)
