"""Plans for tests: launches by hand on synthetic hosts, and settings made up one by one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from checks.framework.finding import Finding, Setting, Status
from checks.framework.needs import LaunchNeeds, ProcessNeeds, RdmaUse
from checks.framework.pages import Spot
from checks.run_checks.facts import Facts
from preflight.host_tuning.plan import plan
from preflight.host_tuning.records import Plan
from tests.builders.synthetic import GIB, MIB, SyntheticHost, gpu_host, plain_host, read_host
from tests.checks.launches import usage

PAGE = 2 * MIB
ENVIRONMENT = {"MC_STORE_USE_HUGEPAGE": "1", "MOONCAKE_MASTER": "10.0.0.1:50051", "HOME": "/root"}


_READ: dict[str, Facts] = {}


def rank(number: int = 0, **changes: Any) -> ProcessNeeds:
    """A rank that registers memory with the NICs that Mooncake finds."""
    process = ProcessNeeds(
        f"rank {number}",
        "sglang",
        ENVIRONMENT,
        node=number,
        gpu=number,
        rdma=RdmaUse((), "Mooncake's own discovery"),
        regular_bytes=GIB,
    )
    return process._replace(**changes)


def launch(pages: Mapping[Spot, int], *processes: ProcessNeeds, **more: Any) -> LaunchNeeds:
    """A launch that takes ``pages``; one rank where no process is given."""
    return LaunchNeeds("run.sh", processes or (rank(),), (usage(pages),), **more)


def on_nodes(*pages: int, page_bytes: int = PAGE) -> dict[Spot, int]:
    """So many pages bound to node 0, 1, ..."""
    return {Spot(page_bytes, node): count for node, count in enumerate(pages)}


def anywhere(pages: int, page_bytes: int = PAGE) -> dict[Spot, int]:
    return {Spot(page_bytes, None): pages}


def facts_on(path: Path, host: SyntheticHost | None = None, **changes: Any) -> Facts:
    """Of ``gpu_host``: two nodes, 8 GPUs, 8 NICs, empty pools of 2 MiB and 1 GiB. Each is read
    once, and written below the ``path`` that comes first."""
    described = replace(host or gpu_host(), **changes)
    key = repr(described)
    if key not in _READ:
        _READ[key] = read_host(path, described)
    return _READ[key]


def plain_facts(path: Path, **changes: Any) -> Facts:
    return facts_on(path, plain_host(), **changes)


def finding(setting: Setting, check: str = "test.one", status: Status = Status.FAIL) -> Finding:
    return Finding(check, status, "it", "1", "2", text="so it is", settings=(setting,))


def of_settings(path: Path, *settings: Setting) -> Plan:
    """A plan with nothing but ``settings``, and what every plan has."""
    return plan(None, plain_facts(path), [finding(setting) for setting in settings])


def environment_plan(facts: Facts, variables: Mapping[str, str]) -> Plan:
    """A plan of a launch that has ``variables``."""
    process = rank(environment=variables, rdma=None)
    return plan(launch({}, process), facts, [])
