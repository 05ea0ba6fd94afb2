"""What programs serve as metrics, what ``--metrics`` writes, and tiers that are of no use."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Status
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.live_servers.comparison import findings
from preflight.live_servers.report import Observation, ObservedRow, metrics_text
from preflight.live_servers.running_launch import RunningServer, running_servers
from preflight.live_servers.served_metrics import (
    Metrics,
    has_clients_here,
    parse_metrics,
    tier_findings,
)
from tests.live_servers.test_observing import client, huge, process
from tests.paths import ROOT

MIB = 1 << 20


def observation(root: Path, *pids: int) -> Observation:
    servers = running_servers(Root(str(root)), pids)
    rows = tuple(ObservedRow(server, finding, ()) for server, finding in findings(servers))
    return Observation(servers, rows)


def written(root: Path, served: dict[int, Metrics | Unknown]) -> dict[str, float]:
    """Each sample that is written: its name and labels, and its value."""
    text = metrics_text(observation(root), served, 1234.5)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    return {
        key.removeprefix("mooncake_preflight_"): float(value)
        for key, _, value in (line.rpartition(" ") for line in lines)
    }


def test_a_segment_of_this_host_belongs_to_a_process_of_this_host(tmp_path: Path) -> None:
    """Dead where nothing is connected to the master; alive where a program is, known or not."""
    with socket.create_server(("127.0.0.1", 0)) as master:
        port = master.getsockname()[1]
        process(tmp_path, 100, f"mooncake_master --rpc_port={port}")
        servers = running_servers(Root(str(tmp_path)))

        def pool(*names: str) -> Status:
            served = (f'segment_total_capacity_bytes{{segment="{name}"}} 9' for name in names)
            seen = findings(servers, {100: parse_metrics("\n".join(served))})
            (status,) = (one.status for _, one in seen if one.check == "observe.store-pool")
            return status

        assert pool() is Status.PASS
        assert pool("192.0.2.77:1") is Status.PASS  # of another host
        for name in ("127.0.0.1:1", "localhost:1", f"{os.uname().nodename}:1"):
            assert pool(name, "192.0.2.77:1") is Status.WARN
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
            with socket.socket(family) as client:
                client.connect((host, port))
                assert pool("127.0.0.1:1") is Status.PASS
        for _ in range(2):
            master.accept()[0].close()
        assert pool("127.0.0.1:1") is Status.WARN


def test_what_is_written_of_a_client(tmp_path: Path) -> None:
    process(
        tmp_path,
        100,
        client(),
        huge(40, {0: 12, 1: 20}),
        memlock="67108864",
        pinned_kb=1024,
        files=("/dev/null", "/dev/zero"),
    )
    samples = written(tmp_path, {100: parse_metrics('segment_total_capacity_bytes{segment="a"} 9')})
    program = 'program="mooncake_client",pid="100"'
    one = f'{program},process="100"'
    assert samples.pop(
        f'finding{{{program},id="observe.huge-pages",status="warn",'
        'subject="mooncake_client, pid 100"}'
    )
    assert samples == {
        "observation_timestamp_seconds": 1234.5,
        "programs": 1,
        f'predicted_hugepages{{{program},page_bytes="2097152",numa_node="any"}}': 32,
        f'held_hugepages{{{program},page_bytes="2097152"}}': 40,
        f'touched_hugepages{{{program},page_bytes="2097152",numa_node="0"}}': 12,
        f'touched_hugepages{{{program},page_bytes="2097152",numa_node="1"}}': 20,
        f"locked_memory_bytes{{{one}}}": MIB,
        f"locked_memory_limit_bytes{{{one}}}": 64 * MIB,
        f"open_files{{{one}}}": 2,
        f"open_files_limit{{{one}}}": 1024,
        f'segment_capacity_bytes{{{program},segment="a"}}': 9,
    }


def test_what_cannot_be_read_has_no_sample(tmp_path: Path) -> None:
    """Neither is it 0."""
    process(tmp_path, 100, client(), huge(32, {0: 32}))
    for name in ("maps", "environ", "limits"):
        (tmp_path / f"proc/100/{name}").unlink()
        (tmp_path / f"proc/100/{name}").mkdir()
    samples = written(tmp_path, {100: Unknown("no answer")})
    assert {re.split("[ {]", name)[0] for name in samples} == {
        *("observation_timestamp_seconds", "programs", "open_files", "finding")
    }


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("x_total 3.0 1700000000000", 3),
        ('x_total{a="1"} 3\nx_total{a="2"} 4', 7),
        ('x_total{tp_rank="0",dp_rank="0"} 3\nx_total{tp_rank="1",dp_rank="0"} 3', 3),
        ('x_total{tp_rank="0",dp_rank="0"} 3\nx_total{tp_rank="1",dp_rank="1"} 3', 6),
        ('x_total{a="}, \\" b"} 5', 5),
        ("x_total 1e+06", 1_000_000),
        ("x_total NaN\nx_total +Inf\nx_total --\n# x_total 7\nx_total_created 8", 0),
        ("\0{{{\nx_total", 0),
    ],
)
def test_metrics_are_read(text: str, amount: int) -> None:
    """Every rank of an engine counts the same; engines add up."""
    assert parse_metrics(text).amount("x_total") == amount


SGLANG = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --hicache-size 1 "
    "--page-size 64 --enable-hierarchical-cache --hicache-storage-backend mooncake "
    "--enable-metrics"
)
VLLM = (
    "vllm serve Qwen/Qwen3-8B --kv-transfer-config "
    '{"kv_connector":"MooncakeStoreConnector","kv_role":"kv_both"}'
)
MASTER = "mooncake_master --port=50051 --enable_offload=true"
RANKS = 'tp_rank="{}",pp_rank="0",dp_rank="0"'
# L1 of 1000 tokens has given up 5000; L2 holds 2000.
FULL = "".join(
    f"sglang:max_total_num_tokens{{{ranks}}} 1000.0\n"
    f"sglang:hicache_host_total_tokens{{{ranks}}} 2000.0\n"
    f"sglang:evicted_tokens_total{{{ranks}}} 5000.0\n"
    for ranks in (RANKS.format(0), RANKS.format(1))
)


def series(name: str, number: int, labels: str = 'model_name="m"') -> str:
    return f"{name}{{{labels}}} {number}.0\n"


def cached(**tiers: int) -> str:
    return series("sglang:prompt_tokens_total", 9000, 'is_streaming="true"') + "".join(
        series("sglang:cached_tokens_total", number, f'cache_source="{source}"')
        for source, number in tiers.items()
    )


def stored(written: int, read: int) -> str:
    return "".join(
        series(f"sglang:{name}_tokens_total", number, RANKS.format(rank))
        for name, number in (("backuped", written), ("prefetched", read))
        for rank in (0, 1)
    )


def lost(offered: int, **reasons: int) -> str:
    name = "sglang:storage_prefetch_unfulfilled_tokens_total"
    return series("sglang:storage_prefetch_hit_tokens_total", offered) + "".join(
        series(name, number, f'reason="{reason}"') for reason, number in reasons.items()
    )


def master(keys: int, **amounts: int) -> str:
    values = {
        "master_allocated_bytes": 60 << 20,
        "master_total_capacity_bytes": 64 << 20,
        "master_key_count": keys,
        "master_put_start_requests_total": 100,
        **amounts,
    }
    return "".join(f"{name} {number}\n" for name, number in values.items())


def server(root: Path, words: str) -> RunningServer:
    process(root, 100, words)
    return running_servers(Root(str(root)))[0]


L2, L3 = "observe.l2-hits", "observe.l3-hits"
STORE, SSD = "observe.store-use", "observe.ssd-reads"
BOTH = cached(device=900, host=50, storage=7)
OFFERED = {"master_total_file_capacity_bytes": 2 << 40, "master_allocated_file_size_bytes": 9}


@pytest.mark.parametrize(
    ("words", "text", "statuses"),
    [
        (SGLANG, FULL + BOTH + stored(5000, 300), {L2: "pass", L3: "pass"}),
        (SGLANG, "", {L2: "skip", L3: "skip"}),
        (SGLANG, FULL.replace("5000", "900") + cached(device=9), {L2: "skip", L3: "skip"}),
        # Before 0.5.21 both ranks count into one series.
        (SGLANG, FULL.replace("evicted", "x")
         + series("sglang:evicted_tokens_total", 1800, 'cache_type="HiRadixCache"'),
         {L2: "skip", L3: "skip"}),
        (SGLANG, FULL + cached(device=900) + stored(1000, 0), {L2: "warn", L3: "pass"}),
        (SGLANG, FULL + cached(total=900) + stored(5000, 9), {L2: "skip", L3: "pass"}),
        (SGLANG, FULL + BOTH, {L2: "pass", L3: "warn"}),
        (SGLANG, FULL + BOTH + stored(2000, 0), {L2: "pass", L3: "warn"}),
        (SGLANG, FULL + BOTH + stored(5000, 300) + lost(900, deadline=600, device_covered=100),
         {L2: "pass", L3: "warn"}),
        (SGLANG, FULL + BOTH + stored(5000, 300) + lost(900, deadline=200, device_covered=700),
         {L2: "pass", L3: "pass"}),
        (VLLM, series("vllm:external_prefix_cache_queries_total", 0), {L3: "skip"}),
        (VLLM, series("vllm:external_prefix_cache_queries_total", 900), {L3: "pass"}),
        (VLLM, series("vllm:external_prefix_cache_queries_total", 900)
         + series("vllm:prefix_cache_hits_total", 80), {L3: "warn"}),
        (VLLM, series("vllm:external_prefix_cache_queries_total", 900)
         + series("vllm:external_prefix_cache_hits_total", 3)
         + series("vllm:prefix_cache_hits_total", 80), {L3: "pass"}),
        (MASTER, master(60), {STORE: "pass", SSD: "skip"}),
        (MASTER.partition(" --enable")[0], master(60), {STORE: "pass"}),
        # As a master of 0.3.13.post1 said of a client that offloads and is written to too fast.
        (MASTER, master(62, mem_cache_nums_=62, **OFFERED,
                        master_put_start_alloc_failures_total=88),
         {STORE: "warn", SSD: "skip"}),
        (MASTER, master(226, mem_cache_nums_=116, file_cache_hit_nums_=110, **OFFERED),
         {STORE: "pass", SSD: "pass"}),
        (MASTER, master(226, mem_cache_nums_=116, file_cache_hit_nums_=0, **OFFERED),
         {STORE: "pass", SSD: "warn"}),
        (MASTER, master(62, master_batch_put_start_items_total=184,
                        master_put_start_alloc_failures_total=102), {STORE: "warn", SSD: "skip"}),
    ],
)  # fmt: skip
def test_of_which_tier_is_something_wrong(
    tmp_path: Path, words: str, text: str, statuses: dict[str, str]
) -> None:
    judged = tier_findings(server(tmp_path, words), parse_metrics(text))
    assert {one.check: one.status.value for one in judged} == statuses


@pytest.mark.parametrize(("words", "check"), [(SGLANG, L2), (VLLM, L3)])
def test_who_does_not_answer_is_unknown_once(tmp_path: Path, words: str, check: str) -> None:
    judged = [*tier_findings(server(tmp_path, words), Unknown("refused"))]
    assert [(one.check, one.status) for one in judged] == [(check, Status.UNKNOWN)]


# In place of a server: its command line, and the text of its metrics at its port.
STAND_IN = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        for line in os.environ["TEXT"].splitlines(True):
            time.sleep(float(os.environ["WAIT"]))
            self.wfile.write((line if self.path == "/metrics" else "").encode())
    def parse_request(self):
        answer = super().parse_request()
        self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
        return answer
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def observed(folder: Path, text: str, *more: str, wait: float = 0) -> list[dict[str, Any]]:
    """The findings beside a server that serves ``text``, with so many seconds before each line."""
    from tests.real.conftest import free_port

    (folder / "sglang").mkdir()
    (folder / "sglang/__init__.py").touch()
    (folder / "sglang/launch_server.py").write_text(STAND_IN)
    port = free_port()
    environment = {**os.environ, "TEXT": text, "PORT": str(port), "WAIT": str(wait)}
    served = subprocess.Popen(
        [sys.executable, *SGLANG.split()[1:], f"--port={port}", *more],
        env={**environment, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert served.stdout is not None
    try:
        served.stdout.readline()
        done = subprocess.run(
            [sys.executable, "-m", "preflight", "observe", "--json", "--pid", str(served.pid)],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=30,
        )
        findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [one for one in findings if one["check"] in (L2, L3)]
    finally:
        served.kill()
        served.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "wait", "status"),
    [((), 0, "warn"), ((), 1, "unknown"), (("--host=127.0.0.3",), 0, "unknown")],
)
def test_metrics_are_asked_at_the_address_of_the_command_line(
    tmp_path: Path, more: tuple[str, ...], wait: float, status: str
) -> None:
    """In two seconds, and nowhere else."""
    findings = observed(tmp_path, FULL + cached(device=900), *more, wait=wait)
    assert findings[0]["status"] == status
    if status == "warn":
        assert findings[0]["have"]["value"] == 0


def test_connections_that_are_not_read_are_unknown() -> None:
    """Not read is not "nobody is connected", after which a live client would be called gone."""
    for port in (None, Unknown("$PORT is not set")):
        assert isinstance(has_clients_here(port), Unknown)
