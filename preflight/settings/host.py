"""The plan of a launch on a host, from the command line's words: reads the host once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.run.judging import every_check
from preflight.check.judged_host import judged
from preflight.inputs.host_source import LaunchWords
from preflight.settings.formats import is_ours
from preflight.settings.launch import is_read, main_container
from preflight.settings.plan import SYSCTL_FILE, plan
from preflight.settings.records import TOPICS, Gap, Plan, Workload

if TYPE_CHECKING:
    from checks.base.needs import LaunchNeeds
    from preflight.sizing.source_sizing import SourceSizing


def plan_of(words: LaunchWords, root: str, timeout_seconds: float) -> Plan:
    """Raises UsageError for what is no launch or no host."""
    seen = judged(words, root, timeout_seconds, list(every_check()))
    unread: list[Gap] = []
    if isinstance(seen.launch, Unknown):
        unread = [Gap(topic, seen.launch.reason) for topic in TOPICS]
    elif seen.launch is not None:
        unread = unresolved(seen.launch.sizing)
    found = plan(seen.needs, seen.facts, seen.findings, kept_settings(seen.host.root), unread)
    if seen.launch is None or isinstance(seen.launch, Unknown):
        return found
    return found._replace(workload=workload_of(seen.launch.needs, seen.launch.sizing))


def workload_of(needs: LaunchNeeds, sizing: SourceSizing) -> Workload:
    """The object and container of a manifest, or the service of a compose file, of the ranks."""
    container = main_container(needs)
    if container is None:
        return Workload()
    for process in sizing.inputs.processes:
        if str(process.command.origin) != container.origin or not process.command.wrappers:
            continue
        outer = process.command.wrappers[0]
        if outer[0] == "kubernetes" and len(outer) > 2:
            return Workload(outer[1].partition("/")[0], outer[-1])
        if outer[:3] == ("docker", "compose", "up"):
            return Workload("", outer[-1])
    return Workload()


def unresolved(sizing: SourceSizing) -> list[Gap]:
    """Variables of the launch whose value stands in another that nobody sets."""
    return [
        Gap("environment", f"{name}={word.text}: {', '.join(word.unresolved)} is not set")
        for process in sizing.inputs.processes
        for name, word in process.command.environment.items()
        if word.unresolved and is_read(name)
    ]


def kept_settings(root: Root) -> dict[str, str]:
    """What our own drop-in sets, so that writing it anew drops and lowers nothing."""
    content = root.text(SYSCTL_FILE)
    if isinstance(content, Unknown) or not is_ours(content):
        return {}
    lines = [line.partition("=") for line in content.splitlines() if not line.startswith("#")]
    return {name.strip(): value.strip() for name, equals, value in lines if equals and value}
