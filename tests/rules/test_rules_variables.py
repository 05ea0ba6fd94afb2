"""Rules about Mooncake's variables: each finding says what the value becomes."""

from __future__ import annotations

from tests.builders.launch_text import SERVER
from tests.builders.rule_examples import Example, env, prove
from tests.tables import each_row

CLIENT = "mooncake_client --enable_offload"
HIGH = "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO"

EXAMPLES = [
    Example(
        "force-tcp-is-presence",
        (("mooncake_master", {"MC_LEGACY_RPC_PORT_BINDING": ""}),),
        "MC_LEGACY_RPC_PORT_BINDING=: counts as on",
        ((SERVER, {"MC_LEGACY_RPC_PORT_BINDING": ""}),),
    ),
    Example(
        "number-misread",
        (env(MC_GID_INDEX=""),),
        "MC_GID_INDEX=: Mooncake reads 0",
        (env(MC_MAX_WR="", NCCL_IB_GID_INDEX="eth0", MC_GID_INDEX="3"),),
    ),
    Example(
        "number-defaulted",
        (
            (
                "mooncake_client --enable_offload",
                {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "100GB"},
            ),
        ),
        "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=100GB: 2 TiB is used",
        (("mooncake_client", {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "100GB"}),),
    ),
    Example(
        "number-defaulted",
        ((CLIENT, {HIGH: "90%"}),),
        f"{HIGH}=90%: not above 0 and up to 1: 0.9 is used",
        ((CLIENT, {HIGH: "0.95"}),),
    ),
    Example(
        "port-range-reset",
        (env(MC_STORE_CLIENT_MIN_PORT="20000"),),
        "20000 to 14300 is not a range that Mooncake takes: 12300 to 14300 is used",
        (env(MC_STORE_CLIENT_MIN_PORT="20000", MC_STORE_CLIENT_MAX_PORT="$MAX"),),
    ),
    Example(
        "switch-misread",
        (env(MC_TCP_ENABLE_CONNECTION_POOL="off"),),
        "MC_TCP_ENABLE_CONNECTION_POOL=off: on",
        (env(MC_TCP_ENABLE_CONNECTION_POOL="No"),),
    ),
    Example(
        "switch-misread",
        (env(WITH_NVIDIA_PEERMEM="auto"),),
        "WITH_NVIDIA_PEERMEM=auto: the default is used, on",
        (env(WITH_NVIDIA_PEERMEM="", MC_STORE_MEMCPY="ON"),),
    ),
    Example(
        "no-device-left",
        (
            (
                "mooncake_client --device_names=mlx5_0",
                {"MC_MS_FILTERS": ",", "MC_MS_AUTO_DISC": "1"},
            ),
        ),
        "MC_MS_FILTERS=','",
        (env(MC_MS_FILTERS="", MC_MS_AUTO_DISC="0"),),
    ),
]


@each_row("example", EXAMPLES)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)
