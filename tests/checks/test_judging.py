"""Reading and judging: one part that hangs or breaks leaves the others whole, and never passes."""

import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from checks.base.check import Check
from checks.base.finding import Finding, Status
from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown, UnreadTopicError
from checks.run.facts import Facts, read_facts
from checks.run.runner import judge
from tests.builders.check_fakes import only_topics

DECLARED = Check("t.x", ("system",), "")


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Three topics of a made-up module in place of the real ones."""
    module = ModuleType("readers_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = {"system": "good", "limits": "broken", "memory": "hanging"}
    table = {topic: (module.__name__, function) for topic, function in names.items()}
    only_topics(monkeypatch, table)
    return module


def test_a_reader_that_hangs_or_breaks_leaves_the_others(readers: ModuleType) -> None:
    release = threading.Event()

    def broken(root: Root, needs: LaunchNeeds | None) -> Any:
        raise ZeroDivisionError("by zero")

    def hanging(root: Root, needs: LaunchNeeds | None) -> Any:
        release.wait()

    vars(readers).update(good=lambda root, needs: "seen", broken=broken, hanging=hanging)
    told: list[list[str]] = []
    try:
        facts = read_facts(Root(), None, 0.2, slow=told.append, slow_seconds=0.05)
    finally:
        release.set()
    assert facts.topic("system") == "seen"
    broken_topic, late = facts.topic("limits"), facts.topic("memory")
    assert isinstance(broken_topic, Unknown)
    assert "by zero" in broken_topic.reason
    assert isinstance(late, Unknown)
    assert "0.2 s" in late.reason
    assert told == [["memory"]]


def test_a_topic_that_was_not_read_cannot_be_used() -> None:
    facts = Facts({"system": Unknown("no sysfs")})
    with pytest.raises(UnreadTopicError, match="no sysfs"):
        _ = facts.system
    with pytest.raises(UnreadTopicError, match="not read"):
        _ = facts.rdma
    with pytest.raises(AttributeError):
        _ = facts.no_such_topic
    with pytest.raises(AttributeError):
        facts.system = None  # type: ignore[assignment]


def _silent(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    yield from ()


def _broken(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    yield Finding("t.x", Status.PASS, "one")
    raise KeyError("two")


def _missing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    yield Finding("t.x", Status.PASS, str(facts.limits))


def _good(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    yield Finding("t.x", Status.PASS, "host")


@pytest.mark.parametrize("judge_one", [_silent, _broken, _missing])
def test_a_check_that_cannot_answer_is_unknown_and_never_passes(judge_one: Any) -> None:
    """Not even for the part that it had answered: half an answer hides the other half."""
    found = judge(Facts({}), None, [(DECLARED, judge_one), (DECLARED, _good)])
    assert [finding.status for finding in found] == [Status.UNKNOWN, Status.PASS]
    assert found[0].text
