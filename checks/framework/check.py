"""A check: its id, what it reads, the function that judges, and its page; and what runs it.

A page is one Markdown file beside the code that judges, ``<id>.md``, in a fixed order:

    # memlock.limit
    The question that the check answers.
    What happens to a launch, when, and how that looks, in one paragraph or more.
    ## Outcomes          - status: when it is given
    ## What follows      the consequence of a failure, and those that some findings name instead
    ## What to do
    ## Read or seen in
    ## As root           where root sees more; may be missing

``explain``, the reports and whoever reads the repository all read it.
"""

import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, TypeVar

from checks.framework.finding import (
    NO_LAUNCH,
    Consequence,
    Finding,
    Status,
    UnjudgedError,
    skip,
    unknown_finding,
)
from checks.framework.needs import LaunchNeeds
from checks.framework.unknown import Unknown, UnknownFactError, UnreadTopic, UnreadTopicError

_OPTIONAL = "As root"
_SECTIONS = ("Outcomes", "What follows", "What to do", "Read or seen in")
_ORDER = "the first lines of checks/framework/check.py"
Word = TypeVar("Word", Consequence, Status)


class Page(NamedTuple):
    """What a check's page says."""

    asks: str  # the question that the check answers
    consequence: Consequence  # of its failure
    why: str  # what happens to a launch, when, and how that looks
    outcomes: tuple[tuple[Status, str], ...]  # (status, when it is given)
    remedy: str  # in general
    source: str  # where the behaviour was read or seen
    root: str = ""  # what root sees more
    or_else: tuple[Consequence, ...] = ()  # those that some findings name in place of that


class PageError(Exception):
    """A page that does not exist, or lacks a part: names the file, and what to write into it."""


@cache
def read_page(folder: str, check: str) -> Page:
    """Read and parse the page of a check, the file ``<folder>/<check>.md``; cached.

    Raises:
        PageError: If the file or a required section is missing, or if a status or consequence is
            not a known one.
    """
    head, *parts = re.split(r"^## ", _page_text(folder, check), flags=re.MULTILINE)
    path = os.path.join(folder, f"{check}.md")
    sections = {name: body for name, _, body in (part.partition("\n") for part in parts)}
    if lacking := [name for name in _SECTIONS if not sections.get(name, "").strip()]:
        raise PageError(f"{path}: write the section ## {lacking[0]}, as in {_ORDER}")
    if len(_paragraphs(head)) < 2:
        raise PageError(f"{path}: write the question below the title, as in {_ORDER}")
    _title, asks, *why = _paragraphs(head)
    items = re.split(r"^- ", sections["Outcomes"], flags=re.MULTILINE)[1:]
    outcomes = [" ".join(item.split()).partition(": ") for item in items]
    consequence, *or_else = _consequences(path, _one_paragraph(sections["What follows"]))
    return Page(
        asks,
        consequence,
        "\n\n".join(why),
        tuple((_member(Status, name, f"{path}: ## Outcomes"), when) for name, _, when in outcomes),
        _one_paragraph(sections["What to do"]),
        _one_paragraph(sections["Read or seen in"]),
        _one_paragraph(sections[_OPTIONAL]) if _OPTIONAL in sections else "",
        tuple(or_else),
    )


def _page_text(folder: str, check: str) -> str:
    """Return the text of ``<folder>/<check>.md``.

    Raises:
        PageError: If the file does not exist.
    """
    path = os.path.join(folder, f"{check}.md")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        raise PageError(f"{path}: write the page of {check}, as in {_ORDER}") from None


def _consequences(path: str, text: str) -> list[Consequence]:
    return [_member(Consequence, word, f"{path}: ## What follows") for word in text.split(", or ")]


def _member(enumeration: type[Word], word: str, place: str) -> Word:
    try:
        return enumeration(word)
    except ValueError:
        known = ", ".join(each.value for each in enumeration)
        raise PageError(f"{place}: {word!r} is none: write one of {known}") from None


def _paragraphs(text: str) -> list[str]:
    """Return each paragraph of ``text`` as one line, however it is wrapped in the file."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _one_paragraph(text: str) -> str:
    (paragraph,) = _paragraphs(text)
    return paragraph


# facts: ``checks.run_checks.facts.Facts``, what was read of a host, topic by topic.
Judge = Callable[[Any, "LaunchNeeds | None"], Iterable[Finding]]
# What a check's module writes: see ``CheckSet.check`` for its parameters.
JudgeByName = Callable[..., Iterable[Finding]]


class Check(NamedTuple):
    """What is declared of a check beside its page."""

    id: str  # stable, ``topic.what``
    topics: tuple[str, ...]  # the facts that it reads (names of the fields of ``Facts``)
    at: str | Page  # the folder of its page, or the page itself where no file has it
    of_host: bool = True  # it judges a host without a launch too; else it skips, and reads nothing

    @property
    def page(self) -> Page:
        """Return the check's page, read when it is first asked for.

        Raises PageError.
        """
        return self.at if isinstance(self.at, Page) else read_page(self.at, self.id)

    @property
    def consequence(self) -> Consequence:
        """The consequence that the page names first, read without parsing the whole page."""
        if isinstance(self.at, Page):
            return self.at.consequence
        section = _page_text(self.at, self.id).partition("\n## What follows\n")[2]
        return _consequences(self.at, " ".join(section.partition("\n## ")[0].split()))[0]


def the_launch(needs: LaunchNeeds | None) -> LaunchNeeds:
    """Return ``needs``.

    Raises:
        UnjudgedError: With a skip as its finding, if ``needs`` is None.
    """
    if needs is None:
        raise UnjudgedError(skip(NO_LAUNCH))
    return needs


def any_launch(needs: LaunchNeeds | None) -> LaunchNeeds | None:
    """Return ``needs`` unchanged: for checks that judge a host without a launch (None) too."""
    return needs


class CheckSet:
    """Checks of one module, each declared above the function that judges it."""

    def __init__(self) -> None:
        self.checks: list[tuple[Check, Judge]] = []

    def check(
        self, id_: str, takes: Callable[[LaunchNeeds | None], Any] | None = None
    ) -> Callable[[JudgeByName], JudgeByName]:
        """Return a decorator that registers a function as the check ``id_``, with the page
        ``<id_>.md`` beside the function's module.

        The function's first parameter is ``takes(needs)``, unless ``takes`` is None. The other
        parameters are topics of the facts, by name (``memory``, ``limits``). ``takes`` raises
        UnjudgedError if a launch has nothing to judge. The function yields findings without an id;
        the id is added to them.
        """

        def add(function: JudgeByName) -> JudgeByName:
            """Register ``function`` and return it unchanged."""
            code = function.__code__
            topics = code.co_varnames[0 if takes is None else 1 : code.co_argcount]

            def judge(facts: Any, needs: LaunchNeeds | None) -> list[Finding]:
                """Return the findings of the function, each with the check's id.

                If it raises UnjudgedError, the error's finding is added as the last one.
                UnknownFactError or UnreadTopicError replaces all findings by one unknown of the
                host.
                """
                findings: list[Finding] = []
                try:
                    part = () if takes is None else (takes(needs),)
                    read = (facts.topic(name) for name in topics)
                    records = (UnreadTopic(t) if isinstance(t, Unknown) else t for t in read)
                    # What a generator yields before it breaks off stays.
                    findings.extend(function(*part, *records))
                except UnjudgedError as error:
                    findings.append(error.args[0])
                except (UnknownFactError, UnreadTopicError) as error:
                    findings = [unknown_finding("host", error.fact)]
                return [each if each.check else each._replace(check=id_) for each in findings]

            folder = os.path.dirname(function.__globals__["__file__"])
            self.checks.append((Check(id_, topics, folder, _judges_hosts(takes)), judge))
            return function

        return add


def _judges_hosts(takes: Callable[[LaunchNeeds | None], Any] | None) -> bool:
    """Tell whether a check judges a host without a launch: ``takes`` is None or accepts None."""
    try:
        if takes is not None:
            takes(None)
    except UnjudgedError:
        return False
    return True
