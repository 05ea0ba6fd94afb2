"""Holds facts against needs: every check answers, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from checks.facts import Facts, TopicUnknownError
from checks.finding import Check, CheckSet, Consequence, Finding, Judge, Status
from checks.launch_needs import LaunchNeeds

# The modules that declare checks, in the order in which ``list`` shows them.
CHECK_MODULES = (
    "checks.hugetlb_checks",
    "checks.hugetlb_host_checks",
    "checks.memory_checks",
    "checks.mapping_checks",
    "checks.memlock_checks",
    "checks.user_namespace_checks",
    "checks.runtime_limit_checks",
    "checks.inert_capability_checks",
    "checks.limits_checks",
    "checks.thread_checks",
    "checks.rdma_checks",
    "checks.rdma_kind_checks",
    "checks.rdma_port_checks",
    "checks.rdma_reach_checks",
    "checks.rdma_fork_checks",
    "checks.rdma_limit_checks",
    "checks.rdma_region_checks",
    "checks.gid_checks",
    "checks.numa_policy_checks",
    "checks.cpuset_checks",
    "checks.numa_placement_checks",
    "checks.topology_checks",
    "checks.gpu_checks",
    "checks.gpu_sharing_checks",
    "checks.nvlink_checks",
    "checks.peer_memory_checks",
    "checks.pci_checks",
    "checks.mooncake_install_checks",
    "checks.library_checks",
    "checks.version_skew_checks",
    "checks.numactl_checks",
    "checks.system_checks",
    "checks.network_checks",
    "checks.service_checks",
    "checks.storage_checks",
)


def every_check() -> Iterator[tuple[Check, Judge]]:
    """All checks of the host, declared in ``CHECK_MODULES``.

    A module that cannot be loaded stands for its checks as one that is always unknown: checks that
    vanish would be passes.
    """
    for module in CHECK_MODULES:
        yield from _checks_of(module)


def _checks_of(module: str) -> list[tuple[Check, Judge]]:
    try:
        checks: CheckSet = import_module(module).CHECKS
    except Exception as error:  # a broken installation must not hide what it cannot check
        return [_not_loaded(module, f"{type(error).__name__}: {error}")]
    return checks.checks


def _not_loaded(module: str, reason: str) -> tuple[Check, Judge]:
    topic = module.rpartition(".")[2].removesuffix("_checks").replace("_", "-")
    check = Check(
        f"{topic}.not-loaded",
        f"Can the checks of {topic} be loaded?",
        Consequence.WILL_NOT_START,
        f"The module {module} cannot be loaded, so nothing that it would look at was looked at.",
        ((Status.UNKNOWN, "always: the module is missing or broken"),),
        "reinstall mooncake-preflight",
        module,
        (),
    )

    def judge_nothing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
        text = f"none of its checks was made: {module}: {reason}"
        yield Finding(check.id, Status.UNKNOWN, topic, text=text, advice=check.remedy)

    return check, judge_nothing


def judge(
    facts: Facts, needs: LaunchNeeds | None, checks: Iterable[tuple[Check, Judge]]
) -> list[Finding]:
    """What ``checks`` find. One that fails, or whose topic was not read, is unknown."""
    findings: list[Finding] = []
    for check, judge_one in checks:
        try:
            found = list(judge_one(facts, needs))
        except TopicUnknownError as missing:
            found = [Finding(check.id, Status.UNKNOWN, "host", text=str(missing))]
        except Exception as error:  # a defect of one check must not hide the others
            text = f"defect of this check: {type(error).__name__}: {error}"
            found = [Finding(check.id, Status.UNKNOWN, "host", text=text)]
        # A check that says nothing would be a silent pass.
        findings += found or [Finding(check.id, Status.UNKNOWN, "host", text="gave no answer")]
    return findings
