"""Rules about variables: what a value becomes, and which release of SGLang reads it."""

from __future__ import annotations

import pytest

from preflight.launch_problems.rules.launch_rules import findings
from preflight.launch_problems.rules.rules import Spelling
from tests.builders.launch_text import SERVER, understood
from tests.builders.rule_examples import Example, env

CLIENT = "mooncake_client --enable_offload"
HIGH = "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO"

EXAMPLES = [
    Example("force-tcp-is-presence", "MC_LEGACY_RPC_PORT_BINDING=: counts as on").of(
        (("mooncake_master", {"MC_LEGACY_RPC_PORT_BINDING": ""}),),
        ((SERVER, {"MC_LEGACY_RPC_PORT_BINDING": ""}),),
    ),
    Example("number-misread", "MC_GID_INDEX=: Mooncake reads 0").of(
        (env(MC_GID_INDEX=""),), (env(MC_MAX_WR="", NCCL_IB_GID_INDEX="eth0", MC_GID_INDEX="3"),)
    ),
    Example("number-defaulted", "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=100GB: 2 TiB is used").of(
        (
            (
                "mooncake_client --enable_offload",
                {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "100GB"},
            ),
        ),
        (("mooncake_client", {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "100GB"}),),
    ),
    Example("number-defaulted", f"{HIGH}=90%: not above 0 and up to 1: 0.9 is used").of(
        ((CLIENT, {HIGH: "90%"}),), ((CLIENT, {HIGH: "0.95"}),)
    ),
    Example(
        "port-range-reset",
        "20000 to 14300 is not a range that Mooncake takes: 12300 to 14300 is used",
    ).of(
        (env(MC_STORE_CLIENT_MIN_PORT="20000"),),
        (env(MC_STORE_CLIENT_MIN_PORT="20000", MC_STORE_CLIENT_MAX_PORT="$MAX"),),
    ),
    Example("switch-misread", "WITH_NVIDIA_PEERMEM=auto: the default is used, on").of(
        (env(WITH_NVIDIA_PEERMEM="auto"),), (env(WITH_NVIDIA_PEERMEM="", MC_STORE_MEMCPY="ON"),)
    ),
]


SPEC = "SGLANG_ENABLE_SPEC_V2"
LAST = f"{SPEC}: SGLang 0.5.20 is the last that reads it"


def said(line: str, release: str | None, **environment: str) -> list[str]:
    processes = understood((line, environment), sglang_version=release)
    return [f.text for f in findings(processes) if f.id == "variable-misspelt"]


@pytest.mark.parametrize(
    ("release", "texts"),
    [
        ("0.5.9", []),
        ("0.5.20", []),
        ("0.5.21", [LAST]),
        ("0.5.23", [LAST]),
        (None, []),  # which one runs nobody says
    ],
)
def test_a_variable_that_newer_releases_dropped(release: str | None, texts: list[str]) -> None:
    assert said(SERVER, release, SGLANG_ENABLE_SPEC_V2="1") == texts


def test_names_are_looked_up_a_bounded_number_of_times() -> None:
    spelling = Spelling()
    found = [spelling.nearest("hicache-siz", ["hicache-size", "other"]) for _ in range(26)]
    assert found == ["hicache-size"] * 24 + [None] * 2
    assert Spelling().nearest("something", ["hicache-size"]) is None
