"""Every id that a user can meet has its page or line, and the pages are what the rules declare."""

from __future__ import annotations

import re

from checks.base.finding import Consequence, Status
from preflight.check.catalogue import as_text, catalogue, check_page
from tests.paths import ROOT


def test_the_index_of_the_rules_names_each_page() -> None:
    """A page that it leaves out is not found on a forge."""
    folder = ROOT / "preflight" / "rules"
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert {f"{path.stem}.md" for path in folder.glob("*.py")} & pages == pages
    linked = re.findall(r"\]\((\w+\.md)\)", (folder / "README.md").read_text())
    assert sorted(linked) == sorted(pages)


def test_every_notice_and_recommendation_is_documented() -> None:
    text = (ROOT / "docs" / "sizing.md").read_text()
    used: set[str] = set()
    for path in (ROOT / "preflight").rglob("*.py"):
        used |= set(
            re.findall(r'(?:(?<!Source)Note|Recommendation)\(\s*"([a-z0-9-]+)"', path.read_text())
        )
        used |= set(re.findall(r'reading\.note\(\s*"([a-z0-9-]+)"', path.read_text()))
    assert len(used) > 15
    assert {id_ for id_ in used if f"`{id_}`" not in text} == set()


def test_every_notice_of_a_reader_is_documented() -> None:
    text = (ROOT / "docs" / "launch.md").read_text()
    call = r'(?:SourceNote|\.note|_note)\(\s*"([a-z]+(?:-[a-z]+)+)"'
    used: set[str] = set()
    for module in sorted((ROOT / "preflight").rglob("*.py")):
        if module.parent.name != "sizing":  # those are in docs/sizing.md
            used |= set(re.findall(call, module.read_text()))
    assert len(used) > 10
    assert {id_ for id_ in used if f"`{id_}`" not in text} == set()


def test_a_page_says_what_comes_of_a_status_that_its_check_gives() -> None:
    """No fail is told of where none is ever found, and no consequence of what only is unknown."""
    headings = {
        Status.FAIL: "when it fails",
        Status.WARN: "what it warns of",
        Status.UNKNOWN: "when it is unknown",
    }
    seen = set()
    for check in catalogue().checks.values():
        given = {status for status, _ in check.page.outcomes}
        worst = next(status for status in headings if status in given)
        seen.add(worst)
        page = as_text(check_page(check), 10_000)
        assert [heading for heading in headings.values() if f"\n{heading}: " in page] == [
            headings[worst]
        ]
        told = [one for one in Consequence if re.search(rf"(: |, or ){one.value}(\n|, or )", page)]
        assert set(told) == (
            set() if worst is Status.UNKNOWN else {check.page.consequence, *check.page.or_else}
        )
    assert seen == set(headings)
