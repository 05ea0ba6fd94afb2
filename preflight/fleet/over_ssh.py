"""``fleet check``, ``measure`` and ``observe``: what is asked of nodes over ssh, and the answers.

Memory moves between each two nodes, in rounds that use no node twice; what runs on each node is
held against what was predicted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from preflight.base.one_line import clean
from preflight.base.output import Progress, say
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.benchmark.measuring.findings import rate_text
from preflight.command_inputs.launch_words import Chosen, LaunchWords
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import named_nodes
from preflight.fleet.base.text import plural
from preflight.fleet.merge.command import AnswerOptions, keep, prepare, show_fleet
from preflight.fleet.merge.fleet import merge_reports
from preflight.fleet.remote.program import Pair, Program, Question, SshNodes
from preflight.fleet.remote.reply import (
    NodeReply,
    answer_document,
    findings_of,
    lacks_tool,
    node_answer,
    on_nodes,
)
from preflight.fleet.reports.answers import FleetAnswer
from preflight.fleet.reports.reading import ReportReader, Reports
from preflight.fleet.reports.rows import INTERRUPTED, NO_VERDICT, FleetFinding, NodeRow, trouble

# A node is given so long beside what its reading takes: python, ssh, the way there and back.
_OVERHEAD_SECONDS = 5.0


def run_fleet_check(
    launch: LaunchWords, where: SshNodes, program: Program, chosen: Chosen, shown: AnswerOptions
) -> int:
    """Have every node check itself over ssh, print the merged answer, and return the exit code.

    Each report is kept as it comes, if ``shown`` names a folder. After a signal the exit code is
    128 + its number.

    Raises:
        UsageError: For wrong options, before any node is asked.
    """
    from preflight.command_inputs.host_source import recorded_launch
    from preflight.fleet.remote.engine import ask_nodes

    nodes = nodes_of(where)
    record = recorded_launch(launch)
    # What a node may take to read itself, so that it can still say what it could not read.
    left = where.timeout_seconds - where.connect_seconds - _OVERHEAD_SECONDS
    argv = check_arguments(chosen, max(1.0, min(10.0, left)))
    prepare(shown)
    reader = ReportReader()
    rows: dict[str, NodeRow] = {}

    def take(reply: NodeReply) -> None:
        """Add the row of a node that answered, and keep the answer under that node's name."""
        answer = node_answer(reply, where.timeout_seconds, reader)
        rows[reply.name] = answer.row
        if answer.document is not None:
            # At once: what is there stays there, whatever becomes of this process.
            answered = answer.document.get("answer") or {}
            machine = {**(answered.get("machine") or {}), "name": reply.name}
            named = {**answer.document, "answer": {**answered, "machine": machine}}
            keep(reply.name, json.dumps(named), shown)

    quiet = shown.verbosity < 0
    stopped = ask_nodes(nodes, argv, record, where, program, take, one_line=True, quiet=quiet)
    code = show_fleet(merge_reports(Reports([rows[name] for name in nodes], ()), None), shown)
    if not stopped:
        return code
    missing = sum(INTERRUPTED in {each.check for each in row.findings} for row in rows.values())
    text = f"mooncake-preflight: interrupted: {missing} of {len(nodes)} nodes gave no report"
    say(text, err=True)
    return 128 + stopped


def nodes_of(where: SshNodes) -> list[str]:
    """Return the nodes that the options name, each once.

    Raises:
        UsageError: For none.
    """
    sets = [*where.nodes, *(text for file in where.nodes_files for text in read_node_sets(file))]
    nodes = named_nodes(sets, where.exclude)
    if not nodes:
        raise UsageError("no node is left to ask: give --nodes 'gpu[001-064]' or --nodes-file")
    return nodes


def check_arguments(chosen: Chosen, timeout_seconds: float) -> tuple[str, ...]:
    """Return the arguments by which a node checks itself within ``timeout_seconds``.

    Valid waivers become --ignore; a message names each expired one.

    Raises:
        UsageError: As ``selection_of``.
    """
    from preflight.verdict.answer import selection_of

    # The file of waivers is read here: what still holds of it goes along, the rest is said.
    selection = selection_of(chosen)
    for waiver in selection.expired:
        over = f"{waiver.check}: over since {waiver.until}"
        message = f"--waivers: {over}: it counts again on every node"
        say(f"mooncake-preflight: {message}", err=True)
    argv = ["check", "--json", f"--timeout={timeout_seconds:g}"]
    argv += [f"--only={check}" for check in selection.only]
    argv += [f"--skip={check}" for check in selection.skip]
    return (*argv, *(f"--ignore={check}={why}" for check, why in selection.ignore.items()))


def read_node_sets(path: str) -> list[str]:
    """Read node sets from the file of --nodes-file, one a line; # begins a comment.

    Raises:
        UsageError: If the file cannot be read.
    """

    def read() -> list[str]:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.partition("#")[0].strip() for line in file]

    try:
        lines = within(limit_seconds(), f"--nodes-file {path}", read)
    except OSError as error:
        raise UsageError(f"--nodes-file {path}: {error.strerror}") from None
    return [line for line in lines if line]


SLOW = "fleet.slow-transfers"
# Below this share of what others reach, a node or a pair is slow; as measure.nic has it of NICs.
SLOW_SHARE = 0.5


class MeasuredPair(NamedTuple):
    """What was measured between two nodes: ``serving`` waits, ``asking`` writes and reads.

    write, read: bytes a second, of the size that was fastest.

    Attributes:
        transport: "rdma", "tcp", or "" if Mooncake's log names neither.
        trouble: Why the pair was not measured, a finding on the node ``name``; None for a measured
            pair.
    """

    serving: str
    asking: str
    write_bytes_per_second: float = 0.0
    read_bytes_per_second: float = 0.0
    transport: str = ""
    devices: tuple[str, ...] = ()
    findings: tuple[FleetFinding, ...] = ()
    trouble: FleetFinding | None = None
    name: str = ""

    @property
    def nodes(self) -> tuple[str, str]:
        return self.serving, self.asking

    @property
    def slowest(self) -> float:
        """Bytes a second of the slower of both ways."""
        return min(self.write_bytes_per_second, self.read_bytes_per_second)

    @property
    def row(self) -> tuple[str, ...]:
        """The pair's cells of the table; all but the nodes are "" if it was not measured."""
        if self.trouble:
            return (*self.nodes, "", "", "")
        over = ", ".join([self.transport or "?", *self.devices])
        rates = map(rate_text, (self.write_bytes_per_second, self.read_bytes_per_second))
        return (*self.nodes, over, *rates)

    def as_object(self) -> Json:
        """Return this pair of nodes as JSON, an item of ``pairs`` in
        ``schemas/fleet-measure-v1.schema.json``.

        Its rates are None if it was not measured.
        """
        return {
            "serving": self.serving,
            "asking": self.asking,
            "write_bytes_per_second": None if self.trouble else self.write_bytes_per_second,
            "read_bytes_per_second": None if self.trouble else self.read_bytes_per_second,
            "transport": self.transport,
            "devices": list(self.devices),
            "reason": self.trouble.text if self.trouble else None,
        }


def measure_fleet(
    nodes: Sequence[str],
    record: bytes | None,
    options: Sequence[str],
    budget_seconds: float,
    where: SshNodes,
    program: Program,
) -> FleetAnswer:
    """Measure transfers between each two nodes, over ssh.

    Raises UsageError.

    Args:
        record: A launch as a file's bytes, None without one.
        options: Of ``measure`` on both nodes.
        budget_seconds: For one measurement. ``program.carry``: whether a node gets the program.
    """
    from preflight.fleet.remote.engine import ask_pairs, until_stopped

    plan = rounds(nodes)
    count = sum(map(len, plan))
    measured: list[MeasuredPair] = []
    without: list[Pair] = []  # the program
    progress = Progress()

    def question(carried: bool, *more: str) -> Question:
        every = ["measure", "--json", *options, *more, *(["-"] if record is not None else [])]
        return program.question(every, record or b"", carried)

    def pair_of(serving: str, asking: str, carried: bool) -> Pair:
        def ask(served: str) -> Question:
            return question(carried, f"--to={served}", f"--budget={budget_seconds:g}s")

        serve = question(carried, "--serve", f"--budget={where.timeout_seconds:.0f}s")
        return Pair(serving, asking, serve, ask)

    def take(carry: bool, pair: Pair, reply: NodeReply) -> None:
        if carry and lacks_tool(reply):
            without.append(pair)
        else:
            measured.append(pair_answer(pair, reply, where.timeout_seconds))

    def show() -> None:
        progress.show(f"{len(measured)} of {count} pairs measured")

    with until_stopped(progress) as stopped:
        for round_ in plan:
            carried = program.carry == "always"
            pairs = [pair_of(*nodes, carried) for nodes in round_]
            ask_pairs(pairs, where, partial(take, program.carry == "auto"), show)
            again = [pair_of(pair.serving, pair.asking, True) for pair in without]
            without.clear()
            if again:
                ask_pairs(again, where, partial(take, False), show)
    return pairs_answer(nodes, measured, *stopped)


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return each pair of nodes once, in as few rounds as possible; no round has a node twice."""
    first, *ring = [*nodes, *([""] if len(nodes) % 2 else [])] or [""]
    rounds_so_far = []  # a ring around the first node turns by one place a round
    for _ in ring:
        circle = [first, *ring]
        half = len(circle) // 2
        both = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds_so_far.append([pair for pair in both if "" not in pair])
        ring = [*ring[-1:], *ring[:-1]]
    return rounds_so_far


def pair_answer(pair: Pair, reply: NodeReply, timeout_seconds: float) -> MeasuredPair:
    """Return a pair with the best rates in a node's reply; if there are none, ``trouble`` says why.

    Args:
        timeout_seconds: How long the node had, for the message.
    """
    none = MeasuredPair(pair.serving, pair.asking, name=reply.name)
    document = answer_document(reply, "measure", timeout_seconds)
    if isinstance(document, FleetFinding):
        return none._replace(trouble=document)
    parts = document["answer"].get("parts", ())  # none of a node that served and was not asked
    transfer = next((part for part in parts if part["part"] == "transfer"), None)
    if transfer is None or transfer["outcome"] != "measured":
        why = clean(str((transfer or document)["reason"] or "it ended before a transfer"))
        return none._replace(trouble=trouble(NO_VERDICT, why))
    best = {"write": 0.0, "read": 0.0}
    for rate in transfer["rates"]:
        best[rate["op"]] = max(best.get(rate["op"], 0.0), float(rate["bytes_per_second"]))
    write, read = best["write"], best["read"]
    used = transfer["used"] or {"transport": "", "devices": []}
    over, findings = (used["transport"], tuple(used["devices"])), tuple(findings_of(document))
    return MeasuredPair(pair.serving, pair.asking, write, read, *over, findings)


def slow_transfers(pairs: Iterable[MeasuredPair]) -> Iterator[tuple[FleetFinding, str]]:
    """Yield a finding and its node for each slow node, then for both nodes of each slow pair of
    other nodes.

    A node is slow if its best pair is below SLOW_SHARE of the median of all nodes' best pairs. A
    pair is slow if it is below that share of the best pair of each of its nodes. With fewer than
    three measured nodes, nothing is yielded.
    """
    measured = [pair for pair in pairs if not pair.trouble]
    best: dict[str, float] = {}
    for pair in measured:
        for name in pair.nodes:
            best[name] = max(best.get(name, 0.0), pair.slowest)
    if len(best) < 3:  # of two, who is slow?
        return
    usual = median(best.values())
    slow = {name for name, rate in best.items() if rate < SLOW_SHARE * usual}
    for name in slow:
        have, need = rate_text(best[name]), f"half of the usual {rate_text(usual)}"
        text = "with no other node it is faster: look at its NIC, link, cable and PCIe slot"
        yield FleetFinding(SLOW, "warn", "all transfers", have, need, text), name
    for pair in measured:
        most = min(best[name] for name in pair.nodes)
        if slow.isdisjoint(pair.nodes) and pair.slowest < SLOW_SHARE * most:
            have, need = rate_text(pair.slowest), f"half of the {rate_text(most)} with others"
            text = "both are faster with others: look at the switches and routes between them"
            subject = f"{pair.serving} and {pair.asking}"
            finding = FleetFinding(SLOW, "warn", subject, have, need, text)
            yield from ((finding, name) for name in pair.nodes)


def pairs_answer(
    nodes: Sequence[str], pairs: Sequence[MeasuredPair], stopped: int = 0
) -> FleetAnswer:
    """Return the answer about all pairs.

    The rows of the text begin with pairs that were not measured, then the slowest.

    Args:
        stopped: The signal that ended the command, 0 for none; some pairs are then missing.
    """
    measured = [pair for pair in pairs if not pair.trouble]
    every = len(nodes) * (len(nodes) - 1) // 2
    verdict = f"{plural(len(nodes), 'node')}, {len(measured)} of {every} pairs measured"
    if measured:
        low, high = (rate_text(end(pair.slowest for pair in measured)) for end in (min, max))
        verdict += f", {low} to {high} the slower way"
    findings = [
        *((pair.trouble, pair.name) for pair in pairs if pair.trouble),
        *((each, name) for pair in pairs for each in pair.findings for name in pair.nodes),
        *slow_transfers(pairs),
    ]
    slowest_first = sorted(pairs, key=lambda pair: (pair.trouble is None, pair.slowest))
    return FleetAnswer(
        on_nodes(findings),
        verdict,
        {"nodes": list(nodes), "pairs": [pair.as_object() for pair in pairs]},
        ("serves", "asks", "over", "write", "read"),
        [pair.row for pair in slowest_first],
        stopped,
    )


def observe_fleet(
    nodes: Sequence[str], record: bytes | None, where: SshNodes, program: Program
) -> FleetAnswer:
    """Ask every node which programs it runs, and how they differ from the prediction.

    Raises UsageError.

    Args:
        record: The launch to predict from, None without one.
    """
    from preflight.fleet.remote.engine import ask_nodes

    programs: dict[str, int] = {}
    findings: dict[str, list[FleetFinding]] = {}

    def take(reply: NodeReply) -> None:
        """Note a node's programs and findings.

        A node with neither gets a finding.
        """
        document = answer_document(reply, "observe", where.timeout_seconds)
        if isinstance(document, FleetFinding):
            programs[reply.name], findings[reply.name] = 0, [document]
            return
        running, wanting = len(document["answer"]["programs"]), list(findings_of(document))
        if not running and not wanting:
            wanting = [trouble(NO_VERDICT, str(document["reason"]))]
        programs[reply.name], findings[reply.name] = running, wanting

    stopped = ask_nodes(nodes, ("observe", "--json"), record, where, program, take)
    good = plural(sum(not findings[name] for name in nodes), "node")
    running = plural(sum(programs.values()), "program")
    verdict = f"{plural(len(nodes), 'node')}, {running}: as predicted on {good}"
    on_each = on_nodes((each, name) for name in nodes for each in findings[name])
    rows = [
        {"node": name, "programs": programs[name], "findings": len(findings[name])}
        for name in nodes
    ]
    return FleetAnswer(on_each, verdict, {"nodes": rows}, stopped=stopped)
