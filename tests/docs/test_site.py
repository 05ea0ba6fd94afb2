"""The site that mkdocs makes of the docs, with the pages beside the code and the tables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.check.catalogue import catalogue
from preflight.logs.by_words import index_rows
from preflight.rules.launch_rules import RULES
from tests.paths import ROOT


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
    assert {id_ for id_ in catalogue().checks if f"<code>{id_}</code>" not in checks} == set()
    lines = (reference / "log-lines" / "index.html").read_text()
    assert len(re.findall(r"<h3 ", lines)) == len(index_rows())


def test_every_page_is_found_from_the_menu_and_from_the_index() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    assert [page for page in pages if page not in menu or f"]({page})" not in index] == []
