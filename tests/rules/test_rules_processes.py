"""Rules about the store service and mooncake_client."""

from __future__ import annotations

import pytest

from tests.builders.launch_text import MASTER, SERVICE, service
from tests.builders.rule_examples import Example, name_of, prove

EXAMPLES = [
    Example("store-service-refused", "error: unrecognized arguments: --porf").of(
        (f"{SERVICE} --porf 1",), ((f"{SERVICE} --por 8081 --max-wait-time 5", MASTER),)
    ),
    Example(
        "service-port-taken", "Mooncake store service (launch.sh:1) listens on port 8080 too"
    ).of(
        (f"{SERVICE} --config=a.json", f"{SERVICE} --config=a.json"),
        (
            "python -m mooncake.http_metadata_server --port 8082",
            "mooncake_master",
            f"{SERVICE} --config=a.json",
        ),
        {"a.json": service()},
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)
