"""``mooncake-preflight observe``: what runs, held against what it was predicted to take."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from preflight.base.output import say
from preflight.base.within import limit_seconds, save, within
from preflight.cli.commands import command, say_answer
from preflight.cli.options import COLOR, FILE_TIMEOUT, JSON, ROOT, NumberOption, with_launch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checks.framework.unknown import Unknown
    from preflight.command_inputs.launch_words import LaunchWords
    from preflight.live_servers.report import Observation
    from preflight.live_servers.served_metrics import Metrics


@command(
    "observe",
    "mooncake-preflight observe",
    "mooncake-preflight observe launch.sh",
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
@click.option(
    "--traffic", "traffic_seconds", type=NumberOption(0, 600, min_open=True), metavar="SECONDS",
    help="Count for so long what goes through the ports of NICs that they use.",
)  # fmt: skip
@ROOT
@FILE_TIMEOUT
@COLOR
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict.")
@with_launch
def observe(
    *,
    as_json: bool,
    pids: tuple[int, ...],
    watch_seconds: float | None,
    metrics_file: str | None,
    traffic_seconds: float | None,
    root: str,
    color: str,
    quiet: bool,
    launch: LaunchWords,
) -> int:
    """Look at the servers and stores that run here: do they hold what was predicted?

    Each SGLang server, store, master and client is found by its command line; what it should hold
    follows from that, its environment and the releases that it has loaded. What it holds is read
    from /proc: huge pages by size and NUMA node, locked memory, open files, RDMA devices. Nothing
    is attached to, signalled or written.

    LAUNCH is what `check` takes, or the number of a process. With a launch, each of its processes
    has to run, as LAUNCH says; other programs are named. --root FILE looks at what capture
    --running kept.

    Exit codes: 0 as predicted; 1 something is not; 3 unknown: not readable, or nothing runs; 64
    usage error; 70 a defect of this program; 130 interrupted.
    """
    from preflight.live_servers.report import metrics_text, observation_object, observation_text

    if len(launch.words) == 1 and launch.words[0].isdigit() and not os.path.exists(launch.words[0]):
        pids, launch = (*pids, int(launch.words[0])), launch._replace(words=())
    if pids and launch.words:
        raise click.UsageError("--pid is for what no LAUNCH names: give one of the two")
    if as_json and watch_seconds is not None:
        raise click.UsageError("--watch is for a terminal: ask for --json again and again instead")
    while True:
        observation, served = observe_host(pids, launch, root, traffic_seconds)
        if metrics_file is not None:
            text = metrics_text(observation, served, time.time())
            save("--metrics", metrics_file, text.encode(), 0o644, limit_seconds())
        code = observation.exit_code
        if as_json:
            answer, word = observation_object(observation), observation.verdict.value
            about, reason = observation.launch, observation.reason
            say_answer("observe", code, answer, word=word, reason=reason, launch=about)
        else:
            say(observation_text(observation, color, quiet))
        if watch_seconds is None:
            return code
        time.sleep(watch_seconds)
        say("")


def observe_host(
    pids: tuple[int, ...],
    launch: LaunchWords,
    root: str = "/",
    traffic_seconds: float | None = None,
) -> tuple[Observation, Mapping[int, Metrics | Unknown]]:
    """Observe the programs that run on a host.

    Return the observation, and pid -> the metrics that the process serves, without processes that
    serve no metrics. Raises UsageError, click's too.

    Args:
        pids: Processes to look at, () for all known ones.
        traffic_seconds: How long to count traffic, which needs the machine itself; None does not
            count.
    """
    from checks.framework.finding import Status
    from checks.framework.root import Root
    from preflight.command_inputs.host_source import open_host, size_and_needs
    from preflight.command_inputs.reading.understood import sentence
    from preflight.host_tuning.commands import Context, commands
    from preflight.live_servers.comparison import findings, gpu_findings, traffic_findings
    from preflight.live_servers.meant import launch_findings
    from preflight.live_servers.report import Observation, ObservedRow
    from preflight.live_servers.running_launch import running_servers
    from preflight.live_servers.served_metrics import served_metrics
    from preflight.needs.launch_needs import source_name

    host = open_host(root, limit_seconds())  # which reads each file once
    if traffic_seconds is not None and not host.root.live:
        raise click.UsageError("--traffic counts on the machine itself: leave --root out")
    sized = within(limit_seconds(), "the launch", lambda: size_and_needs(launch, host))
    of_launch, about = [], None
    if sized is None:
        servers = running_servers(host.root, pids)
    else:
        kinds = frozenset(process.kind for process in sized.sizing.inputs.processes)
        servers = running_servers(host.root, pids, sized.options, kinds)
        of_launch = list(launch_findings(sized.sizing, servers, host.root.text("/proc/1/stat")))
        about = source_name(sized.sizing), sentence(sized.sizing.inputs.processes)
    not_of_it = [server for server, finding in of_launch if finding.status is Status.SKIP]
    looked_at = tuple(server for server in servers if server not in not_of_it)
    asked = {server.pid: served_metrics(server, host.root.live) for server in looked_at}
    served = {pid: metrics for pid, metrics in asked.items() if metrics is not None}
    of_servers = [each for each in findings(servers, served) if each[0] in looked_at]
    of_servers += gpu_findings(looked_at, host.root)
    if traffic_seconds is not None:  # read anew each time
        of_servers += traffic_findings(looked_at, Root(), traffic_seconds, time.sleep)
    context = Context(root=os.geteuid() == 0)
    rows = (
        ObservedRow(server, finding, commands(finding.settings, context))
        for server, finding in (*of_launch, *of_servers)
    )
    return Observation(servers, tuple(rows), about), served
