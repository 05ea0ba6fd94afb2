"""Rules about the store service and mooncake_client."""

from __future__ import annotations

import pytest

from tests.builders.launch_text import MASTER, SERVICE, service
from tests.builders.rule_examples import Example, name_of, prove

EXAMPLES = [
    Example(
        "store-service-refused",
        (("python -m mooncake.mooncake_store_service --config=a.json", {}),),
        "store service: global_segment_size '4GiB': ValueError: could not convert string",
        (("python -m mooncake.mooncake_store_service --config=b.json", {}),),
        {
            "a.json": '{"local_hostname": "a", "metadata_server": "P2PHANDSHAKE", '
            '"master_server_address": "m:1", "global_segment_size": "4GiB"}',
            "b.json": '{"local_hostname": "a", "metadata_server": "P2PHANDSHAKE", '
            '"master_server_address": "m:1", "global_segment_size": "4gb"}',
        },
    ),
    Example(
        "client-size-misread",
        ("mooncake_client --global_segment_size=4GiB",),
        "--global_segment_size=4GiB: not a size to mooncake_client, which takes 0",
        ("mooncake_client --global_segment_size=4GB",),
    ),
    Example(
        "store-service-refused",
        (f"{SERVICE} --porf 1",),
        "error: unrecognized arguments: --porf",
        ((f"{SERVICE} --por 8081 --max-wait-time 5", MASTER),),
    ),
    Example(
        "service-key-unknown",
        ((f"{SERVICE} -Dglobal_segment_sise=4gb", MASTER),),
        "'global_segment_sise' (-D) is not a setting of the store service: did you mean global_seg",
        ((f"{SERVICE} -Dglobal_segment_size=4gb", MASTER),),
    ),
    Example(
        "service-port-taken",
        (f"{SERVICE} --config=a.json", "mooncake_master -enable_http_metadata_server true"),
        "mooncake_master (launch.sh:2) listens on port 8080 too",
        (f"{SERVICE} --config=a.json --port=8081", "mooncake_master -enable_http_metadata_server"),
        {"a.json": service()},
    ),
    Example(
        "service-port-taken",
        (f"{SERVICE} --config=a.json", f"{SERVICE} --config=a.json"),
        "Mooncake store service (launch.sh:1) listens on port 8080 too",
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
