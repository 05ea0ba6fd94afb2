"""What can be found wrong in a launch: the rules of a topic's page, and the findings they make."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partialmethod
from typing import Any, NamedTuple

from checks.framework.unknown import Unknown, UnknownFactError
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SglangRelease
from checks.run_checks.facts import Facts
from preflight.engines.sglang.model_geometry import ModelGeometry
from preflight.engines.sglang.server import SglangServer
from preflight.launches.source import Origin
from preflight.processes.processes import LaunchProcess


class Severity(Enum):
    """The effect of a finding on the process."""

    FAIL = "fail"  # the process refuses it
    DIES = "dies"  # it starts, and ends by itself
    CORRUPTS = "corrupts"  # it runs, and gives wrong data
    UNUSED = "unused"  # it runs, and a tier that was asked for is not used
    WARN = "warn"  # it runs, not as written
    NOTE = "note"  # worth knowing


class Rule(NamedTuple):
    """A rule's stable id, what it finds, what follows from that, and what to do instead."""

    id: str
    severity: Severity
    finds: str
    consequence: str
    remedy: str
    source: str  # where the consumer's behaviour was read or seen
    before: str = ""  # words of a launch in which the rule holds
    after: str = ""  # the words that mend it; "" if words alone do not


# Of a host's facts: why a rule that holds does no harm on that host; "" if it may do harm.
Harmless = Callable[[Facts], str]


class RuleFinding(NamedTuple):
    """A place where a rule holds.

    Attributes:
        text: A sentence about it.
        remedy: "" if the rule's applies.
    """

    rule: Rule
    text: str
    origin: Origin | None = None
    remedy: str = ""
    harmless: Harmless | None = None


class Match(NamedTuple):
    """A ``RuleFinding`` that has no rule yet, as a rule's check yields it."""

    text: str
    origin: Origin | None = None
    remedy: str = ""
    harmless: Harmless | None = None


class Versions(NamedTuple):
    """The model of a server, Unknown if it was not read, and the two releases that it runs."""

    geometry: ModelGeometry | Unknown
    sglang: SglangRelease
    mooncake: MooncakeRelease
    sglang_unsure: str = ""  # why the release may be another one; "" if it is certain
    mooncake_assumed: str = ""  # the same of Mooncake
    mooncake_newer: str = ""  # why it may behave like no known release


Check = Callable[..., Iterable[Match]]
Adds = Callable[[Check], Check]


def read_page(text: str) -> dict[str, Rule]:
    """Return the rules of a topic's Markdown page by id, in the order of the page.

    A rule is a section: its id, its severity and what it finds, and a list. The list has
    consequence, remedy and source, and may have the words before and after. Backticks are left out.
    """
    rules: dict[str, Rule] = {}
    for section in text.replace("`", "").split("\n## ")[1:]:
        head, *items = section.split("\n- ")
        id_, _, finds = head.partition("\n")
        severity, _, finds = finds.removeprefix("\n**").partition("**: ")
        parts = dict(item.split(": ", 1) for item in items if ": " in item)
        prose = (" ".join(part.split()) for part in (finds, *parts.values()))
        rules[id_] = Rule(id_, Severity(severity), *prose)
    return rules


class RuleSet:
    """The rules of one topic's page, each with the function that checks it.

    Six decorators register a check; they differ in its arguments. server: an SGLang server. store:
    a server and its store. process: a process. launch: all processes of a host. released: those,
    and the release of Mooncake. memory: an SGLang server, with its model and versions. A check ends
    without an error at a fact that is not known.
    """

    def __init__(self, topic: str) -> None:
        """Read the rules of the page ``topic``.md.

        The decorators add the checks later.
        """
        path = os.path.join(os.path.dirname(__file__), f"{topic}.md")
        with open(path, encoding="utf-8") as file:
            self.page = read_page(file.read())
        self.checks: dict[str, list[tuple[Rule, Check]]] = defaultdict(list)

    def _decorator(self, about: str, id_: str) -> Adds:
        """Return a decorator to check rule ``id_``.

        Args:
            about: Launch, released or memory.
        """

        def add(check: Check) -> Check:
            self.checks[about].append((self.page[id_], check))
            return check

        return add

    def _for_each(self, id_: str, about: Callable[[LaunchProcess], tuple[Any, ...]]) -> Adds:
        """Return a decorator: its function checks rule ``id_`` for each process of a launch.

        Args:
            about: Returns the arguments of the function for a process. If an argument is None, the
                process is passed over.
        """

        def add(check: Check) -> Check:
            """Register ``check`` for each process."""

            def of_processes(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
                for process in processes:
                    if all(arguments := about(process)):
                        yield from _with_origins(check(*arguments), process.command.origin)

            self._decorator("launch", id_)(of_processes)
            return check

        return add

    launch = partialmethod(_decorator, "launch")
    released = partialmethod(_decorator, "released")
    memory = partialmethod(_decorator, "memory")

    def process(self, id_: str) -> Adds:
        return self._for_each(id_, lambda process: (process,))

    def server(self, id_: str) -> Adds:
        return self._for_each(id_, lambda process: (process.server,))

    def store(self, id_: str) -> Adds:
        return self._for_each(id_, lambda each: (each.server, each.server and each.server.store))

    def findings(
        self, processes: tuple[LaunchProcess, ...], mooncake: MooncakeRelease | None
    ) -> Iterator[RuleFinding]:
        """Yield what all rules but those about memory find, rule by rule.

        Args:
            mooncake: None leaves out the rules that depend on the release.
        """
        for about in ("launch",) if mooncake is None else ("launch", "released"):
            for rule, check in self.checks[about]:
                more = (mooncake,) if about == "released" else ()
                yield from (RuleFinding(rule, *match) for match in check(processes, *more))

    def memory_findings(self, server: SglangServer, versions: Versions) -> Iterator[RuleFinding]:
        """Yield what the rules about memory find in one server."""
        for rule, check in self.checks["memory"]:
            for match in _with_origins(check(server, versions), server.command.origin):
                yield RuleFinding(rule, *match)


def _with_origins(matches: Iterable[Match], command: Origin) -> Iterator[Match]:
    """Yield each match, with ``command`` as its place if it has none, until a fact is not known."""
    with suppress(UnknownFactError):
        for match in matches:
            yield match if match.origin else match._replace(origin=command)


# A look-up among some hundred names takes 5 to 25 ms; who misspells more has another program.
MOST_LOOKED_UP = 24


class Spelling:
    """Finds the known name that a misspelt name most likely means, at most MOST_LOOKED_UP times."""

    def __init__(self, cutoff: float = 0.75) -> None:
        self._cutoff = cutoff
        self._left = MOST_LOOKED_UP

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        """Return the name of ``known`` that is most like ``name``.

        Returns:
            None if no name is near, or after MOST_LOOKED_UP look-ups.
        """
        if not self._left:
            return None
        self._left -= 1
        import difflib

        near = difflib.get_close_matches(name, list(known), n=1, cutoff=self._cutoff)
        return near[0] if near else None


def replaced(where: Origin, old: str, new: str) -> str:
    """Return an edit as a sentence: the place, the new text, and the old text that it replaces."""
    return f"{at(where)} write {new} instead of {old}"


def at(where: Origin) -> str:
    """Return the place of an edit as the beginning of a sentence: ``in FILE:LINE``."""
    return "on the command line" if where.source == "command line" else f"in {where}"


# A letter of a shorter part makes another name: fp4 and fp8, dp and cp, nsa and dsa; so do two
# letters swapped in one of two: dp and pd.
_LEAST_LETTERS, _LEAST_SWAPPED = 4, 3


def is_misspelt(name: str, intended: str) -> bool:
    """Tell whether ``name`` is surely a wrong spelling of ``intended``, and not the name of a newer
    flag.

    The spelling is wrong if each part between dashes is equal or one letter off, or if only dashes,
    underscores or case differ. Of 414 flags that SGLang got after 0.5.2, one was so near to an
    older flag.
    """
    name, intended = (text.replace("_", "-").lower() for text in (name, intended))
    if name.replace("-", "") == intended.replace("-", ""):
        return True
    parts, others = name.split("-"), intended.split("-")
    return len(parts) == len(others) and all(map(_one_letter_off, parts, others))


def _one_letter_off(part: str, other: str) -> bool:
    """Tell whether two words are equal, or one letter is lost, added or changed, or two are
    swapped.

    Words of fewer than 4 letters (of 3, if two are swapped) must be equal.
    """
    same = 0
    while part[same : same + 1] == other[same : same + 1] != "":
        same += 1
    left, right = part[same:], other[same:]
    if len(right) > 1 and left == right[:2][::-1] + right[2:]:
        return len(part) >= _LEAST_SWAPPED
    long = min(len(part), len(other)) >= _LEAST_LETTERS
    return part == other or (long and (left[1:] in (right, right[1:]) or left == right[1:]))
