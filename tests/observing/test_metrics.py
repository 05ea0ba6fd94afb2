"""What programs serve as metrics, and what ``observe --metrics`` writes of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.observing.comparison import findings
from preflight.observing.report import Observation, ObservedRow, metrics_text
from preflight.observing.running_launch import running_servers
from preflight.observing.served_metrics import Metrics, parse_metrics
from tests.observing.test_observing import client, huge, process

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
        ("x_total 3", 3),
        ("x_total 3.0 1700000000000", 3),
        ('x_total{a="1"} 3\nx_total{a="2"} 4', 7),
        ('x_total{tp_rank="0",dp_rank="0"} 3\nx_total{tp_rank="1",dp_rank="0"} 3', 3),
        ('x_total{tp_rank="0",dp_rank="0"} 3\nx_total{tp_rank="1",dp_rank="1"} 3', 6),
        ('x_total{a="}, \\" b"} 5', 5),
        ("x_total 1e+06", 1_000_000),
        ("x_total NaN\nx_total +Inf\nx_total --\n# x_total 7\nx_total_created 8", 0),
        ("", 0),
        ("\0{{{\nx_total", 0),
    ],
)
def test_metrics_are_read(text: str, amount: int) -> None:
    """Every rank of an engine counts the same; engines add up."""
    assert parse_metrics(text).amount("x_total") == amount
