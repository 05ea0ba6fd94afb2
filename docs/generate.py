"""Writes one page per rule below ``docs/rules`` from the rules' own declarations.

Run it after a rule changes: ``python docs/generate.py``. A test holds the pages against it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from preflight.launch_rules import RULES  # noqa: E402
from preflight.rules import Rule, Severity  # noqa: E402

MEANS = {
    Severity.FAIL: "fail: the process does not start, or ends by itself",
    Severity.WARN: "warn: it runs, and not as it was written",
    Severity.NOTE: "note: worth knowing; nothing is wrong by itself",
}


def page(rule: Rule) -> str:
    """The page of one rule."""
    return (
        f"# {rule.id}\n\n"
        f"{_sentence(rule.finds)}\n\n"
        "| | |\n| --- | --- |\n"
        f"| severity | {MEANS[rule.severity]} |\n"
        f"| what follows | {rule.consequence} |\n"
        f"| what to do | {rule.remedy} |\n"
        f"| read or seen in | {rule.source} |\n"
    )


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
    return {"README.md": index(), **{f"{rule.id}.md": page(rule) for rule in RULES.values()}}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def main() -> None:
    folder = ROOT / "docs" / "rules"
    folder.mkdir(exist_ok=True)
    wanted = pages()
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
