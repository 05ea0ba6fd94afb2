"""Rules about SSD offload."""

from __future__ import annotations

import pytest

from preflight.rules.launch_rules import findings
from tests.builders.launch_text import MASTER, SERVICE, service, understood
from tests.builders.rule_examples import GOOD, Example, Line, env, prove
from tests.tables import each_row

CLIENT = "mooncake_client --enable_offload"
FOLDER = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
HIGH = "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO"
OFFLOADS = env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", **{FOLDER: "/ssd"})
ON = service(enable_ssd_offload=True, ssd_offload_path="/ssd")

EXAMPLES = [
    Example("offload-buffer-misread", "ends at start with a segmentation fault").of(
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "0"}),),
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": " +1048576 "}),),
    ),
    Example("offload-without-switch", "mooncake_client does not offload").of(
        (("mooncake_client", {FOLDER: "/ssd"}),),
        (("mooncake_client --enable_offload=true", {FOLDER: "/ssd"}),),
    ),
    Example("offload-without-switch", "ssd_offload_path is /ssd, enable_ssd_offload is off").of(
        (f"{SERVICE} --config=off.json",),
        (f"{SERVICE} --config=on.json",),
        {"off.json": service(ssd_offload_path="/ssd"), "on.json": ON},
    ),
    Example(
        "offload-one-sided", "Mooncake store service (launch.sh:2) offloads, the master does not"
    ).of(
        ("mooncake_master", f"{SERVICE} --config=on.json"),
        ("mooncake_master --config_path=master.yaml", f"{SERVICE} --config=on.json"),
        {"on.json": ON},
    ),
    Example("offload-unused", "mooncake_master (launch.sh:1) offers offload, no client uses it").of(
        ("mooncake_master --enable_offload=true", GOOD),
        ("mooncake_master --enable_offload=true", env(MOONCAKE_ENABLE_SSD_OFFLOAD="$ON")),
    ),
    Example("offload-path-refused", "which has '..' in it").of(
        (f"{SERVICE} --config=on.json -Dssd_offload_path=/a/../b",),
        (f"{SERVICE} --config=on.json -Dssd_offload_path=/b",),
        {"on.json": ON},
    ),
    Example("offload-path-refused", "which is empty").of(
        ((CLIENT, {FOLDER: ""}),), ((CLIENT, {FOLDER: "$DIR"}),)
    ),
    Example("offload-quota-unset", "each may fill 90% of the disk").of(
        ((OFFLOADS[0], {**OFFLOADS[1], "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": "1TB"}),),
        (CLIENT,),
    ),
]


@each_row("example", EXAMPLES)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)


@pytest.mark.parametrize(
    ("line", "switch"),
    [
        (("mooncake_client", {FOLDER: "/ssd"}), "give --enable_offload=true"),
        ((SERVICE, {**MASTER, FOLDER: "/ssd"}), "export MOONCAKE_OFFLOAD_ENABLED=1"),
        (env(**{FOLDER: "/ssd"}), "export MOONCAKE_ENABLE_SSD_OFFLOAD=1"),
        (env(MOONCAKE_OFFLOAD_ENABLED="1"), "export MOONCAKE_ENABLE_SSD_OFFLOAD=1"),
        (
            (SERVICE, {**MASTER, "MOONCAKE_ENABLE_SSD_OFFLOAD": "1"}),
            "export MOONCAKE_OFFLOAD_ENABLED=1",
        ),
    ],
)
def test_the_switch_of_this_program_alone_is_named(line: Line, switch: str) -> None:
    ids = ("offload-without-switch", "offload-switch-misplaced")
    (found,) = (one for one in findings(understood(line)) if one.rule.id in ids)
    assert found.remedy == f"in launch.sh:1 {switch}"
