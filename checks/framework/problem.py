"""A problem: its id, its page, and a function whose parameters name what the problem is about.

A page is a section of a Markdown file. The heading is the id, of any level, so that several
problems of a topic can share a file:

    # memlock.limit
    The question that the function answers, or what it finds. A function that only ever finds one
    kind of thing has that kind in front: **warn**, or another one of ``Severity``.
    What happens to a launch, when, and how that looks, in paragraphs; may be missing
    - pass: when it is given; so for each status that the function gives
    - what follows: from a failure
    - what to do: in general
    - read or seen in: where the behaviour was read or seen
    - as root: where root sees more; may be missing, as may the words of a launch ``before`` and
      ``after`` they are mended

Without a kind in front, what follows is a ``Consequence``, or several with ", or " between them.
``explain``, the reports and whoever reads the repository all read the same page.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeVar

from checks.framework.finding import (
    NO_LAUNCH,
    Consequence,
    Evidence,
    Finding,
    Status,
    UnjudgedError,
    skip,
    unknown_finding,
)
from checks.framework.needs import LaunchNeeds
from checks.framework.unknown import UnknownFactError, UnreadTopicError

_STATUSES = {status.value: status for status in Status}
_NEEDED = ("what follows", "what to do", "read or seen in")
_PARTS = (*_NEEDED, "as root", "before", "after")
_ORDER = "the first lines of checks/framework/problem.py"
Word = TypeVar("Word", bound=Enum)
Judge = TypeVar("Judge", bound=Callable[..., Iterable[Any]])


class Severity(Enum):
    """The effect of what is found in a launch as it is written."""

    FAIL = "fail"  # the process refuses it
    DIES = "dies"  # it starts, and ends by itself
    CORRUPTS = "corrupts"  # it runs, and gives wrong data
    UNUSED = "unused"  # it runs, and a tier that was asked for is not used
    WARN = "warn"  # it runs, not as written
    NOTE = "note"  # worth knowing


# What each is as a finding, and what follows if nobody mends it.
_FOUND = {
    Severity.FAIL: (Status.FAIL, None),
    Severity.DIES: (Status.FAIL, Consequence.DIES_LATER),
    Severity.CORRUPTS: (Status.FAIL, Consequence.CORRUPTS),
    Severity.UNUSED: (Status.FAIL, Consequence.DEGRADED),
    Severity.WARN: (Status.WARN, None),
    Severity.NOTE: (Status.PASS, None),
}


class Page(NamedTuple):
    """What the page of a problem says."""

    asks: str  # the question that is answered, or what is found
    why: str  # what happens to a launch, when, and how that looks; "" if ``follows`` says it
    outcomes: tuple[tuple[Status, str], ...]  # (status, when it is given)
    follows: str  # from a failure
    remedy: str  # in general
    source: str  # where the behaviour was read or seen
    consequences: tuple[Consequence, ...] = ()  # the usual one, and those of some findings
    severity: Severity | None = None  # of all that is found, if it is always the same
    root: str = ""  # what root sees more
    before: str = ""  # words of a launch in which it is found
    after: str = ""  # the words that mend it; "" if words alone do not


class PageError(Exception):
    """A page that does not exist, or lacks a part: names the file, and what to write into it."""


@cache
def read_pages(path: str) -> Mapping[str, Page]:
    """Return the pages of a file by id, in its order.

    Backticks are left out: they are for the reader of the file.

    Raises:
        PageError: If the file is missing, if a page lacks a part, or if a status, severity or
            consequence is not a known one.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().replace("`", "")
    except FileNotFoundError:
        id_ = os.path.basename(path).removesuffix(".md")
        raise PageError(f"{path}: write the page of {id_}, as in {_ORDER}") from None
    # A heading that is no id is the title of a topic.
    _, *sections = re.split(r"^#+ ([a-z0-9][a-z0-9.-]*)$", text, flags=re.MULTILINE)
    return {
        id_: _page(f"{path}: {id_}", body)
        for id_, body in zip(sections[::2], sections[1::2], strict=True)
    }


def _page(place: str, body: str) -> Page:
    """Return a page from the text below its heading.

    Args:
        place: Where it stands, for an error.
    """
    head, *items = re.split(r"^- ", body, flags=re.MULTILINE)
    parts = {name: text for name, _, text in (_joined(item).partition(": ") for item in items)}
    if lacking := [name for name in _NEEDED if not parts.get(name)]:
        raise PageError(f"{place}: write the item - {lacking[0]}: as in {_ORDER}")
    for name in parts.keys() - _PARTS:
        _member(Status, name, place)
    paragraphs = [_joined(part) for part in re.split(r"\n\s*\n", head) if part.strip()]
    if not paragraphs:
        raise PageError(f"{place}: write the question below the heading, as in {_ORDER}")
    asks, *why = paragraphs
    severity, words = None, parts["what follows"].split(", or ")
    if kind := re.match(r"\*\*(.*?)\*\*: ", asks):
        severity, asks, words = _member(Severity, kind[1], place), asks[kind.end() :], []
    consequences = tuple(_member(Consequence, word, f"{place}: what follows") for word in words)
    outcomes = tuple((_STATUSES[name], when) for name, when in parts.items() if name in _STATUSES)
    if not severity and not outcomes:
        raise PageError(f"{place}: write an item for each status, as in {_ORDER}")
    follows, remedy, source, root, before, after = (parts.get(name, "") for name in _PARTS)
    told = follows, remedy, source, consequences, severity, root, before, after
    return Page(asks, "\n\n".join(why), outcomes, *told)


def _member(enumeration: type[Word], word: str, place: str) -> Word:
    try:
        return enumeration(word)
    except ValueError:
        known = ", ".join(each.value for each in enumeration)
        raise PageError(f"{place}: {word!r} is none: write one of {known}") from None


def _joined(text: str) -> str:
    """Return ``text`` as one line, however it is wrapped in the file."""
    return " ".join(text.split())


class Match(NamedTuple):
    """What a function yields that only ever finds one kind of thing: its page says the rest.

    A function of hosts yields findings, which say all themselves.
    """

    text: str  # a sentence about it
    origin: Any = None  # where it stands in the launch; shown as text
    remedy: str = ""  # "" if that of the page applies
    # Of a host's facts: why it does no harm on that host; "" if it may do harm.
    harmless: Callable[[Any], str] | None = None
    problem: "Problem | None" = None  # added to what the function yields

    @property
    def id(self) -> str:
        return "" if self.problem is None else self.problem.id

    @property
    def page(self) -> Page:
        assert self.problem is not None
        return self.problem.page

    @property
    def severity(self) -> Severity:
        assert self.page.severity is not None
        return self.page.severity

    @property
    def finding(self) -> Finding:
        """Return what was found as a finding."""
        origin = "launch" if self.origin is None else str(self.origin)
        status, consequence = _FOUND[self.severity]
        return Finding(
            self.id,
            status,
            origin,
            text=f"{self.text.rstrip('.')}: {self.page.follows}",
            evidence=(Evidence(origin, self.text),),
            advice=self.remedy or self.page.remedy,
            consequence=consequence,
        )


Given = Mapping[str, Any]


class Problem(NamedTuple):
    """What is declared of a problem beside its page."""

    id: str  # stable
    at: str | Page  # the file of its page, or the page itself where no file has it
    about: tuple[str, ...] = ()  # the names of what its function judges
    function: Callable[..., Iterable[Any]] | None = None  # None if a command finds it on its way
    takes: Mapping[str, Callable[[LaunchNeeds | None], Any]] = {}  # names that follow from needs

    @property
    def page(self) -> Page:
        """Return the problem's page, read when it is first asked for.

        Raises:
            PageError: If it is missing, or not as pages are.
        """
        if isinstance(self.at, Page):
            return self.at
        page = read_pages(self.at).get(self.id)
        if page is None:
            raise PageError(f"{self.at}: write the page of {self.id}, as in {_ORDER}")
        return page

    @property
    def of_host(self) -> bool:
        """Tell whether it is judged of a host without a launch too; else it is skipped then."""
        try:
            for part in self.takes.values():
                part(None)
        except UnjudgedError:
            return False
        return True

    def answers(self, given: Given, each: Iterable[Given] = ()) -> Iterator[Any]:
        """Yield what the function says of what it is about.

        Args:
            given: What there is to judge, by name.
            each: Of each process what there is besides, by name, with its ``origin``. A function
                whose names are not all in ``given`` is called for each that has them. A fact that
                is not known ends what it says of that process.
        """
        if self.function is None:
            return
        if all(name in given or name in self.takes for name in self.about):
            found = self.function(*(self._argument(name, given) for name in self.about))
            for answer in found:
                yield answer._replace(problem=self) if isinstance(answer, Match) else answer
            return
        for one in each:
            values = [one.get(name, given.get(name)) for name in self.about]
            if all(value is not None for value in values):
                with suppress(UnknownFactError):
                    for match in self.function(*values):
                        yield match._replace(problem=self, origin=match.origin or one["origin"])

    def _argument(self, name: str, given: Given) -> Any:
        return self.takes[name](given["needs"]) if name in self.takes else given[name]

    def judge(
        self, given: Given, each: Iterable[Given] = (), subject: str = "host"
    ) -> list[Finding]:
        """Return the findings of ``answers``, each with the problem's id.

        UnjudgedError adds its finding as the last one. A fact that is not known, or a defect of
        the function, replaces all findings by one unknown of ``subject``: half an answer would hide
        the other half.
        """
        findings: list[Finding] = []
        try:
            for answer in self.answers(given, each):
                findings.append(answer.finding if isinstance(answer, Match) else answer)
        except UnjudgedError as error:  # what a generator yields before it breaks off stays
            findings.append(error.args[0])
        except (UnknownFactError, UnreadTopicError) as error:
            findings = [unknown_finding(subject, error.fact)]
        except Exception as error:  # a defect of one function must not hide what the others find
            text = f"defect of this check: {type(error).__name__}: {error}"
            findings = [Finding(self.id, Status.UNKNOWN, subject, text=text)]
        return [each if each.check else each._replace(check=self.id) for each in findings]


def the_launch(needs: LaunchNeeds | None) -> LaunchNeeds:
    """Return ``needs``.

    Raises:
        UnjudgedError: With a skip as its finding, if there is no launch.
    """
    if needs is None:
        raise UnjudgedError(skip(NO_LAUNCH))
    return needs


class Problems:
    """Problems of one module, each declared above the function that judges it."""

    def __init__(self, at: str = "") -> None:
        """Begin without any.

        Args:
            at: The Markdown file beside the module that has the pages of all; or the folder that
                has a file for each, "" for the module's own.
        """
        self.at = at
        self.problems: list[Problem] = []

    def __call__(
        self, id_: str, **takes: Callable[[LaunchNeeds | None], Any]
    ) -> Callable[[Judge], Judge]:
        """Return a decorator that declares a function as what judges the problem ``id_``.

        The function's parameters name what it judges: topics of the facts (``memory``, ``limits``),
        ``needs``, or what else a caller of ``Problem.judge`` gives. Of a host without a launch,
        ``needs`` are None if the annotation says so, else the problem is skipped.

        Args:
            takes: Of a parameter with a name of its own, what gives its value from the needs. It
                raises UnjudgedError if a launch has nothing to judge.
        """

        def add(function: Judge) -> Judge:
            """Register ``function`` and return it unchanged."""
            inner: Any = getattr(function, "func", function)
            named = getattr(function, "keywords", {})
            code, first = inner.__code__, len(getattr(function, "args", ()))
            about = tuple(n for n in code.co_varnames[first : code.co_argcount] if n not in named)
            if "needs" in about and "None" not in str(inner.__annotations__.get("needs")):
                takes.setdefault("needs", the_launch)
            folder = os.path.dirname(inner.__globals__["__file__"])
            at = os.path.normpath(os.path.join(folder, self.at))
            page = at if at.endswith(".md") else os.path.join(at, f"{id_}.md")
            self.problems.append(Problem(id_, page, about, function, takes))
            return function

        return add
