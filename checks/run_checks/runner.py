"""Holds facts against needs: every check answers, whatever happens to the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module

from checks.framework.finding import Consequence, Finding, Kind, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.problem import Page, Problem, Problems
from checks.framework.unknown import Unknown, UnreadTopic
from checks.run_checks.facts import READERS, Facts

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


# Where the packages of ``CHECK_MODULES`` lie.
_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def page_ids(modules: Iterable[str] | None = None) -> Iterator[str]:
    """Yield the ids of all checks, or of those in the folders of ``modules``, by their pages.

    Nothing is imported.
    """
    for folder in dict.fromkeys(module.rpartition(".")[0] for module in modules or CHECK_MODULES):
        names = os.listdir(os.path.join(_FOLDER, *folder.split(".")))
        ids = (name[: -len(".md")] for name in sorted(names) if name.endswith(".md"))
        yield from (id_ for id_ in ids if "." in id_)


def every_check(takes: Callable[[str], bool] | None = None) -> Iterator[Problem]:
    """Yield all checks, or those whose id ``takes`` tells; folders without one are not imported.

    A module that cannot be loaded yields a check that is always unknown.
    """
    for module in CHECK_MODULES:
        ids = () if takes is None else tuple(page_ids((module,)))
        if takes is None or not ids or any(map(takes, ids)):
            yield from _checks_of(module, takes)


def _checks_of(module: str, takes: Callable[[str], bool] | None) -> list[Problem]:
    try:
        checks: Problems = import_module(module).CHECKS
    except Exception as error:  # a broken installation must not hide what it cannot check
        return [_not_loaded(module, f"{type(error).__name__}: {error}")]
    return [check for check in checks.problems if takes is None or takes(check.id)]


def _not_loaded(module: str, reason: str) -> Problem:
    """Return a check that is always unknown, for a module that cannot be loaded.

    Args:
        reason: Why not.
    """
    topic = module.rpartition(".")[2].removesuffix("_checks").replace("_", "-")
    page = Page(
        asks=f"Can the checks of {topic} be loaded?",
        why=f"The module {module} cannot be loaded: nothing that it would look at was looked at.",
        outcomes=((Status.UNKNOWN, "always: the module is missing or broken"),),
        follows=Consequence.WILL_NOT_START.value,
        remedy="reinstall mooncake-preflight",
        source=module,
        consequences=(Consequence.WILL_NOT_START,),
    )

    def judge_nothing() -> Iterator[Finding]:
        text = f"none of its checks was made: {module}: {reason}"
        yield Finding("", Status.UNKNOWN, topic, text=text, advice=page.remedy)

    return Problem(f"{topic}.not-loaded", page, function=judge_nothing)


def _with_runtime(finding: Finding, runtime: str) -> Finding:
    """Return the finding with its environment variables marked as set by ``runtime``, if any."""
    if not runtime or not finding.settings:
        return finding
    settings = tuple(
        setting._replace(described_by=runtime) if setting.kind is Kind.ENVIRONMENT else setting
        for setting in finding.settings
    )
    return finding._replace(settings=settings)


def judge(facts: Facts, needs: LaunchNeeds | None, checks: Iterable[Problem]) -> list[Finding]:
    """Return the findings of all ``checks``, in order.

    A check that raises, says nothing, or whose topic was not read, gives one unknown finding.

    If all processes have one runtime, the variables that findings ask to set are marked with it.
    """
    findings: list[Finding] = []
    runtimes = {process.runtime for process in needs.processes} if needs is not None else set()
    runtime = runtimes.pop() if len(runtimes) == 1 else ""
    topics = {name: facts.topic(name) for name in READERS}
    read = {n: UnreadTopic(t) if isinstance(t, Unknown) else t for n, t in topics.items()}
    given = {**read, "needs": needs}
    for check in checks:
        # A check that says nothing would be a silent pass.
        said = [_with_runtime(each, runtime) for each in check.judge(given)]
        findings += said or [Finding(check.id, Status.UNKNOWN, "host", text="gave no answer")]
    return findings
