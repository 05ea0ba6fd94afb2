"""An external linker in place of a host pool: each rank has the store client of HiCache."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.finding import Status
from checks.base.root import Root
from checks.base.units import MIB
from checks.base.unknown import Unknown
from preflight.inputs.written_launch import read_launch, size_written
from preflight.judging.launch_checks import launch_findings
from preflight.judging.store_keys import Meeting, compared, launch_keys
from preflight.processes.processes import LaunchOptions
from preflight.sizing.launch_needs import launch_needs
from preflight.sizing.launch_sizing import LaunchSizing

STORE = "MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_GLOBAL_SEGMENT_SIZE=268435456"
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --page-size 64"
LINKER = "--enable-unified-cache-external-linker"
LINKED = f"MC_STORE_USE_HUGEPAGE=1 MOONCAKE_PROTOCOL=tcp {STORE} {SERVER} {LINKER}"
HICACHE = "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake"


def sized(tmp_path: Path, script: str) -> LaunchSizing:
    path = tmp_path / "launch.sh"
    path.write_text(script)
    host = Root(str(tmp_path / "host"))
    options = LaunchOptions(available_bytes=1 << 40, sglang_version="0.5.23")
    return size_written(read_launch((str(path),), (), {}, host), options, host)


def pages(found: LaunchSizing) -> int:
    usages = launch_needs(found).usages
    assert not isinstance(usages, Unknown)
    return sum(pages for usage in usages for pages in usage.mapped.values())


@pytest.mark.parametrize(
    ("words", "ranks", "segment_mib"),
    [("", 1, 256), ("--tp 2", 2, 128), ("--tp 2 --pp-size 2", 4, 64)],
)
def test_a_segment_and_a_local_buffer_of_each_rank(
    tmp_path: Path, words: str, ranks: int, segment_mib: int
) -> None:
    """The real classes on the real library: tests/real/test_linker_real.py."""
    found = sized(tmp_path, f"{LINKED} {words}\n")
    assert pages(found) == ranks * (segment_mib + 16) // 2


def test_its_own_config_is_read_before_the_extra_config(tmp_path: Path) -> None:
    own = """'{"master_server_address": "m:1", "protocol": "tcp", "global_segment_size": "1gb"}'"""
    extra = f"--hicache-storage-backend-extra-config {own.replace('1gb', '2gb')}"
    for words, gib in ((extra, 2), (f"{extra} --unified-cache-external-linker-config {own}", 1)):
        found = sized(tmp_path, f"MC_STORE_USE_HUGEPAGE=1 {SERVER} {LINKER} {words}\n")
        assert pages(found) == (gib * 1024 + 16) // 2


def test_its_segment_and_the_cache_on_the_gpu_are_registered(tmp_path: Path) -> None:
    found = sized(tmp_path, f"{STORE} {SERVER} {LINKER}\n")
    (process,) = launch_needs(found).processes
    assert not isinstance(process.regions, Unknown)
    assert sum(region.bytes for region in process.regions) == 272 * MIB
    assert isinstance(process.gpu_registered_bytes, Unknown)
    assert process.rdma is not None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (HICACHE, "mutually exclusive"),
        ("--hicache-storage-backend mooncake", "does not use"),
        ("--disable-radix-cache", "requires the default"),
        ("--unified-cache-external-linker-config [1]", "must be a JSON object"),
    ],
)
def test_what_sglang_refuses(tmp_path: Path, words: str, says: str) -> None:
    found = sized(tmp_path, f"{STORE} {SERVER} {LINKER} {words}\n")
    failed = [f.text for f in launch_findings(found) if f.status is Status.FAIL]
    assert any(says in text for text in failed)


def test_standalone_storage_has_no_pool_to_take(tmp_path: Path) -> None:
    alone = "MOONCAKE_CLIENT=127.0.0.1:50052 MOONCAKE_STANDALONE_STORAGE=1"
    found = sized(tmp_path, f"{alone} {SERVER} {LINKER}\n")
    assert found.status == "fails"
    assert "no attribute 'allocator'" in found.reason


def test_no_engine_of_its_own_beside_the_store(tmp_path: Path) -> None:
    """SGLang starts a transfer engine for the store of HiCache, and none for a linker's."""
    tcp = f"MOONCAKE_PROTOCOL=tcp {STORE} {SERVER}"
    found = [launch_findings(sized(tmp_path, f"{tcp} {words}\n")) for words in (LINKER, HICACHE)]
    assert [any(f.check == "tcp-takes-rdma" for f in each) for each in found] == [False, True]


def test_a_backend_that_is_not_known_passes_nothing(tmp_path: Path) -> None:
    flag = "--unified-cache-external-linker-backend mori"
    found = sized(tmp_path, f"{STORE} {SERVER} {LINKER} {flag}\n")
    assert found.status == "unknown"
    assert f"what {flag} takes" in found.reason


def test_its_keys_meet_no_hicache(tmp_path: Path) -> None:
    lines = [f"{STORE} {SERVER} {words} &\n" for words in (LINKER, f"{LINKER} --port 1", HICACHE)]
    first, second, other = launch_keys(sized(tmp_path, "".join(lines)))
    assert first.pattern == "Qwen-Qwen3-14B_<sha256 of a page>_tp<rank>_cp<rank>_pp<stage>_k"
    assert compared(first, second).verdict is Meeting.EQUAL
    assert compared(first, other).verdict is Meeting.NEVER
