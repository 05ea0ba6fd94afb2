"""The bytes of one row of sparse attention, by its dtype, its kernels, the GPU and the role.

What calculate_mla_kv_cache_dim and the defaults of its backends return, of each release that
changed them (0.5.9, 0.5.10, 0.5.20, 0.5.22); a row of 576 elements: 1152 bytes of bfloat16, 576 raw
fp8 ones, 656 with scales.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.engines.sglang.host_pool_records import PoolKind
from preflight.processes.processes import LaunchOptions
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.engines.sglang.test_source_pools import bounds
from tests.needs.test_source_sizing import size

SERVER = (
    "python3 -m sglang.launch_server --model-path zai-org/GLM-5.2 --tp 8 --page-size 64 "
    "--enable-hierarchical-cache --hicache-size 20"
)
FP8, PREFILL = "--kv-cache-dtype fp8_e4m3", "--disaggregation-mode prefill"
TILELANG = "--dsa-prefill-backend tilelang --dsa-decode-backend tilelang"
SCALED = "--dsa-prefill-backend flashmla_kv"
HOPPER, BLACKWELL, WORKSTATION = "0x2330", "0x2901", "0x2bb5"
LAYERS, INDEX_LAYERS, INDEX_BYTES = 78, 21, 132


def l2_bytes(row: int, index_layers: int = INDEX_LAYERS) -> int:
    """20 GB of rows in pages of 64 tokens, and one page more; the index keys on top of that."""
    pages = 20 * 10**9 // (row * LAYERS) // 64 + 1
    return pages * 64 * row * LAYERS + (pages + 1) * 64 * INDEX_BYTES * index_layers


def measured(tmp_path: Path, flags: str, version: str, gpu: str | None) -> tuple[int, int]:
    root = Host({2 * MIB: HostPool(total=0)}, memory_bytes=2048 * GIB).write(tmp_path)
    if gpu is not None:
        maker, device = ("0x1002", "0x74a1") if gpu == "AMD" else ("0x10de", gpu)
        folder = root / "sys/bus/pci/devices/0000:17:00.0"
        folder.mkdir(parents=True)
        for name, text in (("vendor", maker), ("device", device), ("class", "0x030200")):
            (folder / name).write_text(text)
    options = LaunchOptions(mooncake_version="0.3.13.post1", sglang_version=version)
    return bounds(size(root, f"{SERVER} {flags}", options=options))


@pytest.mark.parametrize(
    ("flags", "gpu", "row", "version"),
    [
        ("", HOPPER, 1152, "0.5.23"),
        ("", BLACKWELL, 576, "0.5.23"),
        ("", "AMD", 1152, "0.5.23"),
        (FP8, HOPPER, 656, "0.5.23"),
        (FP8, BLACKWELL, 576, "0.5.23"),
        (FP8, "AMD", 576, "0.5.23"),
        ("--kv-cache-dtype bfloat16", None, 1152, "0.5.23"),
        (f"{FP8} --dsa-prefill-backend trtllm --dsa-decode-backend trtllm", None, 576, "0.5.23"),
        (f"{FP8} {SCALED} --dsa-decode-backend trtllm", HOPPER, 576, "0.5.23"),
        (f"{FP8} {TILELANG}", HOPPER, 576, "0.5.23"),
        (f"{FP8} {SCALED} --dsa-decode-backend flashmla_kv", None, 656, "0.5.23"),
        (f"{FP8} --enable-hisparse", BLACKWELL, 656, "0.5.23"),
        # A prefill server had the decode kernel's row too, until the role alone decided.
        (f"{FP8} {PREFILL} {SCALED} --dsa-decode-backend trtllm", HOPPER, 576, "0.5.19"),
        (f"{FP8} {PREFILL} {SCALED} --dsa-decode-backend trtllm", HOPPER, 656, "0.5.20"),
        (f"{FP8} {PREFILL} {TILELANG}", HOPPER, 656, "0.5.21"),
        (f"{FP8} {PREFILL} {TILELANG}", HOPPER, 576, "0.5.22"),
    ],
)
def test_rows(tmp_path: Path, flags: str, gpu: str | None, row: int, version: str) -> None:
    # Before 0.5.22 each layer kept index keys on the host.
    layers = LAYERS if version < "0.5.22" else INDEX_LAYERS
    found = measured(tmp_path, flags, version, gpu)
    assert found == (l2_bytes(row, layers), l2_bytes(row, layers))


@pytest.mark.parametrize("gpu", [None, WORKSTATION])
def test_a_gpu_that_is_not_known_is_two_bounds(tmp_path: Path, gpu: str | None) -> None:
    """bfloat16 on one and raw fp8 on the other; with fp8 asked for, scaled and raw."""
    plain = measured(tmp_path / "plain", "", "0.5.23", gpu)
    assert plain == (l2_bytes(1152), l2_bytes(576))
    assert measured(tmp_path / "fp8", FP8, "0.5.23", gpu) == (l2_bytes(656), l2_bytes(576))
    # AMD's own kernel has raw rows where no NVIDIA one has.
    sparse = measured(tmp_path / "hisparse", f"{FP8} --enable-hisparse", "0.5.23", gpu)
    assert sparse == (l2_bytes(656), l2_bytes(576))


DENSE = SERVER.replace("zai-org/GLM-5.2", "deepseek-ai/DeepSeek-V3")


@pytest.mark.parametrize(
    ("version", "name", "words"),
    [
        ("0.5.4.post1", "", f"{SERVER} --kv-cache-dtype fp8_e5m2"),
        ("0.5.4.post2", "NSA", f"{SERVER} --kv-cache-dtype fp8_e5m2"),
        ("0.5.7", "NSA", f"{SERVER} --kv-cache-dtype fp8_e5m2"),
        ("0.5.8", "DSA", f"{SERVER} --kv-cache-dtype fp8_e5m2"),
        ("0.5.23", "DSA", f"{SERVER} --kv-cache-dtype nvfp4"),
        ("0.5.23", "DSA", f"{SERVER} --kv-cache-dtype mxfp8"),
        ("0.5.23", "", f"{DENSE} --kv-cache-dtype fp8_e5m2"),  # its attention is not sparse
    ],
)
def test_no_other_dtype_starts(tmp_path: Path, version: str, name: str, words: str) -> None:
    """The assertion of each release that has one, and no size of rows that nobody allocates."""
    root = Host({2 * MIB: HostPool(total=0)}, memory_bytes=2048 * GIB).write(tmp_path)
    options = LaunchOptions(mooncake_version="0.3.13.post1", sglang_version=version)
    refused = size(root, words, options=options).inputs.memory[0].refused
    only = f"DeepSeek {name} only supports bf16/bfloat16 or fp8_e4m3 kv_cache_dtype"
    said = None if refused is None else refused.reason
    assert said == (f"AssertionError: {only}" if name else None)


def test_a_run_that_was_measured_on_0_5_16(tmp_path: Path) -> None:
    """Eight ranks of GLM-5.2 with --hicache-size 270, as InferenceX publishes what it measured.

    270.00 GB of rows, 61.88 GB of index keys, of every layer, and 3.46 GB of the draft's rows,
    which has no index keys of its own on the host. Of its slots it names 6,009,728, the draft's."""
    root = Host({2 * MIB: HostPool(total=0)}, memory_bytes=4096 * GIB).write(tmp_path)
    text = (
        "python3 -m sglang.launch_server --model-path zai-org/GLM-5.2 --tp 8 --page-size 64 "
        f"{FP8} --dsa-prefill-backend trtllm --dsa-decode-backend trtllm "
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --enable-hierarchical-cache --hicache-size 270 "
        "--hicache-write-policy write_back --hicache-io-backend direct "
        "--hicache-mem-layout page_first_direct"
    )
    options = LaunchOptions(mooncake_version="0.3.13.post1", sglang_version="0.5.16")
    sizing = size(root, text, options=options)
    pools = sizing.inputs.memory[0].pools
    found = [(pool.kind, pool.tokens, round(pool.bytes / 1e9, 2)) for pool in pools]
    assert found == [
        (PoolKind.KV, 6009664, 270.0),
        (PoolKind.INDEXER, 6009664, 61.88),
        (PoolKind.DRAFT, 6009728, 3.46),
    ]
