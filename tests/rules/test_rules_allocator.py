"""Rules about segments of a master that takes cachelib, which cuts them into slabs of 16 MiB."""

from __future__ import annotations

import pytest

from preflight.rules.launch_rules import findings
from tests.builders.launch_text import MASTER, STORE, understood
from tests.builders.rule_examples import Example, Line, name_of, prove

CACHELIB = "mooncake_master --memory_allocator=cachelib"
SIZE, BASE = "segment-not-slabs", "segment-base-unaligned"


def server(size: str, **more: str) -> Line:
    """Eight ranks, which divide it."""
    return (STORE, {**MASTER, "MOONCAKE_GLOBAL_SEGMENT_SIZE": size, **more})


EXAMPLES = [
    Example(SIZE, "a client mounts 2147483649 bytes").of(
        (CACHELIB, server("17179869192")), (CACHELIB, server("16gb"))
    ),
    Example(SIZE, "a client mounts 2149580800 bytes (2.00 GiB)").of(
        (CACHELIB, server("17179869192", MC_STORE_USE_HUGEPAGE="1")),
        (CACHELIB, server("16gb", MC_STORE_USE_HUGEPAGE="1", MC_STORE_HUGEPAGE_SIZE="1GB")),
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_rule_finds_what_is_wrong_and_nothing_where_it_is_right(example: Example) -> None:
    """Each was seen with the real master of 0.3.13.post1."""
    prove(example)


@pytest.mark.parametrize(
    "lines",
    [
        (CACHELIB, server("0")),
        (CACHELIB, server("$SIZE")),
        ("mooncake_master --memory_allocator=$KIND", server("1000000001")),
        (f"{CACHELIB} --memory_allocator=offset", server("1000000001")),
        (CACHELIB, (f"{STORE} --pp-size 3", {**MASTER, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "24gb"})),
    ],
)
def test_what_is_not_certain_is_not_refused(lines: tuple[Line, ...]) -> None:
    """No segment, a variable, another allocator, and a division in which releases differ."""
    assert {f.rule.id for f in findings(understood(*lines))}.isdisjoint({SIZE, BASE})
