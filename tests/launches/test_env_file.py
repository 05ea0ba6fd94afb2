"""Env files in Docker's form: no quotes, no expansion, the last line wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.launches.env_files import read_env_file, read_small_file
from preflight.launches.source import Origin
from preflight.launches.variables import Layers, environment_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nB=2", {"A": "1", "B": "2"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("# A=1\n  # B=2\nC=3", {"C": "3"}),
        ("A=1 # no comment", {"A": "1 # no comment"}),
        ("A=x=y", {"A": "x=y"}),
        ("A=", {"A": ""}),
        ("  A=1 ", {"A": "1 "}),
        ("A='x y'", {"A": "'x y'"}),
        ("A=$HOME", {"A": "$HOME"}),
        ("A=1\nA=2", {"A": "2"}),
        ("CALLER\nNOBODY", {"CALLER": "c"}),
        ("\ufeffA=1", {"A": "1"}),
        ("export A=1\n=x\nB=2", {"B": "2"}),
        ("", {}),
    ],
)
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


def test_layers() -> None:
    base = environment_words({"A": "1", "B": "2"})
    layered = Layers(base, {"A": None, "C": base["B"]})
    assert dict(layered) == {"B": base["B"], "C": base["B"]}
    assert len(layered) == 2
    assert dict(Layers(base, {"A": base["A"]}, clear=True)) == {"A": base["A"]}


def test_only_small_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("A=1")
    assert read_small_file(str(tmp_path / "a")) == "A=1"
    for path in (str(tmp_path), str(tmp_path / "b"), "/dev/zero", "a\0b", ""):
        assert read_small_file(path) is None
