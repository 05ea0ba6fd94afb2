"""ssh to many nodes, by ClusterShell's tasks, its ``topology.conf`` and its ``defaults.conf``."""

from __future__ import annotations

import logging
import os
import resource
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from ClusterShell.Event import EventHandler  # type: ignore[import-untyped]
from ClusterShell.NodeSet import NodeSet  # type: ignore[import-untyped]
from ClusterShell.Propagation import RouteResolvingError  # type: ignore[import-untyped]
from ClusterShell.Task import task_self  # type: ignore[import-untyped]
from ClusterShell.Topology import TopologyError  # type: ignore[import-untyped]
from ClusterShell.Worker.Worker import WorkerError  # type: ignore[import-untyped]

from checks.framework.regex import regex
from preflight.base.output import Progress
from preflight.base.usage_error import UsageError
from preflight.fleet.base.text import grouped
from preflight.fleet.remote.program import Pair, Program, Question, SshNodes
from preflight.fleet.remote.reply import NodeReply, lacks_tool

# A report has some ten kilobytes; more than this is no report, and is not kept.
MOST_BYTES = 8 << 20
MOST_ERROR_LINES = 20
# How often an interruption is looked for, and progress told.
TICK_SECONDS = 0.1
# The first client of a shared connection would be its master, and be killed with its node's time.
_OPTIONS = "-oControlMaster=no"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Of a line of ``measure --serve --json``: HOST:PORT/TOKEN.
SERVED = regex(r'"address": "([^"\s]+:[0-9]+/[0-9a-f]+)"')
# Of each ssh: its three standard streams, and one more while it is started. Of everything else.
_FILES_EACH, _FILES_BESIDE = 4, 40


class RunInterruptedError(Exception):
    """Nothing that was started still runs.

    ``args[0]``: the signal.
    """


@contextmanager
def until_stopped(progress: Progress) -> Iterator[list[int]]:
    """Run the block until its end or a signal, which is not raised further.

    Yield an empty list, to which that signal is added; clear the progress at the end.
    """
    stopped: list[int] = []
    try:
        yield stopped
    except (RunInterruptedError, KeyboardInterrupt) as signalled:
        stopped.append(int(signalled.args[0]) if signalled.args else signal.SIGINT)
    finally:
        progress.clear()


def ask_nodes(
    nodes: Sequence[str],
    argv: Sequence[str],
    record: bytes | None,
    ssh: SshNodes,
    program: Program,
    on_reply: Callable[[NodeReply], None],
    *,
    one_line: bool = False,
    quiet: bool = False,
) -> int:
    """Run this program with ``argv`` on every node.

    Return the signal that ended the run, or 0.

    Args:
        record: The launch, which the program reads from standard input; None without one.
        on_reply: Called once for each node, as it ends, also for nodes that a signal stopped. Nodes
            that lack the program get it (--carry auto), and are asked again.
        one_line: A node's output comes back as one line.
        quiet: No progress is shown.
    """
    progress = Progress(not quiet)
    ended: set[str] = set()
    lacking = list(nodes) if program.carry == "always" else []

    def question(carried: bool) -> Question:
        whole = (*argv, *(["-"] if record is not None else []))
        return program.question(whole, record or b"", carried, one_line)

    def take(reply: NodeReply) -> None:
        ended.add(reply.name)
        on_reply(reply)

    def first(reply: NodeReply) -> None:
        if program.carry == "auto" and lacks_tool(reply):
            lacking.append(reply.name)
        else:
            take(reply)

    def tick() -> None:
        progress.show(f"{len(ended)} of {len(nodes)} nodes answered")

    with until_stopped(progress) as stopped:
        if program.carry != "always":
            ask(dict.fromkeys(nodes, question(False)), ssh, first, tick)
        if lacking:
            ask(dict.fromkeys(lacking, question(True)), ssh, take, tick)
    for name in nodes if stopped else ():
        if name not in ended:
            on_reply(NodeReply(name, ()))
    return sum(stopped)


def ask(
    questions: Mapping[str, Question],
    ssh: SshNodes,
    on_reply: Callable[[NodeReply], None],
    tick: Callable[[], None],
) -> None:
    """Ask each node its question.

    Nodes behind a gateway that does not answer are asked directly.

    Args:
        on_reply: Called once for each node, as it ends.
        tick: Called some times a second.

    Raises:
        UsageError: If nothing can be started; after a signal, RunInterruptedError once no local
            process runs and each node had its call.
    """
    task = _task(ssh)
    _raise_file_limit(int(task.info("fanout")))
    collector = _Collector(questions, on_reply)
    ticker = _Ticker(tick)

    def start(**tree: bool) -> None:
        for question, nodes in collector.waiting.items():
            _shell(task, ssh, collector, NodeSet.fromlist(nodes), question, **tree)

    try:
        caught = _run(task, ticker, start)
    except RouteResolvingError:
        # Gateways that do not answer are found out by the way, and end the whole run.
        collector.again()
        caught = _run(task, ticker, partial(start, tree=False))
    collector.finish()
    if caught:
        raise RunInterruptedError(caught[0])


def ask_pairs(
    pairs: Sequence[Pair],
    ssh: SshNodes,
    on_reply: Callable[[Pair, NodeReply], None],
    tick: Callable[[], None],
) -> None:
    """Have the first node of each pair serve, and ask the second once the first prints its address.

    No node may be in two pairs.

    Args:
        on_reply: Called once for each pair, with the reply of the asking node, or of the serving
            node if that ended first.

    Raises:
        UsageError: If nothing can be started, or a gateway does not answer, and RunInterruptedError
            after a signal.
    """
    task = _task(ssh)
    connections = max(2 * len(pairs), int(task.info("fanout")))  # all at once
    _raise_file_limit(connections)
    task.set_info("fanout", connections)
    collectors = [_PairCollector(pair, ssh, on_reply) for pair in pairs]

    def start() -> None:
        for collector in collectors:
            collector.start(task)

    try:
        caught = _run(task, _Ticker(tick), start)
    except RouteResolvingError as error:
        raise _refusal(error) from None
    for collector in collectors:
        collector.finish()
    if caught:
        raise RunInterruptedError(caught[0])


@contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """Yield a list to which signals that arrive within the block are added.

    A signal that was ignored stays ignored. Restore the handlers at the end.
    """
    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup's own wish
            signal.signal(number, catch)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(task: Any, ticker: _Ticker, start: Callable[[], None]) -> list[int]:
    """Run what ``start`` begins; return the signals that ended the run, [] without a signal.

    Raises:
        RouteResolvingError: If a gateway is silent, UsageError for a wrong configuration.
    """
    with _caught_signals() as ticker.caught:
        try:
            start()
            task.timer(TICK_SECONDS, ticker, TICK_SECONDS, autoclose=True)
            task.resume()
        except (TopologyError, WorkerError) as error:
            raise _refusal(error) from None
        finally:
            task.abort()
    return ticker.caught


def _refusal(error: Exception) -> UsageError:
    return UsageError(f"ClusterShell refuses its configuration: {error}")


def _shell(
    task: Any, ssh: SshNodes, handler: Any, nodes: Any, question: Question, **tree: bool
) -> Any:
    """Start ssh to nodes with a question; return ClusterShell's worker.

    Args:
        handler: Gets what the nodes print.
        tree: ``tree=False`` connects without gateways.
    """
    ends = {"timeout": ssh.timeout_seconds, "stderr": True, "stdin": True}
    worker = task.shell(question.line, nodes=nodes, handler=handler, **ends, **tree)
    worker.write(question.content)
    worker.set_write_eof()
    return worker


def _task(ssh: SshNodes) -> Any:
    """Return ClusterShell's task of this thread, set up as ``ssh`` says.

    Raises:
        UsageError: For wrong ssh options, or without an ssh client.
    """
    # Its warnings of broken pipes are what the answers say anyway.
    logging.getLogger("ClusterShell").addHandler(logging.NullHandler())
    logging.getLogger("ClusterShell").propagate = False
    try:
        shlex.split(ssh.ssh_options)
    except ValueError as error:
        raise UsageError(f"--ssh-options {ssh.ssh_options!r}: {error}") from None
    task = task_self()
    program = shlex.split(task.info("ssh_path") or "ssh")[0]
    if shutil.which(os.path.expanduser(program)) is None:
        raise UsageError(f"{program} is not here: install an ssh client (openssh-client)")
    for stream in ("stdout_msgtree", "stderr_msgtree"):
        task.set_default(stream, False)
    task.set_info("ssh_options", f"{ssh.ssh_options} {_OPTIONS}".strip())
    task.set_info("connect_timeout", ssh.connect_seconds)
    if ssh.user is not None:
        task.set_info("ssh_user", ssh.user)
    if ssh.fanout is not None:
        task.set_info("fanout", ssh.fanout)
    return task


def _raise_file_limit(fanout: int) -> None:
    """Raise this process's limit of open files for ``fanout`` connections at once.

    Raises:
        UsageError: If the hard limit is too low.
    """
    needed = fanout * _FILES_EACH + _FILES_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        most = max(1, (hard - _FILES_BESIDE) // _FILES_EACH)
        raise UsageError(
            f"a fan-out of {fanout} takes {needed} open files, and this shell allows {hard}: "
            f"give --fanout {most}"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _Collector(EventHandler):  # type: ignore[misc]
    """Gathers what each node says until it ends."""

    def __init__(
        self, questions: Mapping[str, Question], on_reply: Callable[[NodeReply], None]
    ) -> None:
        """Begin with no line of any node."""
        super().__init__()
        self._questions, self._on_reply = questions, on_reply
        self._lines: dict[str, list[bytes]] = {name: [] for name in questions}
        self._errors: dict[str, list[bytes]] = {name: [] for name in questions}
        self._bytes = dict.fromkeys(self._lines, 0)

    @property
    def waiting(self) -> dict[Question, list[str]]:
        """Each question, with the nodes that have not ended."""
        return grouped((self._questions[name], name) for name in self._lines)

    def again(self) -> None:
        """Forget the lines of nodes that did not end."""
        for name in self._lines:
            self._lines[name], self._errors[name], self._bytes[name] = [], [], 0

    def ev_read(self, worker: Any, name: Any, sname: str, msg: bytes) -> None:
        """Keep a node's line: the first MOST_BYTES of output, the last MOST_ERROR_LINES."""
        name = str(name)
        if name not in self._lines:
            return  # a gateway of the tree
        if sname == worker.SNAME_STDERR:
            self._errors[name] = [*self._errors[name], msg][-MOST_ERROR_LINES:]
            return
        self._bytes[name] += len(msg)
        if self._bytes[name] <= MOST_BYTES:
            self._lines[name].append(msg)

    def ev_hup(self, worker: Any, name: Any, rc: int) -> None:
        self._end(str(name), rc, False)

    def ev_close(self, worker: Any, timedout: bool) -> None:
        for name in list(worker.iter_keys_timeout()) if timedout else ():
            self._end(str(name), None, True)

    def finish(self) -> None:
        """Give the answers of all nodes that have not ended: they were stopped."""
        for name in list(self._lines):
            self._end(name, None, False)

    def _end(self, name: str, code: int | None, timed_out: bool) -> None:
        lines = self._lines.pop(name, None)
        if lines is not None:
            errors = tuple(self._errors.pop(name))
            carried = self._questions[name].carried
            self._on_reply(NodeReply(name, tuple(lines), errors, code, timed_out, carried))


class _PairCollector(_Collector):
    """Starts one node of a pair, then the other; the first node that ends answers for both."""

    def __init__(
        self, pair: Pair, ssh: SshNodes, on_reply: Callable[[Pair, NodeReply], None]
    ) -> None:
        """Begin a pair of which neither node is asked yet."""
        super().__init__(dict.fromkeys((pair.serving, pair.asking), pair.serve), self._take)
        self._pair, self._ssh, self._on_pair_reply = pair, ssh, on_reply
        self._serving: Any = None
        self._asked = self._ended = False

    def start(self, task: Any) -> None:
        self._serving = _shell(task, self._ssh, self, self._pair.serving, self._pair.serve)

    def ev_read(self, worker: Any, name: Any, sname: str, msg: bytes) -> None:
        """Keep a line; the serving node's address starts the asking node."""
        super().ev_read(worker, name, sname, msg)
        served = SERVED.search(msg.decode("utf-8", "replace"))
        if str(name) == self._pair.serving and served is not None and not self._asked:
            self._asked = True
            question = self._pair.ask(served[1])
            _shell(task_self(), self._ssh, self, self._pair.asking, question)

    def finish(self) -> None:
        """Give the answer of a pair that has not ended: it was stopped."""
        self._end(self._pair.asking, None, False)

    def _take(self, reply: NodeReply) -> None:
        """Answer for the pair, once; if the asking node ended, stop the serving node."""
        if self._ended:
            return
        self._ended = True
        self._on_pair_reply(self._pair, reply)
        if self._serving is not None and reply.name != self._pair.serving:
            self._serving.abort()


class _Ticker(EventHandler):  # type: ignore[misc]
    """Ends the run after a signal: in the loop, while no process is half started."""

    def __init__(self, tick: Callable[[], None]) -> None:
        super().__init__()
        self._tick = tick
        self.caught: list[int] = []

    def ev_timer(self, timer: Any) -> None:
        if self.caught:
            task_self().abort()
        self._tick()
