"""What a collector knows of each node, and of the reports that could not be used."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.check.report import EXIT_CODES as OF_STATUS
from preflight.fleet.base.decode import Unread
from preflight.fleet.node.records import NodeLaunch, Rail, Route

# As finding.Status, in the order in which they are shown; error and skip are none of these.
STATUSES = ("fail", "unknown", "warn", "pass")
EXIT_CODES = {status.value: code for status, code in OF_STATUS.items()}

Value = str | int | bool


class Trouble(Enum):
    """Why a text is no report that can be merged; the worst to explain last."""

    UNREADABLE = "cannot be read"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    BINARY = "not text"
    NOT_JSON = "not JSON"
    TOO_LARGE = "too large"
    TOO_DEEP = "nested too deeply"
    FOREIGN = "not a node's report"
    OTHER_SCHEMA = "of another version"
    WRONG = "not as its schema says"
    NO_NAME = "names no node"


class Unusable(NamedTuple):
    """One text, or several alike in one source. line: of the first, 0 for a whole file.

    node: the node that it is about, "" where it does not say and its file has no node's name.
    """

    source: str
    line: int
    trouble: Trouble
    reason: str
    node: str = ""
    times: int = 1


class FleetFinding(NamedTuple):
    """What one node, or the fleet, finds: a node's finding without the node, equal ones folded.

    subject: folded. ignored: the reason of a waiver; such a finding counts nowhere.
    """

    check: str
    status: str
    subject: str
    have: str = ""
    need: str = ""
    text: str = ""
    ignored: str | None = None


# Why a check's answer has no rails.
OF_CHECK = Unread("a check's answer has no addresses")


class NodeRow(NamedTuple):
    """One report. findings, facts, unknown_facts: numbers in the tables of ``Reading``.

    origin: file, and line where there are several in one. whole: it is a node's report; a check's
    answer (``check --json``) has neither facts, rails nor launch. boot: "" where it is not known.
    """

    node: str
    origin: str
    made_unix_seconds: int
    status: str
    reason: str
    host: str = ""
    boot: str = ""
    findings: Sequence[int] = ()
    facts: Sequence[int] = ()
    unknown_facts: Sequence[int] = ()
    rails: tuple[Rail, ...] | Unknown = OF_CHECK
    routes: tuple[Route, ...] | Unknown = Unread("a check's answer has no routes")
    launch: NodeLaunch | None = None
    whole: bool = False

    @property
    def known_rails(self) -> tuple[Rail, ...]:
        return () if isinstance(self.rails, Unknown) else self.rails
