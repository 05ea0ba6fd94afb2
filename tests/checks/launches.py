"""Needs and facts for tests of single checks, written by hand."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from checks.framework.finding import Finding
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.pages import Spot, Usage
from checks.framework.root import Root
from checks.framework.units import MIB
from checks.run_checks.facts import Facts, read_facts
from checks.run_checks.runner import every_check, judge

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


def findings(facts: Facts, needs: LaunchNeeds | None, id_: str) -> list[Finding]:
    """What the check finds, each status one that it declares; or those of a topic ("numa.")."""
    chosen = {check.id: check for check in every_check()}
    if id_.endswith("."):
        return judge(facts, needs, [chosen[x] for x in chosen if x.startswith(id_)])
    found = judge(facts, needs, [chosen[id_]])
    for finding in found:
        assert finding.status in dict(chosen[id_].page.outcomes), finding
        assert "defect" not in finding.text, finding
    return found


def one_finding(facts: Facts, needs: LaunchNeeds | None, id_: str) -> Finding:
    """The only finding of a check."""
    (finding,) = findings(facts, needs, id_)
    return finding
