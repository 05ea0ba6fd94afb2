"""Made-up checks in place of the real ones: what they find is what the test says."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

from checks.framework.finding import Consequence, Finding, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.problem import Page, Problem, Problems
from checks.framework.root import Root
from checks.framework.unknown import Unknown, must_be_read
from checks.run_checks.facts import READERS
from checks.system.facts import Container

Reader = Callable[[Root, LaunchNeeds | None], Any]


def declared(id_: str, consequence: Consequence = Consequence.WILL_NOT_START) -> Problem:
    outcomes = tuple((status, "as the test says") for status in Status)
    told = consequence.value, "mend it", "a test", (consequence,)
    return Problem(id_, Page("Is it?", "It is so.", outcomes, *told), ("system",))


def installed(
    monkeypatch: pytest.MonkeyPatch, findings: Sequence[Finding], reader: Reader | None = None
) -> ModuleType:
    """One module with a check per id among ``findings``, each of which reads the topic system."""
    module: Any = ModuleType("checks_of_a_test")
    module.CHECKS = Problems()
    for id_ in dict.fromkeys(finding.check for finding in findings):

        def judge(system: Any, id_: str = id_) -> Iterator[Finding]:
            must_be_read(system)
            yield from (finding for finding in findings if finding.check == id_)

        module.CHECKS.problems.append(declared(id_)._replace(function=judge))
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
