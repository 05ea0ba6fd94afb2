"""How the router of a launch spreads requests over its servers."""

from __future__ import annotations

from typing import NamedTuple

from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.deployment import parse_part
from preflight.cache_sizing.traces.tiers import Routing
from preflight.engines.programs.mooncake_flags import value_of
from preflight.engines.programs.sglang_arguments import why_unresolved
from preflight.launches.source import Word
from preflight.processes.processes import LaunchProcess, ProcessKind, with_router


class Router(NamedTuple):
    """How the launch's router spreads requests over its servers.

    Attributes:
        origin: The flag of the policy with file and line, or the text that the policy is a default.
    """

    routing: Routing
    origin: str
    notes: tuple[str, ...] = ()


# sglang_router's policies (router_args.py, sgl-model-gateway/src/policies).
_POLICIES = {"cache_aware": "cache-aware", "round_robin": "round-robin"}
_POLICIES |= {"random": "random", "power_of_two": "random"}
_POLICIES |= {"manual": "sticky", "consistent_hashing": "sticky"}
_DEFAULT_POLICY = "cache_aware"
_BALANCING = (
    "the router's own view of load is not modelled: requests come one after the other, so its "
    "balancing (--balance-abs-threshold) never acts"
)


def router_of(processes: tuple[LaunchProcess, ...]) -> Router | None:
    """Read how the launch's first router, or server with a router, spreads requests; None without
    one.

    Raises:
        UsageError: For an invalid threshold.
    """
    for process in processes:
        argv, prefix = process.arguments, ""
        if process.kind is not ProcessKind.ROUTER:
            if process.server is None or not with_router(process.command):
                continue
            argv, prefix = process.command.words, "router_"
        policy = value_of(argv, f"{prefix}prefill_policy") or value_of(argv, f"{prefix}policy")
        threshold = value_of(argv, f"{prefix}cache_threshold")
        return _router(process, policy, threshold)
    return None


def _router(process: LaunchProcess, policy: Word | None, threshold: Word | None) -> Router:
    """Return the Router for the values of two flags, None if not given.

    An unknown policy is taken for cache_aware, with a note.

    Raises:
        UsageError: For a threshold outside 0 to 1.
    """
    origin = f"--policy at {policy.origin}" if policy else f"{process.name}'s default"
    name = policy.text.replace("-", "_") if policy and not policy.unresolved else _DEFAULT_POLICY
    how, notes = _POLICIES.get(name), []
    if policy is not None and policy.unresolved:
        notes.append(f"the router's {why_unresolved(policy).reason}: {name} is taken")
    if how is None:
        how = "cache-aware"
        notes.append(f"the router's policy {name}: it is taken for cache_aware")
    also = ", and power_of_two is random" if name == "power_of_two" else ""
    notes.append(f"{_BALANCING}{also}")
    if threshold is None or threshold.unresolved:
        return Router(Routing(how), origin, tuple(notes))
    part = parse_part(threshold.text)
    if part is None:
        raise UsageError(
            f"--cache-threshold {threshold.text} at {threshold.origin}: must be a part of the "
            "prompt, 0 to 1, such as 0.3"
        )
    return Router(Routing(how, part), origin, tuple(notes))
