"""Reading and judging: what fails, hangs or is not known hides no other, and never passes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from checks.framework.finding import (
    Consequence,
    Finding,
    Kind,
    Setting,
    Status,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.needs import LaunchNeeds
from checks.framework.problem import Match, Page, Problem, Problems, Severity, the_launch
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


def run(function: Any, needs: LaunchNeeds | None = None, **takes: Any) -> list[Finding]:
    checks = Problems()
    checks("t.x", **takes)(function)
    (check,) = checks.problems
    facts = Facts({"system": System(), "limits": HUNG})
    found = judge(facts, needs, [check])
    assert all(one.check == check.id == "t.x" for one in found)
    return [one._replace(check="") for one in found]


def test_what_a_function_judges_is_told_by_the_names_of_its_parameters() -> None:
    def judge(needs: LaunchNeeds, system: Any, limits: Any) -> list[Finding]:
        return [passed(needs.source, str(system.page_bytes))]

    checks = Problems()
    checks("t.x")(judge)
    assert checks.problems[0].about == ("needs", "system", "limits")
    assert run(judge, NEEDS) == [passed("launch.sh", "4096")]


def test_a_name_of_its_own_follows_from_the_needs() -> None:
    def judge(source: str, system: Any) -> list[Finding]:
        return [passed(source)]

    def source_of(needs: LaunchNeeds | None) -> str:
        return the_launch(needs).source

    assert run(judge, NEEDS, source=source_of) == [passed("launch.sh")]
    assert run(judge, None, source=source_of) == [skip("no launch was given")]


def test_of_each_process_is_asked_what_the_whole_has_not() -> None:
    """A process without what a function is about is passed over; an unknown fact ends only what is
    said of that one. What is found stands where its process does, if it says no other place."""

    def judge(server: str, release: str) -> Iterator[Match]:
        yield Match(f"{server} {release}")
        require(HUNG if server == "b" else 1)
        yield Match("more", "elsewhere", "do this")

    page = Page("a thing", "", (), "it ends", "mend it", "a test", (), Severity.DIES)
    problem = Problem("x", page, ("server", "release"), judge)
    each = [{"server": name, "origin": f"at {name}"} for name in ("a", None, "b")]
    matches = list(problem.answers({"release": "1"}, each))
    where = [("a 1", "at a"), ("more", "elsewhere"), ("b 1", "at b")]
    assert [(match.text, match.origin) for match in matches] == where
    assert list(problem.answers({}, each)) == [], "nothing says the release"
    assert {match.id for match in matches} == {"x"}
    first, second, _ = (match.finding for match in matches)
    told = first.status, first.consequence, first.text, first.advice
    assert told == (Status.FAIL, Consequence.DIES_LATER, "a 1: it ends", "mend it")
    assert second.advice == "do this"


def test_without_a_launch_there_is_nothing_to_judge() -> None:
    def judge(needs: LaunchNeeds, limits: Any) -> list[Finding]:
        raise AssertionError("not reached")

    assert run(judge, None) == [skip("no launch was given")]


def test_needs_that_may_be_none_are_judged_without_a_launch() -> None:
    def judge(needs: LaunchNeeds | None, system: Any) -> list[Finding]:
        return [passed("host" if needs is None else "launch")]

    assert run(judge, None) == [passed("host")]
    assert run(judge, NEEDS) == [passed("launch")]


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


def _silent() -> Iterator[Finding]:
    yield from ()


def _broken() -> Iterator[Finding]:
    yield passed("one")
    raise KeyError("two")


def _missing(limits: Any) -> Iterator[Finding]:
    yield passed(str(limits.memlock))


def _good() -> Iterator[Finding]:
    yield passed("host")


@pytest.mark.parametrize("judge_one", [_silent, _broken, _missing])
def test_a_check_that_cannot_answer_is_unknown_and_never_passes(judge_one: Any) -> None:
    """Not even for the part that it had answered: half an answer hides the other half."""
    checks = Problems()
    checks("t.x")(judge_one)
    checks("t.y")(_good)
    found = judge(Facts({}), None, checks.problems)
    assert [finding.status for finding in found] == [Status.UNKNOWN, Status.PASS]
    assert found[0].text
