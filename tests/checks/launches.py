"""Needs and facts for tests of single checks, written by hand."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from checks.base.check import CheckSet
from checks.base.finding import Finding
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.pages import Spot, Usage
from checks.base.root import Root
from checks.base.units import MIB
from checks.run.facts import Facts, read_facts
from checks.run.runner import judge

PAGE = 2 * MIB


def usage(pages: Mapping[Spot, int], name: str = "rank") -> Usage:
    """A process that takes ``pages`` and has no arena."""
    return Usage(name, pages, pages, False, {})


def launch(usages: Iterable[Usage] = (), *processes: ProcessNeeds, **other: Any) -> LaunchNeeds:
    """A launch of ``processes``; one that takes nothing where none is given."""
    members = processes or (ProcessNeeds("rank 0", "sglang", {}),)
    return LaunchNeeds("launch.sh", members, tuple(usages), **other)


def facts_of(root: Root | Path | str, *topics: str, needs: LaunchNeeds | None = None) -> Facts:
    """``topics`` read below ``root``."""
    root = root if isinstance(root, Root) else Root(str(root))
    return read_facts(root, needs, 30.0, topics=topics)


def findings(
    checks: CheckSet, facts: Facts, needs: LaunchNeeds | None, id_: str = ""
) -> list[Finding]:
    """What ``checks`` (or the one with this id) find."""
    chosen = [pair for pair in checks.checks if not id_ or pair[0].id == id_]
    assert chosen, f"no check {id_}"
    return judge(facts, needs, chosen)


def declared_outcomes_hold(checks: CheckSet, found: Iterable[Finding]) -> None:
    """Every status that was given is one that the check declares."""
    pages = {check.id: check.page for check, _ in checks.checks}
    for finding in found:
        assert finding.status in dict(pages[finding.check].outcomes), finding
