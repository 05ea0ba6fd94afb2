"""Writes one page per id below ``docs/rules`` from the rules' own declarations.

Run it after a rule changes: ``python docs/generate.py``. A test holds the pages against
it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from preflight.check.page_text import MEANS, as_markdown, rule_page  # noqa: E402
from preflight.rules.launch_rules import RULES  # noqa: E402


def index() -> str:
    """The list of all rules, the worst first."""
    order = list(MEANS)
    rules = sorted(RULES.values(), key=lambda rule: (order.index(rule.severity), rule.id))
    rows = "".join(
        f"| [{rule.id}]({rule.id}.md) | {rule.severity.value} | {rule.finds} |\n" for rule in rules
    )
    head = "# What is found in a launch\n\n| id | severity | finds |\n| --- | --- | --- |\n"
    return head + rows


def pages() -> dict[str, str]:
    """Every file below ``docs/rules``, by name."""
    written = {f"{rule.id}.md": as_markdown(rule_page(rule)) for rule in RULES.values()}
    return {"README.md": index(), **written}


def write(folder: Path, wanted: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def main() -> None:
    write(ROOT / "docs" / "rules", pages())


if __name__ == "__main__":
    main()
