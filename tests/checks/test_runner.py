"""Reading and judging: what fails, hangs or is not known hides no other, and never passes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from checks.framework.check import Check, CheckSet, the_launch
from checks.framework.finding import Finding, Kind, Setting, Status, passed, skip, unknown_finding
from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.framework.unknown import (
    Unknown,
    UnreadTopicError,
    must_be_read,
    or_unknown,
    require,
    unread,
)
from checks.run_checks.facts import Facts, read_facts
from checks.run_checks.runner import judge
from tests.builders.check_fakes import only_topics

NEEDS = LaunchNeeds("launch.sh", (), ())
HUNG = Unknown("hung")


class System:
    page_bytes: int | Unknown = 4096
    kernel: tuple[int, int] | Unknown = Unknown("no uname")


def run(function: Any, needs: LaunchNeeds | None = None, takes: Any = None) -> list[Finding]:
    checks = CheckSet()
    checks.check("t.x", takes)(function)
    ((check, judge),) = checks.checks
    facts = Facts({"system": System(), "limits": HUNG})
    found = list(judge(facts, needs))
    assert all(one.check == check.id == "t.x" for one in found)
    return [one._replace(check="") for one in found]


def test_topics_are_handed_over_by_the_names_of_parameters() -> None:
    def judge(needs: LaunchNeeds, system: Any, limits: Any) -> list[Finding]:
        return [passed(needs.source, str(system.page_bytes))]

    checks = CheckSet()
    checks.check("t.x", the_launch)(judge)
    assert checks.checks[0][0].topics == ("system", "limits")
    assert run(judge, NEEDS, the_launch) == [passed("launch.sh", "4096")]


def test_without_a_launch_there_is_nothing_to_judge() -> None:
    def judge(needs: LaunchNeeds, limits: Any) -> list[Finding]:
        raise AssertionError("not reached")

    assert run(judge, None, the_launch) == [skip("no launch was given")]


def test_a_topic_that_was_not_read_makes_the_whole_check_unknown_where_it_is_asked() -> None:
    def asks(limits: Any) -> Iterator[Finding]:
        yield passed("one")
        yield passed(str(limits.memlock))

    def asks_not(limits: Any) -> Iterator[Finding]:
        yield passed("one")

    def does_without(limits: Any) -> Iterator[Finding]:
        why = unread(limits)
        yield passed("one", "" if why is None else why.reason)

    def must_have(limits: Any) -> Iterator[Finding]:
        must_be_read(limits)
        yield passed("one")

    assert run(asks) == run(must_have) == [unknown_finding("host", "hung")]
    assert run(asks_not) == [passed("one")]
    assert run(does_without) == [passed("one", "hung")]


def test_a_fact_that_a_subject_needs_makes_that_subject_unknown() -> None:
    def judge(system: Any) -> Iterator[Finding]:
        yield passed("one", str(passed("one").require(system.page_bytes)))
        passed("two", "a", "b").require(system.kernel, "the kernel: ")
        yield passed("three")

    two = unknown_finding("two", Unknown("no uname").of("the kernel: "), "a", "b")
    assert (two.text, two.cause) == ("the kernel: no uname", "no uname")
    assert run(judge) == [passed("one", "4096"), two]


def test_a_fact_that_a_check_needs_makes_the_check_unknown() -> None:
    def judge(system: Any) -> Iterator[Finding]:
        yield passed("one")
        require(system.kernel)

    assert run(judge) == [unknown_finding("host", "no uname")]


def test_an_unread_topic_is_no_unknown_fact_of_a_reader() -> None:
    """Else a helper that hands unknown facts on would hide which check could not be made."""

    @or_unknown
    def page(limits: Any) -> int | Unknown:
        return int(limits.page_bytes)

    def judge(limits: Any) -> Iterator[Finding]:
        yield passed("one", str(page(limits)))

    assert run(judge) == [unknown_finding("host", "hung")]


def test_or_unknown_hands_the_very_fact_on() -> None:
    @or_unknown
    def double(value: int | Unknown) -> int:
        return 2 * require(value)

    assert double(2) == 4
    assert double(HUNG) is HUNG


@pytest.mark.parametrize("name", ["failed", "warned", "undecided", "skipped"])
def test_a_half_made_finding_keeps_what_it_has(name: str) -> None:
    setting = (Setting(Kind.SYSCTL, "vm.x", "1"),)
    half = passed("one", "have", "need", "formula", advice="do", settings=setting)
    whole = getattr(half, name)("text")
    status = {"failed": Status.FAIL, "warned": Status.WARN, "skipped": Status.SKIP}
    cause = "text" if name == "undecided" else ""
    wanted = half._replace(status=status.get(name, Status.UNKNOWN), text="text", cause=cause)
    assert whole == wanted
    assert getattr(half, name)("text", need="more").need == "more"


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
