"""What ``fit`` answers, as data."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from checks.base.finding import Finding
from preflight.fit.judged_values import HostState, Judgement, LaunchState
from preflight.fit.launch_edit import Edited
from preflight.fit.launch_values import Knobs, Values


class Goal(Enum):
    """What gets the memory."""

    L2 = "l2"
    POOL = "pool"
    BALANCED = "balanced"


class Bound(NamedTuple):
    """What stops one size: ``findings`` are those that one step more has, the worst first.

    size: ``l2`` or ``segment``. value_bytes: one step more than the answer.
    """

    size: str
    value_bytes: int
    findings: tuple[Finding, ...]


class Share(NamedTuple):
    """What 1 GiB more of one size costs and buys, were there room for it.

    host_bytes: memory of this host. pages: of ``page_bytes``. tokens: None where the model's
    geometry is not known.
    """

    size: str
    host_bytes: int
    pages: int
    page_bytes: int
    tokens: int | None


class FitAnswer(NamedTuple):
    """fits: the sizes found, judged; None where nothing fits, and then ``blocking`` says why, for
    the sizes in ``values``, or ``reason`` why no size can be given.

    sizes: the launch's places. least: the least sizes, judged by every check. unknown: gates that
    could not be judged at any size. bounds: what stops each size of the goal. beside: what check
    finds beside the gates, the worst first. gates: the checks that sizes were held against.
    """

    goal: Goal
    sizes: Knobs
    values: Values
    fits: Judgement | None
    least: Judgement
    blocking: tuple[Finding, ...]
    unknown: tuple[Finding, ...]
    bounds: tuple[Bound, ...] = ()
    beside: tuple[Finding, ...] = ()
    shares: tuple[Share, ...] = ()
    gates: frozenset[str] = frozenset()
    reason: str = ""


class Fitted(NamedTuple):
    """The answer with what goes with it.

    command: the launch's new command line, where it was given as one. host_commands: what sets
    the pools. assumptions: of a host that was described. state, machine: what was asked about.
    hints: what would let more fit.
    """

    launch: str
    host: str
    answer: FitAnswer
    keep_bytes: int
    edited: Edited | None
    written: tuple[str, ...]
    command: str
    host_commands: tuple[str, ...]
    assumptions: tuple[str, ...]
    state: LaunchState
    machine: HostState
    exit_code: int
    hints: tuple[str, ...] = ()
