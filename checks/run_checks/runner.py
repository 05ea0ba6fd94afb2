"""Holds facts against needs: every check answers, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from checks.framework.check import Check, CheckSet, Judge, Page
from checks.framework.finding import Consequence, Finding, Kind, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.unknown import UnreadTopicError
from checks.run_checks.facts import Facts

# The modules that declare checks, in the order in which ``explain`` lists them.
CHECK_MODULES = (
    "checks.hugetlb.pool_checks",
    "checks.memory.judge",
    "checks.memlock.judge",
    "checks.limits.judge",
    "checks.rdma.device_checks",
    "checks.rdma.reach_checks",
    "checks.rdma.fork",
    "checks.rdma.capacity_checks",
    "checks.rdma.gid_checks",
    "checks.placement.node_checks",
    "checks.gpu.judge",
    "checks.placement.pci_checks",
    "checks.software.software_checks",
    "checks.system.judge",
    "checks.network.network_checks",
    "checks.storage.folders",
)


def every_check() -> Iterator[tuple[Check, Judge]]:
    """Yield all checks.

    A module that cannot be loaded yields a check that is always unknown.
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
    """Return a check that is always unknown, for a module that cannot be loaded.

    Args:
        reason: Why not.
    """
    topic = module.rpartition(".")[2].removesuffix("_checks").replace("_", "-")
    page = Page(
        f"Can the checks of {topic} be loaded?",
        Consequence.WILL_NOT_START,
        f"The module {module} cannot be loaded, so nothing that it would look at was looked at.",
        ((Status.UNKNOWN, "always: the module is missing or broken"),),
        "reinstall mooncake-preflight",
        module,
    )
    check = Check(f"{topic}.not-loaded", (), page)

    def judge_nothing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
        text = f"none of its checks was made: {module}: {reason}"
        yield Finding(check.id, Status.UNKNOWN, topic, text=text, advice=page.remedy)

    return check, judge_nothing


def _with_runtime(finding: Finding, runtime: str) -> Finding:
    """Return the finding with its environment variables marked as set by ``runtime``, if any."""
    if not runtime or not finding.settings:
        return finding
    settings = tuple(
        setting._replace(described_by=runtime) if setting.kind is Kind.ENVIRONMENT else setting
        for setting in finding.settings
    )
    return finding._replace(settings=settings)


def judge(
    facts: Facts, needs: LaunchNeeds | None, checks: Iterable[tuple[Check, Judge]]
) -> list[Finding]:
    """Return the findings of all ``checks``, in order.

    A check that raises, says nothing, or whose topic was not read, gives one unknown finding.

    If all processes have one runtime, the variables that findings ask to set are marked with it.
    """
    findings: list[Finding] = []
    runtimes = {process.runtime for process in needs.processes} if needs is not None else set()
    runtime = runtimes.pop() if len(runtimes) == 1 else ""
    for check, judge_one in checks:
        try:
            check_findings = list(judge_one(facts, needs))
        except UnreadTopicError as missing:
            check_findings = [Finding(check.id, Status.UNKNOWN, "host", text=str(missing))]
        except Exception as error:  # a defect of one check must not hide the others
            text = f"defect of this check: {type(error).__name__}: {error}"
            check_findings = [Finding(check.id, Status.UNKNOWN, "host", text=text)]
        # A check that says nothing would be a silent pass.
        findings += [_with_runtime(finding, runtime) for finding in check_findings] or [
            Finding(check.id, Status.UNKNOWN, "host", text="gave no answer")
        ]
    return findings
