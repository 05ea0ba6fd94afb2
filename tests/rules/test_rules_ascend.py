"""The one rule about Ascend NPUs."""

from __future__ import annotations

import pytest

from tests.builders.launch_text import MASTER, STORE
from tests.builders.rule_examples import Example, Line, name_of, prove

ID = "ascend-host-memory"


def server(size: str, protocol: str = "ascend") -> Line:
    """Eight ranks, which divide it."""
    variables = {"MOONCAKE_GLOBAL_SEGMENT_SIZE": size, "MOONCAKE_PROTOCOL": protocol}
    return (STORE, {**MASTER, **variables})


EXAMPLES = [
    Example(ID, "32.00 GiB a client", (server("256gb"),), (server("160gb"),)),
    Example(ID, "32.00 GiB a client", (server("256gb"),), (server("256gb", "rdma"),)),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_rule_finds_what_is_wrong_and_nothing_where_it_is_right(example: Example) -> None:
    prove(example)
