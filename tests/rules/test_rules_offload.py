"""Rules about SSD offload."""

from __future__ import annotations

import pytest

from tests.builders.launch_text import SERVICE, service
from tests.builders.rule_examples import ADDRESS, GOOD, Example, env, extra, name_of, prove

CLIENT = "mooncake_client --enable_offload"
FOLDER = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
HIGH = "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO"
OFFLOADS = env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", **{FOLDER: "/ssd"})
ON = service(enable_ssd_offload=True, ssd_offload_path="/ssd")

EXAMPLES = [
    Example(
        "offload-buffer-misread",
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "20GB"}),),
        "1342177280 bytes are taken",
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "21474836480"}),),
    ),
    Example(
        "offload-without-switch",
        (env(MOONCAKE_OFFLOAD_FILE_STORAGE_PATH="/data"),),
        "ssd_offload_path is set",
        (env(MOONCAKE_OFFLOAD_FILE_STORAGE_PATH="/data", MOONCAKE_ENABLE_SSD_OFFLOAD="1"),),
    ),
    Example(
        "offload-one-sided",
        ("mooncake_master", "mooncake_client --enable_offload=true"),
        "offloads, the master does not",
        ("mooncake_master -enable_offload=true", "mooncake_client --enable_offload=true"),
    ),
    Example(
        "offload-buffer-misread",
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "0"}),),
        "ends at start with a segmentation fault",
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": " +1048576 "}),),
    ),
    Example(
        "offload-without-switch",
        (("mooncake_client", {FOLDER: "/ssd"}),),
        "mooncake_client does not offload",
        (("mooncake_client --enable_offload=true", {FOLDER: "/ssd"}),),
    ),
    Example(
        "offload-without-switch",
        (f"{SERVICE} --config=off.json",),
        "ssd_offload_path is /ssd, enable_ssd_offload is off",
        (f"{SERVICE} --config=on.json",),
        {"off.json": service(ssd_offload_path="/ssd"), "on.json": ON},
    ),
    Example(
        "offload-switch-misplaced",
        (env(MOONCAKE_OFFLOAD_ENABLED="1"),),
        "MOONCAKE_OFFLOAD_ENABLED=1: SGLang server does not read it",
        (env(MOONCAKE_OFFLOAD_ENABLED="1", MOONCAKE_ENABLE_SSD_OFFLOAD="1"),),
    ),
    Example(
        "offload-one-sided",
        ("mooncake_master", f"{SERVICE} --config=on.json"),
        "Mooncake store service (launch.sh:2) offloads, the master does not",
        ("mooncake_master --config_path=master.yaml", f"{SERVICE} --config=on.json"),
        {"on.json": ON},
    ),
    Example(
        "offload-unused",
        ("mooncake_master --enable_offload=true", GOOD),
        "mooncake_master (launch.sh:1) offers offload, no client uses it",
        ("mooncake_master --enable_offload=true", env(MOONCAKE_ENABLE_SSD_OFFLOAD="$ON")),
    ),
    Example(
        "offload-path-refused",
        (env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", **{FOLDER: "ssd/kv"}),),
        "offloads to 'ssd/kv', which is not an absolute path",
        (env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", **{FOLDER: "/ssd/..kv"}),),
    ),
    Example(
        "offload-path-refused",
        (f"{SERVICE} --config=on.json -Dssd_offload_path=/a/../b",),
        "which has '..' in it",
        (f"{SERVICE} --config=on.json -Dssd_offload_path=/b",),
        {"on.json": ON},
    ),
    Example(
        "offload-path-refused",
        ((CLIENT, {FOLDER: ""}),),
        "which is empty",
        ((CLIENT, {FOLDER: "$DIR"}),),
    ),
    Example(
        "offload-folder-default",
        ((extra('{"enable_ssd_offload": true, ' + ADDRESS + "}"), {FOLDER: "/ssd"}),),
        "8 ranks of SGLang server (launch.sh:1) offload to /ssd",
        ((extra('{"enable_ssd_offload": true, "ssd_offload_path": "/ssd", ' + ADDRESS + "}"), {}),),
    ),
    Example(
        "offload-folder-common",
        (OFFLOADS, OFFLOADS),
        "SGLang server (launch.sh:1) and SGLang server (launch.sh:2) offload to /ssd",
        (OFFLOADS, env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", **{FOLDER: "/ssd2"})),
    ),
    Example(
        "offload-quota-unset",
        ((OFFLOADS[0], {**OFFLOADS[1], "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": "1TB"}),),
        "each may fill 90% of the disk",
        (CLIENT,),
    ),
    Example(
        "offload-watermarks-refused",
        ((CLIENT, {HIGH: "0.75"}),),
        "low watermark 0.8, high watermark 0.75",
        ((CLIENT, {HIGH: "75"}),),
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)
