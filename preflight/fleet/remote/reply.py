"""What came back from a node: the report in it, or one that stands for a node without any.

A log or a job's output may begin with words of a shell's profile, a prolog or a library, and end
with others; a report cut short is none.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from checks.base.unknown import Unknown
from preflight.fleet.base.decode import Json
from preflight.fleet.node.records import SCHEMA, START, NodeReport
from preflight.fleet.node.report import absent
from preflight.fleet.remote.program import (
    LEAST_PYTHON,
    NO_ADDRESS,
    NO_FOLDER,
    NO_PYTHON,
    NO_TOOL,
    OLD_PYTHON,
    SAYS,
    SAYS_END,
)

# The findings that stand for a node, as docs/fleet.md lists them.
SSH, TIMEOUT, TOOL, PYTHON, FOLDER, REPORT, INTERRUPTED = (
    "fleet.ssh",
    "fleet.timeout",
    "fleet.tool",
    "fleet.python",
    "fleet.folder",
    "fleet.report",
    "fleet.interrupted",
)
# ssh(1): its own failure; a remote program may end so too, and then has said that it started.
SSH_FAILED = 255
# EX_PROTOCOL of sysexits.h: ClusterShell's, of all nodes behind a gateway that ended.
GATEWAY_FAILED = 76
# Of what a foreign program said; more is no sentence.
LONGEST_LINE = 300
# What is quoted of a text without a report: enough for the error that the program ended with.
QUOTED_BYTES = 200
# What ssh says, and what to do about it.
_ADVICE = (
    (
        "host key verification failed",
        "compare the node's host key and put it into known_hosts (ssh-keyscan prints it)",
    ),
    ("remote host identification has changed", "the node's host key is not the one known of it"),
    ("permission denied", "put your public key on the node, or give --user or --ssh-options"),
    ("could not resolve hostname", "the name resolves to no address on this machine"),
    ("banner exchange", "something accepts the connection and is no ssh server, or hangs"),
    ("connection refused", "no ssh server listens there"),
    ("connection timed out", "nothing answers at its address"),
    ("no route to host", "nothing answers at its address"),
)


class NodeReply(NamedTuple):
    """lines: what stood on standard output. error: the end of standard error. code: ssh's exit
    code, None where it had none: it was stopped (``timed_out``, or an interruption)."""

    node: str
    lines: tuple[bytes, ...]
    error: tuple[bytes, ...] = ()
    code: int | None = None
    timed_out: bool = False

    @property
    def end(self) -> str | None:
        """The exit code of the program, or why it never ran; None where the script never ended."""
        ends = [line for line in self.lines if line.startswith(SAYS_END)]
        return ends[-1].removeprefix(SAYS_END).decode("ascii", "replace").strip() if ends else None

    @property
    def report_line(self) -> bytes | None:
        return next((line for line in reversed(self.lines) if line.startswith(START)), None)

    @property
    def last_error(self) -> str:
        """``: `` and the last line of standard error that says something; "" without one."""
        said = [line for line in map(_clean, self.error) if line]
        return f": {said[-1]}" if said else ""


def lacks_tool(reply: NodeReply) -> bool:
    """Return whether the node has no such program, or one that is older than this command."""
    if reply.end == NO_TOOL:
        return True
    said = b"\n".join(reply.error)
    older = b"No such command" in said or b"No such option" in said
    return reply.end == "64" and older and reply.report_line is None


def report_of(reply: NodeReply, timeout_seconds: float) -> Json:
    """Return the node's report under the name it was asked by, or an unknown one; never raises."""
    node, line, end = reply.node, reply.report_line, reply.end
    if line is not None and end is not None:
        return _parsed(node, line)
    started = any(line.startswith(SAYS.encode()) for line in reply.lines)
    if reply.timed_out:
        what = "the connection was made, and no report came" if started else "no answer"
        return absent(node, TIMEOUT, f"{what} within {timeout_seconds:g} s")
    if reply.code is None:
        return absent(node, INTERRUPTED, "interrupted before it answered")
    if not started:
        return _not_reached(reply)
    if end is None:
        what = (
            "in the middle of its report" if line else f"before its report came{reply.last_error}"
        )
        return absent(node, REPORT, f"the connection ended {what}")
    return _not_run(reply, end)


def _not_reached(reply: NodeReply) -> Json:
    if reply.code == GATEWAY_FAILED and not reply.lines:
        text = f"the gateway of ClusterShell's tree that leads to it gave up{reply.last_error}"
        return absent(reply.node, SSH, text)
    if reply.code != SSH_FAILED:
        # A shell that lets nobody in says so on either (nologin: on standard output).
        own = reply.last_error or reply._replace(error=reply.lines).last_error
        text = f"the login shell ended with exit code {reply.code}{own}"
        return absent(reply.node, REPORT, text)
    said = [_clean(line) for line in reply.error]
    for key, advice in _ADVICE:
        for line in said:
            if key in line.lower():
                said_so = line.removeprefix("ssh: ").rstrip(".")
                return absent(reply.node, SSH, f"{said_so}: {advice}")
    return absent(reply.node, SSH, f"ssh failed{reply.last_error or ': no reason given'}")


def _not_run(reply: NodeReply, end: str) -> Json:
    """Return the report of a script that did not get as far as one; ``end``: why it did not."""
    node, (word, _, rest) = reply.node, end.partition(" ")
    if word == NO_TOOL:
        text = "the program is not on the node: give its path with --remote-command, or --carry"
        return absent(node, TOOL, text, "none on PATH", "mooncake-preflight")
    if word in (OLD_PYTHON, NO_PYTHON):
        have = f"Python {rest}" if rest else "no python3"
        text = "its python3 cannot run what is carried there: give another with --remote-python"
        least = ".".join(map(str, LEAST_PYTHON))
        return absent(node, PYTHON, text, have, f"Python {least} or newer")
    if word == NO_ADDRESS:
        text = "ssh reached it at another address than before: two machines answer to its name"
        return absent(node, REPORT, text)
    if word == NO_FOLDER:
        text = f"the program cannot be unpacked there{reply.last_error}"
        return absent(node, FOLDER, text, need="a temporary folder and tar")
    text = f"the program ended with exit code {end} and no report{reply.last_error}"
    return absent(node, REPORT, text)


def _parsed(node: str, line: bytes) -> Json:
    try:
        report: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return absent(node, REPORT, f"its report is no JSON: {error}")
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        other = str(report.get("schema"))[:60] if isinstance(report, dict) else "no object"
        return absent(node, REPORT, f"its report is of another format: {other}, not {SCHEMA}")
    if report.get("status") == "error":
        return absent(
            node, REPORT, f"the program ended with an error and no verdict: {report.get('error')}"
        )
    missing = [key for key in NodeReport._fields if key not in ("error", *report)]
    if missing:
        return absent(node, REPORT, f"its report has no {', '.join(missing)}")
    return {**report, "node": node}


def report_in(printed: bytes) -> dict[str, Any] | Unknown:
    """Return the last whole report in ``printed``; else why there is none, with its last line."""
    decoder = json.JSONDecoder()
    reason = ""
    end = len(printed)
    while (start := printed.rfind(START, 0, end)) >= 0:
        text = printed[start:].decode("utf-8", "replace")
        try:
            found, _ = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            reason = reason or f"its report breaks off after {len(printed) - start} bytes"
        else:
            if isinstance(found, dict):
                return found
        end = start
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last = f"; its last line: {quoted(lines[-1])}" if lines else ""
    return Unknown(reason or f"it printed no report{last}")


def quoted(line: bytes) -> str:
    """Return a foreign line as a text of one line, cut where it is long."""
    text = line.decode("utf-8", "replace")
    text = "".join(sign if sign.isprintable() else " " for sign in text).strip()
    return text if len(text) <= QUOTED_BYTES else f"{text[:QUOTED_BYTES]} …"


def _clean(line: bytes) -> str:
    from preflight.base.one_line import clean

    return clean(line.decode("utf-8", "replace").strip())[:LONGEST_LINE]
