"""Hosts that were answered for wrongly, made small: each with what is right of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.framework.installed import Installed
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.hugetlb.facts import read_hugetlb_facts
from checks.network.facts import ABSENT_KEY
from checks.rdma.verbs import uverbs_of
from checks.run_checks.facts import read_facts
from checks.system.facts import read_system
from preflight.cli.main import run
from preflight.needs.chosen_releases import choose_mooncake
from preflight.report.topology.answer import TOPICS, notes, topology_of, views_of
from tests.builders.synthetic import (
    GIB,
    MIB,
    PATIENCE_SECONDS,
    SyntheticHost,
    build_host,
    gpu_host,
    plain_host,
)

Findings = Mapping[str, Sequence[Mapping[str, Any]]]

NAMED = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL=rdma MOONCAKE_DEVICE={devices} "
    "MOONCAKE_GLOBAL_SEGMENT_SIZE=67108864 python3 -m mooncake.mooncake_store_service --port 8080\n"
)
CLIENT = (
    "mooncake_client --host={host} --port 50152 --master_server_address=127.0.0.1:50051 "
    "--metadata_server=P2PHANDSHAKE --protocol=tcp --global_segment_size=16MB\n"
)
STORE = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL=tcp MOONCAKE_GLOBAL_SEGMENT_SIZE=1gb "
    "python3 -m mooncake.mooncake_store_service --port 8080\n"
)
HUGE_STORE = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MC_STORE_USE_HUGEPAGE=1 MOONCAKE_PROTOCOL={protocol} "
    "MOONCAKE_GLOBAL_SEGMENT_SIZE={segment} MOONCAKE_LOCAL_BUFFER_SIZE=16mb {more} "
    "python3 -m mooncake.mooncake_store_service --port 8080\n"
)


class Checked:
    """What check says of a launch on a host, by check."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys, self._count = folder, capsys, 0

    def root(self, host: SyntheticHost) -> Path:
        self._count += 1
        return build_host(self._folder / f"host{self._count}", host)

    def __call__(self, host: SyntheticHost | Path, text: str) -> Findings:
        root = host if isinstance(host, Path) else self.root(host)
        script = self._folder / "launch.sh"
        script.write_text(text)
        run(["check", "--json", "--root", str(root), str(script)])
        found: dict[str, list[Mapping[str, Any]]] = {}
        for one in json.loads(self._capsys.readouterr().out)["findings"]:
            found.setdefault(one["check"], []).append(one)
        return found


@pytest.fixture
def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checked:
    return Checked(tmp_path, capsys)


def _worded(finding: Mapping[str, Any]) -> str:
    return json.dumps(finding)


def test_nodes_without_their_class_are_not_to_be_given_again(checked: Checked) -> None:
    """A container that was given /dev/infiniband, and sees no /sys/class/infiniband."""
    files = {f"/dev/infiniband/{name}": "" for name in ("uverbs0", "rdma_cm")}
    host = replace(plain_host(), container="docker", files=files)
    launch = NAMED.replace("MOONCAKE_DEVICE={devices} ", "")
    (one,) = checked(host, launch)["rdma.no-device"]
    assert one["status"] == "fail"
    assert "/dev/infiniband has uverbs0" in one["advice"]
    assert "the container the host's devices" not in one["advice"]
    assert "no such folder" in _worded(one)


@pytest.mark.parametrize(("answer", "status"), [(None, "unknown"), ({"error": "refused"}, "fail")])
def test_http_that_nobody_recorded_is_unknown(
    checked: Checked, answer: dict[str, str] | None, status: str
) -> None:
    host = replace(plain_host(), services={("10.9.9.9", 8080): "metadata-http"})
    server = "MOONCAKE_TE_META_DATA_SERVER=http://10.9.9.9:8080/metadata"
    launch = f"{server} {STORE}"
    root = checked.root(host)
    calls = json.loads((root / "calls.json").read_text())
    calls = {name: value for name, value in calls.items() if not name.startswith("services.http")}
    if answer is not None:
        calls[f"services.http 10.9.9.9 8080 /metadata{ABSENT_KEY}"] = answer
    (root / "calls.json").write_text(json.dumps(calls))
    found = checked(root, launch)
    (one,) = (
        one for one in found["service.reachable"] if "metadata-http" in _worded(one["subjects"])
    )
    assert one["status"] == status


@pytest.mark.parametrize("pages", [0, 50000])
def test_a_node_that_is_closed_is_allowed_before_pages_are_counted(
    checked: Checked, pages: int
) -> None:
    host = replace(
        gpu_host(), pools={2 * MIB: pages}, mems_allowed="0", cgroup={"cpuset.mems.effective": "0"}
    )
    found = checked(host, HUGE_STORE.format(protocol="rdma", segment="160gb", more=""))
    nodes = {one["subjects"][0]["name"][-1]: one for one in found["hugetlb.node-shortage"]}
    here, there = nodes["0"], nodes["1"]
    assert there["status"] == "fail"
    assert "allow the process this node" in there["advice"]
    (whole,) = found["hugetlb.shortage"]
    assert (whole["status"], here["status"]) == (("pass",) * 2 if pages else ("fail",) * 2)
    for one in (here, whole):
        for setting in one["settings"]:  # each node its own share, and no node all
            assert int(setting["wanted"]) < 45000


def test_an_arena_that_is_filled_up_to_a_cgroups_limit_starts(checked: Checked) -> None:
    """Measured: 119 MiB of arena, of which 32 MiB are used, below a limit of 59 and of 30 pages."""
    launch = HUGE_STORE.format(protocol="tcp", segment="16mb", more="MC_MMAP_ARENA_POOL_SIZE=119mb")
    statuses = {}
    for pages in (60, 59, 16, 15):
        cgroup = {"hugetlb.2MB.max": str(pages * 2 * MIB)}
        host = replace(plain_host(), pools={2 * MIB: 200}, cgroup=cgroup)
        (one,) = checked(host, launch)["hugetlb.cgroup-limit"]
        statuses[pages] = one["status"]
    assert statuses == {60: "pass", 59: "warn", 16: "warn", 15: "fail"}


def test_pages_are_known_without_overcommit(tmp_path: Path) -> None:
    files = {"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages": "?"}
    root = build_host(tmp_path / "host", replace(plain_host(), nodes=2, files=files))
    pool = read_hugetlb_facts(Root(str(root)), None).hugetlb.pool(2 * MIB)
    assert not isinstance(pool, Unknown)
    assert (pool.total_pages, len(pool.nodes)) == (0, 2)
    assert isinstance(pool.overcommit_pages, Unknown)
    assert isinstance(pool.available_pages(GIB), Unknown)


def test_the_kernel_is_known_from_its_version_alone(tmp_path: Path) -> None:
    files = {"/proc/sys/kernel/osrelease": None}
    root = build_host(tmp_path / "host", replace(plain_host(), files=files))
    assert read_system(Root(str(root)), None).kernel == (6, 8)


def test_a_client_with_an_address_of_another_host_will_not_start(checked: Checked) -> None:
    """Measured with 0.3.13.post1: exit code 1; a store in Python starts, and nobody reaches it."""
    (one,) = checked(plain_host(), CLIENT.format(host="10.99.99.99"))["network.advertised-address"]
    assert (one["status"], one["consequence"]) == ("fail", "will not start")
    launch = STORE.replace("MOONCAKE_P", "MOONCAKE_LOCAL_HOSTNAME=10.99.99.99 MOONCAKE_P", 1)
    (one,) = checked(plain_host(), launch)["network.advertised-address"]
    assert (one["status"], one["consequence"]) == ("fail", "silently degraded")


def test_a_folder_is_no_configuration(checked: Checked, tmp_path: Path) -> None:
    root = checked.root(plain_host())
    (root / "conf").mkdir()
    launch = "python3 -m mooncake.mooncake_store_service --config=/conf\n"
    (one,) = checked(root, launch)["store-service-refused"]
    assert one["status"] == "fail"
    assert "Is a directory" in one["text"]


def test_without_mooncake_the_usual_wheel_is_assumed() -> None:
    release, version, _ = choose_mooncake(None, Installed((), None))
    assert version.assumed
    assert version.value == "0.3.13.post1"
    assert release.first == (0, 3, 13, 0)


def test_the_node_below_a_function_stands_for_the_class(tmp_path: Path) -> None:
    """As hwloc records it: no /sys/class/infiniband_verbs."""
    host = gpu_host()
    root = build_host(tmp_path / "host", host)
    shown = uverbs_of(Root(str(root)), [nic.name for nic in host.nics])
    assert isinstance(shown, dict)

    class Hwloc(Root):
        def names(self, name: str) -> tuple[str, ...] | Unknown:
            if name == "/sys/class/infiniband_verbs":
                return Unknown("not recorded")
            return super().names(name)

    names = [*(nic.name for nic in host.nics), "scif0"]
    found = uverbs_of(Hwloc(str(root)), names)
    assert isinstance(found, dict)
    assert isinstance(found.pop("scif0"), Unknown)
    assert found == shown


NODE = "rdma.device_node /dev/infiniband/uverbs0"


@pytest.mark.parametrize(
    ("errno", "mode", "program"),
    [
        (13, 0o20666, None),  # a nodev mount: everybody may, and nobody can
        (13, 0o20600, "chmod"),
        (6, 0o20666, "mknod"),  # stale numbers
    ],
)
def test_what_mends_a_node_follows_from_its_errno(
    checked: Checked, errno: int, mode: int, program: str | None
) -> None:
    answer = {"mode": mode, "open": False, "errno": errno, "error": "refused"}
    host = replace(gpu_host(), nics=gpu_host().nics[:1], calls={NODE: answer})
    (one,) = checked(host, NAMED.format(devices="mlx5_0"))["rdma.uverbs-permission"]
    assert one["status"] == "fail"
    typed = " ".join(each["text"] for each in one["actions"] if each["kind"] == "run")
    assert ("chmod" in typed) is (program == "chmod")
    assert ("mknod" in typed) is (program == "mknod")


@pytest.mark.parametrize(
    ("limit", "status", "consequence"),
    [
        ("ulimit -v 300000", "fail", "will not start"),  # measured: exit code 2
        ("ulimit -v 1000000", "fail", "will not start"),  # measured: 134
        ("ulimit -v 3000000", "warn", "will not start"),  # measured: it starts
        ("ulimit -s 999999999", "fail", "will not start"),  # measured: 134
        ("ulimit -s 16384", "pass", "will not start"),
        ("ulimit -t 60", "warn", "dies later"),
    ],
)
def test_a_limit_that_the_launch_sets_is_graded_by_what_it_maps(
    checked: Checked, limit: str, status: str, consequence: str
) -> None:
    (one,) = checked(plain_host(), f"{limit}\n{CLIENT.format(host='127.0.0.1')}")["limits.memory"]
    assert (one["status"], one["consequence"]) == (status, consequence)
    if status != "pass":
        assert f"ulimit {limit.split()[1]} unlimited" in one["advice"]


def test_memory_of_gpus_is_taken_off_and_said(checked: Checked) -> None:
    """A GB200 whose GPU is NUMA node 1: neither its memory nor its want of a NIC is the host's."""
    table = "Node 1 MemTotal: 33554432 kB\nNode 1 MemFree: 33554432 kB\n"
    files = {
        "/proc/driver/nvidia/gpus/0000:10:00.0/numa_status": "Node: 1\n",
        "/sys/devices/system/node/node1/meminfo": table,
    }
    host = replace(gpu_host(), node_bytes=64 * GIB, files=files)
    (one,) = checked(host, STORE)["memory.host"]
    assert "less the GPUs' memory (node 1)" in _worded(one)
    root = checked.root(replace(host, nics=[nic for nic in host.nics if nic.node == 0]))
    facts = read_facts(Root(str(root)), None, PATIENCE_SECONDS, TOPICS)
    said = notes(facts, None, topology_of(facts, None), views_of(facts, None, Unknown("?"), None))
    assert not any("memory on node 1" in one for one in said)
    assert facts.numa.memory_nodes == (0,)
