"""Rules about SGLang's HiCache and disaggregation flags."""

from __future__ import annotations

import pytest

from preflight.launches.launch_files import read_text
from preflight.processes.processes import understand
from preflight.rules.launch_rules import findings
from tests.builders.launch_text import HICACHE, MASTER, SERVER, STORE
from tests.builders.rule_examples import ADDRESS, GOOD, Example, env, extra, name_of, prove

RADIX = "hicache-with-radix-disabled"
ENCODER = f"{SERVER} --encoder-only --enable-mm-global-cache"

EXAMPLES = [
    Example(
        "arguments-refused",
        (f"{HICACHE} --hicache-size 30.5",),
        "error: argument --hicache-size: invalid int value: '30.5'",
        (f"{HICACHE} --hicache-size 30",),
    ),
    Example(
        "arguments-refused",
        (f"{HICACHE} --hicache-mem-layout page_last",),
        "invalid choice: 'page_last'",
        (f"{HICACHE} --hicache-mem-layout page_first",),
    ),
    Example(
        "values-refused",
        (f"{SERVER} --dp 3 --enable-dp-attention",),
        "AssertionError: tp_size % dp_size == 0, with --tp 8 and --dp 3",
        (f"{SERVER} --dp 2 --enable-dp-attention",),
    ),
    Example(
        "arguments-refused",
        (f"{HICACHE} --hicache-sise 30",),
        "--hicache-sise: did you mean --hicache-size? error: unrecognized arguments",
        (HICACHE,),
    ),
    Example(
        "argument-unknown",
        (f"{SERVER} --hierarchical-cache",),
        "--hierarchical-cache: did you mean --enable-hierarchical-cache? error",
        (HICACHE,),
    ),
    Example(
        "arguments-refused",
        (f"{SERVER} ...",),
        "...: an example leaves words out here, and every SGLang refuses it",
        (SERVER,),
    ),
    Example(
        "hicache-not-enabled",
        (f"{SERVER} --hicache-size 30 --hicache-storage-backend mooncake",),
        "--hicache-size, --hicache-storage-backend: without --enable-hierarchical-cache",
        (f"{HICACHE} --hicache-size 30",),
    ),
    Example(
        "hicache-size-unset",
        (f"{HICACHE} --hicache-size=-1",),
        "--hicache-size -1: taken as not set",
        (f"{HICACHE} --hicache-size 0 --hicache-ratio 2",),
    ),
    Example(
        "hicache-size-unset",
        (f"{HICACHE} --hicache-ratio 0",),
        "--hicache-ratio 0: a pool of one page",
        (f"{HICACHE} --hicache-ratio 0.5",),
    ),
    Example(
        "hicache-with-radix-disabled",
        (f"{HICACHE} --disaggregation-mode decode",),
        "--disaggregation-decode-enable-radix-cache",
        (f"{HICACHE} --disaggregation-mode prefill",),
    ),
    Example(
        "decode-offload-misplaced",
        (f"{SERVER} --disaggregation-decode-enable-offload-kvcache",),
        "--disaggregation-mode null",
        (
            f"{SERVER} --disaggregation-decode-enable-offload-kvcache --disaggregation-mode decode "
            "--hicache-storage-backend hf3fs",
        ),
    ),
    Example(
        "decode-host-pool",
        (f"{SERVER} --disaggregation-mode decode",),
        "keeps a retraction pool in host memory",
        (f"{SERVER} --disaggregation-mode prefill",),
    ),
    Example(
        "page-size-one",
        ((f"{STORE} --page-size 1", MASTER),),
        "--page-size 1 with the Mooncake store",
        (GOOD,),
    ),
    Example(
        "layout-rewritten",
        (f"{HICACHE} --hicache-mem-layout page_first --hicache-io-backend direct",),
        "page_first_direct is used",
        (f"{HICACHE} --hicache-mem-layout page_first_direct --hicache-io-backend direct",),
    ),
    Example(
        "storage-needs-other-kv-type",
        ((f"{STORE} --kv-cache-dtype mxfp8", MASTER),),
        "mxfp8",
        ((f"{STORE} --kv-cache-dtype fp8_e4m3", MASTER),),
    ),
    Example(
        "tp-lcm-size-ignored",
        (extra('{"tp_lcm_size": 8, ' + ADDRESS + "}"),),
        "with the layout page_first",
        (extra('{"tp_lcm_size": 8, ' + ADDRESS + "}") + " --hicache-mem-layout page_head",),
    ),
    Example(
        "prefetch-best-effort",
        ((f"{STORE} --hicache-storage-prefetch-policy best_effort", MASTER),),
        "best_effort",
        (GOOD,),
    ),
    Example(
        "max-total-tokens-bounds",
        (f"{HICACHE} --hicache-ratio 2 --max-total-tokens 100k",),
        "--max-total-tokens 100000",
        (f"{HICACHE} --hicache-size 30 --max-total-tokens 100k",),
    ),
    Example(
        "sglang-hugepages-ignored",
        (env(SGLANG_HUGEPAGE_SIZE="2MB"),),
        "SGLANG_HUGEPAGE_SIZE=2MB has no effect",
        ((HICACHE, {"SGLANG_HUGEPAGE_SIZE": "2MB"}),),
    ),
    Example(
        "sglang-hugepage-size-refused",
        ((HICACHE, {"SGLANG_HUGEPAGE_SIZE": "4MB"}),),
        "SGLANG_HUGEPAGE_SIZE=4MB",
        ((HICACHE, {"SGLANG_HUGEPAGE_SIZE": " 1gb "}),),
    ),
    Example(
        "register-chunk-ignored",
        (
            (
                f"{HICACHE} --hicache-mem-layout page_head",
                {"SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB": "8"},
            ),
        ),
        "with the layout page_head",
        ((HICACHE, {"SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB": "8"}),),
    ),
    Example(
        "gate-assumes-one-engine",
        (HICACHE, HICACHE),
        "2 servers with HiCache run at one time: launch.sh:1, launch.sh:2",
        (HICACHE,),
    ),
    Example(
        "ib-device-unchecked",
        ((f"{STORE} --disaggregation-ib-device mlx5_0", MASTER),),
        "not checked without --disaggregation-mode",
        ((f"{STORE} --disaggregation-ib-device a --disaggregation-mode prefill", MASTER),),
    ),
    Example(
        "pd-registration-silent",
        (f"{SERVER} --disaggregation-mode prefill",),
        "--disaggregation-mode prefill with the transfer backend mooncake",
        (f"{SERVER} --disaggregation-mode prefill --disaggregation-transfer-backend nixl",),
    ),
    Example(
        "attach-at-runtime",
        (f"{HICACHE} --admin-api-key k --hicache-mem-layout layer_first",),
        "--hicache-mem-layout layer_first stays",
        (f"{HICACHE} --admin-api-key k --hicache-mem-layout page_first",),
    ),
    Example(
        "attach-at-runtime",
        ((f"{HICACHE} --admin-api-key k", {"MOONCAKE_STANDALONE_STORAGE": "1"}),),
        "the host pool is not Mooncake's",
        ((HICACHE, {"MOONCAKE_STANDALONE_STORAGE": "1"}),),
    ),
    Example(
        "embedding-store-per-process",
        ((f"{ENCODER} --tp 4", MASTER),),
        "global_segment_size 4gb, SGLang's default, for each of 4 encoder processes",
        ((f"{ENCODER} --tp 4", {**MASTER, "MOONCAKE_GLOBAL_SEGMENT_SIZE": "0"}),),
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)


@pytest.mark.parametrize(
    ("between", "together"),
    [
        ("&", "launch.sh:1, launch.sh:2"),
        ("", ""),  # the second starts once the first has ended
        ("& kill $!", ""),  # as here
    ],
)
def test_servers_that_never_run_together_share_no_memory(between: str, together: str) -> None:
    reading = read_text(f"{HICACHE} {between}\n{HICACHE}\n", "launch.sh", {})
    found = findings(understand(reading.commands, lambda _: ""))
    said = [one.text for one in found if one.rule.id == "gate-assumes-one-engine"]
    assert said == ([f"2 servers with HiCache run at one time: {together}"] if together else [])


def test_the_advice_for_a_decode_server_that_offloads_is_not_what_a_record_warns_of() -> None:
    """MP-2026-0033: the radix cache and offload of a decode server do not go together."""
    text = (
        f"{HICACHE} --disaggregation-mode decode --disaggregation-decode-enable-offload-kvcache "
        "--hicache-storage-backend mooncake"
    )
    found = findings(understand(read_text(text, "run.sh", {}).commands, lambda _: ""))
    (remedy,) = (one.remedy or one.rule.remedy for one in found if one.rule.id == RADIX)
    offload = remedy.partition("--disaggregation-decode-enable-offload-kvcache")[2]
    assert "leave --enable-hierarchical-cache out" in offload
