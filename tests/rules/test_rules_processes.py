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
        "store-service-refused",
        ((f"{SERVICE} --port=http", MASTER),),
        "error: argument --port: invalid int value: 'http'",
        ((f"{SERVICE} --port $PORT", MASTER),),
    ),
    Example(
        "store-service-refused",
        ((SERVICE, {"MOONCAKE_MASTER": ""}),),
        "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set.",
        ((f"{SERVICE} --config=", MASTER),),
    ),
    Example(
        "store-service-refused",
        ((f"{SERVICE} -Dglobal_segment_size=4GiB", MASTER),),
        "-Dglobal_segment_size=4GiB: not a size to Mooncake: setup ends with -600",
        ((f"{SERVICE} -D global_segment_size=4gb", MASTER),),
    ),
    Example(
        "store-service-refused",
        ((SERVICE, {**MASTER, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "512"}),),
        "global_segment_size is 512 bytes, less than 1024: setup ends with -600",
        ((SERVICE, {**MASTER, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0"}),),
    ),
    Example(
        "store-service-refused",
        ((SERVICE, {**MASTER, "MOONCAKE_LOCAL_BUFFER_SIZE": "2tb"}),),
        "local_buffer_size is 2199023255552 bytes, more than 1.00 TiB",
        ((SERVICE, {**MASTER, "MOONCAKE_LOCAL_BUFFER_SIZE": "1tb"}),),
    ),
    Example(
        "store-service-refused",
        ((f"{SERVICE} -Dprotocol=RDMA", MASTER),),
        "protocol 'RDMA' is not one that Mooncake has: setup fails",
        ((SERVICE, {**MASTER, "MOONCAKE_PROTOCOL": "RDMA"}),),
    ),
    Example(
        "store-service-refused",
        (f"{SERVICE} --config=a.json",),
        "local_hostname '': ValueError: must be a non-empty string",
        (f"{SERVICE} --config=b.json",),
        {"a.json": service(local_hostname=""), "b.json": service()},
    ),
    Example(
        "store-service-refused",
        ((SERVICE, {**MASTER, "MOONCAKE_CLIENT_HTTP_PORT": "x"}),),
        "client_http_port 'x': ValueError: invalid literal for int()",
        ((SERVICE, {**MASTER, "MOONCAKE_CLIENT_HTTP_PORT": "99999"}),),
    ),
    Example(
        "store-service-refused",
        (f"{SERVICE} --config=a.json",),
        "client_http_port 99999 is not a port",
        (f"{SERVICE} --config=b.json",),
        {
            "a.json": service(enable_client_http_server=True, client_http_port=99999),
            "b.json": service(enable_client_http_server=True, client_http_port=9300),
        },
    ),
    Example(
        "service-setting-misread",
        ((f"{SERVICE} -Denable_ssd_offload=maybe", MASTER),),
        "-Denable_ssd_offload=maybe: not a truth value to Mooncake: off",
        ((f"{SERVICE} --define enable_ssd_offload=off", MASTER),),
    ),
    Example(
        "service-setting-misread",
        ((f"{SERVICE} -D novalue", MASTER),),
        "-Dnovalue: Ignoring invalid CLI config",
        ((f"{SERVICE} --def=tenant_id=a", MASTER),),
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
