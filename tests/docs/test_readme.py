"""README shows what sizing prints of any host; ``test_blocks`` has the rest of it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.builders.hosts import GIB, Host
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
