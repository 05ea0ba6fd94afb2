"""Each rule finds what it declares, and is silent where the same launch is written right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from checks.unknown import Unknown
from preflight.launch_rules import RULE_SETS, RULES, findings
from preflight.model_geometry import geometry_from_config
from preflight.mooncake_versions import release
from preflight.rules import Severity, Versions
from preflight.sglang_versions import sglang_release
from preflight.well_known_models import well_known_model
from tests.launch_text import HICACHE, MASTER, SERVER, STORE, understood

Line = str | tuple[str, Mapping[str, str]]


class Example(NamedTuple):
    """A launch in which a rule holds, what it then says, and the launch in which it does not."""

    id: str
    wrong: tuple[Line, ...]
    says: str
    right: tuple[Line, ...]
    files: Mapping[str, str] = {}


def extra(json: str, line: str = STORE) -> str:
    return f"{line} --hicache-storage-backend-extra-config '{json}'"


def env(**more: str) -> tuple[str, dict[str, str]]:
    return (STORE, {**MASTER, **more})


GOOD = env(MC_STORE_USE_HUGEPAGE="1")
ADDRESS = '"master_server_address": "10.0.0.1:50051"'
CONFIG = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"

EXAMPLES = [
    Example(
        "extra-config-ignored",
        ((extra('{"global_segment_size": "64gb"}'), MASTER),),
        "the extra config sets global_segment_size, and the environment is used instead",
        (extra('{"global_segment_size": "64gb", ' + ADDRESS + "}"),),
    ),
    Example(
        "store-environment-ignored",
        ((extra("{" + ADDRESS + "}"), {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "32gb"}),),
        "the extra config counts, and there global_segment_size is '4gb' (default of SGLang",
        (
            (
                extra('{"global_segment_size": "32gb", ' + ADDRESS + "}"),
                {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "32gb"},
            ),
        ),
    ),
    Example(
        "store-config-refused",
        (STORE,),
        "Either the environment variable 'MOONCAKE_MASTER' or 'MOONCAKE_CLIENT' is not set.",
        (GOOD,),
    ),
    Example(
        "store-config-refused",
        (extra("{not json"),),
        "Invalid hicache storage backend extra config JSON",
        (extra("{" + ADDRESS + "}"),),
    ),
    Example(
        "store-config-refused",
        ((STORE, {CONFIG: "store.json"}),),
        "Either master_server_address or client_server_address is required in config file",
        ((STORE, {CONFIG: "good.json"}),),
        {"store.json": "{}", "good.json": '{"master_server_address": "a:1"}'},
    ),
    Example(
        "segment-size-refused",
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="512mb"),),
        "ValueError: invalid literal for int() with base 10: '512mb'",
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="536870912"),),
    ),
    Example(
        "segment-size-plain",
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="4"),),
        "'4' (MOONCAKE_GLOBAL_SEGMENT_SIZE at launch.sh:1) is 4 bytes",
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="816043786240"),),
    ),
    Example(
        "segment-size-plain",
        (extra('{"global_segment_size": true, ' + ADDRESS + "}"),),
        "is 1 bytes to SGLang",
        (extra('{"global_segment_size": "1gb", ' + ADDRESS + "}"),),
    ),
    Example(
        "string-is-true",
        (extra('{"enable_ssd_offload": "false", ' + ADDRESS + "}"),),
        "enable_ssd_offload is the string 'false', which counts as true",
        (extra('{"enable_ssd_offload": false, ' + ADDRESS + "}"),),
    ),
    Example(
        "store-key-unknown",
        (extra('{"global_segment_sise": "8gb", ' + ADDRESS + "}"),),
        "'global_segment_sise' is no setting of the store: global_segment_size?",
        (extra('{"prefetch_threshold": 64, ' + ADDRESS + "}"),),
    ),
    Example(
        "environment-value-defaulted",
        (env(MOONCAKE_CHECK_SERVER="maybe"),),
        '"maybe" is not a valid boolean value, using default False',
        (env(MOONCAKE_CHECK_SERVER="yes"),),
    ),
    Example(
        "segment-times-dp",
        ((f"{STORE} --dp-size 8 --enable-dp-attention", MASTER),),
        "4.00 GiB is contributed by each of 8 data-parallel groups: 32.00 GiB",
        (GOOD,),
    ),
    Example(
        "local-hostname-localhost",
        ((f"{STORE} --nnodes 2 --node-rank 0", MASTER),),
        "local_hostname is localhost",
        ((f"{STORE} --nnodes 2", {**MASTER, "LOCAL_HOSTNAME": "node1"}),),
    ),
    Example(
        "standalone-without-switch",
        ((STORE, {"MOONCAKE_CLIENT": "127.0.0.1:50052"}),),
        "standalone_storage is off, no master",
        ((STORE, {"MOONCAKE_CLIENT": "a:1", "MOONCAKE_STANDALONE_STORAGE": "1"}),),
    ),
    Example(
        "standalone-breaks-mha",
        (env(MOONCAKE_STANDALONE_STORAGE="1"),),
        "standalone_storage is on",
        (GOOD,),
    ),
    Example(
        "segment-nowhere",
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="0"),),
        "global_segment_size is 0 in every server",
        (env(MOONCAKE_GLOBAL_SEGMENT_SIZE="0"), "mooncake_client --global_segment_size=80GB"),
    ),
    Example(
        "keys-collide",
        ((STORE, MASTER), (f"{STORE} --tp 4", MASTER)),
        "share the master 10.0.0.1:50051 and the name 'm', with (tp, KV type) (8, 'auto')",
        ((STORE, MASTER), (STORE, MASTER)),
    ),
    Example(
        "model-name-shared",
        (
            (f"{STORE} --served-model-name x", MASTER),
            (f"{STORE} --served-model-name x --model-path other", MASTER),
        ),
        "m and other are both served as 'x'",
        (
            (f"{STORE} --served-model-name x", MASTER),
            (f"{STORE} --served-model-name y --model-path other", MASTER),
        ),
    ),
    Example(
        "arguments-refused",
        (f"{HICACHE} --hicache-size 30.5",),
        "sglang serve: error: argument --hicache-size: invalid int value: '30.5'",
        (f"{HICACHE} --hicache-size 30",),
    ),
    Example(
        "arguments-refused",
        (f"{HICACHE} --hicache-mem-layout page_last",),
        "invalid choice: 'page_last'",
        (f"{HICACHE} --hicache-mem-layout page_first",),
    ),
    Example(
        "argument-unknown",
        (f"{HICACHE} --hicache-sise 30",),
        "unrecognized arguments: --hicache-sise",
        (HICACHE,),
    ),
    Example(
        "hicache-not-enabled",
        (f"{SERVER} --hicache-size 30 --hicache-storage-backend mooncake",),
        "--hicache-size, --hicache-storage-backend: without --enable-hierarchical-cache",
        (f"{HICACHE} --hicache-size 30",),
    ),
    Example(
        "hicache-size-per-rank",
        (f"{HICACHE} --hicache-size 100",),
        "100 x 10^9 bytes for each of 8 ranks",
        (f"{HICACHE} --hicache-size 100 --tp 1",),
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
        "2 servers with HiCache in one source: launch.sh:1, launch.sh:2",
        (HICACHE,),
    ),
    Example(
        "device-name-syntax",
        (env(MOONCAKE_DEVICE="mlx5_0:1,mlx5_1"),),
        "device_name: 'mlx5_0:1' has a port",
        (env(MOONCAKE_DEVICE="mlx5_0,mlx5_1"),),
    ),
    Example(
        "device-name-syntax",
        (f"{SERVER} --disaggregation-ib-device 'mlx5_0, mlx5_1'",),
        "--disaggregation-ib-device: ' mlx5_1' has a blank",
        (f"{SERVER} --disaggregation-ib-device mlx5_0,mlx5_1",),
    ),
    Example(
        "device-map-unreadable",
        (env(MOONCAKE_DEVICE='{0: "mlx5_0"}'),),
        "Expecting property name",
        (env(MOONCAKE_DEVICE='{"0": "mlx5_0"}'),),
    ),
    Example(
        "device-map-rank-missing",
        (env(MOONCAKE_DEVICE='{"0": "mlx5_0", "1": "mlx5_1"}'),),
        "names no device for rank 2, 3, 4, 5, 6, 7",
        ((f"{STORE} --tp 1", {**MASTER, "MOONCAKE_DEVICE": '{"0": "mlx5_0"}'}),),
    ),
    Example(
        "device-map-repeats",
        ((f"{STORE} --dp 2", {**MASTER, "MOONCAKE_DEVICE": '{"0": "mlx5_0"}'}),),
        "--dp-size 2",
        (env(MOONCAKE_DEVICE='{"0": "mlx5_0"}'),),
    ),
    Example(
        "two-transfer-engines",
        (GOOD,),
        "the store has device ''",
        (
            (
                f"{STORE} --mooncake-ib-device mlx5_0",
                {**MASTER, "MOONCAKE_DEVICE": "mlx5_0"},
            ),
        ),
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
        "tcp-takes-rdma",
        (env(MOONCAKE_PROTOCOL="tcp"),),
        "protocol is tcp",
        (env(MOONCAKE_PROTOCOL="tcp", MC_FORCE_TCP="1"),),
    ),
    Example(
        "custom-mem-pool-unknown",
        ((SERVER, {"SGLANG_MOONCAKE_CUSTOM_MEM_POOL": "nvlink"}),),
        "SGLANG_MOONCAKE_CUSTOM_MEM_POOL=nvlink",
        ((SERVER, {"SGLANG_MOONCAKE_CUSTOM_MEM_POOL": "NVLINK"}),),
    ),
    Example(
        "variable-misspelt",
        (env(MC_GID_INDX="3"),),
        "MC_GID_INDX: neither Mooncake nor SGLang reads it: MC_GID_INDEX is meant?",
        (env(MC_GID_INDEX="3"),),
    ),
    Example(
        "local-buffer-ignored",
        (env(MOONCAKE_LOCAL_BUFFER_SIZE="1gb"),),
        "MOONCAKE_LOCAL_BUFFER_SIZE=1gb has no effect on SGLang",
        (("python -m mooncake.mooncake_store_service", {"MOONCAKE_LOCAL_BUFFER_SIZE": "1gb"}),),
    ),
    Example(
        "force-tcp-is-presence",
        (env(MC_FORCE_TCP="0"),),
        "MC_FORCE_TCP=0: counts as on",
        (env(MC_FORCE_TCP="1"),),
    ),
    Example(
        "number-misread",
        (env(MC_MAX_MR_SIZE="16MB"),),
        "MC_MAX_MR_SIZE=16MB: Mooncake reads 16",
        (env(MC_MAX_MR_SIZE="16777216"),),
    ),
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
        "proxy-in-the-way",
        (env(http_proxy="http://proxy:3128", no_proxy="10.0.0.0/8"),),
        "SGLang server starts with http_proxy, no_proxy is '10.0.0.0/8'",
        (GOOD,),
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.id}: {e.says[:40]}")
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    found = findings(understood(*example.wrong, files=example.files))
    said = [finding.text for finding in found if finding.rule.id == example.id]
    assert any(example.says in text for text in said), [(f.rule.id, f.text) for f in found]
    right = findings(understood(*example.right, files=example.files))
    assert example.id not in [finding.rule.id for finding in right]


class MemoryExample(NamedTuple):
    id: str
    wrong: Line
    says: str
    right: Line
    sglang: tuple[str, str] = ("0.5.23", "0.5.23")
    mooncake: tuple[str, str] = ("0.3.14", "0.3.14")


UNEQUAL = geometry_from_config(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "hidden_size": 1536,
        "head_dim": 192,
        "v_head_dim": 128,
        "torch_dtype": "bfloat16",
    },
    "unequal",
)
V32 = f"{HICACHE} --model-path deepseek-ai/DeepSeek-V3.2 --hicache-size 100"
R1 = f"{HICACHE} --model-path deepseek-ai/DeepSeek-R1 --hicache-size 100"
OFFLOAD = env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", MOONCAKE_OFFLOAD_FILE_STORAGE_PATH="/data")
MEMORY_EXAMPLES = [
    MemoryExample("indexer-on-top", V32, "index keys of 61 layers on top", R1),
    MemoryExample("draft-on-top", f"{R1} --speculative-algorithm EAGLE", "EAGLE", R1),
    MemoryExample(
        "mla-copies",
        R1,
        "8 ranks keep the same rows: 745.06 GiB for 93.13 GiB",
        f"{HICACHE} --model-path Qwen/Qwen3-8B --hicache-size 100",
    ),
    MemoryExample(
        "offload-folder-shared",
        OFFLOAD,
        "8 ranks offload to /data",
        OFFLOAD,
        sglang=("0.5.20", "0.5.23"),
    ),
    MemoryExample(
        "gate-blind-to-hugepages",
        GOOD,
        "puts the L2 pool on huge pages",
        env(),
    ),
    MemoryExample(
        "storage-needs-equal-heads",
        f"{HICACHE} --model-path unequal --hicache-storage-backend nixl",
        "unequal: K of 192, V of 128, nixl",
        f"{HICACHE} --model-path Qwen/Qwen3-8B --hicache-storage-backend nixl",
    ),
    MemoryExample(
        "mooncake-too-old",
        GOOD,
        "older than 0.3.8.post1",
        GOOD,
        mooncake=("0.3.8", "0.3.8.post1"),
    ),
]


@pytest.mark.parametrize("example", MEMORY_EXAMPLES, ids=lambda e: e.id)
def test_a_memory_rule_finds_what_it_declares(example: MemoryExample) -> None:
    def found(line: Line, turn: int) -> dict[str, str]:
        processes = understood(line)
        server = processes[0].server
        assert server is not None
        known = well_known_model(str(server.value("model_path")))
        geometry = known if isinstance(known, Unknown) else known.geometry
        if server.value("model_path") == "unequal":
            geometry = UNEQUAL
        versions = Versions(
            geometry, sglang_release(example.sglang[turn]), release(example.mooncake[turn])
        )
        return {f.rule.id: f.text for f in findings(processes, [(server, versions)])}

    assert example.says in found(example.wrong, 0).get(example.id, "")
    assert example.id not in found(example.right, 1)


def test_every_rule_has_an_example() -> None:
    shown = {example.id for example in EXAMPLES} | {example.id for example in MEMORY_EXAMPLES}
    assert shown == set(RULES)


def test_rules_are_declared_once_and_in_full() -> None:
    declared = [rule for rules in RULE_SETS for rule in rules.rules]
    assert len({rule.id for rule in declared}) == len(declared)
    for rule in declared:
        assert all((rule.finds, rule.consequence, rule.remedy, rule.source))
        assert not rule.finds.endswith(".")


def test_findings_come_worst_first() -> None:
    found = findings(understood((f"{STORE} --hicache-size x", {"MC_GID_INDX": "1"})))
    order = [Severity.FAIL, Severity.WARN, Severity.NOTE]
    assert [order.index(finding.rule.severity) for finding in found] == sorted(
        order.index(finding.rule.severity) for finding in found
    )
    assert found[0].rule.severity is Severity.FAIL


def test_an_unresolved_value_makes_no_finding_of_its_own() -> None:
    launch = (f"{STORE} --tp $TP --hicache-size $SIZE", {"MOONCAKE_MASTER": "$MASTER"})
    found = [f for f in findings(understood(launch)) if f.rule.severity is not Severity.NOTE]
    assert {finding.rule.id for finding in found} <= {"two-transfer-engines"}
