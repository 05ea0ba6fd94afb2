"""The alert rules and the dashboard of the docs, by Prometheus' own tools."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from preflight.live_servers.report import HELP, PREFIX, metrics_text
from tests.live_servers.test_metrics import observation
from tests.live_servers.test_observing import client, huge, process
from tests.paths import ROOT

RULES = ROOT / "docs/observe-alerts.yml"
DASHBOARD = json.loads((ROOT / "docs/observe-dashboard.json").read_text())
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="needs promtool (apt-get install prometheus)"
    ),
]


def promtool(*words: str, text: str = "") -> None:
    done = subprocess.run(["promtool", *words], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done


# Series by name and labels as promtool's tests write them, and the alerts that fire after 5 hours.
BUSY = {
    "master_put_start_requests_total": "0+60x600",
    "master_batch_put_start_items_total": "0+0x600",
    "master_put_start_alloc_failures_total": "0+1x600",
    "master_evicted_key_count": "0+5x600",
    "master_allocated_bytes": "60x600",
    "master_total_capacity_bytes": "64x600",
    "master_allocated_file_size_bytes": "90x600",
    "master_key_count": "90x600",
    "mem_cache_nums_": "60x600",
    "file_cache_hit_nums_": "0+1x600",
    "sglang:max_total_num_tokens": "1000x600",
    'sglang:evicted_tokens_total{tp_rank="0"}': "0+100x600",
    'sglang:evicted_tokens_total{tp_rank="1"}': "0+100x600",
    'sglang:cached_tokens_total{cache_source="host"}': "0+5x600",
    'sglang:storage_prefetch_unfulfilled_tokens_total{reason="deadline"}': "0+1x600",
    "sglang:storage_prefetch_hit_tokens_total": "0+50x600",
    f"{PREFIX}observation_timestamp_seconds": "0+60x600",
    f"{PREFIX}programs": "2x600",
    f'{PREFIX}finding{{id="i",status="pass"}}': "1x600",
    f'{PREFIX}locked_memory_bytes{{process="1"}}': "89x600",
    f'{PREFIX}locked_memory_limit_bytes{{process="1"}}': "100x600",
    f'{PREFIX}open_files{{process="1"}}': "89x600",
    f'{PREFIX}open_files_limit{{process="1"}}': "100x600",
}
CASES: dict[str, dict[str, str]] = {
    "MooncakeObservationStale": {f"{PREFIX}observation_timestamp_seconds": "0x600"},
    "MooncakeProgramGone": {f"{PREFIX}programs": "2x280 1x320"},
    "MooncakeFinding": {f'{PREFIX}finding{{id="i",status="warn"}}': "1x600"},
    "MooncakeNotReadable": {f'{PREFIX}finding{{id="i",status="unknown"}}': "1x600"},
    "MooncakeLockedMemoryNearLimit": {f'{PREFIX}locked_memory_bytes{{process="1"}}': "91x600"},
    "MooncakeOpenFilesNearLimit": {f'{PREFIX}open_files{{process="1"}}': "91x600"},
    "MooncakeStoreRefusesWrites": {"master_put_start_alloc_failures_total": "0+20x600"},
    "MooncakeStoreEvictsHalfEmpty": {"master_allocated_bytes": "30x600"},
    "MooncakeSsdNeverRead": {"file_cache_hit_nums_": "7x600"},
    "HiCacheL2NeverHit": {'sglang:cached_tokens_total{cache_source="host"}': "7x600"},
    "HiCachePrefetchTooLate": {"sglang:storage_prefetch_hit_tokens_total": "0+1x600"},
    "": {},
}


def with_instance(series: str) -> str:
    name, _, labels = series.rstrip("}").partition("{")
    return f'{name}{{instance="gpu1"{"," if labels else ""}{labels}}}'


def test_each_alert_fires_on_its_own_condition_alone(tmp_path: Path) -> None:
    """Of a host that is busy and well, none."""
    names = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"]
             for rule in group["rules"]}  # fmt: skip
    assert names == {*CASES} - {""}
    alone = tmp_path / "alone.yml"  # ALERTS has the name and labels alone, not the texts
    tests = []
    for case, changed in CASES.items():
        series = [
            {"series": with_instance(name), "values": values}
            for name, values in {**BUSY, **changed}.items()
        ]
        fires = [{"labels": f'{{alertname="{case}"}}', "value": 1}] if case else []
        expected = {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": "5h",
            "exp_samples": fires,
        }
        tests.append({"interval": "1m", "input_series": series, "promql_expr_test": [expected]})
    given = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    alone.write_text(yaml.safe_dump(given))
    promtool("test", "rules", str(alone))


def test_the_dashboard_asks_for_what_is_written(tmp_path: Path) -> None:
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for name in re.findall(rf"{PREFIX}(\w+)", " ".join([*queries, RULES.read_text()])):
        assert name in HELP
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(file))
    spots = [tuple(panel["gridPos"][side] for side in "xy") for panel in DASHBOARD["panels"]]
    assert len(spots) == len(set(spots))


@pytest.fixture
def text(tmp_path: Path) -> str:
    """What is written of a client that holds half of its pages, with a name full of quotes."""
    process(tmp_path, 100, client(), huge(16, {0: 16}), memlock="67108864")
    process(tmp_path, 101, client("32MB"), huge(16, {0: 16}))
    seen = observation(tmp_path)
    row = seen.rows[0]
    odd = row._replace(finding=row.finding._replace(subject='a "b" \\ c\nd'))
    return metrics_text(seen._replace(rows=(odd, *seen.rows)), {}, time.time())


def test_what_is_written_passes_promtool(text: str) -> None:
    promtool("check", "metrics", text=text)
