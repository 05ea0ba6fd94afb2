"""The plan as an object: what it holds, why, and what it does where wishes or facts disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.finding import Finding, Kind, Setting, Status, command
from checks.framework.needs import ContainerLimits, LaunchNeeds, RdmaUse
from checks.framework.unknown import Unknown
from checks.memory.judge import CHECKS as MAPPING_CHECKS
from checks.run_checks.facts import Facts
from checks.run_checks.runner import judge
from preflight.host_tuning.plan import plan, safer
from preflight.host_tuning.records import Plan, Planned, Scope
from tests.builders.plans import (
    anywhere,
    facts_on,
    finding,
    launch,
    of_settings,
    on_nodes,
    plain_facts,
    rank,
)
from tests.builders.synthetic import GIB, MIB
from tests.tables import each_row

MEMLOCK = Setting(Kind.ULIMIT, "memlock", "unlimited", "8388608")
NODES = "/sys/devices/system/node"
LIMITED = ContainerLimits("run.sh:3", "docker")


def named(found: Plan, name: str) -> Planned:
    (setting,) = (setting for setting in found.settings if setting.setting.name == name)
    return setting


# Settings from findings ------------------------------------------------------------------------


def test_what_passes_or_is_skipped_asks_for_nothing(tmp_path: Path) -> None:
    facts = plain_facts(tmp_path)
    setting = Setting(Kind.SYSCTL, "vm.overcommit_memory", "0", "2")
    for status in Status:
        names = {
            s.setting.name for s in plan(None, facts, [finding(setting, status=status)]).settings
        }
        wanting = status in (Status.FAIL, Status.UNKNOWN, Status.WARN)
        assert ("vm.overcommit_memory" in names) == wanting


def test_two_who_want_the_same_thing_are_one_setting_with_both_reasons(tmp_path: Path) -> None:
    found = plan(
        None,
        plain_facts(tmp_path),
        [
            finding(MEMLOCK._replace(wanted="1024"), "a.warns", Status.WARN),
            finding(MEMLOCK, "b.fails"),
        ],
    )
    planned = named(found, "memlock")
    assert (planned.setting.wanted, planned.setting.now) == ("unlimited", "8388608")
    assert [reason.check for reason in planned.reasons] == ["b.fails", "a.warns"]
    assert found.conflicts == ()


@each_row(
    ("kind", "name", "first", "second", "wanted"),
    [
        (Kind.SYSCTL, "vm.max_map_count", "65530", "262144", "262144"),
        (Kind.ULIMIT, "nofile", "65535", "1048576", "1048576"),
        (Kind.ULIMIT, "memlock", "9223372036854775807", "unlimited", "unlimited"),
        (Kind.CGROUP, "/sys/fs/cgroup/memory.max", "max", "1099511627776", "max"),
        # Less is what harms nobody: a policy that is off, a size that all paths carry.
        (Kind.SYSCTL, "vm.overcommit_memory", "0", "1", "0"),
        (Kind.ENVIRONMENT, "MC_MTU", "4096", "1024", "1024"),
        # Both parts are wanted.
        (Kind.SYSCTL, "net.ipv4.ip_local_reserved_ports", "80,50051", "80,9003", "80,9003,50051"),
        (Kind.CGROUP, "/sys/fs/cgroup/cpuset.mems", "1", "0", "0,1"),
    ],
)
def test_where_two_values_are_wanted_the_one_that_serves_both_is_taken(
    kind: Kind, name: str, first: str, second: str, wanted: str
) -> None:
    assert safer(kind, name, first, second) == (wanted, True)
    assert safer(kind, name, second, first) == (wanted, True)


def test_where_neither_serves_both_the_worse_finding_wins_and_it_is_said(tmp_path: Path) -> None:
    gid = Setting(Kind.ENVIRONMENT, "MC_GID_INDEX", "3")
    findings = [
        finding(gid._replace(wanted="1"), "rdma.warns", Status.WARN),
        finding(gid, "rdma.fails"),
    ]
    found = plan(None, plain_facts(tmp_path), findings)
    assert named(found, "MC_GID_INDEX").setting.wanted == "3"
    assert found.conflicts == (
        "MC_GID_INDEX: rdma.fails wants '3' and rdma.warns wants '1': the plan has the first",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "scope", "lasts"),
    [
        (Setting(Kind.FLAG, "--page-size", "64"), Scope.FLAG, True),
        (Setting(Kind.ENVIRONMENT, "MC_MTU", "1024"), Scope.ENVIRONMENT, True),
        (Setting(Kind.DEVICE, "/dev/x", "/dev/x"), Scope.CONTAINER, True),
        (Setting(Kind.CAPABILITY, "SYS_NICE", "added"), Scope.CONTAINER, True),
        (Setting(Kind.SECURITY, "seccomp", "unconfined"), Scope.CONTAINER, True),
        (MEMLOCK, Scope.RUNTIME, True),
        (Setting(Kind.ULIMIT, "memlock", "unlimited", unit="docker.service"), Scope.RUNTIME, True),
        (Setting(Kind.CGROUP, "/sys/fs/cgroup/a/memory.max", "max"), Scope.RUNTIME, False),
        (Setting(Kind.SYSCTL, "vm.overcommit_memory", "0"), Scope.NODE, False),
        (Setting(Kind.SYSFS, "/sys/kernel/mm/x", "1"), Scope.NODE, False),
        (Setting(Kind.SHM_SIZE, "/dev/shm", "1"), Scope.NODE, False),
        (Setting(Kind.MODULE, "ib_uverbs", ""), Scope.NODE, False),
        (Setting(Kind.PACKAGE, "numactl", "installed"), Scope.NODE, True),
        (command("rdma", "system", "set", "netns", "shared"), Scope.NODE, False),
        (Setting(Kind.KERNEL_ARGUMENT, "iommu", "pt"), Scope.BOOT, True),
    ],
)
def test_each_setting_says_who_sets_it_and_whether_a_reboot_keeps_it(
    setting: Setting, scope: Scope, lasts: bool, tmp_path: Path
) -> None:
    planned = named(of_settings(tmp_path, setting), setting.name)
    assert (planned.scope, planned.lasts) == (scope, lasts)
    assert planned.how


def test_in_a_container_its_own_limits_belong_to_its_description(tmp_path: Path) -> None:
    shm = Setting(Kind.SHM_SIZE, "/dev/shm", "1")
    findings = [finding(MEMLOCK), finding(shm)]
    found = plan(None, plain_facts(tmp_path, container="docker"), findings)
    scopes = [named(found, name).scope for name in ("memlock", "/dev/shm")]
    assert scopes == [Scope.CONTAINER, Scope.CONTAINER]
    assert named(found, "vm.max_map_count").scope is Scope.NODE


# Pools -----------------------------------------------------------------------------------------


def test_pools_are_planned_node_by_node_where_the_launch_binds(tmp_path: Path) -> None:
    found = plan(launch(on_nodes(100, 150)), facts_on(tmp_path), [])
    name = "hugepages/hugepages-2048kB/nr_hugepages"
    assert [(t.node, t.pages, t.now_pages) for t in found.pools] == [(0, 100, 0), (1, 150, 0)]
    assert named(found, f"{NODES}/node0/{name}").setting.wanted == "100"
    assert named(found, f"{NODES}/node1/{name}").setting.wanted == "150"
    assert all(not named(found, f"{NODES}/node{node}/{name}").lasts for node in (0, 1))
    # A pool that is large enough stays in the plan and is no change.
    facts = facts_on(tmp_path / "large", pools={2 * MIB: 300, GIB: 0})
    found = plan(launch(on_nodes(100, 150)), facts, [])
    assert [target.pages for target in found.pools] == [100, 150]
    assert not any(setting.change for setting in found.settings)


@pytest.mark.parametrize(
    ("files", "lasts", "how"),
    [
        ({}, False, "nobody sets it"),
        ({"/etc/sysctl.d/50-huge.conf": "vm.nr_hugepages = 99"}, False, "sets 99 pages"),
        ({"/etc/sysctl.d/50-huge.conf": "vm.nr_hugepages = 100"}, True, "50-huge.conf"),
    ],
)
def test_whether_pages_are_there_after_a_reboot_is_read_from_who_sets_them(
    files: dict[str, str], lasts: bool, how: str, tmp_path: Path
) -> None:
    found = plan(launch(anywhere(100)), plain_facts(tmp_path, files=files), [])
    setting = named(found, "vm.nr_hugepages")
    assert setting.lasts is lasts
    assert how in setting.how


def test_the_line_of_a_drop_in_is_no_setting_of_its_own(tmp_path: Path) -> None:
    """hugetlb.after-reboot says by a line what the plan says by whether the pool lasts."""
    line = Setting(Kind.BOOT_SYSCTL, "vm.nr_hugepages", "1")
    found = plan(None, plain_facts(tmp_path), [finding(line, "hugetlb.after-reboot")])
    assert found.of(Kind.BOOT_SYSCTL) == ()


def test_memory_that_is_not_there_makes_the_plan_impossible_now(tmp_path: Path) -> None:
    short = Finding("hugetlb.reservation", Status.FAIL, "2 MiB pages", "1 GiB", "2 GiB", text="no")
    facts = plain_facts(tmp_path)
    assert plan(None, facts, [short._replace(status=Status.WARN)]).impossible == ()
    assert plan(None, facts, [short]).impossible == ("2 MiB pages: have 1 GiB, need 2 GiB: no",)


# The launch in full ----------------------------------------------------------------------------


def test_a_launch_over_rdma_asks_for_all_that_its_container_needs(tmp_path: Path) -> None:
    """On a host where nothing is wrong: a rendering is for the next host too."""
    found = plan(launch(on_nodes(10, 20), rank(0), rank(1)), facts_on(tmp_path), [])
    devices = [f"/dev/infiniband/uverbs{number}" for number in range(8)]
    assert [s.name for s in found.of(Kind.DEVICE)] == ["/dev/infiniband/rdma_cm", *devices]
    assert [s.name for s in found.of(Kind.CAPABILITY)] == ["IPC_LOCK", "SYS_NICE"]
    assert found.value(Kind.ULIMIT, "memlock") == "unlimited"
    assert found.value(Kind.NETWORK, "network") == "host"
    assert found.value(Kind.GPUS, "gpus") == "2"
    assert found.value(Kind.HUGEPAGES, "2Mi") == str(30 * 2 * MIB)
    # 1 GiB each on regular pages, and 10 GiB of allowance each.
    assert found.value(Kind.MEMORY, "memory") == str(22 * GIB)
    assert found.gaps == ()


def test_only_the_nics_that_the_launch_uses_are_passed_on(tmp_path: Path) -> None:
    process = rank(rdma=RdmaUse(("mlx5_3",), "--disaggregation-ib-device"))
    found = plan(launch({}, process), facts_on(tmp_path), [])
    names = [setting.name for setting in found.of(Kind.DEVICE)]
    assert names == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs3"]
    process = rank(rdma=None, node=None, environment={"MOONCAKE_PROTOCOL": "tcp"})
    found = plan(launch({}, process), facts_on(tmp_path), [])
    assert found.of(Kind.ULIMIT, Kind.CAPABILITY, Kind.DEVICE, Kind.NETWORK) == ()


def test_the_hosts_shared_memory_or_a_size_never_both(tmp_path: Path) -> None:
    facts = plain_facts(tmp_path)
    size = Setting(Kind.SHM_SIZE, "/dev/shm", str(GIB), str(64 * MIB))
    for host_ipc in (True, False):
        container = LIMITED._replace(host_ipc=host_ipc)
        process = rank(rdma=None, container=container)
        found = plan(launch({}, process), facts, [finding(size)])
        assert bool(found.of(Kind.IPC)) == host_ipc
        assert bool(found.of(Kind.SHM_SIZE)) != host_ipc


@pytest.mark.parametrize("shm_bytes", [0, 64 * MIB, 3 * GIB])
def test_shared_memory_is_as_large_as_its_check_asks(shm_bytes: int, tmp_path: Path) -> None:
    """The arithmetic stands in the check; it must not drift from the plan's."""
    processes = [
        rank(number, rdma=None, shm_bytes=shm_bytes, container=LIMITED._replace(shm_bytes=1))
        for number in range(2)
    ]
    needs, facts = launch({}, *processes), plain_facts(tmp_path)
    (judged,) = judge(
        facts, needs, [check for check in MAPPING_CHECKS.problems if check.id == "shm.space"]
    )
    assert plan(needs, facts, []).value(Kind.SHM_SIZE, "/dev/shm") == judged.settings[0].wanted


def test_what_a_pod_has_too_little_of_is_a_change(tmp_path: Path) -> None:
    container = ContainerLimits(
        "pod.yaml:1", "kubernetes", memory_bytes=MIB, hugepages_bytes={2 * MIB: 18 * MIB}
    )
    enough = container._replace(memory_bytes=2 * GIB, hugepages_bytes={2 * MIB: 20 * MIB})
    for given_, change in ((container, True), (enough, False)):
        process = rank(rdma=None, node=None, container=given_)
        found = plan(launch(anywhere(10), process), plain_facts(tmp_path / str(change)), [])
        amounts = found.planned(Kind.HUGEPAGES, Kind.MEMORY)
        assert [setting.change for setting in amounts] == [change, change]


def test_the_environment_is_the_launchs_own_and_holds_no_secret(tmp_path: Path) -> None:
    environment = {
        "MC_MTU": "4096",
        "NCCL_IB_HCA": "mlx5",
        "MC_REDIS_PASSWORD": "hunter2",
        "HOME": "/root",
        "MOONCAKE_PREFLIGHT_MODE": "warn",
    }
    found = plan(launch({}, rank(rdma=None, environment=environment)), plain_facts(tmp_path), [])
    assert [s.name for s in found.of(Kind.ENVIRONMENT)] == ["MC_MTU", "NCCL_IB_HCA"]
    assert found.left_out == ("MC_REDIS_PASSWORD",)
    assert "hunter2" not in repr(found)


def test_a_container_is_given_nothing_of_another_container_s_process(tmp_path: Path) -> None:
    """A store's segment in the server's service would be a second segment, of each rank."""
    server = ContainerLimits("compose.yaml:9", "compose")
    beside = ContainerLimits("compose.yaml:4", "compose")
    environment = {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "100gb", "MC_STORE_USE_HUGEPAGE": "1"}
    own = rank(rdma=None, node=None, container=server, environment={"MC_MTU": "4096"})
    # The usage that launch() makes is named "rank": so is the process that takes it.
    store = own._replace(name="rank", environment=environment, container=beside)
    found = plan(launch(anywhere(10), own, store), plain_facts(tmp_path), [])
    assert [s.name for s in found.of(Kind.ENVIRONMENT)] == ["MC_MTU"]
    assert found.of(Kind.HUGEPAGES) == ()
    (said,) = found.conflicts
    assert said.endswith("rank: in containers of their own, and not in it")
    # The pool is the host's, whichever container takes it.
    assert any(s.name.endswith("nr_hugepages") for s in found.of(Kind.SYSCTL, Kind.SYSFS))


def test_processes_with_different_values_are_a_conflict_that_is_said(tmp_path: Path) -> None:
    processes = [
        rank(number, rdma=None, environment={"MOONCAKE_MASTER": f"10.0.0.{number}:1"})
        for number in range(2)
    ]
    found = plan(launch({}, *processes), plain_facts(tmp_path), [])
    assert found.value(Kind.ENVIRONMENT, "MOONCAKE_MASTER") == "10.0.0.0:1"
    (conflict,) = found.conflicts
    assert "10.0.0.1:1" in conflict
    # A finding that mends one is none.
    mended = Setting(Kind.ENVIRONMENT, "MC_MTU", "1024", "4096")
    process = rank(rdma=None, environment={"MC_MTU": "4096"})
    found = plan(launch({}, process), plain_facts(tmp_path), [finding(mended)])
    assert (named(found, "MC_MTU").setting.wanted, found.conflicts) == ("1024", ())


def test_what_our_own_drop_in_sets_is_kept(tmp_path: Path) -> None:
    """A second plan, after the check passes, must not drop what the first one set."""
    kept = {"vm.overcommit_memory": "0", "vm.max_map_count": "1048576", "vm.nr_hugepages": "7"}
    found = plan(None, plain_facts(tmp_path), [], kept)
    assert found.value(Kind.SYSCTL, "vm.overcommit_memory") == "0"
    assert found.value(Kind.SYSCTL, "vm.max_map_count") == "1048576"
    assert found.value(Kind.SYSCTL, "vm.nr_hugepages") is None
    assert named(found, "vm.overcommit_memory").lasts


# What is not known -----------------------------------------------------------------------------
UNSET = Unknown("MODEL is not set")
DEVICES = RdmaUse(Unknown("DEVICES is not set"), "run.sh:2")


@pytest.mark.parametrize(
    ("needs", "topics", "reason"),
    [
        (
            launch({}, rank(regular_bytes=UNSET))._replace(usages=UNSET),
            *(["pages", "memory"], "MODEL is not set"),
        ),
        (launch({}, rank(rdma=DEVICES)), ["devices"], "DEVICES is not set"),
        (launch(anywhere(1, 512 * MIB)), ["pages"], "hugepages-524288kB"),
        (launch(on_nodes(1, 1, 1)), ["pages"], "no pool of node 2"),
    ],
)
def test_what_is_not_known_of_a_launch_or_not_there_is_a_gap(
    needs: LaunchNeeds, topics: list[str], reason: str, tmp_path: Path
) -> None:
    found = plan(needs, facts_on(tmp_path), [])
    assert [gap.topic for gap in found.gaps] == topics
    assert all(reason in gap.reason for gap in found.gaps)
    assert "devices" not in topics or found.of(Kind.DEVICE) == ()


def test_topics_that_were_not_read_are_gaps_and_no_failure() -> None:
    found = plan(launch(anywhere(1)), Facts({}), [])
    assert {gap.topic for gap in found.gaps} == {"pages", "devices"}
    assert found.pools == ()
