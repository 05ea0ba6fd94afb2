"""An observation for node_exporter's textfile collector: one file of Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks.base.unknown import Unknown
from checks.running.processes import HeldMemory, pages_by_size
from preflight.observing.report import Observation
from preflight.observing.running_launch import RunningServer
from preflight.observing.served_metrics import Metrics

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
    """Write every sample below the HELP and TYPE of its metric; the same twice is written once."""
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
    return {"program": server.kind.value, "pid": server.pid}


def _of_server(server: RunningServer) -> Iterator[Sample]:
    """Yield the samples of a program: huge pages, and of each process memory, files, limits.

    A value that is unknown and a limit that is unlimited are left out.
    """
    program, predicted = _program(server), server.predicted_pages
    for spot, pages in {} if isinstance(predicted, Unknown) else predicted.items():
        place = {"page_bytes": spot.page_size_bytes, "numa_node": _node(spot.node)}
        yield "predicted_hugepages", {**program, **place}, pages
    memories = tuple(h.memory for h in server.holdings if isinstance(h.memory, HeldMemory))
    if len(memories) == len(server.holdings):
        held, touched = pages_by_size(memories)
        for size, pages in held.items():
            yield "held_hugepages", {**program, "page_bytes": size}, pages
        for (size, node), pages in touched.items():
            place = {"page_bytes": size, "numa_node": _node(node)}
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


def _node(node: int | None) -> str:
    return "any" if node is None else str(node)


def _line(sample: Sample) -> str:
    name, labels, value = sample
    pairs = ",".join(f'{label}="{str(text).translate(_ESCAPED)}"' for label, text in labels.items())
    return f"{PREFIX}{name}{{{pairs}}} {value:.16g}" if pairs else f"{PREFIX}{name} {value:.16g}"
