"""Rehearses processes that no launch expresses: as they are given, and judged as a launch's are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checks.framework.root import Root
    from preflight.benchmark.rehearsal.records import Library, RehearsalPlan
    from preflight.benchmark.rehearsal.rehearse import RehearsalAnswer

MIB = 1 << 20
# Of one step. A segment of 4 GiB takes some 20 seconds, more where other guests run beside.
LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Staged:
    """One process.

    clients: (segment, local buffer) in bytes of each of its stores; of a rank without a segment of
    its own (``dummy``) the local buffer counts. arguments: mooncake_client's."""

    name: str
    program: str = "sglang"
    pools_bytes: tuple[int, ...] = ()
    clients: tuple[tuple[int, int], ...] = ()
    dummy: bool = False
    protocol: str = "rdma"
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()


def rehearse_staged(
    processes: Iterable[Mapping[str, Any]], pools: Iterable[int], nic_nodes: Iterable[int]
) -> int:
    """Print the answer as ``rehearse --json`` does; returns its exit code.

    processes: as ``Staged`` has them. pools: pages of 2 MiB on each node. The rest of the host, and
    the library, are what this process finds."""
    from checks.framework.root import Root
    from preflight.benchmark.rehearsal.records import Library, find_library
    from preflight.benchmark.rehearsal.rehearse import judge
    from preflight.benchmark.rehearsal.run import run

    library = find_library(None)
    assert isinstance(library, Library), library
    plan = staged_plan(processes, pools, nic_nodes, library, Root(), os.environ)
    answer = judge(plan, run(plan, Root(), LIMIT_SECONDS, lambda _: None))
    print(json.dumps(whole_answer(answer)))
    return answer.exit_code


def whole_answer(answer: RehearsalAnswer) -> dict[str, Any]:
    """Return the object that ``rehearse --json`` prints."""
    from preflight.base.envelope import envelope
    from preflight.benchmark.rehearsal.rehearse import answer_object

    found, code = answer_object(answer), answer.exit_code
    return envelope(
        "rehearse", code, found, word=answer.status, reason=answer.reason, command="rehearse"
    )


def staged_plan(
    processes: Iterable[Mapping[str, Any]],
    pools: Iterable[int],
    nic_nodes: Iterable[int],
    library: Library,
    root: Root,
    environment: Mapping[str, str],
) -> RehearsalPlan:
    """Return what is to be done on the host of ``root``, for processes with ``environment``."""
    from checks.framework.needs import LaunchNeeds, ProcessNeeds, RdmaUse
    from checks.framework.pages import Spot
    from checks.hugetlb.fit import Stock
    from checks.releases.mooncake import mooncake_release
    from checks.run_checks.facts import read_facts
    from preflight.benchmark.rehearsal.plan import member_of, plan_members
    from preflight.engines.mooncake.allocations import all_regions_of
    from preflight.engines.mooncake.replay import replay_endless
    from preflight.engines.programs.memory_records import (
        Launch,
        MappedProcess,
        Protocol,
        StoreClient,
    )
    from preflight.engines.programs.store_environment import read_store_settings

    mooncake = mooncake_release(library.version)
    given = [Staged(**process) for process in processes]
    environments = [{**environment, **dict(one.environment)} for one in given]
    launch = Launch(
        tuple(
            MappedProcess(
                one.name,
                read_store_settings(own, mooncake)[0],
                tuple(one.pools_bytes),
                tuple(
                    StoreClient(segment, local, Protocol(one.protocol), dummy=one.dummy)
                    for segment, local in one.clients
                ),
            )
            for one, own in zip(given, environments, strict=True)
        ),
        mooncake,
        tuple(sorted(set(nic_nodes))),
    )
    needs = LaunchNeeds(
        "staged",
        tuple(
            ProcessNeeds(
                one.name,
                one.program,
                own,
                rdma=RdmaUse((), "staged") if one.protocol == "rdma" else None,
                regions=tuple(all_regions_of(asked.allocations)),
            )
            for one, own, asked in zip(given, environments, replay_endless(launch), strict=True)
        ),
        (),
        mooncake_version=library.version,
    )
    facts = read_facts(root, needs, 30, topics=("system", "limits", "rdma"))
    members = [
        member_of(need, process, tuple(one.arguments), facts, needs)
        for one, need, process in zip(given, needs.processes, launch.processes, strict=True)
    ]
    pages = tuple(pools)
    stock = {Spot(2 * MIB, node): Stock(count, count) for node, count in enumerate(pages)}
    stock[Spot(2 * MIB, None)] = Stock(sum(pages), sum(pages))
    return plan_members(members, launch, stock, library)
