"""The answer of ``observe`` as text, as JSON, and in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from checks.framework.finding import Finding, Status
from checks.framework.unknown import Unknown
from checks.running_processes.processes import HeldMemory, pages_by_size
from preflight.base.envelope import finding_object
from preflight.base.one_line import clean
from preflight.base.output import columns, painter
from preflight.base.shell import Line
from preflight.base.text import filled, headed
from preflight.live_servers.running_launch import RunningServer
from preflight.live_servers.served_metrics import Metrics
from preflight.report.to_text import COLOURS
from preflight.verdict.report import EXIT_CODES, amounts

_WORST = (Status.FAIL, Status.UNKNOWN, Status.WARN)


class ObservedRow(NamedTuple):
    """One finding, its program (None if that does not run), and the commands that mend it."""

    server: RunningServer | None
    finding: Finding
    commands: tuple[Line, ...]


class Observation(NamedTuple):
    """The programs that run, and the findings on them and on the launch.

    Attributes:
        launch: Its name and a summary; None without a launch.
    """

    servers: tuple[RunningServer, ...]
    rows: tuple[ObservedRow, ...]
    launch: tuple[str, str] | None = None

    @property
    def verdict(self) -> Status:
        """The worst status of all findings; UNKNOWN if there are none."""
        statuses = {row.finding.status for row in self.rows}
        worst = next((status for status in _WORST if status in statuses), Status.PASS)
        return worst if self.rows else Status.UNKNOWN

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def reason(self) -> str:
        """The verdict in a sentence: the first of the worst findings; if all pass, how many
        programs hold what was predicted; without findings, that no program of a launch runs.
        """
        if not self.rows:
            return "no program of a launch runs here: SGLang, Mooncake, vLLM, LMCache, Dynamo"
        worst = [row.finding for row in self.rows if row.finding.status is self.verdict]
        if self.verdict is not Status.PASS:
            return f"{worst[0].subject}: {worst[0].text}"
        number = len(self.servers)
        return f"{number} program{'s' * (number > 1)} hold{'s' * (number == 1)} what was predicted"


def observation_text(observation: Observation, color: str, quiet: bool) -> str:
    """Write the verdict and each program with its findings; only the verdict if ``quiet``.

    Args:
        color: ``auto``, ``always`` or ``never``.
    """
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
    """Yield the lines of one finding: status and amounts, advice unless it is a pass, commands."""
    finding = row.finding
    have = f": {amounts(finding)}" if finding.have or finding.need else ""
    text = f": {finding.text}" if finding.text else ""
    yield filled(clean(f"  {finding.status.value} {finding.check}{have}{text}"), width, 4)
    if finding.advice and finding.status is not Status.PASS:
        yield filled(f"    {clean(finding.advice)}", width, 2)
    for line in row.commands:
        yield f"      {line}"


def observation_object(observation: Observation) -> Mapping[str, Any]:
    """Return findings and programs as JSON data."""
    return {
        "findings": [
            finding_object(row, text=row.text, advice=row.advice, commands=list(map(str, commands)))
            for _, row, commands in observation.rows
        ],
        "programs": [
            {
                "program": server.program.value,
                "pid": server.pid,
                "processes": [holding.pid for holding in server.holdings],
                "releases": [{"name": n, "version": v} for n, v in server.releases],
                "unread": (server.sizing.reason if isinstance(server.sizing, Unknown) else None),
            }
            for server in observation.servers
        ],
    }


PREFIX = "mooncake_preflight_"
# Each is a gauge; what is not known has no sample.
HELP = {
    "observation_timestamp_seconds": "When this was looked at, in seconds since 1970.",
    "programs": "Programs of a launch that run here.",
    "predicted_hugepages": "Huge pages that the command line asks for; numa_node is any where "
    "nothing binds them.",
    "held_hugepages": "Huge pages that its processes have mapped, shared ones once.",
    "touched_hugepages": "Huge pages of these that lie on a NUMA node.",
    "locked_memory_bytes": "What a process has locked or pinned, as the kernel charges it.",
    "locked_memory_limit_bytes": "The most that it may lock; no sample where that is unlimited.",
    "open_files": "Files that a process has open.",
    "open_files_limit": "The most that it may open.",
    "segment_capacity_bytes": "Memory of a segment of the store pool, as its master says.",
    "finding": "1 for each finding, with its status.",
}
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_LIMITS = {"memlock": "locked_memory_limit_bytes", "open_files": "open_files_limit"}
Sample = tuple[str, Mapping[str, object], float]


def metrics_text(
    observation: Observation, served: Mapping[int, Metrics | Unknown], now_seconds: float
) -> str:
    """Write all samples in Prometheus' text format, each below the HELP and TYPE of its metric.

    Args:
        served: The programs' own metrics, by pid.
        now_seconds: Of the observation, since 1970.
    """
    samples: list[Sample] = [
        ("observation_timestamp_seconds", {}, now_seconds),
        ("programs", {}, len(observation.servers)),
        *(sample for server in observation.servers for sample in _of_server(server)),
    ]
    for server in observation.servers:
        if isinstance(metrics := served.get(server.pid), Metrics):
            for name, size in metrics.segments.items():
                labels = {**_program(server), "segment": name}
                samples.append(("segment_capacity_bytes", labels, size))
    for row_server, finding, _ in observation.rows:
        # A row without a server is of what the launch starts and does not run.
        program = {"program": "", "pid": ""} if row_server is None else _program(row_server)
        labels = {"id": finding.check, "status": finding.status.value, "subject": finding.subject}
        samples.append(("finding", {**program, **labels}, 1))
    lines = []
    for name, text in HELP.items():
        lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} gauge"]
        lines += dict.fromkeys(_line(sample) for sample in samples if sample[0] == name)
    return "\n".join(lines) + "\n"


def _program(server: RunningServer) -> dict[str, object]:
    return {"program": server.program.value, "pid": server.pid}


def _of_server(server: RunningServer) -> Iterator[Sample]:
    """Yield (metric, labels, value) for each amount of a program; unknown or unlimited ones are
    left out.
    """
    program, predicted = _program(server), server.predicted_pages
    for spot, pages in {} if isinstance(predicted, Unknown) else predicted.items():
        number = "any" if spot.node is None else spot.node
        place = {"page_bytes": spot.page_size_bytes, "numa_node": number}
        yield "predicted_hugepages", {**program, **place}, pages
    memories = tuple(h.memory for h in server.holdings if isinstance(h.memory, HeldMemory))
    if len(memories) == len(server.holdings):
        mapped, touched = pages_by_size(memories)
        for size, pages in mapped.items():
            yield "held_hugepages", {**program, "page_bytes": size}, pages
        for (size, number), pages in touched.items():
            place = {"page_bytes": size, "numa_node": number}
            yield "touched_hugepages", {**program, **place}, pages
    for holding in server.holdings:
        labels = {**program, "process": holding.pid}
        if isinstance(holding.memory, HeldMemory):
            yield "locked_memory_bytes", labels, holding.memory.charged_bytes
        if not isinstance(holding.files, Unknown):
            yield "open_files", labels, holding.files.number
        for name in ("memlock", "open_files"):
            limit = getattr(holding, name)
            if not isinstance(limit, Unknown) and limit.soft is not None:
                yield _LIMITS[name], labels, limit.soft


def _line(sample: Sample) -> str:
    name, labels, value = sample
    pairs = ",".join(f'{label}="{str(text).translate(_ESCAPED)}"' for label, text in labels.items())
    return f"{PREFIX}{name}{{{pairs}}} {value:.16g}" if pairs else f"{PREFIX}{name} {value:.16g}"
