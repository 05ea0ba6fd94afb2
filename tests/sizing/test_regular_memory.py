"""The verdict is about the launch's memory, on huge pages or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.base.finding import Consequence
from checks.base.root import Root
from preflight.cli.sizing import run
from preflight.inputs.written_launch import read_launch, size_written
from preflight.processes.processes import LaunchOptions
from preflight.sizing.launch_sizing import LaunchSizing
from tests.builders.hosts import GIB, MIB, Host, HostPool


def sized(tmp_path: Path, *words: str, **options: int) -> LaunchSizing:
    Host(memory_bytes=64 * GIB).write(tmp_path)
    root = Root(str(tmp_path))
    launch = read_launch(words, (), {}, root, is_command=True)
    return size_written(launch, LaunchOptions(**options), root)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "status"), [("400GB", "fails"), ("4GB", "fits")])
def test_a_segment_on_regular_pages_has_to_be_there(tmp_path: Path, size: str, status: str) -> None:
    found = sized(tmp_path, "mooncake_client", f"--global_segment_size={size}", "--protocol=tcp")
    assert found.status == status
    if status == "fails":
        assert "400.00 GiB needed" in found.reason
        assert found.exit_code == 2
        assert found.consequence is Consequence.DIES_LATER  # as memory.host says


def test_of_another_host_the_memory_is_not_known(tmp_path: Path) -> None:
    words = ("mooncake_client", "--global_segment_size=400GB", "--protocol=tcp")
    assert sized(tmp_path, *words, available_bytes=1 << 40).status == "fits"


def test_an_engine_alone_is_unknown_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "launch.sh"
    nixl = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    words = f"vllm serve Qwen/Qwen3-8B --kv-transfer-config '{nixl}'"
    script.write_text(f"mooncake_master &\n{words}\n")
    assert run([str(script)]) == 3
    assert "vllm serve Qwen/Qwen3-8B" in capsys.readouterr().out
    assert run(["--json", str(script)]) == 3
    assert "vllm serve" in json.loads(capsys.readouterr().out)["error"]


NODE = "sys/devices/system/node/node{}/meminfo"


@pytest.mark.parametrize(
    ("nodes", "size", "status"),
    [
        ("0", "40GB", "fails"),
        ("0", "30GB", "fits"),
        ("0,1", "60GB", "fits"),
        ("0,1", "70GB", "fails"),
        ("2", "30GB", "unknown"),
    ],
)
def test_memory_that_is_bound_to_a_node_has_to_be_there(
    tmp_path: Path, nodes: str, size: str, status: str
) -> None:
    """As check says: one judgement for both."""
    Host(memory_bytes=96 * GIB, nodes=(0, 1, 2)).write(tmp_path)
    for node in (0, 1):
        rows = {"MemTotal": 32 << 20, "MemFree": 32 << 20, "Active(file)": 0}
        rows |= {"Inactive(file)": 0, "SReclaimable": 0}
        text = "".join(f"Node {node} {name}: {kib} kB\n" for name, kib in rows.items())
        (tmp_path / NODE.format(node)).write_text(text)
    with (tmp_path / "proc/meminfo").open("a") as file:
        file.write("SwapFree: 0 kB\n")
    root = Root(str(tmp_path))
    words = ("numactl", f"--membind={nodes}", "mooncake_client", f"--global_segment_size={size}")
    launch = read_launch((*words, "--protocol=tcp"), (), {}, root, is_command=True)
    found = size_written(launch, LaunchOptions(), root)
    assert (found.status, "node" in found.reason) == (status, status != "fits")


def test_pages_of_several_nodes_have_a_row_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {2 * MIB: HostPool(total=3000, nodes=dict.fromkeys((0, 1, 2), (1000, 1000)))}
    Host(pools, nodes=(0, 1, 2)).write(tmp_path)
    words = "numactl --membind=0,2 mooncake_client --global_segment_size=1GB --protocol=tcp"
    launch = ("env", "MC_STORE_USE_HUGEPAGE=1", *words.split())
    assert run(["--json", "--root", str(tmp_path), "--", *launch]) == 0
    (pool,) = json.loads(capsys.readouterr().out)["exact"]["hugetlb"]
    assert pool["nodes"] == []
    (row,) = pool["node_groups"]
    assert (row["nodes"], row["need_pages"], row["available_pages"]) == ([0, 2], 512, 2000)
