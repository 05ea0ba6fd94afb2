"""The plan as an object: what it holds, why, and what it does where wishes or facts disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.finding import Kind, Setting, Status, command
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
LIMITED = ContainerLimits("run.sh:3", "docker")


def named(found: Plan, name: str) -> Planned:
    (setting,) = (setting for setting in found.settings if setting.setting.name == name)
    return setting


# Settings from findings ------------------------------------------------------------------------


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


# Pools -----------------------------------------------------------------------------------------


# The launch in full ----------------------------------------------------------------------------


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
