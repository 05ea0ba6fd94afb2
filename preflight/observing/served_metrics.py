"""What a program that runs here says of itself: the metrics that its own command line serves."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from checks.base.regex import regex
from checks.base.unknown import Unknown
from checks.network.calls import addresses, http
from preflight.base.within import LateError, within
from preflight.processes.processes import LaunchProcess, ProcessKind
from preflight.programs.mooncake_flags import value_of

if TYPE_CHECKING:
    from preflight.observing.running_launch import RunningServer

ANSWER_SECONDS = 2.0
MOST_BYTES = 4 << 20  # of its metrics: some hundred bytes for each segment
_SAMPLE = regex(
    r'^([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? ([0-9.eE+-]+)', re.MULTILINE
)
_LABEL = regex(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Every rank of one engine counts the same tokens (sglang/srt/observability/metrics_collector.py).
_RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "pid"})
_EVERY_ADDRESS = ("", "0.0.0.0", "::", "[::]")


class Metrics(NamedTuple):
    """The samples that were served, by the name of the metric: labels and value of each."""

    samples: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

    def amount(self, name: str, **labels: str) -> int:
        """Return the sum of a metric over its series, ranks counted once; 0 without a series.

        A counter of several processes has no series before it first counts.
        """
        largest: dict[tuple[tuple[str, str], ...], float] = {}
        for series, value in self.samples.get(name, ()):
            if labels.items() <= series.items():
                key = tuple(sorted(pair for pair in series.items() if pair[0] not in _RANKS))
                largest[key] = max(value, largest.get(key, 0.0))
        return round(sum(largest.values()))

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """Return the amounts of a metric by the values that one of its labels has."""
        values = {labels[label] for labels, _ in self.samples.get(name, ()) if label in labels}
        return {value: self.amount(name, **{label: value}) for value in sorted(values)}

    @property
    def segments(self) -> dict[str, int]:
        """Return the capacity in bytes of each segment of a master, by its name.

        Source: the text of a 0.3.13.post1 master, ``GET /metrics``.
        """
        sizes = self.by_label("segment_total_capacity_bytes", "segment")
        return {name: size for name, size in sizes.items() if size}


def parse_metrics(text: str) -> Metrics:
    """Read Prometheus' text format; lines without a sample or a finite number are left out."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if math.isfinite(value):
            samples.setdefault(name, []).append((dict(_LABEL.findall(labels)), value))
    return Metrics({name: tuple(series) for name, series in samples.items()})


def served_metrics(server: RunningServer, live: bool) -> Metrics | Unknown | None:
    """Return the metrics that a program serves; None if it serves no metrics that are read here.

    Only the address in the command line is asked. live: the program runs on this host.
    """
    address = _address(server, live)
    if address is None or isinstance(address, Unknown):
        return address
    host, port = address
    url = f"http://{host}:{port}/metrics"
    try:
        answer = within(ANSWER_SECONDS, url, lambda: http(host, port, "/metrics", MOST_BYTES))
    except LateError as error:
        return Unknown(str(error))
    if answer.get("status") != 200:
        why = answer.get("error") or answer.get("status") or "no answer in time"
        return Unknown(f"{url} gives no metrics: {why}")
    return parse_metrics(answer["body"])


def process_of(server: RunningServer) -> LaunchProcess | None:
    """Return the process that a program's command line starts; None if it cannot be read."""
    if isinstance(server.sizing, Unknown):
        return None
    return next((p for p in server.sizing.inputs.processes if p.kind is server.kind), None)


def _address(server: RunningServer, live: bool) -> tuple[str, int] | Unknown | None:
    """Return host and port of a program's metrics; None for a program that serves none."""
    process = process_of(server)
    if process is None or isinstance(server.needs, Unknown):
        return None
    what = "metrics port" if server.kind is ProcessKind.MASTER else "HTTP port"
    port = next((port.port for port in server.needs.ports if port.what == what), None)
    if port is None or not _serves(process):
        return None
    if isinstance(port, Unknown):
        return port
    if not live:
        return Unknown("a capture has no metrics: what runs is asked on its own host alone")
    try:
        if os.readlink(f"/proc/{server.pid}/ns/net") != os.readlink("/proc/self/ns/net"):
            return Unknown("it has a network of its own: ask within its container")
    except OSError as error:
        return Unknown(f"which network it has cannot be read: {error.strerror}")
    word = value_of(process.arguments, "metrics_host" if what == "metrics port" else "host")
    host = None if word is None else word.text
    if process.server is not None:
        host = process.server.value("host")
    return ("127.0.0.1" if host is None or host in _EVERY_ADDRESS else str(host), port)


def _serves(process: LaunchProcess) -> bool:
    """Tell whether a program serves metrics that are read here."""
    if process.server is not None:
        return process.server.hicache and process.server.value("enable_metrics") is True
    if process.consumer is not None:  # others than vLLM serve none that are read
        return process.kind is ProcessKind.VLLM and bool(process.consumer.connectors)
    return process.kind is ProcessKind.MASTER


@cache
def is_local(host: str) -> bool:
    """Tell whether ``host`` is a name or an address of this host."""
    if host in ("localhost", ""):
        return True
    return host.strip("[]") in {entry["address"] for entry in addresses()}
