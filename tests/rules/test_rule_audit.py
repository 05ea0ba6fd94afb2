"""Every known gap of SGLang, and every row of the field survey that a launch shows, has its rule.

Each case is a script as one would write it, read and judged by the product; the correct launch
below says nothing at all, so none of the ids fires on it. The numbers are those of two surveys:
silent gaps of SGLang 0.5.23, and what users of HiCache with Mooncake ran into.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.launches.launch_files import read_source
from preflight.processes.processes import LaunchOptions
from preflight.sizing.launch_sizing import size_launch
from tests.builders.hosts import GIB, MIB, Host, HostPool

ENVIRONMENT = {
    "MOONCAKE_MASTER": "10.0.0.1:50051",
    "MOONCAKE_LOCAL_HOSTNAME": "10.0.0.2",
    "MOONCAKE_GLOBAL_SEGMENT_SIZE": "8gb",
    "MOONCAKE_DEVICE": "mlx5_0",
}
ARGUMENTS = {
    "--model-path": "Qwen/Qwen3-14B",
    "--tp": "2",
    "--page-size": "64",
    "--enable-hierarchical-cache": "",
    "--hicache-ratio": "2",
    "--hicache-mem-layout": "page_first",
    "--hicache-io-backend": "kernel",
    "--hicache-storage-backend": "mooncake",
    "--hicache-storage-prefetch-policy": "timeout",
    "--mooncake-ib-device": "mlx5_0",
}
OFF = "-"  # in place of a value: without that argument or variable
EXTRA = "--hicache-storage-backend-extra-config"
SERVICE = "python3 -m mooncake.mooncake_store_service"
ADDRESS = '"master_server_address": "10.0.0.1:50051"'
# A model whose keys and values differ in width, which three storage backends cannot take.
UNEQUAL = (
    '{"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4, "num_attention_heads": 8, '
    '"num_key_value_heads": 8, "hidden_size": 1536, "head_dim": 192, "v_head_dim": 128, '
    '"torch_dtype": "bfloat16"}'
)


def script(
    arguments: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    *more: str,
) -> str:
    """The correct launch with some settings changed, and ``more`` lines around its server."""
    words = {**ARGUMENTS, **(arguments or {})}
    variables = {**ENVIRONMENT, **(environment or {})}
    flags = " ".join(
        f"{name} {value}".strip() for name, value in words.items() if not value.startswith(OFF)
    )
    exports = [f"export {name}='{value}'" for name, value in variables.items() if value != OFF]
    lines = ("#!/bin/bash", *exports, *more, f"python3 -m sglang.launch_server {flags}")
    return "\n".join(lines) + "\n"


class Case(NamedTuple):
    """What is wrong, and the rules that say so."""

    ids: tuple[str, ...]
    script: str
    sglang: str = "0.5.23"
    mooncake: str = "0.3.14"


def seen(case: Case, folder: Path) -> set[str]:
    """The ids of what the product finds, and of what it notes about the environment."""
    pool = HostPool(total=200000)
    nics = {"mlx5_0": 0, "mlx5_1": 0}
    host = Host({2 * MIB: pool}, memory_bytes=1024 * GIB, nics=nics, gpus=(0, 0))
    path = host.write(folder / "host")
    (path / "models" / "unequal").mkdir(parents=True)
    (path / "models" / "unequal" / "config.json").write_text(UNEQUAL)
    (folder / "launch.sh").write_text(case.script)
    options = LaunchOptions(
        mooncake_version=case.mooncake,
        sglang_version=case.sglang,
        gpu_bytes=80 * GIB,
    )
    reading = read_source(str(folder / "launch.sh"), {})

    def read_file(name: str) -> str | Unknown:
        return Unknown(f"{name}: No such file or directory", absent=True)

    sizing = size_launch(reading, "launch.sh", options, Root(str(path)), read_file)
    notes = sizing.shown.inputs.notes if sizing.shown else ()
    return {finding.rule.id for finding in sizing.inputs.findings} | {note.id for note in notes}


# What of a gap no launch can show stands beside it.
GAPS: dict[int, tuple[Case, ...]] = {
    1: (
        Case(
            ("extra-config-ignored",),
            script({EXTRA: '\'{"global_segment_size": "64gb"}\''}),
        ),
    ),
    2: (Case(("store-environment-ignored",), script({EXTRA: "'{" + ADDRESS + "}'"})),),
    3: (Case(("segment-size-plain",), script(None, {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "8"})),),
    4: (
        Case(
            ("string-is-true",),
            script({EXTRA: '\'{"check_server": "false", ' + ADDRESS + "}'"}),
        ),
    ),
    5: (
        Case(("environment-value-defaulted",), script(None, {"MOONCAKE_CHECK_SERVER": "maybe"})),
        Case(("store-key-unknown",), script({EXTRA: '\'{"devise_name": 1, ' + ADDRESS + "}'"})),
    ),
    # Whether a device of that name exists is a question to the host.
    6: (
        Case(("device-map-unreadable",), script(None, {"MOONCAKE_DEVICE": '{0: "mlx5_0"}'})),
        Case(("device-map-rank-missing",), script(None, {"MOONCAKE_DEVICE": '{"0": "mlx5_0"}'})),
    ),
    7: (
        Case(
            ("device-map-repeats",),
            script({"--dp-size": "2"}, {"MOONCAKE_DEVICE": '{"0": "mlx5_0", "1": "mlx5_1"}'}),
        ),
    ),
    8: (Case(("segment-times-dp",), script({"--dp-size": "2", "--enable-dp-attention": ""})),),
    9: (
        Case(
            ("sglang-hugepages-ignored", "hugepage-switch-is-presence"),
            script(None, {"SGLANG_HUGEPAGE_SIZE": "2MB", "MC_STORE_USE_HUGEPAGE": "0"}),
        ),
    ),
    10: (
        Case(
            ("sglang-hugepage-size-refused",),
            script({"--hicache-storage-backend": OFF}, {"SGLANG_HUGEPAGE_SIZE": "4MB"}),
        ),
    ),
    11: (Case(("gate-blind-to-hugepages",), script(None, {"MC_STORE_USE_HUGEPAGE": "1"})),),
    12: (
        Case(
            ("gate-assumes-one-engine",),
            script(
                None,
                None,
                "sglang serve m --enable-hierarchical-cache --page-size 64 --port 30001 &",
            ),
        ),
    ),
    13: (
        Case(("hicache-size-per-rank",), script({"--hicache-size": "30"})),
        Case(("hicache-size-unset",), script({"--hicache-ratio": "0"})),
        Case(("arguments-refused",), script({"--hicache-size": "30.5"})),
    ),
    14: (
        Case(
            ("indexer-on-top", "draft-on-top"),
            script(
                {
                    "--model-path": "deepseek-ai/DeepSeek-V3.2",
                    "--hicache-size": "30",
                    "--speculative-algorithm": "EAGLE",
                }
            ),
        ),
    ),
    15: (Case(("mla-copies",), script({"--model-path": "deepseek-ai/DeepSeek-R1"})),),
    16: (Case(("hicache-not-enabled",), script({"--enable-hierarchical-cache": OFF})),),
    17: (
        Case(
            ("decode-host-pool",),
            script({"--enable-hierarchical-cache": OFF, "--disaggregation-mode": "decode"}),
        ),
    ),
    # Whether a registration fails shows at run time alone.
    18: (Case(("pd-registration-silent",), script({"--disaggregation-mode": "prefill"})),),
    19: (Case(("two-transfer-engines",), script({"--mooncake-ib-device": OFF})),),
    20: (Case(("ib-device-unchecked",), script({"--disaggregation-ib-device": "mlx5_0"})),),
    21: (
        Case(
            ("keys-collide",),
            script() + script({"--tp": "4"}).splitlines()[-1] + "\n",
        ),
    ),
    22: (
        Case(
            ("model-name-shared",),
            script({"--served-model-name": "a"})
            + script({"--served-model-name": "a", "--model-path": "b"}).splitlines()[-1],
        ),
    ),
    # The request that attaches comes later; the launch shows that it may come.
    23: (
        Case(
            ("attach-at-runtime",),
            script(
                {
                    "--hicache-storage-backend": OFF,
                    "--hicache-mem-layout": "layer_first",
                    "--admin-api-key": "k",
                }
            ),
        ),
    ),
    24: (Case(("page-size-one",), script({"--page-size": OFF})),),
    25: (Case(("mooncake-too-old",), script(), mooncake="0.3.8"),),
    26: (
        Case(
            ("offload-without-switch",), script(None, {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/s"})
        ),
        Case(
            ("offload-folder-shared",),
            script(
                None,
                {
                    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/s",
                    "MOONCAKE_ENABLE_SSD_OFFLOAD": "1",
                },
            ),
            sglang="0.5.20",
        ),
    ),
    27: (
        Case(
            ("local-hostname-localhost",),
            script({"--nnodes": "2", "--node-rank": "0"}, {"MOONCAKE_LOCAL_HOSTNAME": OFF}),
        ),
    ),
    28: (
        Case(("tp-lcm-size-ignored",), script({EXTRA: '\'{"tp_lcm_size": 8, ' + ADDRESS + "}'"})),
    ),
    29: (
        Case(("storage-needs-other-kv-type",), script({"--kv-cache-dtype": "mxfp8"})),
        Case(
            ("storage-needs-equal-heads",),
            script({"--model-path": "/models/unequal", "--hicache-storage-backend": "nixl"}),
        ),
    ),
    30: (
        Case(
            ("register-chunk-ignored", "custom-mem-pool-unknown"),
            script(
                {"--hicache-mem-layout": "page_head"},
                {
                    "SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB": "8",
                    "SGLANG_MOONCAKE_CUSTOM_MEM_POOL": "nvlink",
                },
            ),
        ),
    ),
    31: (Case(("max-total-tokens-bounds",), script({"--max-total-tokens": "100000"})),),
    32: (
        Case(
            ("embedding-store-per-process",),
            script({"--encoder-only": "", "--enable-mm-global-cache": ""}),
        ),
    ),
    # That the TypeError is misreported follows from what raises it.
    33: (
        Case(
            ("standalone-without-switch",),
            script(
                None,
                {
                    "MOONCAKE_MASTER": OFF,
                    "MOONCAKE_CLIENT": "127.0.0.1:50052",
                    "MOONCAKE_TENANT_ID": "a",
                },
            ),
        ),
    ),
    34: (Case(("segment-nowhere",), script(None, {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "0"})),),
}
FIELD: dict[str, tuple[Case, ...]] = {
    "0.8": (
        Case(
            ("hugepage-switch-is-presence", "hugepage-size-ignored"),
            script(None, {"MC_STORE_USE_HUGEPAGE": "false", "MC_STORE_HUGEPAGE_SIZE": "512MB"}),
            mooncake="0.3.13.post1",
        ),
    ),
    "C5": (
        Case(
            ("hicache-size-per-rank", "segment-times-dp"),
            script({"--hicache-size": "30", "--dp-size": "2", "--enable-dp-attention": ""}),
        ),
    ),
    "C6": (
        Case(("segment-size-refused",), script(None, {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "512mb"})),
        Case(
            ("client-size-misread", "store-service-refused"),
            script(
                None,
                {"MOONCAKE_LOCAL_BUFFER_SIZE": "2tb"},
                "mooncake_client --global_segment_size=4GiB &",
                f"{SERVICE} --port=8081 &",
            ),
        ),
    ),
    "C7": (Case(("local-buffer-ignored",), script(None, {"MOONCAKE_LOCAL_BUFFER_SIZE": "1gb"})),),
    "F5": (
        Case(("device-name-syntax",), script(None, {"MOONCAKE_DEVICE": "mlx5_0:1"})),
        Case(("device-name-syntax",), script({"--disaggregation-ib-device": "mlx5_0:1"})),
        Case(("device-name-syntax",), script(None, {"MOONCAKE_DEVICE": "mlx5_0, mlx5_1"})),
        Case(
            ("no-device-left",),
            script(None, {"MC_MS_FILTERS": "", "MOONCAKE_DEVICE": OFF}),
        ),
    ),
    "G1": (Case(("proxy-in-the-way",), script(None, {"http_proxy": "http://proxy:3128"})),),
    "G7": (Case(("tcp-takes-rdma",), script(None, {"MOONCAKE_PROTOCOL": "tcp"})),),
    # Whether a folder exists, is a link or has room is a question to the host.
    "G8": (
        Case(
            ("offload-one-sided", "offload-quota-unset", "offload-folder-default"),
            script(None, {"MOONCAKE_ENABLE_SSD_OFFLOAD": "1"}, "mooncake_master &"),
        ),
        Case(
            ("offload-path-refused", "offload-folder-common"),
            script(
                None,
                {
                    "MOONCAKE_OFFLOAD_ENABLED": "1",
                    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "ssd/../kv",
                },
                f"{SERVICE} --port=8081 &",
                "mooncake_client --enable_offload=true &",
            ),
        ),
        Case(("offload-unused",), script(None, None, "mooncake_master --enable_offload=true &")),
        Case(
            ("number-defaulted",),
            script(
                None,
                {
                    "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": "100GB",
                    "MOONCAKE_ENABLE_SSD_OFFLOAD": "1",
                },
            ),
        ),
    ),
    "G9": (
        Case(
            ("layout-rewritten", "prefetch-best-effort"),
            script(
                {
                    "--hicache-mem-layout": "layer_first",
                    "--hicache-storage-prefetch-policy": "best_effort",
                }
            ),
        ),
    ),
    "G10": (
        Case(
            ("variable-misspelt", "number-misread", "number-out-of-range", "region-size-hangs"),
            script(None, {"MC_GID_INDX": "3", "MC_MAX_MR_SIZE": "16MB", "MC_GID_INDEX": "300"}),
        ),
        Case(
            ("port-range-reset", "number-refused", "switch-misread", "choice-unknown"),
            script(
                None,
                {
                    "MC_MIN_RPC_PORT": "40000",
                    "MC_RPC_TIMEOUT_MS": "none",
                    "MC_TCP_ENABLE_CONNECTION_POOL": "off",
                    "MC_LOG_LEVEL": "debug",
                },
            ),
        ),
    ),
}
CASES = [(str(number), case) for number, cases in GAPS.items() for case in cases]
CASES += [(row, case) for row, cases in FIELD.items() for case in cases]


def test_every_gap_is_accounted_for() -> None:
    """All 34 gaps, and the field's rows that a launch shows."""
    assert set(GAPS) == set(range(1, 35))
    assert set(FIELD) == set("0.8 C5 C6 C7 F5 G1 G7 G8 G9 G10".split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "case"), CASES, ids=lambda value: str(getattr(value, "ids", value))
)
def test_a_gap_is_found(row: str, case: Case, tmp_path: Path) -> None:
    """Every id that the row names is among what is found in its launch."""
    assert set(case.ids) - seen(case, tmp_path) == set(), row


def test_the_correct_launch_says_nothing(tmp_path: Path) -> None:
    """So that none of the rules above is one that always speaks."""
    assert seen(Case((), script()), tmp_path) == set()
