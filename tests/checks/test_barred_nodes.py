"""Huge pages on nodes that are not for this launch: a cpuset's, and memory of GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from checks.framework.device_nodes import gpu_numa_nodes
from checks.framework.finding import Status
from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.hugetlb.facts import read_hugetlb_facts
from checks.hugetlb.fit import Stock
from checks.hugetlb.stock import read_stock
from checks.hugetlb.targets import Target, all_targets
from checks.numa.nodes import (
    gpu_memory_nodes,
    memory_nodes,
    read_allowed,
    read_meminfo,
    read_node_meminfo,
)
from checks.pci.facts import read_accelerators
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.checks.launches import facts_of, findings, launch, usage
from tests.rows import subject
from tests.tables import each_row

WHOLE, ON_0, ON_1 = (Spot(2 * MIB, node) for node in (None, 0, 1))
POOL = "hugepages/hugepages-2048kB/nr_hugepages"
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


def test_where_nobody_tells_the_cpuset_several_nodes_are_unknown() -> None:
    root = _host("0-1").root("/proc/self/status")
    assert all(isinstance(one, Unknown) for one in _stock(root).values())


def test_check_knows_a_cpuset() -> None:
    """600 pages are there on both nodes together, and not on the one that is allowed."""
    needs = launch([usage({WHOLE: 600})])
    for mems, status, names in (
        ("0-1", Status.PASS, []),
        ("1", Status.FAIL, [f"/{NODE_MEMORY.format(1).removesuffix('meminfo')}{POOL}"]),
    ):
        facts = facts_of(_host(mems).root(), "hugetlb")
        (found,) = findings(facts, needs, "hugetlb.shortage")
        assert (found.status, [setting.name for setting in found.settings]) == (status, names)


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


def test_memory_of_a_gpu_is_not_the_hosts() -> None:
    root = _grace()
    assert gpu_memory_nodes(root) == {1}
    assert memory_nodes(root) == (0,)
    meminfo, nodes = read_meminfo(root), read_node_meminfo(root)
    assert not isinstance(meminfo, Unknown)
    gpu = nodes[1]
    assert not isinstance(gpu, Unknown)
    assert meminfo.value("MemTotal") == 1024 * GIB - 99999999 * 1024
    assert meminfo.value("MemAvailable") == 1024 * GIB - 50000000 * 1024


def test_no_page_is_planned_in_the_memory_of_a_gpu() -> None:
    root = _grace()
    assert _stock(root)[WHOLE] == Stock(1024, 1024)
    hugetlb = read_hugetlb_facts(root, None).hugetlb
    assert all_targets(hugetlb, {WHOLE: 2000}) == {ON_0: Target(2000, 1024, 0)}


def test_what_the_driver_has_is_a_gpu_whatever_pci_shows() -> None:
    root = _grace()
    (found,) = read_accelerators(root) or ()
    assert (found.address, found.vendor) == ("0009:01:00.0", "0x10de")
    assert gpu_numa_nodes(root) == (None,)


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


BINDINGS = (
    "numactl --membind=0,2 {}",
    "numactl -m 0,2 {}",
    "docker run --cpuset-mems=0,2 image {}",
    "docker run --cpuset-mems=0,2 image numactl --membind=2,3,0 {}",
)


SIZES = (
    ("2000MB", False, "pass", "pass"),
    ("2800MB", False, "fail", "pass"),  # there on all nodes, and not on these two
    ("90GB", True, "skip", "pass"),
    ("100GB", True, "skip", "fail"),
)


@pytest.mark.parametrize(
    ("binding", "size", "regular", "pages", "memory"),
    [*((BINDINGS[0], *size) for size in SIZES), *((way, *SIZES[1]) for way in BINDINGS[1:])],
)
def test_memory_bound_to_several_nodes_is_judged_on_these_together(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    binding: str,
    size: str,
    regular: bool,
    pages: str,
    memory: str,
) -> None:
    root = _three_nodes(tmp_path / "host")
    program = f"mooncake_client --global_segment_size={size} --protocol=tcp"
    script = tmp_path / "launch.sh"
    export = "" if regular else "export MC_STORE_USE_HUGEPAGE=1 MC_STORE_HUGEPAGE_SIZE=2MB\n"
    if "docker" in binding and not regular:
        binding = binding.replace("run ", "run -e MC_STORE_USE_HUGEPAGE -e MC_STORE_HUGEPAGE_SIZE ")
    script.write_text(f"{export}{binding.format(program)}\n")
    ids = ("hugetlb.node-shortage", "numa.node-memory")
    only = [word for id_ in ids for word in ("--only", id_)]
    run(["check", "--json", *only, "--root", str(root), str(script)])
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert [found[id_]["status"] for id_ in ids] == [pages, memory], found
    assert pages == "skip" or subject(found[ids[0]]) == "2 MiB pages on nodes 0, 2"
    assert subject(found[ids[1]]) == "nodes 0, 2"


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
