"""``mooncake-preflight capacity``: what each tier holds, and when a workload overflows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from preflight.base.output import Progress, columns, drawing_encoding, output_to, painter, say
from preflight.base.usage_error import UsageError
from preflight.cli.commands import command, say_answer, with_formats
from preflight.cli.options import (
    COLOR,
    MEASURED,
    SIZE,
    TIMEOUT,
    Fraction,
    Integer,
    NumberOption,
    with_host,
    with_launch,
    with_workload,
)

# As preflight.cache_sizing.traces.describe.profiles, which is imported where it is used.
KINDS = ("chat", "agent", "documents", "rag")
# Requests of a workload that are written at most: some hundred MB.
MOST_WRITTEN = 1_000_000
# Of a kind of traffic: enough for its rates to settle, and replayed in seconds.
KIND_REQUESTS = 3_000

if TYPE_CHECKING:
    from preflight.base.command_frame import Answers
    from preflight.cache_sizing.capacity.answer import CapacityAnswer
    from preflight.cache_sizing.capacity.trace_answer import TraceAnswer
    from preflight.cache_sizing.capacity.workload import WorkloadOptions
    from preflight.command_inputs.launch_words import LaunchWords


@command(
    "capacity",
    "mooncake-preflight capacity launch.sh",
    "mooncake-preflight capacity --nodes-in-cluster 3 --other-segments 120gb launch.sh",
    "mooncake-preflight capacity --trace requests.jsonl.xz --curve launch.sh",
)
@with_formats("text", "json", "html", "svg")
@click.option("--trace", metavar="FILE", help="Recorded requests, to replay; - is standard input.")
@click.option(
    "--trace-block-tokens", type=Integer(1, 1 << 20),
    help="Tokens of a block of the trace. Default: what it says, or its format has.",
)  # fmt: skip
@click.option("--curve", is_flag=True, help="Hits of one cache of any size, on the trace.")
@click.option(
    "--hit-rate", type=Fraction(),
    help="Say how large a cache has to be for this share of hits, as 60%.",
)  # fmt: skip
@click.option(
    "--routing", type=click.Choice(["round-robin", "cache-aware", "sticky", "random"]),
    help="How the trace's requests are shared among servers. Default: as the launch's router "
    "says, else cache-aware among hosts, and round-robin within one.",
)  # fmt: skip
@click.option(
    "--prefill-tokens-per-second", type=NumberOption(0, 1e12, min_open=True),
    help="The server's speed: shows the trace's hits as seconds of prefill saved.",
)  # fmt: skip
@click.option(
    "--new-tokens-per-second", type=NumberOption(0, 1e12, min_open=True),
    help="Tokens that the servers compute: shows what is written to each tier, and read, at that.",
)  # fmt: skip
@with_workload
@click.option(
    "--workload", metavar="COMMAND",
    help="The workload as bench_multiturn.py's command line. Default: the one in the launch. Or a "
    "kind of traffic, to replay in place of a trace: chat, agent, documents, rag.",
)  # fmt: skip
@click.option(
    "--write-trace", metavar="FILE",
    help="Write the workload's requests, as --trace reads them.",
)  # fmt: skip
@click.option(
    "--nodes-in-cluster", type=Integer(1, 100_000),
    help="Hosts that run this launch. Default: --nnodes of its servers.",
)  # fmt: skip
@click.option(
    "--other-segments", type=SIZE, default=0,
    help="Memory that other hosts, not running this launch, give to the store in all.",
)  # fmt: skip
@click.option(
    "--eviction-watermark", type=NumberOption(0, 1),
    help="Of the master. Default: as the launch starts it, else as its release does.",
)  # fmt: skip
@MEASURED
@click.option("--ascii", "plain", is_flag=True, help="Draw with plain characters.")
@COLOR
@TIMEOUT
@with_host
@with_launch
def capacity(
    *,
    trace: str | None,
    trace_block_tokens: int | None,
    curve: bool,
    hit_rate: float | None,
    routing: str | None,
    prefill_tokens_per_second: float | None,
    new_tokens_per_second: float | None,
    numbers: WorkloadOptions,
    workload: str | None,
    write_trace: str | None,
    nodes_in_cluster: int | None,
    other_segments: int,
    eviction_watermark: float | None,
    measured: str | None,
    plain: bool,
    answers: Answers,
    color: str,
    timeout_seconds: float,
    root: str,
    launch: LaunchWords,
) -> int:
    """Say what each tier of a launch's cache holds, and in which round a workload overflows it.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. Tiers are L1 (GPU), L2 (host memory), L3
    (Mooncake's pool) and SSD offload, in bytes, tokens and conversations. Nothing is executed.

    Exit codes: 0 all of it is known; 3 a tier is not, and what to give is said; 64 usage error; 70
    a defect of this program.
    """
    from checks.framework.unknown import Unknown
    from checks.host_snapshot.secrets import public
    from preflight.base import exit_codes
    from preflight.cache_sizing.capacity.answer import CapacityRequest
    from preflight.cache_sizing.capacity.deployment import Cluster
    from preflight.cache_sizing.capacity.rounds import capacity_of

    traffic = workload if workload in KINDS else None
    if traffic is not None:
        workload = None
        if trace is not None:
            raise UsageError(f"--workload {traffic} stands in for a trace: give one of both")
    formats = [name for name, _ in answers]
    trace_options = {
        "--curve": curve,
        "--format html": "html" in formats,
        "--format svg": "svg" in formats,
        "--hit-rate": hit_rate is not None,
        "--routing": routing is not None,
    }
    for name, wanted in trace_options.items():
        if wanted and trace is None and traffic is None:
            raise UsageError(f"{name} is about a trace: give --trace FILE, or --workload chat")
    asked = CapacityRequest(
        Cluster(nodes_in_cluster, other_segments),
        numbers._replace(command=workload),
        eviction_watermark,
        new_tokens_per_second,
    )
    computed = capacity_of(launch, root, timeout_seconds, asked)
    if measured is not None and not isinstance(computed, Unknown):
        from preflight.benchmark.measuring.findings import tier_notes

        sizes = [(server.subject, server.capacity.bytes_per_token) for server in computed.servers]
        values = tier_notes(measured, sizes, prefill_tokens_per_second)
        computed = computed._replace(notes=(*computed.notes, *values))
    if isinstance(computed, Unknown):
        say(f"mooncake-preflight capacity: {computed.reason}", err=True)
        for name, path in answers:
            if name == "json":
                with output_to(path):
                    code = exit_codes.UNKNOWN
                    say_answer("capacity", code, word="error", reason=computed.reason)
        return exit_codes.UNKNOWN
    if write_trace is not None:
        _write_trace(write_trace, computed)
    replayed = None
    if trace is not None or traffic is not None:
        from preflight.cache_sizing.capacity.trace_answer import (
            TraceRequest,
            page_of,
            trace_answers,
        )
        from preflight.cache_sizing.traces.describe import profile_trace
        from preflight.cache_sizing.traces.formats import open_trace

        trace_request = TraceRequest(routing, prefill_tokens_per_second, curve, hit_rate)
        progress = Progress()
        if traffic is not None:
            opened = profile_trace(traffic, page_of(computed), KIND_REQUESTS, 0)
        else:
            opened = open_trace(str(trace), page_of(computed), trace_block_tokens)
        (replayed,) = trace_answers([computed], opened, trace_request, progress.show)
        progress.clear()
    # The answer is not whole where a tier, or the workload that was asked about, is not known.
    tiers = [tier for server in computed.servers for tier in server.capacity.tiers]
    decides = (*(tier.tokens for tier in tiers), computed.workload)
    reasons = [each.reason for each in decides if isinstance(each, Unknown)]
    code = exit_codes.UNKNOWN if reasons else 0
    for name, path in answers:
        with output_to(path):
            if name == "json":
                body, word = public(_object(computed, replayed)), "unknown" if reasons else "known"
                started, why = (computed.source, computed.processes), next(iter(reasons), None)
                say_answer("capacity", code, body, word=word, reason=why, started=started)
            elif name == "text":
                say(public(_text(computed, replayed, color, plain, curve)))
            elif replayed is not None:
                from preflight.cache_sizing.capacity.hit_curve import say_picture

                say_picture(name, computed, replayed)
    return code


def _write_trace(path: str, computed: CapacityAnswer) -> None:
    """Write the requests of the workload to ``path`` in Mooncake's format.

    Raises:
        UsageError: Without a workload, for one with too many requests, and if the file cannot be
            written.
    """
    from preflight.cache_sizing.capacity.rounds import workload_trace
    from preflight.cache_sizing.capacity.trace_answer import page_of
    from preflight.cache_sizing.capacity.workload import MultiTurnWorkload
    from preflight.cache_sizing.traces.describe import mooncake_lines

    workload = computed.workload
    if not isinstance(workload, MultiTurnWorkload):
        raise UsageError("--write-trace is about a workload: give --clients, --rounds and so on")
    requests = workload.clients * workload.rounds
    if requests > MOST_WRITTEN:
        raise UsageError(f"--write-trace: {requests:,} requests: at most {MOST_WRITTEN:,}")
    with output_to(path):
        # Nobody's text: the same workload is the same file.
        for line in mooncake_lines(workload_trace(workload, page_of(computed)), b""):
            say(line)


def _object(computed: CapacityAnswer, replayed: TraceAnswer | None) -> dict[str, Any]:
    """Return the answer for JSON, with the replayed trace if there is one."""
    from preflight.cache_sizing.capacity.report import capacity_object

    answer = capacity_object(computed)
    if replayed is not None:
        from preflight.cache_sizing.capacity.trace_report import trace_object

        answer["trace"] = trace_object(computed, replayed)
    return answer


def _text(
    answer: CapacityAnswer, replayed: TraceAnswer | None, color: str, plain: bool, curve: bool
) -> str:
    """Return the answer for a terminal, with the replayed trace if there is one.

    Args:
        plain: Draw only with ASCII.
        curve: Draw the trace's hit curve too.
    """
    from preflight.cache_sizing.capacity.report import capacity_text
    from preflight.report.pictures.memory_map import draws_blocks

    plain = plain or not draws_blocks(drawing_encoding())
    text = capacity_text(answer, columns(), painter(color), plain)
    if replayed is not None:
        from preflight.cache_sizing.capacity.hit_curve import plot_text
        from preflight.cache_sizing.capacity.trace_report import trace_text

        plot = plot_text(answer, replayed, painter(color), columns(), plain) if curve else ""
        text = f"{text}\n\n{trace_text(answer, replayed, columns(), plot)}"
    return text
