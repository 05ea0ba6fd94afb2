"""README shows what sizing prints of any host, and short enough to be read.

``test_blocks`` runs the rest of it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from preflight.check.to_text import SCREEN_LINES
from tests.builders.hosts import GIB, Host
from tests.docs.blocks import COLUMNS
from tests.paths import ROOT
from tests.sizing.test_sizing_command import run

README = (ROOT / "README.md").read_text()


def test_the_demo_is_one_screen_with_a_command_in_its_upper_half() -> None:
    blocks = [block.strip("\n") for block in README.split("```")[1::2]]
    demo = next(block for block in blocks if block.startswith("$ mooncake-preflight check --root"))
    lines = demo.splitlines()
    assert len(lines) <= SCREEN_LINES
    to_type = next(at for at, line in enumerate(lines, 1) if line.startswith("      "))
    assert to_type <= 15


def test_what_is_shown_of_outputs_fits_a_terminal_that_nobody_made_wider() -> None:
    shown = [block.strip("\n") for block in README.split("```")[1::2]]
    lines = [
        line
        for block in shown
        if block.startswith(("$ ", "  1. "))
        for line in block.splitlines()
        if not line.startswith("$ ")
    ]
    assert len(lines) > 40
    assert [line for line in lines if len(line) > int(COLUMNS)] == []


@pytest.mark.slow
def test_every_line_of_the_example_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", COLUMNS)
    blocks = [block.strip("\n") for block in README.split("```")[1::2]]
    example = next(block for block in blocks if block.startswith("$ mooncake-hicache-sizing"))
    command, *shown = example.splitlines()
    advice = next(block for block in blocks if "[drop-arena]" in block).splitlines()
    Host(memory_bytes=2048 * GIB).write(tmp_path)
    printed = run(shlex.split(command)[2:], root=tmp_path).out.splitlines()
    assert printed[: len(shown)] == shown
    start = printed.index(advice[0])
    assert printed[start : start + len(advice)] == advice
