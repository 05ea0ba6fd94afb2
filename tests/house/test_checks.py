"""What whoever writes a check is told: of its page, and of the test that it has to have."""

import re
from pathlib import Path

import pytest

from checks.framework.check import PageError, read_page
from preflight.verdict.catalogue import catalogue
from tests.paths import ROOT

PAGE = (ROOT / "checks/memlock/memlock.limit.md").read_text()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (None, "write the page of a.check"),
        (PAGE.replace("## What to do", "## To do"), "write the section ## What to do"),
        (PAGE.replace("will not start", "breaks"), "'breaks' is none: write one of will not start"),
        (PAGE.replace("- warn:", "- maybe:"), "'maybe' is none: write one of "),
        ("# a.check\n", "write the section ## Outcomes"),
    ],
)
def test_a_page_that_is_not_as_pages_are_is_named(
    tmp_path: Path, page: str | None, said: str
) -> None:
    """With its file, and what to write there."""
    if page is not None:
        (tmp_path / "a.check.md").write_text(page)
    with pytest.raises(PageError) as raised:
        read_page(str(tmp_path), "a.check")
    assert str(raised.value).startswith(str(tmp_path / "a.check.md"))
    assert said in str(raised.value)


def test_every_check_has_a_test() -> None:
    """That names it: one that nothing tests may say anything."""
    texts = [
        path.read_text()
        for path in (ROOT / "tests").rglob("*.py")
        if "data" not in path.parts and path.name != "test_checks.py"
    ]
    named = set(re.findall(r"[a-z0-9-]+\.[a-z0-9-]+", "\n".join(texts)))
    without = sorted(set(catalogue().checks) - named)
    assert without == [], "write a test that names it in tests/checks, or beside its topic's tests"
