"""What came back from a node, and the report that it is, or the one that stands for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from preflight.fleet.node.report import SCHEMA, Json, absent, required_keys
from preflight.fleet.ssh.node_script import (
    LEAST_PYTHON,
    NO_ADDRESS,
    NO_FOLDER,
    NO_PYTHON,
    NO_TOOL,
    OLD_PYTHON,
    SAYS,
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
_REPORT = b'{"schema":"mooncake-preflight/node/'
_SAYS = SAYS.encode()
# Of what a foreign program said; more is no sentence.
LONGEST_LINE = 300
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


class Answer(NamedTuple):
    """lines: what stood on standard output. error: the end of standard error. code: ssh's exit
    code, None where it had none: it was stopped (``timed_out``, or an interruption)."""

    node: str
    lines: tuple[bytes, ...]
    error: tuple[bytes, ...] = ()
    code: int | None = None
    timed_out: bool = False


def lacks_tool(answer: Answer) -> bool:
    """Whether the node has no such program, or one that is older than this command."""
    end = _end(answer)
    if end == NO_TOOL:
        return True
    said = b"\n".join(answer.error)
    older = b"No such command" in said or b"No such option" in said
    return end == "64" and older and _report_line(answer) is None


def report_of(answer: Answer, timeout_seconds: float) -> Json:
    """The node's own report under the name it was asked by, or an unknown one; never raises."""
    line, end = _report_line(answer), _end(answer)
    if line is not None and end is not None:
        return _parsed(answer.node, line)
    started = any(line.startswith(_SAYS) for line in answer.lines)
    if answer.timed_out:
        what = "the connection stood, and no report came" if started else "no answer"
        return absent(answer.node, TIMEOUT, f"{what} within {timeout_seconds:g} s")
    if answer.code is None:
        return absent(answer.node, INTERRUPTED, "interrupted before it answered")
    if not started:
        return _not_reached(answer)
    if end is None:
        what = "in the middle of its report" if line else f"before its report came{_said(answer)}"
        return absent(answer.node, REPORT, f"the connection ended {what}")
    return _not_run(answer, end)


def is_interrupted(report: Json) -> bool:
    """Whether a report stands for a node that was not waited for."""
    return any(finding["check"] == INTERRUPTED for finding in report["findings"])


def _not_reached(answer: Answer) -> Json:
    if answer.code == GATEWAY_FAILED and not answer.lines:
        text = f"the gateway of ClusterShell's tree that leads to it gave up{_said(answer)}"
        return absent(answer.node, SSH, text)
    if answer.code != SSH_FAILED:
        # A shell that lets nobody in says so on either (nologin: on standard output).
        own = _said(answer) or _said(answer._replace(error=answer.lines))
        text = f"the login shell ended with exit code {answer.code}{own}"
        return absent(answer.node, REPORT, text)
    said = [_clean(line) for line in answer.error]
    for key, advice in _ADVICE:
        for line in said:
            if key in line.lower():
                said_so = line.removeprefix("ssh: ").rstrip(".")
                return absent(answer.node, SSH, f"{said_so}: {advice}")
    return absent(answer.node, SSH, f"ssh failed{_said(answer) or ': no reason given'}")


def _not_run(answer: Answer, end: str) -> Json:
    """``end``: why the script did not get as far as a report."""
    node, (word, _, rest) = answer.node, end.partition(" ")
    least = ".".join(str(number) for number in LEAST_PYTHON)
    if word == NO_TOOL:
        text = "the program is not on the node: give its path with --remote-command, or --carry"
        return absent(node, TOOL, text, "none on PATH", "mooncake-preflight")
    if word in (OLD_PYTHON, NO_PYTHON):
        have = f"Python {rest}" if rest else "no python3"
        text = "its python3 cannot run what is carried there: give another with --remote-python"
        return absent(node, PYTHON, text, have, f"Python {least} or newer")
    if word == NO_ADDRESS:
        text = "ssh reached it at another address than before: two machines answer to its name"
        return absent(node, REPORT, text)
    if word == NO_FOLDER:
        text = f"nothing can be unpacked there{_said(answer)}"
        return absent(node, FOLDER, text, need="a temporary folder and tar")
    return absent(
        node, REPORT, f"the program ended with exit code {end} and no report{_said(answer)}"
    )


def _parsed(node: str, line: bytes) -> Json:
    import json

    try:
        report: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return absent(node, REPORT, f"its report is no JSON: {error}")
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        other = str(report.get("schema"))[:60] if isinstance(report, dict) else "no object"
        return absent(node, REPORT, f"its report is of another format: {other}, not {SCHEMA}")
    if report.get("status") == "error":
        return absent(node, REPORT, f"the program gave no verdict: {report.get('error')}")
    missing = [key for key in required_keys() if key not in report]
    if missing:
        return absent(node, REPORT, f"its report has no {', '.join(missing)}")
    return {**report, "node": node}


def _report_line(answer: Answer) -> bytes | None:
    return next((line for line in reversed(answer.lines) if line.startswith(_REPORT)), None)


def _end(answer: Answer) -> str | None:
    """The exit code of the program, or why it never ran; None where the script never ended."""
    for line in reversed(answer.lines):
        if line.startswith(_SAYS + b" end "):
            return line.removeprefix(_SAYS + b" end ").decode("ascii", "replace").strip()
    return None


def _said(answer: Answer) -> str:
    last = _last(answer)
    return f": {last}" if last else ""


def _last(answer: Answer) -> str:
    """The last line of standard error that says something."""
    return next((line for line in map(_clean, reversed(answer.error)) if line), "")


def _clean(line: bytes) -> str:
    from preflight.check.verdict import clean

    return clean(line.decode("utf-8", "replace").strip())[:LONGEST_LINE]
