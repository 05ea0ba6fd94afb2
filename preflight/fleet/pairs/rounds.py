"""Runs ``mooncake-preflight fleet pairs``: who meets whom, both ends started over ssh, one answer.

First each node is asked whether it answers and has this program, and at what address ssh came to it
(``SSH_CONNECTION``): no alias or gateway has to be known. In each round every node has one partner;
both ends are ended again before the next.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from signal import SIGINT
from typing import NamedTuple, TypeVar

from preflight.base.output import Progress, columns, painter, say, say_json
from preflight.base.usage_error import UsageError
from preflight.fleet.pairs.matrix import Matrix, matrix_object, matrix_text, verdict
from preflight.fleet.pairs.outcome import PairOutcome, is_lost, outcome, trouble
from preflight.fleet.remote.check import nodes_of
from preflight.fleet.remote.program import Program, Question, SshNodes
from preflight.fleet.remote.reply import NodeReply
from preflight.inputs.launch_words import LaunchWords

# As ClusterShell's own.
DEFAULT_FANOUT = 64
# The words of all stand in one line, of which Linux takes 128 KiB.
MOST_AT_ONCE = 128
LONGEST_LAUNCH = 200
# Python and ssh there and back, beside what the two ends do.
OVERHEAD_SECONDS = 5.0
# A listener whose other end has given up has so long to say whether it ever listened.
LINGER_SECONDS = 10.0
# What was stopped gives its port back: it ends once nobody reads what it says (talk).
REST_SECONDS = 1.5
# One lost connection may be chance; a node that is lost twice in a row is not waited for again.
MOST_LOSSES = 2
# A whole tournament up to here: 31 rounds, of some seconds each.
MOST_NODES_WHOLE = 32
LARGEST_DEFAULT_ROUNDS = 31

# Says nothing of the node: whether the program runs there, and knows of pairs, is all.
HELLO = ("fleet", "pair-connect", "--address=", "--help")

Pair = TypeVar("Pair", bound=tuple[object, object])


class PairTest(NamedTuple):
    """What each pair is to try. pairs: any, same, or "" for as the launch has it. port: on which
    all listen. mtu_limit_bytes: None for the launch's own."""

    pairs: str
    port: int
    mtu_limit_bytes: int | None


class Pairing(NamedTuple):
    """Places in the list of nodes: ``here`` connects, ``there`` listens."""

    here: int
    there: int


def run_pairs(
    launch: LaunchWords,
    where: SshNodes,
    program: Program,
    test: PairTest,
    *,
    rounds: int | None,
    as_json: bool,
    color: str,
) -> int:
    """Print the answer; returns the exit code. Raises UsageError, before any node is asked.

    rounds: None for as many as are sensible.
    """
    from preflight.inputs.recorded_launch import recorded_launch

    nodes = nodes_of(where)
    from preflight.fleet.remote.engine import RunInterruptedError

    if len(nodes) < 2:
        raise UsageError(
            f"a pair takes two nodes, and {len(nodes)} is left: give --nodes 'gpu[001-016]'"
        )
    record = recorded_launch(launch)
    where = where._replace(fanout=where.fanout or DEFAULT_FANOUT)
    whole = round_count(len(nodes))
    rounds = min(rounds or default_rounds(len(nodes)), whole)
    progress = Progress()
    run = _PairsRun(nodes, program, test, record, where, progress.show)
    stopped = 0
    try:
        run.rounds(rounds)
    except (RunInterruptedError, KeyboardInterrupt) as signalled:
        stopped = int(signalled.args[0]) if signalled.args else SIGINT
    finally:
        progress.clear()
    called = " ".join(launch.words)[:LONGEST_LAUNCH]
    addresses = run.present.addresses
    matrix = Matrix(nodes, run.outcomes, run.rounds_run, rounds, whole, addresses, stopped, called)
    if as_json:
        from preflight.base.envelope import envelope

        answer = envelope(
            "pairs",
            matrix.exit_code,
            matrix_object(matrix),
            word=matrix.status,
            reason=verdict(matrix),
            launch=(matrix.launch, "") if matrix.launch else None,
        )
        say_json(answer)
    else:
        say(matrix_text(matrix, painter(color), columns()))
    if stopped:
        said = f"{len(run.outcomes)} of {matrix.pairs_whole} pairs were tried"
        say(f"mooncake-preflight: interrupted: {said}", err=True)
    elif rounds < whole:
        say(f"mooncake-preflight: each meets each in {whole} rounds: --rounds {whole}", err=True)
    return matrix.exit_code


class _PairsRun:
    """The rounds; what they have come to is there whenever they end.

    Nodes that do not answer are unknown for each of their pairs, and nobody waits for them again.
    """

    def __init__(
        self,
        nodes: list[str],
        program: Program,
        test: PairTest,
        record: bytes | None,
        ssh: SshNodes,
        tell: Callable[[str], None],
    ) -> None:
        self._nodes, self._program, self._test, self._record = nodes, program, test, record
        self._ssh, self._tell = ssh, tell
        # Both ends of a pair are up at once, or they wait for each other.
        self._at_once = min(ssh.fanout or DEFAULT_FANOUT, MOST_AT_ONCE) // 2
        self.present = Present({}, frozenset(), {})
        self.outcomes: list[PairOutcome] = []
        self.rounds_run = 0
        self._absent: dict[str, str] = {}
        self._losses: dict[str, int] = {}
        left = ssh.timeout_seconds - ssh.connect_seconds - OVERHEAD_SECONDS
        self._seconds = max(1.0, left)

    def rounds(self, count: int) -> None:
        """Run rounds 1 to ``count``.

        Raises RunInterruptedError, and UsageError before the first.
        """
        nodes = self._nodes
        self.present = meet(nodes, self._program, self._ssh, lambda: self._tell("asking the nodes"))
        self._absent = dict(self.present.absent)
        for number in range(1, count + 1):
            named = [(nodes[a], nodes[b]) for a, b in round_of(len(nodes), number - 1)]
            for pair in named:
                for node in [one for one in pair if one in self._absent][:1]:
                    why = self._absent[node]
                    self.outcomes.append(PairOutcome(*pair, number, "unknown", why, node))
            here = [pair for pair in named if not self._absent.keys() & set(pair)]
            for batch in in_batches(here, self._at_once):
                self._batch(batch, number, f"round {number} of {count}")
            self.rounds_run = number

    def _batch(self, named: Sequence[tuple[str, str]], number: int, told: str) -> None:
        """Add the pairs' outcomes. Raises RunInterruptedError, after it did."""
        from preflight.fleet.remote.engine import ask

        replies: dict[str, NodeReply] = {}

        def take(reply: NodeReply) -> None:
            replies[reply.node] = reply

        end = _BatchEnd(named, replies)
        try:
            tick = partial(self._tell, told)
            ask(self._questions(named), self._ssh, take, tick, end.enough)
        finally:
            for here, there in named:
                if here in replies or there in replies:
                    found = outcome(here, there, number, replies, self._ssh.timeout_seconds)
                    self.outcomes.append(found)
        self._count_losses(replies.values(), number)
        if end.stopped:
            time.sleep(REST_SECONDS)

    def _questions(self, named: Sequence[tuple[str, str]]) -> dict[str, Question]:
        """Return what the nodes get, to run the program each with its own words and the launch."""
        test, present = self._test, self.present
        limits = [f"--token={secrets.token_hex(16)}", f"--seconds={self._seconds:g}"]
        if test.mtu_limit_bytes is not None:
            limits.append(f"--mtu={test.mtu_limit_bytes}")
        more = [f"--pairs={test.pairs}"] if test.pairs else []
        launch = [] if self._record is None else ["-"]
        parts = {}
        for here, there in named:
            address, port = present.addresses[there], str(test.port)
            listen = [f"--address={address}", f"--port={port}", "--once"]
            # As long as the listener may take to come up; it ends with its end (_BatchEnd).
            connect = [f"--wait={self._seconds:g}", *more]
            connect.append(f"--address={present.addresses[here]}")
            for node, words in (
                (there, ["pair-listen", *limits, *listen]),
                (here, ["pair-connect", *limits, *connect, address, port]),
            ):
                words = ["fleet", *words, *launch]
                parts[present.addresses[node]] = (words, node in present.carried)
        question = self._program.shared(parts, self._record or b"")
        return dict.fromkeys((node for pair in named for node in pair), question)

    def _count_losses(self, replies: Iterable[NodeReply], number: int) -> None:
        for reply in replies:
            losses = self._losses.get(reply.node, 0) + 1 if is_lost(reply) else 0
            self._losses[reply.node] = losses
            if losses >= MOST_LOSSES:
                why = trouble(reply, self._ssh.timeout_seconds)
                self._absent[reply.node] = f"not asked again after round {number}: {why}"


class _BatchEnd:
    """When a batch has said all that it will: an end whose other one is gone is not waited for."""

    def __init__(self, named: Sequence[tuple[str, str]], replies: Mapping[str, NodeReply]) -> None:
        self._named, self._replies = named, replies
        self._since: float | None = None
        self.stopped = False

    def enough(self) -> bool:
        """Return whether each connector has answered or has nobody to answer to.

        The listeners of those that have answered must have had their time to end.
        """
        waiting = [one for one in self._named if not self._is_gone(one[1])]
        if not all(here in self._replies for here, _ in waiting):
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        all_ended = all(there in self._replies for _, there in waiting)
        self.stopped = all_ended or now - self._since > LINGER_SECONDS
        return self.stopped

    def _is_gone(self, listener: str) -> bool:
        """Return whether a listener ended without having listened.

        One that has served ends with 0, as its time is over.
        """
        reply = self._replies.get(listener)
        return reply is not None and reply.end != 0


def round_count(nodes: int) -> int:
    """Return the number of rounds until each has met each: one less than there are nodes.

    Where they are odd, one stays out in each round, and it takes one more.
    """
    if nodes < 2:
        return 0
    return nodes - 1 if nodes % 2 == 0 else nodes


def default_rounds(nodes: int) -> int:
    """Return the number of rounds to run: all of them for up to 32 nodes, else the first 31."""
    whole = round_count(nodes)
    return whole if nodes <= MOST_NODES_WHOLE else min(whole, LARGEST_DEFAULT_ROUNDS)


def round_of(nodes: int, number: int) -> list[Pairing]:
    """Return the pairs of round ``number`` of ``round_count``, from 0, by the circle method.

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


def in_batches(pairs: Sequence[Pair], at_once: int) -> Iterator[Sequence[Pair]]:
    """Yield as many pairs of a round as may run at once: both ends must be up together."""
    for start in range(0, len(pairs), at_once):
        yield pairs[start : start + at_once]


class Present(NamedTuple):
    """addresses: of the nodes that take part. carried: those of them to which the program is taken.
    absent: why the others do not."""

    addresses: Mapping[str, str]
    carried: frozenset[str]
    absent: Mapping[str, str]


def meet(nodes: list[str], program: Program, ssh: SshNodes, tick: Callable[[], None]) -> Present:
    """Ask the nodes, and return who takes part. Raises UsageError and RunInterruptedError."""
    from preflight.fleet.remote.engine import ask_or_carry

    replies: dict[str, NodeReply] = {}

    def take(reply: NodeReply) -> None:
        replies[reply.node] = reply

    def hello(carried: bool) -> Question:
        return program.question(HELLO, b"", carried)

    carried = ask_or_carry(nodes, program.carry, hello, ssh, take, tick)
    return present(nodes, replies, carried, ssh.timeout_seconds)


def present(
    nodes: Sequence[str], replies: Mapping[str, NodeReply], carried: Sequence[str], seconds: float
) -> Present:
    """Return who takes part, from what each node said to ``HELLO``.

    seconds: the time that it was given.
    """
    absent: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for node in nodes:
        reply = replies.get(node, NodeReply(node, ()))
        address = _address(reply)
        if reply.end != 0:
            absent[node] = trouble(reply, seconds) or "interrupted before it answered"
        elif address is None:
            absent[node] = (
                "its ssh server does not report the address that the connection came to "
                "(SSH_CONNECTION)"
            )
        else:
            addresses[node] = address
    absent.update(_not_for_others(addresses))
    there = {node: address for node, address in addresses.items() if node not in absent}
    return Present(there, frozenset(carried) & there.keys(), absent)


def _address(reply: NodeReply) -> str | None:
    """Return the third of ``CLIENT PORT SERVER PORT``, sshd(8); None where it is no address."""
    words = (reply.started or b"").decode("ascii", "replace").split()
    try:
        return str(ip_address(words[2]))
    except (IndexError, ValueError):
        return None


def _not_for_others(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return by node why its address is useless to others: it leads to themselves, or a third."""
    found = {}
    local = {node for node, address in addresses.items() if ip_address(address).is_loopback}
    owners: dict[str, str] = {}
    for node, address in addresses.items():
        other = owners.setdefault(address, node)
        if node in local and len(local) < len(addresses):
            found[node] = (
                f"it was reached at {address}, where no other node finds it: name it by "
                "its address on the network"
            )
        elif other != node:
            found[node] = f"it is the same machine as {other}: both are {address}"
        if "%" in address:
            found[node] = f"it was reached at {address}, an address of one link alone"
    return found
