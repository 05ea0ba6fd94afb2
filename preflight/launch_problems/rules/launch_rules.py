"""All rules about a launch, and what they find in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checks.framework.finding import Consequence
from checks.framework.problem import Match, Problem, Severity
from checks.releases.mooncake import MooncakeRelease
from preflight.engines.sglang.pools import ServerMemory
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules import (
    consumers,
    hicache,
    memory,
    programs,
    store,
    tier_use,
    variables,
)
from preflight.launch_problems.rules.rules import Versions
from preflight.needs.chosen_releases import doubts
from preflight.needs.launch_sizing import LaunchInputs, LaunchSizing
from preflight.processes.processes import LaunchProcess

# What is equally bad is told in this order.
DECLARED: tuple[Problem, ...] = tuple(
    problem
    for each in (
        *(memory.REFUSED, programs.REFUSED, hicache.RULES, store.RULES, store.DEVICES),
        *(variables.RULES, tier_use.OFFLOAD, tier_use.RULES, tier_use.RELEASED),
        *(programs.RULES, memory.RULES, consumers.RULES),
    )
    for problem in each.problems
)
# By id: several functions may find one problem.
RULES = {problem.id: problem for problem in DECLARED}
_WORST_FIRST = tuple(Severity)  # in the order in which they are declared


def findings(
    processes: tuple[LaunchProcess, ...],
    servers: Sequence[tuple[SglangServer, Versions]] = (),
    mooncake: MooncakeRelease | None = None,
    mooncake_version: str = "",
    host_pools: Mapping[int, ServerMemory] | None = None,
    rules: Sequence[Problem] = DECLARED,
) -> tuple[Match, ...]:
    """Return what ``rules`` find, the worst first.

    Args:
        servers: Those that the rules about a server's model and releases judge.
        mooncake: Without it, rules about the release find nothing.
        mooncake_version: "" if it is not known for certain: rules that need it find nothing.
        host_pools: Of each server, by the number of its process.
    """
    about = {"mooncake": mooncake, "mooncake_version": mooncake_version, "host_pools": host_pools}
    launch = {"processes": processes, **{name: value for name, value in about.items() if value}}
    each: list[dict[str, Any]] = [
        {"process": process, "server": process.server, "origin": process.command.origin}
        | {"store": process.server and process.server.store}
        for process in processes
    ]
    every = [match for rule in rules for match in rule.answers(launch, each)]
    of_models = [rule for rule in rules if "versions" in rule.about]
    for server, versions in servers:
        one = {"server": server, "versions": versions, "origin": server.command.origin}
        every += [match for rule in of_models for match in rule.answers({}, [one])]
    return tuple(sorted(every, key=lambda match: _WORST_FIRST.index(match.severity)))


def problems_of(
    inputs: LaunchInputs, takes: Callable[[str], bool] = lambda _: True
) -> tuple[Match, ...]:
    """Return what all rules find in a launch, the worst first.

    Args:
        takes: Tells which rules, by their ids.
    """
    rules = [rule for rule in DECLARED if takes(rule.id)]
    mooncake, sglang = (inputs.releases[f"{name}_version"] for name in ("mooncake", "sglang"))
    unsure = doubts(sglang, mooncake)
    servers = [
        (p.server, Versions(inputs.geometry[p.number], inputs.sglang, inputs.mooncake, *unsure))
        for p in inputs.processes
        if p.server
    ]
    version = "" if mooncake.assumed else str(mooncake.value)
    return findings(inputs.processes, servers, inputs.mooncake, version, inputs.memory, rules)


def first_failure(found: Sequence[Match]) -> Match | None:
    """Return the first that keeps a process from starting, or None."""
    return next((match for match in found if match.severity is Severity.FAIL), None)


def with_problems(sizing: LaunchSizing) -> LaunchSizing:
    """Return the sizing with what the rules find.

    It fails if that keeps a process from starting: what memory it would take is then of no account.
    """
    sizing = sizing._replace(problems=problems_of(sizing.inputs))
    if (refused := first_failure(sizing.problems)) is None:
        return sizing
    sizing = sizing._replace(status="fails", reason=refused.text, regular_bytes=None)
    return sizing._replace(consequence=Consequence.WILL_NOT_START)
