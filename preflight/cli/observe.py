"""``mooncake-preflight observe``: what runs, held against what it was predicted to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import COLOR, JSON, NumberOption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.base.unknown import Unknown
    from preflight.observing.report import Observation
    from preflight.observing.served_metrics import Metrics


@command(
    "observe",
    "mooncake-preflight observe",
    "mooncake-preflight observe --pid 4711 --json",
    "mooncake-preflight observe --watch 30",
    "mooncake-preflight observe --watch 30 --metrics /var/lib/node_exporter/mooncake.prom",
)
@JSON
@click.option(
    "--pid", "pids", type=int, multiple=True, metavar="PID",
    help="A process of the server to look at; may be given again. Default: all that are known.",
)  # fmt: skip
@click.option(
    "--watch", "watch_seconds", type=NumberOption(0, 3600, min_open=True), metavar="SECONDS",
    help="Look again after so many seconds, until Ctrl-C.",
)  # fmt: skip
@click.option(
    "--metrics", "metrics_file", metavar="FILE",
    help="Write what is found for node_exporter's textfile collector too (its name ends in .prom).",
)  # fmt: skip
@COLOR
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict.")
def observe(
    *,
    as_json: bool,
    pids: tuple[int, ...],
    watch_seconds: float | None,
    metrics_file: str | None,
    color: str,
    quiet: bool,
) -> int:
    """Look at the servers and stores that run here: do they hold what was predicted?

    Each SGLang server, store, master and client is found by its command line; what it should hold
    follows from that, its environment and the releases that it has loaded. What it holds is read
    from /proc: huge pages by size and NUMA node, locked memory, open files, RDMA devices. Nothing
    is attached to, signalled or written.

    Exit codes: 0 as predicted; 1 something is not; 3 unknown: not readable, or nothing runs; 64
    usage error; 70 a defect of this program; 130 interrupted.
    """
    import time

    from preflight.base.envelope import envelope
    from preflight.base.output import say, say_json
    from preflight.base.within import limit_seconds, save
    from preflight.observing.metrics_file import metrics_text
    from preflight.observing.report import observation_object, observation_text

    if as_json and watch_seconds is not None:
        raise click.UsageError("--watch is for a terminal: ask for --json again and again instead")
    while True:
        observation, served = observed(pids)
        if metrics_file is not None:
            text = metrics_text(observation, served, time.time())
            save("--metrics", metrics_file, text.encode(), 0o644, limit_seconds())
        code = observation.exit_code
        if as_json:
            answer = observation_object(observation)
            word = observation.verdict.value
            say_json(envelope("observe", code, answer, word=word, reason=observation.reason))
        else:
            say(observation_text(observation, color, quiet))
        if watch_seconds is None:
            return code
        time.sleep(watch_seconds)
        say("")


def observed(pids: tuple[int, ...]) -> tuple[Observation, Mapping[int, Metrics | Unknown]]:
    """Return what runs now and what is found of it, and the metrics that it serves, by pid."""
    import os

    from checks.base.recording import RecordingRoot
    from checks.base.root import Root
    from preflight.observing.comparison import findings
    from preflight.observing.report import Observation, ObservedRow
    from preflight.observing.running_launch import running_servers
    from preflight.observing.served_metrics import served_metrics
    from preflight.settings.commands import Context, commands

    context = Context(root=os.geteuid() == 0)
    servers = running_servers(RecordingRoot(Root()), pids)  # which reads each file once
    asked = {server.pid: served_metrics(server) for server in servers}
    served = {pid: metrics for pid, metrics in asked.items() if metrics is not None}
    rows = (
        ObservedRow(server, finding, commands(finding.settings, context))
        for server, finding in findings(servers, served)
    )
    return Observation(servers, tuple(rows)), served
