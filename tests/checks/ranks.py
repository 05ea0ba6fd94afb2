"""Needs of a launch for tests of checks: eight SGLang ranks, one per GPU, four on each node."""

from typing import Any

from checks.framework.needs import LaunchNeeds, ProcessNeeds, RdmaUse
from checks.framework.pages import Region

MIB = 1 << 20
GIB = 1 << 30
POOL = Region("L2 host pool", 28 * GIB, 2 * MIB)
SHARED = Region("global segment", 4 * GIB, 2 * MIB)  # over two nodes


def rank(number: int, **changes: Any) -> ProcessNeeds:
    """Rank ``number``, bound to its GPU's node, with all NICs by Mooncake's own discovery."""
    process = ProcessNeeds(
        f"rank {number}",
        "sglang",
        {},
        node=number // 4,
        gpu=number,
        rdma=RdmaUse((), "Mooncake's own discovery"),
        regions=(POOL, SHARED),
        regular_bytes=10 * GIB,
        segment_nodes=(0, 1),
    )
    return process._replace(**changes)


def launch(
    *processes: ProcessNeeds, sglang: str = "0.5.23", mooncake: str = "0.3.13.post1"
) -> LaunchNeeds:
    """A launch of ``processes``."""
    return LaunchNeeds("test", processes, (), mooncake_version=mooncake, sglang_version=sglang)


def ranks(count: int = 8, **changes: Any) -> tuple[ProcessNeeds, ...]:
    """Ranks 0 to ``count`` - 1, all with ``changes``."""
    return tuple(rank(number, **changes) for number in range(count))
