"""The deployments of the published guides and benchmarks, from their text to their numbers.

Each number is worked out by hand beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from checks.framework.finding import Status
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.command_inputs.written_launch import read_launch, size_written
from preflight.engines.programs.memory_records import MappedProcess, Protocol, StoreClient
from preflight.launch_problems.rules.launch_rules import with_problems
from preflight.launches.launch_files import read_source
from preflight.needs.launch_needs import launch_needs
from preflight.needs.launch_sizing import LaunchSizing, size_launch
from preflight.processes.processes import LaunchOptions, ProcessKind
from preflight.verdict.launch_checks import launch_findings
from preflight.verdict.store_keys import Meeting, compare_keys, launch_keys
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.paths import ROOT

LAUNCHES = ROOT / "tests/data/launches"


def misread(got: Deployed) -> list[tuple[str, Status]]:
    """What ``check`` says of a launch that a shell takes for another: (notice, status)."""
    found = [one for one in launch_findings(got.sizing) if one.check == "launch.misread"]
    return [(one.subject.partition(" ")[0], one.status) for one in found]


class Deployed(NamedTuple):
    sizing: LaunchSizing
    ids: frozenset[str]  # of the findings and of what the reader noted

    @property
    def processes(self) -> tuple[MappedProcess, ...]:
        inputs = self.sizing.inputs.least
        assert not isinstance(inputs, Unknown), inputs.reason
        return inputs.launch.processes

    @property
    def kinds(self) -> list[ProcessKind]:
        return [process.kind for process in self.sizing.inputs.processes]

    def l2(self) -> tuple[int, int]:
        """The bounds of one rank's L2 of the source's first server."""
        memory = next(iter(self.sizing.inputs.memory.values()))
        assert not isinstance(memory.most_pools_bytes, Unknown), memory.why
        return sum(memory.least_pools_bytes), sum(memory.most_pools_bytes)


Deploy = Callable[..., Deployed]


@pytest.fixture
def deploy(tmp_path: Path) -> Deploy:
    root = Host(
        {2 * MIB: HostPool(nodes={0: (300000, 300000), 1: (300000, 300000)})},
        nodes=(0, 1),
        memory_bytes=2048 * GIB,
        nics={f"mlx5_{index}": index // 4 for index in range(8)},
        gpus=(0, 0, 0, 0, 1, 1, 1, 1),
    ).write(tmp_path)

    def deployed(
        name: str, environment: Mapping[str, str] | None = None, gpu_bytes: int | None = None
    ) -> Deployed:
        path = str(LAUNCHES / name)
        reading = read_source(path, environment or {})
        options = LaunchOptions(mooncake_version="0.3.13.post1", gpu_bytes=gpu_bytes)

        def read_file(file: str) -> str | Unknown:
            return Root(str(LAUNCHES)).text("/" + file)

        sizing = size_launch(reading, path, options, Root(str(root)), read_file)
        sizing = with_problems(sizing)
        ids = {*(each.id for each in sizing.problems), *(note.id for note in reading.notes)}
        return Deployed(sizing, frozenset(ids))

    return deployed


def client_of(process: MappedProcess) -> StoreClient:
    (client,) = process.clients
    return client


def test_a10_server(deploy: Deploy) -> None:
    """Qwen3-14B on two A10 of 24 GB, ratio 2, no segment of its own.

    A token takes 2 x 128 x 4 heads x 40 layers x 2 = 81 920 bytes on each of two ranks. The L1 pool
    of a rank lies below its GPU's 24 GB less its half of 14.8 x 10^9 parameters x 2 bytes."""
    environment = {"MODEL_PATH": "Qwen/Qwen3-14B", "DEVICE_LIST": "erdma_0,erdma_1"}
    got = deploy("a10-l1-l2-mooncake.sh", environment, 24 * 10**9)
    assert len(got.processes) == 2
    assert {client_of(process) for process in got.processes} == {
        StoreClient(0, 16 * MIB, Protocol.RDMA)
    }
    least, most = got.l2()
    weights = 14_768_307_200 * 2 // 2
    assert 0 < least <= most <= 2 * (24 * 10**9 - weights)
    assert most % 81_920 == 0
    assert "segment-nowhere" in got.ids  # its clients run on three machines, this is one


def test_h800_mooncake(deploy: Deploy) -> None:
    """816 043 786 240 bytes (760 GiB) of segment over 8 ranks: 102 005 473 280 each, 95 GiB."""
    environment = {"MODEL_PATH": "Qwen/Qwen3-235B-A22B-Instruct-2507", "DEVICE_LIST": ""}
    got = deploy("h800-l1-l2-mooncake.sh", environment, 80 * GIB)
    assert {client_of(process).segment_bytes for process in got.processes} == {95 * GIB}
    assert len(got.processes) == 8
    least, most = got.l2()
    assert 0 <= least < most <= 2 * 80 * GIB
    # numactl would take the assignments behind it for the program to run.
    assert "assignment-after-wrapper" in got.ids
    assert misread(got) == [("assignment-after-wrapper", Status.FAIL)]


def test_quick_start(deploy: Deploy) -> None:
    """Hugepages, an arena of 56 GiB, and the whole 8 GiB of segment on its one rank."""
    got = deploy("quick-start.sh")
    (rank,) = got.processes
    assert rank.settings.hugepages
    assert rank.settings.arena_bytes == 56 * GIB
    assert client_of(rank).segment_bytes == 8 * GIB
    assert ProcessKind.MASTER in got.kinds


def test_quick_start_prefill_and_decode(deploy: Deploy) -> None:
    got = deploy("quick-start-prefill-decode.sh")
    assert got.kinds == [
        ProcessKind.MASTER,
        ProcessKind.SGLANG,
        ProcessKind.SGLANG,
        ProcessKind.ROUTER,
    ]
    prefill, decode = (process.server for process in got.sizing.inputs.processes[1:3])
    assert prefill is not None
    assert decode is not None
    assert (prefill.mode, decode.mode) == ("prefill", "decode")
    assert prefill.store is not None
    assert decode.store is None
    assert {"decode-host-pool", "pd-registration-silent"} <= got.ids


def test_best_practice_prefill(deploy: Deploy) -> None:
    """DeepSeek-R1 keeps 576 x 61 x 2 = 70 272 bytes a token, whole on each of 8 ranks."""
    got = deploy("best-practices-prefill.sh", gpu_bytes=141 * GIB)
    assert len(got.processes) == 8
    _least, most = got.l2()
    assert most % 70_272 == 0
    assert {"mla-copies", "layout-rewritten"} <= got.ids


def test_best_practice_decode_as_published_breaks_off(deploy: Deploy) -> None:
    """Its comment behind a backslash ends the command: the flags after it are another command."""
    got = deploy("best-practices-decode.sh")
    assert {"continuation-broken", "decode-offload-misplaced"} <= got.ids
    assert got.sizing.status == "fails"
    assert misread(got) == [("continuation-broken", Status.WARN), ("not-a-program", Status.WARN)]


def test_dynamic_backend(deploy: Deploy) -> None:
    """A backend of somebody's own: L2 from SGLang's allocator, and no store of Mooncake."""
    got = deploy("best-practices-dynamic.sh")
    assert [process.clients for process in got.processes] == [()]
    assert not got.processes[0].settings.hugepages


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
    judged = with_problems(found)
    assert judged.status == "fails"
    assert "no attribute 'allocator'" in judged.reason


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
    assert compare_keys(first, second).verdict is Meeting.EQUAL
    assert compare_keys(first, other).verdict is Meeting.NEVER
