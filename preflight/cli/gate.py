"""The gate in front of the server, which then takes its place: ``mooncake-preflight exec``."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.framework.finding import Kind, Status
from mooncake_preflight import MODE, become
from preflight.base import exit_codes
from preflight.base.output import say
from preflight.base.usage_error import NoLaunchError, UsageError
from preflight.command_inputs.launch_words import ALL_CHECKS, Chosen, LaunchWords
from preflight.verdict.answer import Checked, check_launch, selection_of

if TYPE_CHECKING:
    from preflight.verdict.report import Report

# What may take the whole --timeout: launch, host, both again if the environment changed, report.
STEPS = 5
# How the check ends where it is told to (see _stop_at_once), by whoever told it alone.
STOPPED = (129, 130, 143)
# Seconds that a child which has answered may take to end.
LAST_WAIT = 1.0
MODES = ("enforce", "warn", "off")
NAME = "mooncake-preflight exec"


class LockDiff(NamedTuple):
    """How a start differs from a locked answer: exit code, text and answer of ``diff``."""

    exit_code: int
    text: str
    answer: dict[str, Any]


class LockedStart(NamedTuple):
    """A locked answer.

    Attributes:
        differences: Compares a start with the answer.
        strict: A start with any difference is refused, otherwise a start with a worse verdict
            alone.
    """

    differences: Callable[[Checked], LockDiff]
    strict: bool


class Gate(NamedTuple):
    """What is asked of a start.

    Attributes:
        fail_on: The mildest verdict that refuses.
        apply_environment: Set the variables that findings want, and check again.
        report_path: Where the check's JSON is written, None for nowhere.
        locked_start: None without a locked answer.
    """

    fail_on: str
    apply_environment: bool
    report_path: str | None
    timeout_seconds: float
    chosen: Chosen
    as_json: bool
    locked_start: LockedStart | None


def run_behind_the_gate(launch: LaunchWords, gate: Gate) -> int:
    """Check the launch, then replace this process by its command.

    Return an exit code only if the command is not started.

    The environment variable that MODE names says whether a verdict can refuse: enforce, warn or
    off. Raises UsageError.
    """
    mode = os.environ.get(MODE, "") or "enforce"
    if mode not in MODES:
        raise UsageError(f"{MODE}={mode}: one of {', '.join(MODES)}")
    if mode != "off" and gate.chosen != ALL_CHECKS:
        selection_of(gate.chosen)
    environment = dict(os.environ)
    _stop_at_once()
    if mode == "off":
        return become(launch.words, environment)
    limit_seconds = STEPS * gate.timeout_seconds
    decision = _decide_in_child(lambda: _decide(launch, gate, mode), limit_seconds)
    if isinstance(decision, str):
        starts = mode == "warn" or not _refused(None, gate)
        _say(None, decision, starts, gate.as_json)
        decision = Decision(starts, {})
    if not decision.starts:
        return exit_codes.REFUSED
    return become(launch.words, _changed(environment, decision.changes))


class Decision(NamedTuple):
    """Whether the command is started.

    Attributes:
        changes: Variables to set first; "" removes one.
    """

    starts: bool
    changes: Mapping[str, str]


def _decide_in_child(decide: Callable[[], Decision], limit_seconds: float) -> Decision | str:
    """Run ``decide`` in a child process, which may hang on a lost mount.

    Return its answer, or a text: why there is no answer.

    If the child was stopped by a signal, this process ends with the same code.
    """
    try:
        reader, writer = os.pipe()
        child = os.fork()
    except OSError as error:  # ulimit -n, -u, pids.max
        return f"no process for the check: {error.strerror}"
    if child == 0:
        code = exit_codes.DEFECT
        try:
            answer = json.dumps(decide()).encode() + b"\n"
            # A thread that never ends keeps what is open, and the reader of a pipe waiting.
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.write(writer, answer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    answer, until = b"", time.monotonic() + limit_seconds
    while not answer.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0, until - time.monotonic()))
        part = os.read(reader, 2**16) if ready else b""
        answer += part
        if not part:
            break
    os.close(reader)
    ended = _exit_code(child) if answer or time.monotonic() < until else None
    if answer.endswith(b"\n"):
        return Decision(*json.loads(answer))
    if ended in STOPPED:
        os._exit(ended)
    return "no answer in time" if ended is None else f"it ended with code {ended}"


def _exit_code(child: int) -> int | None:
    """Return a child's exit code, 128 + N after signal N; None if it runs on after LAST_WAIT."""
    until = time.monotonic() + LAST_WAIT
    while time.monotonic() < until:
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:  # whoever started this one has SIGCHLD ignored
            return exit_codes.DEFECT
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        time.sleep(0.001)
    return None


def _decide(launch: LaunchWords, gate: Gate, mode: str) -> Decision:
    """Check, print the answer, write the report, and decide whether the command starts.

    This runs in a child, which is left behind if it hangs.

    Args:
        mode: "warn" starts the command always. If the launch starts nothing to check, the command
            is started, but not with a strict lock.
    """
    changes: dict[str, str] = {}
    lock = gate.locked_start
    try:
        checked, reason = _checked(launch, gate)
    except NoLaunchError as error:
        # An image's entrypoint is asked for other programs too: a shell, a client, a benchmark.
        starts = mode == "warn" or lock is None or not lock.strict
        reason = f"nothing to check: {error}"
        if gate.as_json:
            _say(None, reason, starts, True)
        else:
            refusal = "" if starts else ": --strict starts nothing that cannot be compared"
            say(f"{NAME}: {reason}{refusal}", err=True)
        return Decision(starts, changes)
    if gate.apply_environment and checked is not None:
        # What findings want set; "" removes a variable.
        wanting = checked.report.of(Status.FAIL, Status.UNKNOWN, Status.WARN)
        settings = (setting for row in wanting for setting in row.finding.settings)
        changes = {each.name: each.wanted for each in settings if each.kind is Kind.ENVIRONMENT}
        if changes:
            environment = _changed(os.environ, changes)
            os.environ.clear()
            os.environ.update(environment)
            checked, reason = _checked(launch, gate)
    report = None if checked is None else checked.report
    _save(gate, report, reason)
    refused, locked = _refused(report, gate), None
    if checked is not None and lock is not None:
        locked = lock.differences(checked)
        refused = locked.exit_code > (0 if lock.strict else 1)
        if not gate.as_json:
            say(f"{NAME}: {locked.text}", err=True)
    starts = mode == "warn" or not refused
    if not starts or report is None or report.verdict is not Status.PASS or gate.as_json:
        _say(report, reason, starts, gate.as_json, locked)
    return Decision(starts, changes)


def _stop_at_once() -> None:
    """End on a signal during the check: the first process of a container has no default action."""
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: os._exit(128 + received))


def _checked(launch: LaunchWords, gate: Gate) -> tuple[Checked | None, str]:
    """Return the checked launch and "", or None and why there is none.

    Raises NoLaunchError.
    """
    try:
        return check_launch(launch, "/", gate.timeout_seconds, chosen=gate.chosen), ""
    except NoLaunchError:
        raise
    except UsageError as error:
        return None, str(error)
    except Exception as error:  # the gate's own defect is no verdict on the server
        return None, f"a defect of this program, please report it: {type(error).__name__}: {error}"


def _changed(environment: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if changes.get(name) != ""}
    return {**kept, **{name: value for name, value in changes.items() if value}}


def _refused(report: Report | None, gate: Gate) -> bool:
    """Tell whether the verdict keeps the command from starting.

    Without a report the verdict is unknown, and a strict lock always refuses.
    """
    from preflight.verdict.report import FAIL_ON

    verdict = Status.UNKNOWN if report is None else report.verdict
    lock = gate.locked_start
    return verdict in FAIL_ON[gate.fail_on] or (report is None and lock is not None and lock.strict)


def _say(
    report: Report | None, reason: str, starts: bool, as_json: bool, locked: LockDiff | None = None
) -> None:
    """Print the answer on standard error, as standard output is the server's.

    Args:
        reason: Why ``report`` is None.
        starts: Whether the command is started.
        locked: None without a lock.
    """
    if as_json:
        say(_object_text(report, reason, None if starts else exit_codes.REFUSED, locked), err=True)
        return
    what = "started all the same" if starts else "not started"
    if locked is not None and not starts:
        worse = "the verdict is worse than the locked one"
        what += f": {worse if locked.exit_code > 1 else '--strict, and it differs'}"
    if report is None:
        from checks.host_snapshot.secrets import public

        say(public(f"{NAME}: nothing was checked: {reason}: {what}"), err=True)
        return
    from preflight.base.output import columns, painter
    from preflight.report.to_text import report_text

    # Not coloured: it goes to a container's log more often than to a terminal.
    say(report_text(report, painter("never"), columns(), 0, more=()), err=True)
    say(f"{NAME}: {what}", err=True)


def _save(gate: Gate, report: Report | None, reason: str) -> None:
    """Write the JSON report to ``gate.report_path``.

    An error of writing is printed, and does not keep the server from starting.

    Args:
        reason: Why ``report`` is None.
    """
    if (path := gate.report_path) is None:
        return
    from preflight.base.within import save

    content = f"{_object_text(report, reason)}\n".encode()
    try:
        save(f"--report {path}", path, content, 0o644, gate.timeout_seconds)
    except UsageError as error:
        say(f"{NAME}: {error}", err=True)


def _object_text(
    report: Report | None, reason: str, exit_code: int | None = None, locked: LockDiff | None = None
) -> str:
    """Return check's JSON as text.

    Args:
        reason: Why ``report`` is None.
        exit_code: By default that of the report, or of unknown.
        locked: Differences from a locked answer, or None.
    """
    from preflight.base.output import json_text
    from preflight.verdict.report import error_object, report_object

    if report is None:
        code = exit_codes.UNKNOWN if exit_code is None else exit_code
        return json_text(error_object("native", code, reason))
    code = report.exit_code if exit_code is None else exit_code
    more = None if locked is None else {"locked": locked.answer}
    return json_text(report_object(report, "native", code, more))
