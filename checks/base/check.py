"""A check: its id, what it reads, the function that judges, and its page; and what runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from checks.base.finding import NO_LAUNCH, Consequence, Finding, UnjudgedError, skip, unknown
from checks.base.needs import LaunchNeeds
from checks.base.page import Page, read_consequence, read_page
from checks.base.unknown import Unknown, UnknownFactError, UnreadTopic, UnreadTopicError


class Topics(Protocol):
    """What was read of a host, topic by topic: ``checks.run.facts.Facts``."""

    def topic(self, name: str) -> Any | Unknown: ...


Judge = Callable[[Any, "LaunchNeeds | None"], Iterable[Finding]]
# What a check's module writes: see ``CheckSet.check`` for its parameters.
JudgeByName = Callable[..., Iterable[Finding]]


class Check(NamedTuple):
    """What is declared of a check beside its page.

    id: stable, ``topic.what``. topics: the facts that it reads (names of the fields of ``Facts``).
    at: the folder of its page, or the page itself where no file has it. of_host: whether it judges
    a host without a launch; else it skips, and reads nothing.
    """

    id: str
    topics: tuple[str, ...]
    at: str | Page
    of_host: bool = True

    @property
    def page(self) -> Page:
        """Its page, read when it is first asked for."""
        return self.at if isinstance(self.at, Page) else read_page(self.at, self.id)

    @property
    def consequence(self) -> Consequence:
        """Its page's, which most answers need of it alone."""
        if isinstance(self.at, Page):
            return self.at.consequence
        return read_consequence(self.at, self.id)


def the_launch(needs: LaunchNeeds | None) -> LaunchNeeds:
    """Return the launch. Raises UnjudgedError without one: there is nothing to judge."""
    if needs is None:
        raise UnjudgedError(skip(NO_LAUNCH))
    return needs


def any_launch(needs: LaunchNeeds | None) -> LaunchNeeds | None:
    """Return the launch, or None: the host alone is judged too."""
    return needs


class CheckSet:
    """Checks of one module, each declared above the function that judges it."""

    def __init__(self) -> None:
        self.checks: list[tuple[Check, Judge]] = []

    def check(
        self, id_: str, takes: Callable[[LaunchNeeds | None], Any] | None = None
    ) -> Callable[[JudgeByName], JudgeByName]:
        """Register a function that judges; its page is beside its module.

        Its first parameter is what ``takes`` makes of the launch's needs (none where ``takes`` is
        None), the others are topics, by name. What it yields has no id yet.
        """

        def add(function: JudgeByName) -> JudgeByName:
            code = function.__code__
            topics = code.co_varnames[0 if takes is None else 1 : code.co_argcount]

            def run(facts: Topics, needs: LaunchNeeds | None) -> Iterable[Finding]:
                part = () if takes is None else (takes(needs),)
                return function(*part, *(_record(facts.topic(name)) for name in topics))

            def judge(facts: Topics, needs: LaunchNeeds | None) -> list[Finding]:
                try:
                    found = _caught(lambda: run(facts, needs))
                except (UnknownFactError, UnreadTopicError) as error:
                    found = [unknown("host", error.fact)]
                return [one if one.check else one._replace(check=id_) for one in found]

            folder = os.path.dirname(function.__globals__["__file__"])
            self.checks.append((Check(id_, topics, folder, _judges_hosts(takes)), judge))
            return function

        return add


def _judges_hosts(takes: Callable[[LaunchNeeds | None], Any] | None) -> bool:
    try:
        if takes is not None:
            takes(None)
    except UnjudgedError:
        return False
    return True


def _record(topic: Any | Unknown) -> Any:
    return UnreadTopic(topic) if isinstance(topic, Unknown) else topic


def _caught(run: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of ``run``; where it could not judge on, the last one says why."""
    found: list[Finding] = []
    try:
        found.extend(run())  # what a generator yields before it breaks off stays
    except UnjudgedError as error:
        found.append(error.args[0])
    return found
