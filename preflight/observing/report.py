"""The answer of ``observe`` as text and as JSON (``schemas/observe-v1.schema.json``)."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from checks.base.finding import Finding, Status
from checks.base.unknown import Unknown
from preflight.base import exit_codes
from preflight.base.envelope import finding_object
from preflight.base.one_line import clean
from preflight.base.output import columns, painter
from preflight.base.shell import Line
from preflight.check.report import amounts
from preflight.observing.running_launch import RunningServer
from preflight.render.text import filled, headed

_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "unknown": "magenta"}
_WORST = (Status.FAIL, Status.UNKNOWN, Status.WARN)
_EXIT_CODES = {
    Status.FAIL: exit_codes.FAIL,
    Status.UNKNOWN: exit_codes.UNKNOWN,
    Status.WARN: exit_codes.WARN,
    Status.PASS: exit_codes.PASS,
}


class Observation(NamedTuple):
    """What runs, and what is found of it. commands: what mends each finding, in their order."""

    servers: tuple[RunningServer, ...]
    findings: tuple[Finding, ...]
    commands: tuple[tuple[Line, ...], ...]

    @property
    def verdict(self) -> Status:
        """Return the worst status; nothing observed is unknown."""
        statuses = {finding.status for finding in self.findings}
        worst = next((status for status in _WORST if status in statuses), Status.PASS)
        return worst if self.findings else Status.UNKNOWN

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.verdict]

    @property
    def reason(self) -> str:
        """Return the verdict in a sentence."""
        if not self.servers:
            return "no program of a launch runs here: SGLang, Mooncake, vLLM, LMCache, Dynamo"
        for status in _WORST:
            for finding in self.findings:
                if finding.status is status:
                    return f"{finding.subject}: {finding.text}"
        number = len(self.servers)
        return f"{number} program{'s' * (number > 1)} hold{'s' * (number == 1)} what was predicted"


def observation_text(observation: Observation, color: str, verbosity: int) -> str:
    """Write the verdict, and each program with what it holds and what it should hold."""
    paint, width = painter(color), columns()
    word = observation.verdict.value
    head = paint(word.upper(), _COLOURS[word])
    parts = [headed(word.upper(), clean(observation.reason), width, head)]
    if verbosity < 0:
        return parts[0]
    for server in observation.servers:
        lines = [clean(server.name) + _running(server)]
        for finding, commands in zip(observation.findings, observation.commands, strict=True):
            subject = str(finding.subject)
            if subject == server.name or subject.startswith(f"{server.name},"):
                lines += _lines(finding, commands, width)
        parts.append("\n".join(lines))
    others = [
        line
        for finding, commands in zip(observation.findings, observation.commands, strict=True)
        if not any(str(finding.subject).startswith(s.name) for s in observation.servers)
        for line in _lines(finding, commands, width)
    ]
    return "\n\n".join([*parts, *(["\n".join(others)] if others else [])])


def _running(server: RunningServer) -> str:
    names = " ".join(f"{name} {version}" for name, version in server.releases)
    started = f", {len(server.holdings)} processes" if len(server.holdings) > 1 else ""
    return f"{started}: {names}" if names else started


def _lines(finding: Finding, commands: tuple[Line, ...], width: int) -> Iterator[str]:
    have = f": {amounts(finding)}" if finding.have or finding.need else ""
    text = f": {finding.text}" if finding.text else ""
    yield filled(clean(f"  {finding.status.value} {finding.check}{have}{text}"), width, 4)
    if finding.advice and finding.status is not Status.PASS:
        yield filled(f"    {clean(finding.advice)}", width, 2)
    for line in commands:
        yield f"      {line}"


def observation_object(observation: Observation) -> Mapping[str, Any]:
    """Return the same as plain data."""
    return {
        "findings": [
            finding_object(
                finding,
                text=str(finding.text),
                advice=str(finding.advice),
                commands=[str(line) for line in commands],
            )
            for finding, commands in zip(observation.findings, observation.commands, strict=True)
        ],
        "programs": [
            {
                "program": server.kind.value,
                "pid": server.pid,
                "processes": [holding.pid for holding in server.holdings],
                "releases": [{"name": n, "version": v} for n, v in server.releases],
                "unread": (server.sizing.reason if isinstance(server.sizing, Unknown) else None),
            }
            for server in observation.servers
        ],
    }
