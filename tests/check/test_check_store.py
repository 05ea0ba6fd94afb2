"""The keys that a full store makes its master keep, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.finding import Finding, Status
from checks.base.root import Root
from checks.base.units import GIB
from preflight.judging.launch_checks import key_findings
from preflight.launches.launch_files import read_source
from preflight.processes.processes import LaunchOptions
from preflight.sizing.launch_sizing import size_launch
from tests.builders.hosts import Host

SERVER = (
    "MOONCAKE_MASTER=a:1 MOONCAKE_GLOBAL_SEGMENT_SIZE={segment} python3 -m sglang.launch_server "
    "--model-path {model} --tp {tp} --page-size {page} --enable-hierarchical-cache "
    "--hicache-size 1 --hicache-storage-backend mooncake\n"
)


def _found(tmp_path: Path, sglang_version: str, **words: object) -> Finding:
    tmp_path.mkdir()
    path = tmp_path / "launch.sh"
    path.write_text(SERVER.format(**words))
    host = Root(str(Host(memory_bytes=4096 * GIB).write(tmp_path / "host")))
    options = LaunchOptions(mooncake_version="0.3.14", sglang_version=sglang_version)
    sizing = size_launch(read_source(str(path), {}), "launch.sh", options, host, host.text)
    (found,) = key_findings(sizing)
    return found


@pytest.mark.parametrize(
    ("model", "tp", "page", "segment", "keys", "status"),
    [
        # A token of Qwen3-14B is 2 x 128 x 4 x 40 x 2 = 81 920 bytes on each of two ranks: an
        # object is half of 64 of them, 2 621 440 bytes; 800 x 2^30 bytes hold 327 680.
        ("Qwen/Qwen3-14B", 2, 64, "800gb", "327,680 keys", Status.PASS),
        # With pages of one token 64 times as many.
        ("Qwen/Qwen3-14B", 2, 1, "800gb", "20,971,520 keys", Status.WARN),
        # DeepSeek-R1: 576 x 61 x 2 = 70 272 bytes in one row, 4 497 408 for a page of 64.
        ("deepseek-ai/DeepSeek-R1", 8, 64, "800gb", "190,997 keys", Status.PASS),
        ("Qwen/Qwen3-14B", 2, 64, "0", "", Status.SKIP),
        ("$MODEL", 2, 64, "8gb", "", Status.UNKNOWN),
        ("Qwen/Qwen3-14B", 2, 64, "$SEGMENT", "", Status.UNKNOWN),
    ],
)
def test_keys(
    tmp_path: Path, model: str, tp: int, page: int, segment: str, keys: str, status: Status
) -> None:
    # 0.5.12 registers the pool whole: the keys of a page end in _k and _v all the same.
    for sglang in ("0.5.12", "0.5.23"):
        found = _found(tmp_path / sglang, sglang, model=model, tp=tp, page=page, segment=segment)
        assert (found.status, found.have) == (status, keys)
    assert "$" not in segment or "SEGMENT" in found.text
