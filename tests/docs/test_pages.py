"""The pages show what the commands print (``python -m tests.docs.blocks`` writes it anew).

README is short enough to be read; the lines of jq find something; the site has every page.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.launch_problems.rules.launch_rules import RULES
from preflight.report.to_text import SCREEN_LINES
from preflight.server_logs.by_words import index_rows
from preflight.verdict.catalogue import catalogue
from tests.builders.hosts import GIB, Host
from tests.builders.synthetic import PATIENCE_SECONDS
from tests.docs.blocks import COLUMNS, PAGES, agree, run_page
from tests.needs.test_sizing_command import run as run_sizing
from tests.paths import ROOT

SHOWN = [page for page in PAGES if "\n```\n$ moon" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path) -> None:
    for step, found in run_page(page):
        assert agree(step.shown, found), "\n".join([f"$ {step.command}", *found])


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
    printed = run_sizing(shlex.split(command)[2:], root=tmp_path).out.splitlines()
    assert printed[: len(shown)] == shown
    start = printed.index(advice[0])
    assert printed[start : start + len(advice)] == advice


LINES = re.findall(r"^(?:mooncake-preflight|jq) .*$", (ROOT / "docs/json.md").read_text(), re.M)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq (apt-get install jq)")
def test_each_line_finds_what_it_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sum(line.startswith("jq ") for line in LINES) == 10
    for line in LINES:
        words = shlex.split(line)
        if words[0] != "jq":
            behind = words.index(next(word for word in words if word in "<>"))
            command, file = words[1:behind], words[-1]
            patient = (
                ["--timeout", str(PATIENCE_SECONDS)] if command[0] in ("check", "plan") else []
            )
            run([*command, *patient])
            Path(file).write_text(capsys.readouterr().out)
            continue
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        said = done.stdout.splitlines()
        assert said, line
        assert not any("null" in each for each in said), said


@pytest.mark.slow
def test_the_site_builds_with_every_link_and_every_table(tmp_path: Path) -> None:
    """``strict``: a link or a heading that is not there ends the build."""
    pytest.importorskip("material", reason="pip install -e '.[docs]'")
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)]
    made = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    reference = tmp_path / "reference"
    rules = (reference / "rules" / "index.html").read_text()
    assert {id_ for id_ in RULES if f"<code>{id_}</code>" not in rules} == set()
    checks = (reference / "checks" / "index.html").read_text()
    others = catalogue().problems.keys() - RULES
    assert {id_ for id_ in others if f"<code>{id_}</code>" not in checks} == set()
    lines = (reference / "log-lines" / "index.html").read_text()
    assert len(re.findall(r"<h3 ", lines)) == len(index_rows())


def test_every_page_is_found_from_the_menu_and_from_the_index() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert [page for page in pages if page not in menu or f"]({page})" not in index] == []
