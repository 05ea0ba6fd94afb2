"""A check: its id, what it reads, the function that judges, and its page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from checks.base.finding import Finding
from checks.base.page import Page, read_page

if TYPE_CHECKING:
    from checks.base.needs import LaunchNeeds
    from checks.run.facts import Facts

Judge = Callable[["Facts", "LaunchNeeds | None"], Iterable[Finding]]


class Check(NamedTuple):
    """What is declared of a check beside its page.

    id: stable, ``topic.what``. topics: the facts that it reads (names of the fields of ``Facts``).
    at: the folder of its page, or the page itself where no file has it.
    """

    id: str
    topics: tuple[str, ...]
    at: str | Page

    @property
    def page(self) -> Page:
        """Its page, read when it is first asked for."""
        return self.at if isinstance(self.at, Page) else read_page(self.at, self.id)


class CheckSet:
    """Checks of one module, each declared above the function that judges it."""

    def __init__(self) -> None:
        self.checks: list[tuple[Check, Judge]] = []

    def declare(self, check: str, *topics: str) -> Callable[[Judge], Judge]:
        """Register a judge that reads ``topics``; the page is beside its module."""

        def add(judge: Judge) -> Judge:
            folder = os.path.dirname(judge.__globals__["__file__"])
            self.checks.append((Check(check, topics, folder), judge))
            return judge

        return add
