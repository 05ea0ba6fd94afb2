"""Huge pages on nodes that are not for this launch: a cpuset's, and memory of GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.hugetlb.facts import read_hugetlb_facts
from checks.hugetlb.fit import Stock
from checks.hugetlb.stock import read_stock
from checks.hugetlb.targets import Target, all_targets
from checks.numa.nodes import (
    read_allowed,
)
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from tests.builders.hosts import MIB, Host, HostPool
from tests.tables import each_row

WHOLE, ON_0, ON_1 = (Spot(2 * MIB, node) for node in (None, 0, 1))
NODE_MEMORY = "sys/devices/system/node/node{}/meminfo"
LAUNCH = (
    "MC_STORE_USE_HUGEPAGE=1 MC_STORE_HUGEPAGE_SIZE=2MB MOONCAKE_MASTER=127.0.0.1:50051 "
    "mooncake_client --global_segment_size={size} --protocol=tcp\n"
)


def _host(mems: str, reserved: int = 0, more: Mapping[str, str] | None = None) -> Host:
    """Two nodes, with 1024 and 512 pages, all free."""
    pool = HostPool(reserved=reserved, nodes={0: (1024, 1024), 1: (512, 512)})
    files = {**(more or {}), "proc/self/status": f"Mems_allowed_list:\t{mems}"}
    for node in (0, 1):
        table = f"Node {node} MemTotal: 99999999 kB\nNode {node} MemFree: 50000000 kB"
        files[NODE_MEMORY.format(node)] = table
    return Host({2 * MIB: pool}, nodes=(0, 1), files=files)


def _stock(root: Root) -> dict[Spot, Stock | Unknown]:
    return read_stock(root, read_hugetlb_facts(root, None).hugetlb, 0, (WHOLE, ON_0, ON_1))


@each_row(
    ("mems", "reserved", "whole", "on_1"),
    [
        ("0-1", 0, Stock(1536, 1536), Stock(512, 512)),
        ("1", 0, Stock(512, 512), Stock(512, 512)),
        # Pages that are promised may come to be taken from either node.
        ("1", 100, Stock(412, 512), Stock(412, 512)),
        ("0", 0, Stock(1024, 1024), Stock(0, 0)),
    ],
)
def test_pages_outside_of_the_cpuset_do_not_count(
    mems: str, reserved: int, whole: Stock, on_1: Stock
) -> None:
    stock = _stock(_host(mems, reserved).root())
    assert (stock[WHOLE], stock[ON_1]) == (whole, on_1)


@each_row(
    ("mounts", "files"),
    [
        ("c /cgroup/unified cgroup2 rw 0 0", {"cgroup/unified/a/cpuset.{}.effective": "1"}),
        ("none /dev/cpuset cpuset rw 0 0", {"dev/cpuset/a/{}": "1", "dev/cpuset/{}": "0-1"}),
        (
            "c /mnt cgroup rw,cpuset 0 0",
            {"mnt/a/cpuset.{}": "0-1", "mnt/a/cpuset.effective_{}": "1"},
        ),
    ],
)
def test_a_recorded_cpuset_is_found_wherever_it_is_mounted(
    mounts: str, files: dict[str, str]
) -> None:
    more = {name.format(part): text for name, text in files.items() for part in ("cpus", "mems")}
    more |= {"proc/self/cpuset": "/a", "proc/mounts": mounts}
    root = _host("0-1", more=more).root("/proc/self/status")
    assert read_allowed(root).mems == (1,)
    assert _stock(root)[WHOLE] == Stock(512, 512)


def _grace() -> Root:
    """Node 1 is the memory of the one GPU, as on a GH200."""
    status = {"proc/driver/nvidia/gpus/0009:01:00.0/numa_status": "Node: 1\nStatus: online"}
    return _host("0-1", more=status).root()


def test_no_page_is_planned_in_the_memory_of_a_gpu() -> None:
    root = _grace()
    assert _stock(root)[WHOLE] == Stock(1024, 1024)
    hugetlb = read_hugetlb_facts(root, None).hugetlb
    assert all_targets(hugetlb, {WHOLE: 2000}) == {ON_0: Target(2000, 1024, 0)}


@pytest.mark.parametrize(
    ("before", "status"),
    [
        ("", "skip"),
        ("numactl --membind=0", "pass"),
        ("numactl -N 1 -m 1", "fail"),
        ("/usr/bin/numactl --cpunodebind=1 --membind 1 --", "fail"),
        ("numactl --membind=0,1", "skip"),
        # These prefer a node, and take the others' pages too.
        ("numactl --interleave=1", "skip"),
        ("numactl --preferred=1", "skip"),
        ("numactl --cpunodebind=1", "skip"),
        ("docker run --cpuset-mems=1 img", "fail"),
        ("docker run --cpuset-mems 0-1 img", "skip"),
    ],
)
def test_a_launch_that_binds_itself_has_that_nodes_pages_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, status: str
) -> None:
    """600 pages: node 0 has them, node 1 has not."""
    root = _host("0-1").write(tmp_path / "host")
    variables, _, program = LAUNCH.format(size="1200MB").rpartition("mooncake_client")
    if before.startswith("docker"):
        docker, image = before.rsplit(" ", 1)
        text = f"{docker} {' '.join(f'-e {one}' for one in variables.split())} {image} "
    else:
        text = f"{variables}{before} "
    (tmp_path / "launch.sh").write_text(f"{text}mooncake_client{program}")
    run(["check", "--json", "--root", str(root), str(tmp_path / "launch.sh")])
    findings = json.loads(capsys.readouterr().out)["findings"]
    found = {one["check"]: one["status"] for one in findings}
    assert (found["hugetlb.shortage"], found["hugetlb.node-shortage"]) == ("pass", status)


def _three_nodes(folder: Path) -> Path:
    """Nodes 0 and 2 have 1024 and 256 of 1792 free pages of 2 MiB, and 95 GiB of memory."""
    pool = HostPool(nodes={0: (1024, 1024), 1: (512, 512), 2: (256, 256)})
    files = {"proc/self/status": "Mems_allowed_list:\t0-2"}
    for node in (0, 1, 2):
        rows = ["MemTotal: 60000000", "MemFree: 50000000", "Active(file): 0", "Inactive(file): 0"]
        rows += ["FilePages: 0", "Shmem: 0", "Mlocked: 0", "Unevictable: 0", "SReclaimable: 0"]
        files[NODE_MEMORY.format(node)] = "\n".join(f"Node {node} {row} kB" for row in rows)
    root = Host({2 * MIB: pool}, nodes=(0, 1, 2), files=files).write(folder)
    with (root / "proc/meminfo").open("a") as file:
        file.write("SwapFree: 0 kB\n")
    return root


# 1280 pages are on nodes 0 and 2, and 1792 in all: what is there decides, whoever is asked.
@pytest.mark.parametrize(("size", "fits"), [("2000MB", True), ("2560MB", True), ("2800MB", False)])
@pytest.mark.slow
def test_all_commands_judge_several_nodes_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: str, fits: bool
) -> None:
    root, script = str(_three_nodes(tmp_path / "host")), tmp_path / "launch.sh"
    script.write_text(
        "MC_STORE_USE_HUGEPAGE=1 MC_STORE_HUGEPAGE_SIZE=2MB numactl --membind=0,2 "
        f"mooncake_client --global_segment_size={size} --protocol=tcp\n"
    )

    def answer(*words: str) -> Any:
        (run_sizing if words[0] == "--json" else run)([*words, "--root", root, str(script)])
        return json.loads(capsys.readouterr().out)

    (found,) = answer("check", "--json", "--only", "hugetlb.node-shortage")["findings"]
    assert found["status"] == ("pass" if fits else "fail")
    sized = answer("--json")
    assert sized["status"] == ("fits" if fits else "fails")

    def pages(answered: Any) -> dict[int, int]:
        return {pool["numa_node"]: pool["pages"] for pool in answered["answer"]["pools"]}

    wanted = {0: 1024, 2: 256} if fits else {0: 1084, 2: 316}
    assert pages(answer("plan", "--format=json")) == wanted
    paths = {one["name"].split("/")[5]: int(one["wanted"]) for one in found["settings"]}
    assert paths == ({} if fits else {"node0": 1084, "node2": 316})
    # More cannot be judged without /proc/buddyinfo: the largest is what is there, to the page.
    fitted = answer("fit", "--json", "--goal=pool")
    assert fitted["answer"]["sizes"]["segment"]["size_bytes"] == 1280 * 2 * MIB
    assert pages(fitted) == {0: 1024, 2: 256}
