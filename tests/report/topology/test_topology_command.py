"""What ``mooncake-preflight topology`` prints: the drawing, the object, and its exit codes."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.fold import ranges
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.root import CALLS_FILE
from checks.framework.unknown import Unknown
from preflight.cli.main import run
from preflight.report.topology.answer import (
    Topology,
    TopologyDevice,
    TopologyNode,
    natural,
    use_roles,
)
from preflight.report.topology.report import ASCII, LINES, box, boxes, chunks, matrix
from tests.builders.synthetic import (
    PATIENCE_SECONDS,
    SyntheticHost,
    build_host,
    erdma_host,
    gpu_host,
    limited_container,
    plain_host,
    tree_of,
)
from tests.builders.topology_hosts import integrated_beside_switches, one_nic_without_node
from tests.checks.recorded import recorded
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/topology-v1.schema.json").read_text())
LAB = ROOT / "tests/data" / "lab"
LAUNCH = (
    "MOONCAKE_MASTER=10.0.0.9:50051 MOONCAKE_PROTOCOL=rdma {} python3 -m sglang.launch_server "
    "--model-path Qwen/Qwen3-14B --tp {} --enable-hierarchical-cache --hicache-size 4 "
    "--hicache-storage-backend mooncake --disaggregation-mode prefill\n"
)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command: exit code and standard output; ``host`` is written first."""
    monkeypatch.setenv("COLUMNS", "80")

    def run_it(*words: str) -> tuple[int, str]:
        code = run(["topology", "--timeout", str(PATIENCE_SECONDS), *words])
        out = capsys.readouterr().out
        if out and code < 4 and "--json" not in words:
            assert out.startswith(("PASS: ", "WARN: ", "FAIL: ", "UNKNOWN: ")[code])
        return code, out

    return run_it


@pytest.fixture
def on(ask: Any, tmp_path: Path) -> Any:
    count = itertools.count()

    def run_on(host: SyntheticHost, *words: str) -> tuple[int, str]:
        root = build_host(tmp_path / f"root{next(count)}", host)
        answer: tuple[int, str] = ask("--root", str(root), *words)
        return answer

    return run_on


def asked_of(host: SyntheticHost) -> str:
    """The recorded call that asks the host's own library."""
    return f"mooncake.local_topology {tree_of(host).calls['software.search']['interpreter']} "


def script(folder: Path, variables: str = "", tp: int = 8) -> str:
    file = folder / "run.sh"
    file.write_text(LAUNCH.format(variables, tp))
    return str(file)


@pytest.mark.slow
def test_a_segment_is_said_to_be_split_where_the_sizing_splits_it(on: Any, tmp_path: Path) -> None:
    """Since 0.3.14 a rank that is bound to one node has its segment there whole; the store has not,
    and a rank without a segment has none to split. 0.3.13 is what is installed there."""
    folded = "devices of MOONCAKE_DEVICE at"
    launch = script(tmp_path, "MOONCAKE_DEVICE=mlx5_0,mlx5_4", 8)
    _, text = on(gpu_host(), launch)
    said = " ".join(text.split())
    assert f"rank 0-7 (each of 8): the segment is split over nodes 0, 1, where the {folded}" in said
    launch = script(tmp_path, "MOONCAKE_GLOBAL_SEGMENT_SIZE=0 MOONCAKE_DEVICE=mlx5_0,mlx5_4", 8)
    _, text = on(gpu_host(), launch)
    assert "segment is split" not in text


def test_devices_of_one_node_alone_are_warned_of(on: Any, tmp_path: Path) -> None:
    """By the check that says so elsewhere too, and for the memory of the other node here."""
    code, text = on(gpu_host(), script(tmp_path, "MOONCAKE_DEVICE=mlx5_0,mlx5_1", 8))
    assert code == 1
    assert "warn: numa.gpu-nic-distance, rank 4-7 (each of 4): have mlx5_0, mlx5_1: all SYS" in text
    assert "note: memory on node 1 has no NIC in use there" in text


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (integrated_beside_switches, 1, "warn: topology.mooncake-view, GPU 0"),
        (one_nic_without_node, 1, "note: mlx5_7: preferred for no memory"),
        (erdma_host, 0, "cpu:0     none; any of erdma_0-1"),
        (plain_host, 0, "cpu:0  no NIC"),
        (limited_container, 1, "note: mlx5_0-7: not used by Mooncake (its uverbs node"),
    ],
)
def test_faults_are_said(make: Callable[[], SyntheticHost], code: int, said: str, on: Any) -> None:
    answer = on(make())
    assert answer[0] == code
    assert said in answer[1]


def test_a_device_that_is_missing_fails(on: Any, tmp_path: Path) -> None:
    code, text = on(gpu_host(), script(tmp_path, "MOONCAKE_DEVICE=mlx5_0,mlx5_9", 1))
    assert code in (1, 2)
    assert "mlx5_9" in text


def test_without_nodes_mooncake_has_no_location(on: Any) -> None:
    host = erdma_host()
    nodes = (name for name in tree_of(host).files if name.startswith("/sys/devices/system/node/"))
    _, text = on(replace(host, files={**host.files, **dict.fromkeys(nodes)}))
    assert "host without NUMA nodes" in text
    assert "sysfs shows no NUMA node" in text


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpu_host, erdma_host, plain_host, limited_container])
def test_the_object_is_as_its_schema_says(
    make: Callable[[], SyntheticHost], on: Any, tmp_path: Path
) -> None:
    code, text = on(make(), "--json", script(tmp_path))
    answer = json.loads(text)
    valid(answer, SCHEMA)
    assert answer["exit_code"] == code
    assert answer["answer"]["mooncake"][0]["measured"] is None


def test_an_answer_that_differs_is_the_truth(on: Any) -> None:
    """Recorded or measured, what the library itself says is shown beside what was foretold."""
    rows = {"cpu:0": [["erdma_0"], ["erdma_1"]], "cuda:0": [["erdma_0", "erdma_1"], []]}
    host = erdma_host()
    key = asked_of(host)
    code, text = on(replace(host, calls={key: rows}), "--measure")
    assert code == 1
    assert "says otherwise" in text
    assert "cpu:0: erdma_0; then erdma_1 (foretold: none preferred; then erdma_0, erdma_1)" in text
    assert "cuda:1: no such location" in text


def test_a_host_that_cannot_be_asked_is_not_measured(on: Any) -> None:
    code, text = on(gpu_host(), "--measure")
    assert code == 3
    assert "not measured: not recorded (mooncake.local_topology" in text


def test_a_hostile_answer_is_no_traceback(on: Any) -> None:
    host = erdma_host()
    key = asked_of(host)
    answers: tuple[object, ...] = (7, [], {"a": 1}, {"cpu:0": [["\x1b[31m"], []]})
    for answer in answers:
        code, text = on(replace(host, calls={key: answer}), "--measure")
        assert code in (1, 3)
        assert "\x1b" not in text


@pytest.mark.parametrize("file", sorted(LAB.glob("*.tar.gz")), ids=lambda file: file.name)
def test_a_recorded_guest_is_drawn(file: Path, ask: Any) -> None:
    """Two soft-RoCE devices on no node: a warning, as where both ports are down."""
    code, text = ask("--root", str(file))
    down = file.name.startswith("both-ports-down")
    assert code == 1
    assert "rxe1    rxe 2.5 Gb/s" in text
    assert ("cpu:0-1  no NIC" if down else "cpu:0-1  none; any of rxe0-1") in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("2i386-2t-hugepagesizecount", "no NUMA nodes, no GPU, no NIC"),
        ("32amd64-4s2n4c-cgroup2", "note: NICs are not known"),
        pytest.param(
            *("40intel64-2g2n4c+pcilocality", "qib0  0000:43:00.0  40 Gb/s ACTIVE"),
            marks=pytest.mark.slow,
        ),
        ("48amd64-4pa2n6c-sparse", "node 73  16.00 GiB"),
    ],
)
def test_a_recorded_machine_is_drawn(name: str, said: str, ask: Any) -> None:
    _, text = ask("--root", str(recorded(name)))
    assert said in text


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(["numa_node", "class", "state", "rate"]), st.text(max_size=9))
)
def test_damaged_files_are_drawn_too(tmp_path_factory: Any, damage: dict[str, str]) -> None:
    """Whatever a file holds: an exit code that is declared, and no traceback."""
    host = erdma_host()
    files = dict(_damaged(host, damage))
    root = build_host(tmp_path_factory.mktemp("host") / "root", replace(host, files=files))
    (root / CALLS_FILE).write_text("[" if damage else "{}")
    before, sys.stdout = sys.stdout, io.StringIO()
    try:
        code = run(["topology", "--root", str(root), "--timeout", str(PATIENCE_SECONDS)])
    finally:
        sys.stdout = before
    assert code in (0, 1, 2, 3)


def _damaged(host: SyntheticHost, damage: dict[str, str]) -> list[tuple[str, str]]:
    return [
        (name, text.replace("\r", ""))
        for name in tree_of(host).files
        for end, text in damage.items()
        if name.endswith(f"/{end}")
    ]


# The parts ----------------------------------------------------------------------------------------


def test_ten_comes_behind_nine() -> None:
    names = ["mlx5_10", "mlx5_9", "mlx5_bond", "ib0"]
    assert sorted(names, key=natural) == ["ib0", "mlx5_9", "mlx5_10", "mlx5_bond"]


def test_the_line_of_the_launch_is_left_out_where_it_tells_nobody_apart() -> None:
    def names(*processes: tuple[str, str]) -> list[str]:
        needs = tuple(ProcessNeeds(name, "sglang", {}, role=role) for name, role in processes)
        return [p.name for p in use_roles(LaunchNeeds("run.sh", needs, ()), short=True).processes]

    found = names(("/a/run.sh:2 rank 0", "rank 0"), ("/a/run.sh:2 rank 1", "rank 1"))
    assert found == ["rank 0", "rank 1"]
    both = [("a.sh:2 rank 0", "rank 0"), ("a.sh:5 rank 0", "rank 0")]
    assert names(*both) == [name for name, _ in both]


@pytest.mark.parametrize(("cpus", "text"), [((), ""), ((0, 1, 2, 8), "0-2,8"), ((5,), "5")])
def test_cpus_are_listed_as_the_kernel_does(cpus: tuple[int, ...], text: str) -> None:
    assert ranges(cpus) == text


@given(st.lists(st.text("ab", min_size=1, max_size=30), max_size=20), st.integers(20, 100))
def test_chunks_take_every_cell_once_and_fit(cells: list[str], width: int) -> None:
    parts = [list(part) for part in chunks(cells, 5, width)]
    assert [at for part in parts for at in part] == list(range(len(cells)))
    for part in parts:
        assert len(part) == 1 or 5 + sum(2 + len(cells[at]) for at in part) <= width


@given(st.text(max_size=200), st.lists(st.text("abc ", max_size=200), max_size=3))
def test_a_box_is_as_wide_as_asked(title: str, rows: list[str]) -> None:
    for strokes in (ASCII, LINES):
        lines = box(title, rows, 60, strokes)
        assert {len(line) for line in lines} == {60}


def large(gpus: int, nics: int) -> Topology:
    """As many on four nodes, far from each other but on the same one."""
    devices = [
        [
            TopologyDevice(kind, f"{name}{at}", f"0000:{at:02x}:00.0", at * 4 // count, "a device")
            for at in range(count)
        ]
        for kind, name, count in (("gpu", "GPU", gpus), ("nic", "mlx5_", nics))
    ]
    paths: dict[tuple[str, str], str | Unknown] = {
        (gpu.name, nic.name): "NODE" if gpu.numa_node == nic.numa_node else "SYS"
        for gpu in devices[0]
        for nic in devices[1]
    }
    nodes = tuple(TopologyNode(number, "0-7", 1 << 30) for number in range(4))
    return Topology(nodes, tuple(devices[0]), tuple(devices[1]), paths)


def plain(text: str, colour: str) -> str:
    return text


def test_a_large_host_is_folded_both_ways() -> None:
    lines = matrix(large(16, 32), {}, plain, 80)
    assert lines[0].split() == ["mlx5_0-7", "mlx5_8-15", "mlx5_16-23", "mlx5_24-31"]
    assert [line.split()[0] for line in lines[1:5]] == ["GPU0-3", "GPU4-7", "GPU8-11", "GPU12-15"]
    assert max(map(len, lines)) <= 80


@given(
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(40, 100),
    st.dictionaries(st.tuples(st.integers(0, 11), st.integers(0, 39)), st.just("PIX")),
)
def test_all_lines_fit(gpus: int, nics: int, width: int, near: dict[tuple[int, int], str]) -> None:
    """However irregular the host: boxes to the column, the matrix in blocks that fit."""
    topology = large(gpus, nics)
    paths = dict(topology.paths)
    for (gpu, nic), path in near.items():
        if gpu < gpus and nic < nics:
            paths[f"GPU{gpu}", f"mlx5_{nic}"] = path
    topology = topology._replace(paths=paths)
    assert {len(line) for line in boxes(topology, width, LINES)} == {width}
    lines = matrix(topology, {"GPU0": ("mlx5_0",)}, plain, width)
    rows = [line for line in lines if line.startswith("GPU")]
    cells = sum(len(line.split()) - 1 for line in rows)
    assert cells >= 1
    # One name may be longer than a line: a column that folds many that do not count up.
    assert all(len(line) <= width for line in rows) or any("," in line for line in lines)
