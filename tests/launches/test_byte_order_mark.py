"""A byte order mark before a launch: what the field's readers make of it, and what is said."""

from __future__ import annotations

from pathlib import Path

from preflight.launches.launch_files import read_source
from preflight.launches.source import Reading
from tests.builders.launched import ids, variables

MARK = "\ufeff"
SERVER = "python3 -m sglang.launch_server --model-path m --tp-size 2"


def read(path: Path, text: str) -> Reading:
    path.write_text(f"{MARK}{text}", encoding="utf-8")
    return read_source(str(path), {})


def test_what_is_read_is_what_was_meant(tmp_path: Path) -> None:
    found = read(tmp_path / "run.sh", f"export A=1\n{SERVER}\n")
    assert variables(found.commands[0]) == {"A": "1"}
    assert ids(found) == ["byte-order-mark"]
