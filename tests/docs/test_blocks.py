"""The pages show what the commands print (``python -m tests.docs.blocks`` writes it anew)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, agree, run_page

SHOWN = [page for page in PAGES if "\n```\n$ moon" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path) -> None:
    for step, found in run_page(page):
        assert agree(step.shown, found), "\n".join([f"$ {step.command}", *found])
