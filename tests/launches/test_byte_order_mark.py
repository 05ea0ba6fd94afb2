"""A byte order mark before a launch: what the field's readers make of it, and what is said."""

from __future__ import annotations

from pathlib import Path

import yaml

from preflight.launches.launch_files import read_source
from preflight.launches.source import Reading
from tests.builders.launched import ids, variables

MARK = "\ufeff"
SERVER = "python3 -m sglang.launch_server --model-path m --tp-size 2"
COMPOSE = f"services:\n  a:\n    image: sglang\n    command: {SERVER}\n"


def read(path: Path, text: str) -> Reading:
    path.write_text(f"{MARK}{text}", encoding="utf-8")
    return read_source(str(path), {})


def test_a_program_on_the_first_line_is_not_started(tmp_path: Path) -> None:
    assert ids(read(tmp_path / "run.sh", f"{SERVER} \\\n  --port 1\n")) == ["program-behind-mark"]


def test_what_is_read_is_what_was_meant(tmp_path: Path) -> None:
    found = read(tmp_path / "run.sh", f"export A=1\n{SERVER}\n")
    assert variables(found.commands[0]) == {"A": "1"}
    assert ids(found) == ["byte-order-mark"]


def test_readers_of_yaml_skip_the_mark_and_nothing_is_said(tmp_path: Path) -> None:
    assert yaml.safe_load(MARK + COMPOSE) == yaml.safe_load(COMPOSE)
    assert read(tmp_path / "compose.yaml", COMPOSE).notes == ()
