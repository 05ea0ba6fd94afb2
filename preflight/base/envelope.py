"""The one envelope of every JSON answer, and how amounts, subjects and actions are written in it.

A writer makes its answer of texts that know their numbers (Quantity), what they are about (Subject)
and what they do (Line). ``schemas/NAME-v1.schema.json`` is the answer with its envelope.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import click

from checks.framework.finding import Subject
from checks.framework.units import Quantity
from preflight.base.program import program_version
from preflight.base.shell import Line

Json = dict[str, Any]

STATUSES = ("pass", "warn", "fail", "unknown", "error")
# What a check's subjects are where they do not say it themselves: the longest beginning counts.
SUBJECTS = {
    beginning: subject
    for subject, beginnings in {
        "process": "advisory. io-uring. limits. sglang. store. topology.",
        "node": "fleet.",
        "gpu": "gpu.",
        "launch": "gpu.count",
        "software": "gpu.driver software.",
        "device": "gpu.imex numa.unknown-nic-node pci. rdma.",
        "page pool": "hugetlb.",
        "kernel": "limits.threads memory.",
        "service": "memlock. service.",
        "cgroup": "memory.cgroup rdma.cgroup-limit",
        "host": "measure. memory.host",
        "port": "network.",
        "numa node": "numa.",
        "path": "measure.storage shm. storage.",
    }.items()
    for beginning in beginnings.split()
}
# Subjects that are what they are called.
_ITSELF = {
    "PCI": "host",
    "cgroup": "cgroup",
    "host": "host",
    "launch": "launch",
    "this container": "container",
}


def envelope(
    name: str,
    exit_code: int,
    answer: Mapping[str, Any] | None = None,
    *,
    word: str = "",
    reason: str | None = None,
    launch: tuple[str, str] | None = None,
    host: str | None = None,
    command: str = "",
) -> Json:
    """Return an answer in its envelope; the key ``findings`` is moved out of the answer, beside it.

    Args:
        name: Of the schema, as ``check``.
        exit_code: Of the process.
        word: How the command ended. One of STATUSES is the status; any other word is the answer's
            ``outcome``, and the exit code gives the status.
        reason: Of the status; by default the worst finding, if ``exit_code`` is not 0.
        launch: Its source and a summary.
        host, command: By default those of the click command that runs. Secrets are removed only
            from ``reason`` and ``launch``.
    """
    from checks.host_snapshot.secrets import public

    context = click.get_current_context(silent=True)
    if context is not None:
        command = command or context.command_path.partition(" ")[2] or context.command_path
        host = context.params.get("root") if host is None else host
    body = dict(answer or {})
    findings = body.pop("findings", [])
    status = word if word in STATUSES else dict(enumerate(STATUSES)).get(exit_code, "error")
    if word and word != status:
        body = {"outcome": word, **body}
    return {
        "schema": f"mooncake-preflight/{name}/v1",
        "version": program_version(),
        "command": command,
        "status": status,
        "exit_code": exit_code,
        "reason": public(reason) if reason else _worst_sentence(findings) if exit_code else None,
        "launch": launch and {"source": public(launch[0]), "summary": public(launch[1]) or None},
        "host": host,
        "findings": findings,
        "answer": body or None,
    }


def _worst_sentence(findings: list[Json]) -> str | None:
    """Return the first of the worst findings as a sentence; None if nothing is amiss."""
    order = ("fail", "unknown", "warn")
    wanting = [finding for finding in findings if finding["status"] in order]
    if not wanting:
        return None
    worst = min(wanting, key=lambda finding: order.index(finding["status"]))
    names = ", ".join(subject["name"] for subject in worst["subjects"])
    return f"{worst['check']}: {names}: {worst['text']}"


def finding_object(finding: Any, about: Iterable[str] = (), **more: Any) -> Json:
    """Return a finding's JSON fields, and ``more`` fields.

    Args:
        about: The names of its subjects, by default ``finding.subject`` alone.
    """
    return {
        "check": finding.check,
        "status": getattr(finding.status, "value", finding.status),
        "subjects": subjects(about or [finding.subject], finding.check),
        "have": amount(finding.have),
        "need": amount(finding.need),
        **more,
    }


def amount(text: str) -> Json | None:
    """Return an amount with its number and unit; None if ``text`` is empty."""
    if not text:
        return None
    known = text if isinstance(text, Quantity) else Quantity(text)
    return {"value": known.value, "unit": known.unit or None, "text": text}


def subjects(texts: Iterable[str], check: str = "") -> list[Json]:
    """Return the subjects of a finding as JSON: kind, name and ranks of each.

    A text that is no Subject, or has no kind, gets a kind by its name ("host"), else by the check:
    for a rule it is "launch", without a check "process".

    Args:
        check: The id of the finding's check, "" without one.
    """
    beginnings = [beginning for beginning in SUBJECTS if check.startswith(beginning)]
    usual = SUBJECTS[max(beginnings, key=len)] if beginnings else "launch" if check else "process"
    known = (text if isinstance(text, Subject) else Subject(text) for text in texts)
    return [
        {"kind": each.kind or _ITSELF.get(each, usual), "name": str(each), "ranks": [*each.ranks]}
        for each in known
    ]


def actions(lines: Iterable[str], check: str = "") -> list[Json]:
    """Return command lines, and comments for people, as JSON with what each does.

    Args:
        check: The id of the check that they mend, "" for no check.
    """
    return [
        {
            "kind": known.does,
            "text": str(known),
            "argv": list(known.argv) or None,
            "file": known.file or None,
            "content": known.content or None,
            "needs_root": known.needs_root,
            "restarts": known.restarts or None,
            "mends": [check] if check else [],
        }
        for known in (line if isinstance(line, Line) else Line(line) for line in lines)
    ]
