"""The metrics that are read here, in alert rules and on the dashboard: the programs have them."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.real.conftest import Store, Wheel, install

pytestmark = pytest.mark.real

FILES = (
    "preflight/observing/served_metrics.py",
    *("docs/observe-alerts.yml", "docs/observe-dashboard.json"),
)
TEXT = "\n".join((ROOT / name).read_text() for name in FILES)
# Those that 0.5.20 brought: without them it is not said why a prefetch gave nothing.
LATER = {"storage_prefetch_hit_tokens_total", "storage_prefetch_unfulfilled_tokens_total"}


def names(text: str, start: str) -> Iterator[str]:
    """The names of metrics that begin with ``start``; {name} of a formatted one stands for more."""
    yield from (name for name in re.findall(rf"\b{start}([a-z_0-9]+)", text) if name != "_")


def of_sglang() -> set[str]:
    formatted = {"backuped", "prefetched", "storage_prefetch_hit"}
    return {
        *(name for name in names(TEXT, "sglang:")),
        *("max_total_num_tokens", "evicted_tokens_total"),
        *(f"{name}_tokens_total" for name in formatted),
    }


@pytest.mark.parametrize("release", ["0.5.12.post1", "0.5.23"])
def test_sglang_has_them(release: str) -> None:
    folder = install("sglang", release) / "sglang/srt/observability"
    source = (folder / "metrics_collector.py").read_text()
    wanted = of_sglang() - (LATER if release != "0.5.23" else set())
    assert len(wanted) >= 8
    assert [name for name in sorted(wanted) if f'"sglang:{name}"' not in source] == []
    assert '"cache_source"' in source


def test_a_master_has_them(wheel_0_3_13: Wheel, tmp_path: Path) -> None:
    store = Store(wheel_0_3_13, tmp_path)
    try:
        words = Path(f"/proc/{store._processes[0].pid}/cmdline").read_text().split("\0")
        port = next(word for word in words if "metrics_port" in word).partition("=")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            served = answer.read().decode()
    finally:
        store.stop()
    formatted = ("allocated_bytes", "total_capacity_bytes", "key_count")
    puts = ("put_start_requests_total", "batch_put_start_items_total")
    wanted = {f"master_{name}" for name in (*formatted, *puts)}
    wanted |= set(re.findall(r"\b(master_[a-z_]+_(?:bytes|total|count)|\w+_nums_)\b", TEXT))
    assert len(wanted) > 12
    assert [name for name in sorted(wanted) if f"# TYPE {name} " not in served] == []
