"""Threads and queues of a prefill server."""

from __future__ import annotations

import pytest

from tests.builders.launch_text import SERVER
from tests.builders.rule_examples import Example, Line, name_of, prove

ID = "transfer-threads-too-few"
PREFILL = f"{SERVER} --disaggregation-mode prefill"


def prefill(line: str = PREFILL, **variables: str) -> Line:
    names = {"pool": "THREAD_POOL_SIZE", "queues": "QUEUE_SIZE"}
    return (line, {f"SGLANG_DISAGGREGATION_{names[key]}": text for key, text in variables.items()})


EXAMPLES = [
    Example(ID, (prefill(pool="3"),), "3 threads, for 4 queues", (prefill(pool="4"),)),
    Example(
        ID,
        (prefill(pool="8", queues="16"),),
        "8 threads, for 16 queues",
        (prefill(pool="16", queues="16"),),
    ),
    Example(ID, (prefill(queues="13"),), "12 threads at most, as", (prefill(queues="12"),)),
    Example(
        ID,
        (prefill(pool="1"),),
        "1 thread, for 4 queues",
        (prefill(f"{SERVER} --disaggregation-mode decode", pool="1"),),
    ),
    Example(ID, (prefill(pool="1"),), "1 thread", (prefill(pool="$N"),)),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_rule_finds_what_is_wrong_and_nothing_where_it_is_right(example: Example) -> None:
    prove(example)
