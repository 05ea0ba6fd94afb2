"""Checks of binding and placement: facts and needs give status, have, need and settings."""

import errno
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds, ProcessNeeds, RdmaUse
from checks.framework.unknown import Unknown
from checks.numa.facts import MemoryPolicy
from checks.run_checks.facts import Facts
from preflight.launches.shell_script import read_script
from preflight.needs.process_shares import named_nodes
from tests.builders.synthetic import GIB, erdma_host, gpu_host, read_host, varied
from tests.checks.judged import checks_of, judged
from tests.checks.ranks import launch, rank, ranks
from tests.tables import each_row

JUDGES = checks_of("numa")
REFUSED = MemoryPolicy(0, errno.EPERM, errno.EPERM)
DOCKERS = MemoryPolicy(errno.EPERM, errno.EPERM, errno.EPERM)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The host with 8 GPUs and 8 NICs on two nodes."""
    return read_host(tmp_path_factory.mktemp("host"), gpu_host())


def judge(check: str, facts: Facts, needs: LaunchNeeds | None) -> list[Finding]:
    return judged(JUDGES[check], facts, needs)


def numa(facts: Facts, **changes: Any) -> Facts:
    return varied(facts, numa=facts.numa._replace(**changes))


@pytest.mark.parametrize(
    ("policy", "sglang", "split", "expected"),
    [
        (MemoryPolicy(0, 0, 0), "0.5.12", True, Status.PASS),
        (REFUSED, "0.5.12", False, Status.FAIL),
        (REFUSED, "0.5.23", False, Status.WARN),
        (DOCKERS, "0.5.12", False, Status.WARN),
        (DOCKERS, "0.5.23", True, Status.FAIL),
        (MemoryPolicy(0, 0, errno.EPERM), "0.5.23", True, Status.FAIL),
        (MemoryPolicy(0, 0, errno.EPERM), "0.5.23", False, Status.PASS),
        (MemoryPolicy(errno.EPERM, 0, 0), "0.5.12", True, Status.PASS),
        (MemoryPolicy(0, errno.ENOSYS, errno.ENOSYS), "0.5.12", False, Status.FAIL),
        (REFUSED, "", False, Status.UNKNOWN),
        (Unknown("killed"), "0.5.23", True, Status.UNKNOWN),
    ],
)
def test_policy_refused(
    facts: Facts, policy: MemoryPolicy, sglang: str, split: bool, expected: Status
) -> None:
    """Which call is refused, and whether this version lives without it."""
    changes: dict[str, Any] = {} if split else {"segment_nodes": ()}
    (finding,) = judge(
        "numa.policy-refused", numa(facts, policy=policy), launch(*ranks(**changes), sglang=sglang)
    )
    assert finding.status is expected
    assert finding.subject == "rank 0-7 (each of 8)"
    if expected in (Status.FAIL, Status.WARN):
        assert finding.settings == (Setting(Kind.CAPABILITY, "SYS_NICE", "added"),)
        assert "EPERM" in finding.have or "ENOSYS" in finding.have


def test_a_process_that_binds_nothing_needs_no_permission(facts: Facts) -> None:
    refused = numa(facts, policy=DOCKERS)
    process = rank(0, node=None, segment_nodes=())
    assert judge("numa.policy-refused", refused, launch(process))[0].status is Status.PASS


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (ContainerLimits("compose.yaml", "compose"), Status.WARN),
        (ContainerLimits("run.sh:3", "docker"), Status.WARN),
        (ContainerLimits("run.sh:3", "docker", privileged=True), Status.PASS),
        (ContainerLimits("run.sh:3", "docker", capabilities=("SYS_NICE",)), Status.PASS),
        (
            ContainerLimits("run.sh:3", "docker", security_options=("seccomp=unconfined",)),
            Status.PASS,
        ),
        (ContainerLimits("pod.yaml", "kubernetes"), Status.PASS),
    ],
)
def test_the_container_that_the_launch_describes(
    facts: Facts, limits: ContainerLimits, expected: Status
) -> None:
    """Checked from outside: docker's default profile will refuse what is permitted here."""
    (finding,) = judge("numa.policy-refused", facts, launch(rank(0, container=limits)))
    assert finding.status is expected


@pytest.mark.parametrize(
    ("allowed", "sglang", "mooncake", "split", "expected"),
    [
        ((0, 1), "0.5.12", "0.3.13", True, Status.PASS),
        ((0,), "0.5.12", "0.3.14", False, Status.FAIL),
        ((0,), "0.5.23", "0.3.14", False, Status.WARN),
        ((0,), "0.5.23", "0.3.13.post1", True, Status.FAIL),
        ((0,), "0.5.23", "0.3.14", True, Status.WARN),
        ((0,), "0.5.23", "", True, Status.UNKNOWN),
        (Unknown("no /proc"), "0.5.23", "0.3.14", True, Status.UNKNOWN),
    ],
)
def test_cpuset_excludes(
    facts: Facts, allowed: Any, sglang: str, mooncake: str, split: bool, expected: Status
) -> None:
    """Rank 4 is bound to node 1, and its segment is split over nodes 0 and 1."""
    process = rank(4) if split else rank(4, segment_nodes=())
    needs = launch(process, sglang=sglang, mooncake=mooncake)
    (finding,) = judge("numa.cpuset-excludes", numa(facts, mems_allowed=allowed), needs)
    assert finding.status is expected
    if expected in (Status.FAIL, Status.WARN):
        file = "/sys/fs/cgroup/system.slice/launch.service/cpuset.mems"
        assert finding.settings == (Setting(Kind.CGROUP, file, "0,1", "0"),)


@each_row(
    ("changes", "need"),
    [({}, "node 0 allowed"), ({"node": None}, ""), ({"program": "mooncake_client"}, "")],
)
def test_a_rank_of_sglang_alone_binds_to_its_node(
    facts: Facts, changes: dict[str, Any], need: str
) -> None:
    process = rank(0, segment_nodes=(), **changes)
    (finding,) = judge("numa.cpuset-excludes", facts, launch(process))
    assert finding.need == need


def test_cpus_of_the_node_taken_away(facts: Facts) -> None:
    """Memory allowed, but no CPU: numactl --cpunodebind fails all the same."""
    here = numa(facts, cpus_allowed=tuple(range(48)))
    (finding,) = judge("numa.cpuset-excludes", here, launch(rank(4), sglang="0.5.12"))
    assert finding.status is Status.FAIL
    assert "no CPU of node 1" in finding.have


def node_sizes(facts: Facts, free: Any, cache: Any, swap: int = 0) -> Facts:
    nodes = (facts.numa.nodes[0]._replace(free_bytes=free, cache_bytes=cache), facts.numa.nodes[1])
    meminfo = facts.memory.meminfo
    assert not isinstance(meminfo, Unknown)
    meminfo = meminfo._replace(values={**meminfo.values, "SwapFree": swap})
    changed = numa(facts, nodes=nodes)
    return varied(changed, memory=facts.memory._replace(meminfo=meminfo))


@pytest.mark.parametrize(
    ("free", "cache", "swap", "expected"),
    [
        (40 * GIB, 0, 0, Status.PASS),
        (40 * GIB - 1, 1, 0, Status.WARN),
        (39 * GIB, GIB - 1, 0, Status.FAIL),
        (39 * GIB, GIB - 1, 1, Status.WARN),
        (Unknown("no meminfo"), 0, 0, Status.UNKNOWN),
        (1, Unknown("no cache row"), 0, Status.UNKNOWN),
        (40 * GIB, Unknown("no cache row"), 0, Status.PASS),
    ],
)
def test_node_memory(facts: Facts, free: Any, cache: Any, swap: int, expected: Status) -> None:
    """Ranks 0-3 take 10 GiB each of node 0, whatever node 1 has free."""
    changed = node_sizes(facts, free, cache, swap)
    first, second = judge("numa.node-memory", changed, launch(*ranks()))
    assert (first.subject, first.status) == ("node 0", expected)
    assert first.need == "40.00 GiB"
    assert first.formula == "4 processes bound to it"
    assert second.status is Status.PASS


@pytest.mark.parametrize(
    ("processes", "changes", "expected", "said"),
    [
        # It would fit twice over on the host, and does not on the node.
        (ranks(node=0, regular_bytes=150 * GIB), {}, Status.FAIL, "1.17 TiB"),
        ([rank(0, node=7)], {}, Status.UNKNOWN, "no node 7"),
        ([rank(0, regular_bytes=Unknown("$L2"))], {}, Status.UNKNOWN, "$L2"),
        (ranks(), {"policy": DOCKERS}, Status.SKIP, "refused"),
    ],
)
def test_memory_of_one_node(
    facts: Facts, processes: list[ProcessNeeds], changes: Any, expected: Status, said: str
) -> None:
    (finding,) = judge("numa.node-memory", numa(facts, **changes), launch(*processes))
    assert finding.status is expected
    assert said in finding.need + finding.text


SECOND_NODES = {"environment": {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}}


@pytest.mark.parametrize(
    ("devices", "more", "expected", "have"),
    [
        ((), {}, Status.PASS, "mlx5_0 PIX"),
        (("mlx5_1",), {}, Status.PASS, "mlx5_1 PIX"),
        (("mlx5_3", "mlx5_2"), {}, Status.PASS, "mlx5_3 NODE"),
        (("mlx5_7", "mlx5_2"), {}, Status.PASS, "mlx5_2 NODE"),
        (("mlx5_4", "mlx5_7"), {}, Status.WARN, "mlx5_4, mlx5_7: all SYS"),
        (("mlx5_9",), {}, Status.SKIP, ""),
        (("mlx5_0",), SECOND_NODES, Status.WARN, "mlx5_0: all SYS"),  # its GPU 0 is of node 1
        ((), {"gpu": None}, Status.SKIP, ""),
    ],
)
def test_gpu_nic_distance(
    facts: Facts, devices: tuple[str, ...], more: Any, expected: Status, have: str
) -> None:
    """From GPU 0, which has mlx5_0 and mlx5_1 below its switch."""
    process = rank(0, rdma=RdmaUse(devices, "--device"), **more)
    (finding,) = judge("numa.gpu-nic-distance", facts, launch(process))
    assert (finding.status, finding.have) == (expected, have)


def test_distance_of_an_unknown_node_is_unknown(facts: Facts) -> None:
    reason = Unknown("0000:93:00.0: its NUMA node is not known")
    paths = dict.fromkeys(facts.pci.paths, reason)
    changed = varied(facts, pci=facts.pci._replace(paths=paths))
    process = rank(0, rdma=RdmaUse(("mlx5_4",), "--device"))
    (finding,) = judge("numa.gpu-nic-distance", changed, launch(process))
    assert finding.status is Status.UNKNOWN
    assert "NUMA node is not known" in finding.text


def test_unreadable_rdma_devices_are_not_taken_for_none(facts: Facts) -> None:
    hidden = varied(facts, rdma=facts.rdma._replace(nics=Unknown("/sys: Permission denied")))
    for needs in (None, launch(*ranks())):
        (finding,) = judge("numa.unknown-nic-node", hidden, needs)
        assert finding.status is Status.UNKNOWN


def test_soft_roce_beside_a_gpu_on_one_node_is_near_enough(tmp_path: Path) -> None:
    """A NIC without a PCI function has no distance, and on one node none is needed."""
    facts = read_host(tmp_path, erdma_host())
    pci = facts.pci._replace(nics={}, paths={})
    (finding,) = judge("numa.gpu-nic-distance", varied(facts, pci=pci), launch(rank(0)))
    assert (finding.status, finding.have) == (Status.PASS, "one NUMA node")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("numactl --membind=9 mooncake_client", Status.FAIL),
        ("numactl -N9 mooncake_client", Status.FAIL),
        ("numactl -i 9 mooncake_client", Status.FAIL),
        ("numactl --cpunodebind=0 --preferred=1 mooncake_client", Status.PASS),
        ("numactl --membind=all mooncake_client", Status.PASS),
        ("docker run --cpuset-mems 9 img mooncake_client", Status.FAIL),
    ],
)
def test_nodes_that_a_launch_names_and_the_host_lacks(
    facts: Facts, words: str, expected: Status
) -> None:
    """numactl 2.0.14 with such a node ends with exit code 1, and starts nothing."""
    (command,) = read_script(words, "run.sh", {}).commands
    process = ProcessNeeds(
        "mooncake_client", "mooncake_client", {}, named_nodes=tuple(named_nodes(command))
    )
    (finding,) = judge("numa.cpuset-excludes", facts, launch(process))
    assert finding.status is expected
