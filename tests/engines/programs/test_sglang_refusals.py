"""Each row of the values that SGLang refuses: in its releases, with its words; and not beside."""

from __future__ import annotations

import pytest

from preflight.engines.programs.sglang_arguments import ParsedArguments, parse_sglang_arguments
from preflight.engines.programs.sglang_refusals import refusal_rows, refusals
from preflight.launch_problems.rules.launch_rules import findings
from preflight.launches.source import Origin, Word
from tests.builders.launch_text import understood
from tests.tables import each_row

NEWEST = "0.5.23"
HICACHE = "--enable-hierarchical-cache"
LINKER = "--enable-unified-cache-external-linker"
BUFFER = "--hicache-host-memory-mode buffer_only"
PREFILL = "--disaggregation-mode prefill"
DECODE = "--disaggregation-mode decode"
PDMUX = "--enable-pdmux --chunked-prefill-size -1"
BACKUP = "--disaggregation-decode-retraction-backup host_pool"
FAKE = "--disaggregation-transfer-backend fake"
IB = "--disaggregation-ib-device mlx5_0,mlx5_"
TP2 = "--disaggregation-decode-tp 2"
METRICS = "--export-metrics-to-file"
EAGLE = "--speculative-algorithm EAGLE"
PRIORITY = "--enable-priority-scheduling --schedule-policy"
ATTN2 = "--tp 4 --attn-dp-size 2"
CHUNK = "--chunked-prefill-size"
FRACTION = "--mem-fraction-static"
# Arguments, what is said of them, and arguments like them that are taken.
CASES = (
    ("--tp 0", "--tp 0: no rank is started", "--tp 2"),
    ("--pp-size -1", "--pp-size -1: there is", "--pp-size 2"),
    ("--dp 0", "--dp 0: no replica is started", "--dp 2"),
    ("--nnodes 2 --tp 2 --node-rank 5", "--node-rank 5 with", "--nnodes 2 --tp 2 --node-rank 1"),
    ("--nnodes 2 --tp 3", "tp_size must be divisible by number", "--nnodes 2 --tp 4"),
    ("--nnodes 2 --tp 2 --dp 2", "multi-node data parallel is", "--nnodes 1 --tp 2 --dp 2"),
    ("--nnodes 2 --tp 2 --dp 2", "multi-node data-parallel replicas", "--nnodes 2 --tp 2"),
    ("--tp 2 --dp 3 --enable-dp-attention", "tp_size % dp_size == 0", "--tp 2 --dp 3"),
    ("--attn-dp-size 0", "--attn-dp-size must be positive (got 0).", "--attn-dp-size 1"),
    (f"{ATTN2} --dp 2", "--dp-size 2 with --attn-dp-size 2", ATTN2),
    ("--tp 2 --dp 2 --enable-dp-lm-head", "Please enable dp attention", "--enable-dp-lm-head"),
    ("--base-gpu-id -1", "base_gpu_id must be", "--base-gpu-id 0"),
    ("--gpu-id-step 0", "gpu_id_step must be", "--gpu-id-step 2"),
    ("--tp 4 --moe-dense-tp-size 2", "only support 1 and None", "--tp 4 --moe-dense-tp-size 1"),
    ("--tp 4 --moe-dense-tp-size 2", "None, 1, or tp_size", "--tp 4 --moe-dense-tp-size 4"),
    ("--tp 4 --attn-cp-size 3", "divisible by attn_cp_size", "--tp 4 --attn-cp-size 2"),
    ("--dcp-size 0", "but got dcp_size=0.", "--dcp-size 1"),
    ("--page-size 0", "divided into pages of 0 tokens", "--page-size 1"),
    (f"{CHUNK} 100 --page-size 64", "divisible by page_size", f"--page-size 64 {CHUNK} 128"),
    (f"{FRACTION} 9", "--mem-fraction-static 9 is more than the whole GPU", f"{FRACTION} 0.9"),
    (f"{FRACTION} 0", "no GPU memory is left", f"{FRACTION} 0.1"),
    (f"{HICACHE} --hicache-ratio 0.5", "larger than the device", f"{HICACHE} --hicache-ratio 1.5"),
    (f"{HICACHE} --hicache-ratio -2", "less than nothing", f"{HICACHE} --hicache-ratio 0.1"),
    (
        f"{HICACHE} {BUFFER}",
        "requires a storage backend",
        f"{HICACHE} {BUFFER} --hicache-storage-backend file",
    ),
    (f"{HICACHE} {BUFFER} {DECODE}", "not supported on decode", HICACHE),
    (f"{HICACHE} {LINKER}", "external-linker and", HICACHE),
    (f"{LINKER} --hicache-storage-backend mooncake", "does not use", LINKER),
    (f"{LINKER} --disable-radix-cache", "requires the default", LINKER),
    (f"{HICACHE} --enable-lmcache", "--enable-lmcache and --enable-hier", "--enable-lmcache"),
    ("--enable-lmcache --disable-radix-cache", "requires radix cache", "--disable-radix-cache"),
    ("--swa-full-tokens-ratio 1.5", "in range (0, 1.0].", "--swa-full-tokens-ratio 1"),
    (f"{DECODE} {TP2}", "Cannot set --disaggregation-decode-tp", f"{PREFILL} {TP2}"),
    (f"{PREFILL} {FAKE}", "does not support 'fake'", f"{DECODE} {FAKE}"),
    (BACKUP, "only supported on a PD", f"{DECODE} {BACKUP}"),
    ("--encoder-only --language-only", "and --language-only together", "--encoder-only"),
    (f"--encoder-only {PREFILL}", "prefill/decode together", PREFILL),
    ("--pp-size 2 --enable-mixed-chunk", "Pipeline parallelism is not", "--enable-mixed-chunk"),
    (f"{EAGLE} --enable-mixed-chunk", "enable_mixed_chunk is required", EAGLE),
    (f"{PDMUX} --pp-size 2", "(pp_size=1).", PDMUX),
    (f"--enable-pdmux {CHUNK} 64", "with chunked prefill.", f"{CHUNK} 64"),
    (f"{PDMUX} {DECODE}", "with disaggregation mode.", DECODE),
    (f"{PRIORITY} lpm", "'lpm' is not supported.", "--schedule-policy lpm"),
    ("--schedule-conservativeness -1", "must be non-negative", "--schedule-conservativeness 0"),
    ("--tokenizer-worker-num 0", "worker num must >= 1", "--tokenizer-worker-num 1"),
    ("--max-loras-per-batch 0", "must be positive", "--max-loras-per-batch 1"),
    ("--port 40000 --grpc-port 40000", "--grpc-port (40000) must differ", "--grpc-port 40000"),
    ("--served-model-name a:b", "cannot contain a colon", "--served-model-name a"),
    (f"{PREFILL} {IB}0", "Duplicate IB devices specified: mlx5_0,mlx5_0", f"{PREFILL} {IB}1"),
    (METRICS, "--export-metrics-to-file-dir is", f"{METRICS} --export-metrics-to-file-dir /m"),
)


def parsed(flags: str, version: str) -> ParsedArguments:
    words = [Word(text, Origin("a")) for text in ["--model-path", "m", *flags.split()]]
    return parse_sglang_arguments(words, version)


def said(flags: str, version: str) -> list[str]:
    arguments = parsed(flags, version)
    assert (arguments.error, arguments.unrecognized) == (None, ())
    return list(refusals(arguments, version))


@each_row(("case", "row"), list(zip(CASES, refusal_rows(), strict=True)))
def test_each_row(case: tuple[str, str, str], row: object) -> None:
    refused, text, taken = case
    assert isinstance(row, type(refusal_rows()[0]))
    version = row.until or NEWEST
    assert any(text in message for message in said(refused, version))
    assert said(taken, version) == []


@pytest.mark.parametrize(
    ("flags", "rule"),
    [("--page-size 0", "values-refused"), (f"{HICACHE} --enable-lmcache", "argument-unknown")],
)
def test_the_rule_that_says_it(flags: str, rule: str) -> None:
    processes = understood(f"python3 -m sglang.launch_server --model-path m {flags}")
    found = {each.id: each.text for each in findings(tuple(processes))}
    assert rule in found
    assert ("values-refused" in found) == (rule == "values-refused")
