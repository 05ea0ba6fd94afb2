"""The answer of ``observe`` as text and as JSON (``schemas/observe-v1.schema.json``)."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from checks.base.finding import Finding, Status
from checks.base.unknown import Unknown
from preflight.base.envelope import finding_object
from preflight.base.one_line import clean
from preflight.base.output import columns, painter
from preflight.base.shell import Line
from preflight.check.report import EXIT_CODES, amounts
from preflight.check.to_text import COLOURS
from preflight.observing.running_launch import RunningServer
from preflight.render.text import filled, headed

_WORST = (Status.FAIL, Status.UNKNOWN, Status.WARN)


class ObservedRow(NamedTuple):
    """One finding, the program that it is about, and the lines that mend it.

    server: None for what the launch starts and does not run.
    """

    server: RunningServer | None
    finding: Finding
    commands: tuple[Line, ...]


class Observation(NamedTuple):
    """What runs, and what is found of it. launch: what it is held against, and what that starts."""

    servers: tuple[RunningServer, ...]
    rows: tuple[ObservedRow, ...]
    launch: tuple[str, str] | None = None

    @property
    def verdict(self) -> Status:
        """Return the worst status; nothing observed is unknown."""
        statuses = {row.finding.status for row in self.rows}
        worst = next((status for status in _WORST if status in statuses), Status.PASS)
        return worst if self.rows else Status.UNKNOWN

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def reason(self) -> str:
        """Return the verdict in a sentence."""
        if not self.rows:
            return "no program of a launch runs here: SGLang, Mooncake, vLLM, LMCache, Dynamo"
        worst = [row.finding for row in self.rows if row.finding.status is self.verdict]
        if self.verdict is not Status.PASS:
            return f"{worst[0].subject}: {worst[0].text}"
        number = len(self.servers)
        return f"{number} program{'s' * (number > 1)} hold{'s' * (number == 1)} what was predicted"


def observation_text(observation: Observation, color: str, quiet: bool) -> str:
    """Write the verdict, and each program with what it holds and what it should hold."""
    paint, width = painter(color), columns()
    word = observation.verdict.value
    head = paint(word.upper(), COLOURS[observation.verdict])
    parts = [headed(word.upper(), clean(observation.reason), width, head)]
    for server in () if quiet else (None, *observation.servers):
        rows = [row for row in observation.rows if row.server is server]
        lines = [list(_lines(row, width)) for row in rows]
        if server is None:
            heads = (f"{clean(row.finding.subject)}: does not run" for row in rows)
            parts += ["\n".join([head, *part]) for head, part in zip(heads, lines, strict=True)]
            continue
        names = " ".join(f"{name} {version}" for name, version in server.releases)
        started = f", {len(server.holdings)} processes" if len(server.holdings) > 1 else ""
        about = clean(server.name) + started + (f": {names}" if names else "")
        parts.append("\n".join([about, *chain(*lines)]))
    return "\n\n".join(parts)


def _lines(row: ObservedRow, width: int) -> Iterator[str]:
    """Yield the lines of text of one finding: its amounts, its advice, and its commands."""
    finding = row.finding
    have = f": {amounts(finding)}" if finding.have or finding.need else ""
    text = f": {finding.text}" if finding.text else ""
    yield filled(clean(f"  {finding.status.value} {finding.check}{have}{text}"), width, 4)
    if finding.advice and finding.status is not Status.PASS:
        yield filled(f"    {clean(finding.advice)}", width, 2)
    for line in row.commands:
        yield f"      {line}"


def observation_object(observation: Observation) -> Mapping[str, Any]:
    """Return the same as plain data."""
    return {
        "findings": [
            finding_object(row, text=row.text, advice=row.advice, commands=list(map(str, commands)))
            for _, row, commands in observation.rows
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
