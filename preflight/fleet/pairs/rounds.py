"""The rounds of ``fleet pairs``: who meets whom, both ends started over ssh, and ended again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from preflight.fleet.node.reply import NodeReply
from preflight.fleet.node.script import COMMAND
from preflight.fleet.node.sent_launch import Sent
from preflight.fleet.pairs.meeting import Met, Part, Tool, met, to_carry
from preflight.fleet.pairs.outcome import Outcome, ended, is_lost, outcome, trouble

if TYPE_CHECKING:
    from preflight.fleet.ssh.clush_engine import Ssh


# Python and ssh there and back, beside what the two ends do.
OVERHEAD_SECONDS = 5.0
# A listener whose other end has given up has so long to say whether it ever listened.
LINGER_SECONDS = 10.0
# What was stopped gives its port back: the node's watch kills after a second (node.script).
REST_SECONDS = 1.5
# One lost connection may be chance; a node that is lost twice in a row is not waited for again.
MOST_LOSSES = 2


class Asked(NamedTuple):
    """What each pair is to try. pairs: any, same, or "" for as the launch has it. port: on which
    all listen. tcp_ports: to be connected to, too. mtu_limit_bytes: None for the launch's own.
    launch: as it is sent to the nodes, without words where none is given.
    """

    pairs: str
    tcp_ports: tuple[int, ...]
    port: int
    mtu_limit_bytes: int | None
    launch: Sent = Sent({}, ())


class Run(NamedTuple):
    """outcomes: in the order in which they came about. stopped: the signal that ended it, or 0."""

    outcomes: list[Outcome]
    met: Met
    rounds_run: int
    stopped: int


def meet(nodes: list[str], tool: Tool, carry: str, ssh: Ssh, tick: Callable[[], None]) -> Met:
    """Who takes part. Raises RunInterruptedError."""
    from preflight.fleet.ssh.clush_engine import ask

    said: dict[str, NodeReply] = {}

    def take(answer: NodeReply) -> None:
        said[answer.node] = answer

    lacking = nodes
    if carry != "always":
        ask(nodes, COMMAND, tool.hello(carried=False), ssh, take, tick)
        lacking = to_carry(list(said.values())) if carry == "auto" else []
    if lacking:
        ask(lacking, COMMAND, tool.hello(carried=True), ssh, take, tick)
    return met(nodes, said, lacking, ssh.timeout_seconds)


def run_rounds(
    nodes: list[str],
    tool: Tool,
    carry: str,
    rounds: int,
    at_once: int,
    asked: Asked,
    ssh: Ssh,
    told: Callable[[str], None],
) -> Run:
    """Rounds 1 to ``rounds``, ``at_once`` pairs at a time.

    Nodes that do not answer are unknown for each of their pairs, and nobody waits for them again.
    """
    from signal import SIGINT

    from preflight.fleet.ssh.clush_engine import RunInterruptedError

    found: list[Outcome] = []
    there = Met({}, frozenset(), {})
    done = 0
    try:
        there = meet(nodes, tool, carry, ssh, lambda: told("asking the nodes"))
        round_ = _Round(tool, there, asked, ssh)
        for number in range(min(rounds, round_count(len(nodes)))):
            text = f"round {number + 1} of {rounds}"
            pairs = round_of(len(nodes), number)
            for one in pairs:
                absent = round_.absent_of(nodes, one, number + 1)
                found += [] if absent is None else [absent]
            tried = [one for one in pairs if round_.takes_part(nodes, one)]
            for batch in in_batches(tried, at_once):
                named = [(nodes[one.here], nodes[one.there]) for one in batch]
                round_.run(named, number + 1, found, partial(told, text))
            done = number + 1
    except (RunInterruptedError, KeyboardInterrupt) as signalled:
        return Run(found, there, done, int(signalled.args[0]) if signalled.args else SIGINT)
    return Run(found, there, done, 0)


class _Round:
    """Runs pairs, and remembers which nodes were lost."""

    def __init__(self, tool: Tool, there: Met, asked: Asked, ssh: Ssh) -> None:
        self._tool, self._there, self._asked, self._ssh = tool, there, asked, ssh
        self._absent = dict(there.absent)
        self._losses: dict[str, int] = {}
        left = ssh.timeout_seconds - ssh.connect_seconds - OVERHEAD_SECONDS
        self._seconds = max(1.0, left)

    def takes_part(self, nodes: Sequence[str], pair: Pairing) -> bool:
        return nodes[pair.here] not in self._absent and nodes[pair.there] not in self._absent

    def absent_of(self, nodes: Sequence[str], pair: Pairing, number: int) -> Outcome | None:
        """The pair's outcome where one of it is not there."""
        here, there = nodes[pair.here], nodes[pair.there]
        for one in (here, there):
            if one in self._absent:
                why = self._absent[one]
                return Outcome(here, there, number, "unknown", why, one)
        return None

    def run(
        self,
        named: Sequence[tuple[str, str]],
        number: int,
        found: list[Outcome],
        tick: Callable[[], None],
    ) -> None:
        """Adds the pairs' outcomes to ``found``. Raises RunInterruptedError, after it did."""
        from preflight.fleet.ssh.clush_engine import ask

        if not named:
            return
        said: dict[str, NodeReply] = {}

        def take(answer: NodeReply) -> None:
            said[answer.node] = answer

        settled = _Settled(named, said)
        try:
            nodes = [node for pair in named for node in pair]
            ask(nodes, COMMAND, self._content(named), self._ssh, take, tick, settled.enough)
        finally:
            for here, there in named:
                if here in said or there in said:
                    found.append(outcome(here, there, number, said, self._ssh.timeout_seconds))
        self._count(said.values(), number)
        if settled.stopped:
            time.sleep(REST_SECONDS)

    def _content(self, named: Sequence[tuple[str, str]]) -> bytes:
        token = secrets.token_hex(16)
        asked, limits = self._asked, [f"--token={token}", f"--seconds={self._seconds:g}"]
        if asked.mtu_limit_bytes is not None:
            limits.append(f"--mtu={asked.mtu_limit_bytes}")
        more = [f"--tcp={port}" for port in asked.tcp_ports]
        if asked.pairs:
            more.append(f"--pairs={asked.pairs}")
        files, launch = asked.launch
        at = launch.index("--") if "--" in launch else len(launch)
        options, command = launch[:at], launch[at + 1 :]
        parts = []
        for here, there in named:
            address, port = self._there.addresses[there], str(asked.port)
            listen = [f"--address={address}", f"--port={port}", "--once"]
            # As long as the listener may take to come up; it ends with its end (_Settled).
            connect = ["--json", f"--wait={self._seconds:g}", *more]
            connect.append(f"--address={self._there.addresses[here]}")
            to = (address, port)
            for node, words in (
                (there, ["pair-listen", *limits, *listen, *options, "--", *command]),
                (here, ["pair-connect", *limits, *connect, *options, "--", *to, *command]),
            ):
                carried = node in self._there.carried
                parts.append(Part(self._there.addresses[node], ["fleet", *words], carried))
        return self._tool.content(parts, files)

    def _count(self, said: Iterable[NodeReply], number: int) -> None:
        for answer in said:
            losses = self._losses[answer.node] = (
                self._losses.get(answer.node, 0) + 1 if is_lost(answer) else 0
            )
            if losses >= MOST_LOSSES:
                why = trouble(answer, self._ssh.timeout_seconds)
                self._absent[answer.node] = f"not asked again after round {number}: {why}"


class _Settled:
    """When a batch has said all that it will: an end whose other one is gone is not waited for."""

    def __init__(self, named: Sequence[tuple[str, str]], said: Mapping[str, NodeReply]) -> None:
        self._named, self._said = named, said
        self._since: float | None = None
        self.stopped = False

    def enough(self) -> bool:
        """True once each connector has answered or has nobody to answer to, and the listeners of
        those that have answered had their time to end."""
        waiting = [one for one in self._named if not self._is_gone(one[1])]
        if not all(here in self._said for here, _ in waiting):
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        all_ended = all(there in self._said for _, there in waiting)
        self.stopped = all_ended or now - self._since > LINGER_SECONDS
        return self.stopped

    def _is_gone(self, listener: str) -> bool:
        """Ended without having listened; one that has served ends with 0, as its time is over."""
        answer = self._said.get(listener)
        return answer is not None and ended(answer) != "0"


# A whole tournament up to here: 31 rounds, of some seconds each.
MOST_NODES_WHOLE = 32
LARGEST_DEFAULT_ROUNDS = 31


class Pairing(NamedTuple):
    """Places in the list of nodes: ``here`` connects, ``there`` listens."""

    here: int
    there: int


def round_count(nodes: int) -> int:
    """Rounds until each has met each: one less than there are nodes; where they are odd, one stays
    out in each round, and it takes one more."""
    if nodes < 2:
        return 0
    return nodes - 1 if nodes % 2 == 0 else nodes


def default_rounds(nodes: int) -> int:
    """All of them, up to 32 nodes; else the first 31."""
    whole = round_count(nodes)
    return whole if nodes <= MOST_NODES_WHOLE else min(whole, LARGEST_DEFAULT_ROUNDS)


def round_of(nodes: int, number: int) -> list[Pairing]:
    """The pairs of round ``number`` of ``round_count``, from 0, by the circle method.

    All but the last node stand on a circle of an odd number of places. In round r, those whose
    places add up to 2r (modulo their number) meet; the one at place r meets the last node, which is
    nobody where the nodes are odd in number.
    """
    around = nodes - 1 if nodes % 2 == 0 else nodes
    # Of one step, each node of the circle is once the one and once the other: it does both.
    pairs = [
        Pairing((number + step) % around, (number - step) % around)
        for step in range(1, (around - 1) // 2 + 1)
    ]
    if nodes % 2 == 0:
        place, last = number % around, nodes - 1
        pairs.append(Pairing(place, last) if number % 2 == 0 else Pairing(last, place))
    return pairs


def in_batches(pairs: Sequence[Pairing], at_once: int) -> Iterator[Sequence[Pairing]]:
    """As many pairs of a round as may run at once: both ends of a pair have to be up together."""
    for start in range(0, len(pairs), at_once):
        yield pairs[start : start + at_once]
