"""Made-up checks in place of the real ones: what they find is what the test says."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

from checks.framework.check import Check, CheckSet, Page
from checks.framework.finding import Consequence, Finding, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.run_checks.facts import READERS, Facts
from checks.system.facts import Container

Reader = Callable[[Root, LaunchNeeds | None], Any]


def declared(id_: str, consequence: Consequence = Consequence.WILL_NOT_START) -> Check:
    outcomes = tuple((status, "as the test says") for status in Status)
    page = Page("Is it?", consequence, "It is so.", outcomes, "mend it", "a test")
    return Check(id_, ("system",), page)


def installed(
    monkeypatch: pytest.MonkeyPatch, findings: Sequence[Finding], reader: Reader | None = None
) -> ModuleType:
    """One module with a check per id among ``findings``, each of which reads the topic system."""
    module: Any = ModuleType("checks_of_a_test")
    module.CHECKS = CheckSet()
    for id_ in dict.fromkeys(finding.check for finding in findings):

        def judge(facts: Facts, needs: LaunchNeeds | None, id_: str = id_) -> Iterator[Finding]:
            _ = facts.system
            yield from (finding for finding in findings if finding.check == id_)

        module.CHECKS.checks.append((declared(id_), judge))
    module.read = reader or (lambda root, needs: _System())
    module.unread = lambda root, needs: Unknown("not wanted by the test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("checks.run_checks.runner.CHECK_MODULES", (module.__name__,))
    table = {"system": (module.__name__, "read"), "limits": (module.__name__, "unread")}
    only_topics(monkeypatch, table)
    return module  # type: ignore[no-any-return]


def only_topics(monkeypatch: pytest.MonkeyPatch, table: Mapping[str, tuple[str, str]]) -> None:
    """The one dictionary that every module imports, not a name in some of them."""
    for topic in tuple(READERS):
        monkeypatch.delitem(READERS, topic)
    for topic, where in table.items():
        monkeypatch.setitem(READERS, topic, where)


class _System:
    """What the commands' context is read from: the machine itself."""

    container = Container("none", "")
    distribution = "debian"
    distribution_version = kernel_release = architecture = hypervisor = page_bytes = None
