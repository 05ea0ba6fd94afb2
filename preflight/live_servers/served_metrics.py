"""What programs that run here say of themselves, and whether the tiers of a cache are of use.

SGLang, vLLM and the master serve metrics at the address that their own command line names. Counters
begin at the start of a program. A tier is judged once the one above has given up as much as it
holds: before that nothing asks for it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from checks.framework.finding import Finding, Status, Subject
from checks.framework.regex import regex
from checks.framework.units import Quantity, format_bytes
from checks.framework.unknown import Unknown
from checks.network.calls import addresses, http
from preflight.base.within import LateError, within
from preflight.engines.programs.mooncake_flags import is_on, value_of
from preflight.engines.sglang.server import SglangServer
from preflight.live_servers.running_launch import RunningServer
from preflight.processes.processes import LaunchProcess, ProcessKind

ANSWER_SECONDS = 2.0
MOST_BYTES = 4 << 20  # of its metrics: some hundred bytes for each segment
_SAMPLE = regex(
    r'^([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? ([0-9.eE+-]+)', re.MULTILINE
)
_LABEL = regex(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Every rank of one engine counts the same tokens (sglang/srt/observability/metrics_collector.py).
_RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "pid"})
_ESTABLISHED = "01"  # the state of a connection in /proc/net/tcp (include/net/tcp_states.h)
_EVERY_ADDRESS = ("", "0.0.0.0", "::", "[::]")


class Metrics(NamedTuple):
    """The samples that were served, by the name of the metric: labels and value of each."""

    samples: Mapping[str, tuple[tuple[Mapping[str, str], float], ...]]

    def amount(self, name: str, **labels: str) -> int:
        """Return the sum of a metric's series that have ``labels``; 0 if none is served yet.

        Of series that differ only by rank, the largest is added, as all ranks count the same.
        """
        largest: dict[tuple[tuple[str, str], ...], float] = {}
        for series, value in self.samples.get(name, ()):
            if labels.items() <= series.items():
                key = tuple(sorted(pair for pair in series.items() if pair[0] not in _RANKS))
                largest[key] = max(value, largest.get(key, 0.0))
        return round(sum(largest.values()))

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """Return the amount of a metric for each value of the label ``label``, sorted by value."""
        values = {labels[label] for labels, _ in self.samples.get(name, ()) if label in labels}
        return {value: self.amount(name, **{label: value}) for value in sorted(values)}

    @property
    def segments(self) -> dict[str, int]:
        """The capacity of each segment in bytes, by name, as a master of Mooncake 0.3.13.post1
        serves it; segments of 0 bytes are left out.
        """
        sizes = self.by_label("segment_total_capacity_bytes", "segment")
        return {name: size for name, size in sizes.items() if size}


def parse_metrics(text: str) -> Metrics:
    """Read Prometheus' text format; other lines, and values that are not finite, are left out."""
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
    """Ask a program for its metrics, at the address that its command line names.

    Args:
        live: The program runs on this host, and is not from a capture.

    Returns:
        None if no metrics are read of this program (``_serves``); Unknown if it does not answer, or
        cannot be asked.
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
    return next((p for p in server.sizing.inputs.processes if p.kind is server.program), None)


def _address(server: RunningServer, live: bool) -> tuple[str, int] | Unknown | None:
    """Return host and port of a program's metrics; None if it serves none.

    Returns:
        Unknown if the port is not known, or the program is in a capture or in another network
        namespace.
    """
    process = process_of(server)
    if process is None or isinstance(server.needs, Unknown):
        return None
    what = "metrics port" if server.program is ProcessKind.MASTER else "HTTP port"
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
    """Tell whether metrics are read: of a master, SGLang with HiCache, vLLM with a connector."""
    if process.server is not None:
        return process.server.hicache and process.server.value("enable_metrics") is True
    if process.consumer is not None:  # others than vLLM serve none that are read
        return process.kind is ProcessKind.VLLM and bool(process.consumer.connectors)
    return process.kind is ProcessKind.MASTER


@cache
def is_local(host: str) -> bool:
    """Tell whether ``host`` is localhost, "", or the name or an address of this host."""
    if host in ("localhost", "", os.uname().nodename):
        return True
    return host.strip("[]") in {entry["address"] for entry in addresses()}


def has_clients_here(port: int | Unknown | None) -> bool | Unknown:
    """Tell whether a process of this host is connected to ``port`` of this host: the kernel lists
    both ends of the connection.

    Returns:
        Unknown if ``port`` or the connections are not known.
    """
    if isinstance(port, Unknown) or port is None:
        return Unknown("the master's RPC port is not known") if port is None else port
    ends = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        except OSError as error:
            return Unknown(f"/proc/net/{table}: {error.strerror}")
        # Of an address the last 4 bytes: ::ffff:10.0.0.1 is 10.0.0.1 in the other table.
        ends |= {(row[1][-13:], row[2][-13:]) for row in rows if row[3] == _ESTABLISHED}
    return any((to, at) in ends for at, to in ends if to.endswith(f":{port:04X}"))


L2, L3 = "observe.l2-hits", "observe.l3-hits"
STORE, SSD = "observe.store-use", "observe.ssd-reads"
# The least share that counts: of writes that a full pool refuses, of what L3 has and does not give.
OFTEN = 0.1
HALF = 0.5
# What ends a prefetch of tokens that L3 has, and what mends it; the other reasons are as meant.
# Source: sglang/srt/observability/metrics_collector.py, 0.5.20 to 0.5.23.
_UNFULFILLED = {
    "deadline": "Give it longer: --hicache-storage-prefetch-policy, or its timeouts in "
    "--hicache-storage-backend-extra-config.",
    "host_capacity": "L2 has no room for it: raise --hicache-size or --hicache-ratio.",
    "device_capacity": "L1 has no room for it: raise --mem-fraction-static.",
    "storage_transfer": "Reads of the store fail: explain --log says which, of the server's log.",
}


def tier_findings(server: RunningServer, metrics: Metrics | Unknown) -> Iterator[Finding]:
    """Judge whether each cache tier of which a program serves metrics is filled and hit.

    One unknown finding if the metrics cannot be read, but none for a master. Nothing if the
    program's command line cannot be read.
    """
    subject = Subject(server.name, "process")
    process = process_of(server)
    if process is None:
        return
    if isinstance(metrics, Unknown):
        if server.program is not ProcessKind.MASTER:  # of which observe.store-pool says it
            check = L3 if process.server is None else L2
            yield Finding(check, Status.PASS, subject).undecided(metrics)
    elif process.server is not None:
        evicted = _evicted(process.server, metrics)
        early = _too_early(metrics, evicted)
        yield _l2(Finding(L2, Status.PASS, subject), metrics, early, evicted)
        if process.server.value("hicache_storage_backend") is not None:
            yield _l3(Finding(L3, Status.PASS, subject), metrics, early)
    elif server.program is ProcessKind.VLLM:
        yield _external(Finding(L3, Status.PASS, subject), metrics)
    else:
        yield _store(Finding(STORE, Status.PASS, subject), metrics)
        if is_on(process.arguments, "mooncake_master", "enable_offload"):
            yield _ssd(Finding(SSD, Status.PASS, subject), metrics)


def _evicted(server: SglangServer, metrics: Metrics) -> int:
    """Return the tokens that L1 gave up.

    Releases without rank labels count each token once for each rank; the sum is then divided by the
    ranks.
    """
    name = "sglang:evicted_tokens_total"
    named = any("tp_rank" in labels for labels, _ in metrics.samples.get(name, ()))
    sizes = (1,) if named else (server.number("tp_size"), server.number("pp_size"))
    ranks = math.prod(size for size in sizes if not isinstance(size, Unknown))
    return metrics.amount(name) // max(ranks, 1)


def _too_early(metrics: Metrics, evicted: int) -> str:
    """Return why the tiers below L1 cannot be judged yet; "" if they can."""
    holds = metrics.amount("sglang:max_total_num_tokens")
    if not metrics.amount("sglang:hicache_host_total_tokens"):
        return "no amounts of L2 yet: a prompt brings them, from SGLang 0.5.10 on"
    if evicted < holds or not holds:
        return f"L1 has given up {evicted} tokens and holds {holds}: too early"
    return ""


def _hits(metrics: Metrics) -> dict[str, int]:
    """Return the prompt tokens that each tier gave: device (L1), host (L2), storage (L3)."""
    return metrics.by_label("sglang:cached_tokens_total", "cache_source")


def _l2(finding: Finding, metrics: Metrics, early: str, evicted: int) -> Finding:
    """Judge whether prompts find in L2 or L3 the tokens that L1 gave up (``evicted``).

    Args:
        early: Why it is too early to judge, which skips the finding; "" if it is not.
    """
    hits, prompts = _hits(metrics), metrics.amount("sglang:prompt_tokens_total")
    below_l1 = hits.get("host", 0) + hits.get("storage", 0)
    finding = finding._replace(have=_tokens(below_l1, f"{{}} of {prompts} tokens of prompts"))
    if "total" in hits and not early:
        early = "its metrics do not say which tier gave the tokens"
    if early:
        return finding.skipped(early)
    if below_l1:
        return finding
    return finding.warned(
        f"L2 is never hit: L1 has given up {evicted} tokens, and no prompt came back for one",
        "Prompts that share no beginning have no use for it; capacity says so of a trace.",
    )


def _l3(finding: Finding, metrics: Metrics, early: str) -> Finding:
    """Judge whether L3 is written, is read, and gives the tokens it has.

    Args:
        early: As for ``_l2``.
    """
    hits, l2 = _hits(metrics), metrics.amount("sglang:hicache_host_total_tokens")
    written, read, offered = (
        metrics.amount(f"sglang:{name}_tokens_total")
        for name in ("backuped", "prefetched", "storage_prefetch_hit")
    )
    finding = finding._replace(have=_tokens(read, f"{{}} read, {written} written tokens"))
    if early:
        return finding.skipped(early)
    if not written and hits.get("device", 0) + hits.get("host", 0):
        return finding.warned(
            "L3 is never written, although prompts share beginnings",
            "Read the server's log: explain --log. --hicache-write-policy says what is written.",
        )
    lost = metrics.by_label("sglang:storage_prefetch_unfulfilled_tokens_total", "reason")
    lost = {reason: lost[reason] for reason in _UNFULFILLED if lost.get(reason)}
    if sum(lost.values()) > HALF * offered and offered:
        reason = max(lost, key=lost.__getitem__)
        text = f"of {offered} tokens that L3 had, {sum(lost.values())} were not given"
        return finding.warned(f"{text}: most by {reason}", _UNFULFILLED[reason])
    if written < l2 or read:
        return finding
    return finding.warned(
        f"L3 is written and never read: {written} tokens, of which L2 holds {l2}",
        "Nobody asks for what L2 gave up, or its names differ: check says so of store.keys.",
    )


def _external(finding: Finding, metrics: Metrics) -> Finding:
    """Judge whether vLLM's connector finds tokens, as vLLM's own cache does; skipped if it was
    never asked.

    Source: vllm/v1/metrics/loggers.py.
    """
    asked = metrics.amount("vllm:external_prefix_cache_queries_total")
    hits = metrics.amount("vllm:external_prefix_cache_hits_total")
    of_vllm = metrics.amount("vllm:prefix_cache_hits_total")
    finding = finding._replace(have=_tokens(hits, f"{{}} of {asked} tokens asked for"))
    if not asked:
        return finding.skipped("its connector was asked for nothing yet")
    if hits or not of_vllm:
        return finding
    return finding.warned(
        f"its connector never finds anything, although vLLM's own cache gave {of_vllm} tokens",
        "Compare the store's keys with those of who writes them: check, store.keys.",
    )


def _store(finding: Finding, metrics: Metrics) -> Finding:
    """Judge whether the store pool takes what is written, or refuses over 10 % of the writes."""
    filled, capacity, keys = (
        metrics.amount(f"master_{name}")
        for name in ("allocated_bytes", "total_capacity_bytes", "key_count")
    )
    refused = metrics.amount("master_put_start_alloc_failures_total")
    asked = metrics.amount("master_put_start_requests_total")
    asked += metrics.amount("master_batch_put_start_items_total")
    share = f" ({filled / capacity:.0%} of it)" if capacity else ""
    finding = finding._replace(
        have=format_bytes(filled, f"{{}} in {keys} keys{share}"), need=format_bytes(capacity)
    )
    if refused <= OFTEN * asked:
        return finding
    evicted = metrics.amount("master_evicted_key_count")
    return finding.warned(
        f"{refused} of {asked} writes were refused for want of room, {evicted} keys were evicted",
        "What is refused is in no store: larger segments, or a lower "
        "--eviction_high_watermark_ratio of the master, which then evicts before it is full.",
    )


def _ssd(finding: Finding, metrics: Metrics) -> Finding:
    """Judge whether objects that are only on SSD are read again; skipped without such objects."""
    written = metrics.amount("master_allocated_file_size_bytes")
    capacity = metrics.amount("master_total_file_capacity_bytes")
    read = metrics.amount("file_cache_hit_nums_")
    alone = metrics.amount("master_key_count") - metrics.amount("mem_cache_nums_")
    finding = finding._replace(
        have=format_bytes(written, f"{{}} written, {read} reads"), need=format_bytes(capacity)
    )
    if not capacity:
        return finding.skipped("no client offers an SSD, although the master would use one")
    if read:
        return finding
    if alone <= 0:
        return finding.skipped("each key on SSD is in memory too: nothing reads it from there yet")
    return finding.warned(
        f"SSD is written and never read: {alone} keys lie there alone",
        "Nobody asks for what memory gave up, or those who ask do not wait for it.",
    )


def _tokens(number: int, text: str) -> Quantity:
    return Quantity(text.format(number), number, "tokens")
