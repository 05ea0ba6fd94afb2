"""What others make of an exit code, and the one line that they read.

nagios: 0 to 3, anything that gave no answer is 3. npd: the node problem detector's custom plugins,
0 good, 1 a problem, 2 not known, a line of 80 bytes. slurm-prolog: anything but 0 drains the node
and puts the job back, so only a failure may do that, never a typing error. k8s: an init container
or entry point, anything but 0 keeps the pod from starting.
"""

from __future__ import annotations

from checks.base.finding import Status
from preflight.base.one_line import clean
from preflight.check.report import EXIT_CODES, Report, Row
from preflight.check.verdict import count_text

PROTOCOLS = ("native", "nagios", "npd", "slurm-prolog", "k8s")
# Those with one answer to give, yes or no: --fail-on says from where on it is no.
YES_OR_NO = ("npd", "slurm-prolog", "k8s")
FAIL_ON = {
    "fail": (Status.FAIL,),
    "unknown": (Status.FAIL, Status.UNKNOWN),
    "warn": (Status.FAIL, Status.UNKNOWN, Status.WARN),
}
_FAIL_ON_DEFAULT = {"npd": "fail", "slurm-prolog": "fail", "k8s": "unknown"}
# What the node problem detector keeps of a plugin's output (max_output_length).
NPD_BYTES = 80
_NAGIOS = {
    Status.PASS: "OK",
    Status.WARN: "WARNING",
    Status.FAIL: "CRITICAL",
    Status.UNKNOWN: "UNKNOWN",
}


def exit_code(verdict: Status, protocol: str, fail_on: str | None = None) -> int:
    """The process's exit code for a verdict."""
    if protocol not in YES_OR_NO:
        return EXIT_CODES[verdict]
    if verdict in FAIL_ON[fail_on or _FAIL_ON_DEFAULT[protocol]]:
        # A pod's log shows which it was; the others know one code for "no".
        return EXIT_CODES[verdict] if protocol == "k8s" else 1
    return 2 if protocol == "npd" and verdict is Status.UNKNOWN else 0


def refusal_code(code: int, protocol: str) -> int:
    """The exit code where there is no verdict: ``code`` as the native protocol has it."""
    return {"nagios": 3, "npd": 3, "slurm-prolog": 0}.get(protocol, code)


def protocol_line(report: Report, protocol: str) -> str | None:
    """The one line that a protocol reads; None for those that take the whole text."""
    if protocol == "nagios":
        return _nagios(report)
    if protocol == "npd":
        return shorten(f"{report.verdict.value}: {_first(report)}", NPD_BYTES)
    if protocol == "slurm-prolog":
        return f"print mooncake-preflight: {report.verdict.value}: {_first(report)}"
    return None


def refusal_line(message: str, protocol: str) -> str | None:
    """The same where there is no verdict."""
    text = clean(message)
    if protocol == "nagios":
        return f"MOONCAKE UNKNOWN - {text.replace('|', '/')}"
    if protocol == "npd":
        return shorten(f"error: {text}", NPD_BYTES)
    if protocol == "slurm-prolog":
        return f"print mooncake-preflight: error: {text}"
    return None


def shorten(text: str, most_bytes: int) -> str:
    """At most so many bytes of ASCII: what reads it may cut a character in two."""
    text = text.encode("ascii", "replace").decode()
    return text if len(text) <= most_bytes else f"{text[: most_bytes - 3]}..."


def _nagios(report: Report) -> str:
    text = f"{_first(report)} ({count_text(report)})".replace("|", "/")
    data = " ".join(f"{name}={number}" for name, number in report.counts.items())
    return f"MOONCAKE {_NAGIOS[report.verdict]} - {text}|{data}"


def _first(report: Report) -> str:
    """The worst finding in a few words, and how many more there are like it."""
    rows = report.of(report.verdict)
    if report.reason or report.verdict is Status.PASS or not rows:
        return report.reason or "nothing stands in the way"
    more = f" (+{len(rows) - 1})" if len(rows) > 1 else ""
    return f"{_short(rows[0])}{more}"


def _short(row: Row) -> str:
    finding = row.finding
    text = f"{finding.check} {finding.subject}"
    if finding.have or finding.need:
        said = (("have", finding.have), ("need", finding.need))
        return clean(f"{text}: {', '.join(f'{word} {value}' for word, value in said if value)}")
    return clean(f"{text}: {finding.text}")
