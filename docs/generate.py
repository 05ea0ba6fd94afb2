"""Writes one page per id below ``docs/rules`` and ``docs/checks`` from their own declarations.

Run it after a rule or a check changes: ``python docs/generate.py``. A test holds the pages against
it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from checks.base.finding import Check  # noqa: E402
from checks.run.judging import every_check  # noqa: E402
from preflight.check.fleet_checks import FLEET_CHECKS, FLEET_SECTIONS  # noqa: E402
from preflight.check.launch import LAUNCH_CHECKS  # noqa: E402
from preflight.check.pages import (  # noqa: E402
    MEANS,
    as_markdown,
    check_page,
    consequence_text,
    rule_page,
    worst_status,
)
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


def checks() -> list[Check]:
    """Every check of the host and the launch."""
    return [*(check for check, _ in every_check()), *LAUNCH_CHECKS]


def check_pages() -> dict[str, str]:
    """Every file below ``docs/checks``, by name."""
    found = checks()
    rows = "".join(
        f"| [{check.id}]({check.id}.md) | {check.asks} | {at_worst(check)} |\n" for check in found
    )
    head = (
        "# What `mooncake-preflight check` looks at\n\n"
        "What it finds in the launch itself is in [rules](../rules/README.md), and what only "
        "several nodes show [below](#what-mooncake-preflight-fleet-merge-finds-between-nodes).\n\n"
        "| id | asks | at worst |\n| --- | --- | --- |\n"
    )
    sections = "".join(fleet_section(title, held) for title, held in FLEET_SECTIONS.items())
    written = {
        f"{check.id}.md": as_markdown(check_page(check)) for check in (*found, *FLEET_CHECKS)
    }
    return {"README.md": head + rows + sections, **written}


def at_worst(check: Check) -> str:
    """The worst status that the check gives, and what comes of it."""
    status, consequence = worst_status(check).value, consequence_text(check)
    return f"{status}: {consequence}" if consequence else status


def fleet_section(title: str, found: Iterable[Check]) -> str:
    """A table of findings that are never passes: which statuses they have."""
    rows = "".join(
        f"| [{check.id}]({check.id}.md) | {check.asks} | "
        f"{', '.join(status.value for status, _ in check.outcomes)} |\n"
        for check in found
    )
    return f"\n## {title}\n\n| id | asks | if not |\n| --- | --- | --- |\n{rows}"


def write(folder: Path, wanted: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def main() -> None:
    write(ROOT / "docs" / "rules", pages())
    write(ROOT / "docs" / "checks", check_pages())


if __name__ == "__main__":
    main()
