"""What two processes' keys are to each other: equal, never, the same for other bytes, unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.finding import Status
from preflight.cli.main import run
from preflight.needs.launch_sizing import LaunchSizing
from preflight.verdict.launch_checks import key_findings
from preflight.verdict.store_keys import (
    KeyMatch,
    Meeting,
    compare_keys,
    launch_keys,
    matches,
)
from tests.processes import test_unread
from tests.processes.test_unread import PLENTY

SGLANG = (
    "MOONCAKE_MASTER=10.0.0.1:50051 python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B "
    "--page-size 64 --enable-hierarchical-cache --hicache-storage-backend mooncake "
    "--hicache-mem-layout page_first"
)
FILE = {"metadata_server": "P2PHANDSHAKE", "master_server_address": "10.0.0.1:50051"}
CONNECTOR = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
LMCACHE_STORE = {
    "local_hostname": "a",
    "metadata_server": "P2PHANDSHAKE",
    "mooncake_master_server_addr": "10.0.0.1:50051",
}


def vllm(words: str = "", model: str = "Qwen/Qwen3-8B", front: str = "", **extra: object) -> str:
    config = json.dumps({**CONNECTOR, "kv_connector_extra_config": extra})
    path = "" if "MOONCAKE_CONFIG_PATH" in front else "MOONCAKE_CONFIG_PATH=mc.json "
    return f"{front} {path}vllm serve {model} {words} --kv-transfer-config '{config}'"


def lmcache(words: str = "", model: str = "Qwen/Qwen3-8B", front: str = "", **more: object) -> str:
    extra = {"lmcache.remote_url": "mooncakestore://a:1", "lmcache.extra_config": LMCACHE_STORE}
    given = {f"lmcache.{name}": value for name, value in more.items()}
    config = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    text = json.dumps({**config, "kv_connector_extra_config": {**extra, **given}})
    return f"{front} vllm serve {model} {words} --kv-transfer-config '{text}'"


def sized(folder: Path, *lines: str, config: str | None = None) -> LaunchSizing:
    files = {"mc.json": json.dumps(FILE), "tenant.json": json.dumps({**FILE, "tenant_id": "b"})}
    script = "".join(f"{line} &\n" for line in lines)
    return test_unread.sized(folder, script, files, PLENTY._replace(model_config=config))


def match_of(folder: Path, first: str, second: str) -> KeyMatch:
    (match,) = matches(launch_keys(sized(folder, first, second)))
    return match


EQUAL, NEVER, COLLIDE = Meeting.EQUAL, Meeting.NEVER, Meeting.COLLIDE
UNKNOWN, APART = Meeting.UNKNOWN, Meeting.APART
SEED = "PYTHONHASHSEED=0"
EXTRA = "--hicache-storage-backend-extra-config"
EAGLE = "--speculative-algorithm EAGLE3 --speculative-draft-model-path d"
NAMED = f"{SGLANG} --served-model-name q"
R1 = "deepseek-ai/DeepSeek-R1"
NAMED_R1 = NAMED.replace("Qwen/Qwen3-8B", R1)
XXHASH = vllm("--prefix-caching-hash-algo xxhash")
RANDOM = "PYTHONHASHSEED=random"
PCP, DCP = "--prefill-context-parallel-size", "--decode-context-parallel-size"
MAMBA = SGLANG.replace("Qwen/Qwen3-8B", "Qwen/Qwen3-Next-80B-A3B-Instruct")
ALONE = "MOONCAKE_STANDALONE_STORAGE=1 MOONCAKE_CLIENT=10.0.0.2:50052"
PAIRS = [
    (SGLANG, f"{SGLANG} --port 30001", EQUAL, ""),
    (SGLANG, SGLANG.replace("size 64", "size 32"), NEVER, "page size: 64 against 32"),
    (SGLANG, f"{SGLANG} --tp 2", COLLIDE, "tensor-parallel shards: 1 against 2"),
    (f"{SGLANG} --tp 4", f"{SGLANG} --tp 4 --dp 4 --enable-dp-attention", COLLIDE, "shards: 4"),
    (SGLANG, f"{SGLANG} --pp-size 2", NEVER, "rank and stage numbers in a key: 1 against 2"),
    (f"{SGLANG} --pp-size 2", f"{SGLANG} --pp-size 4", COLLIDE, "pipeline stages: 2 against 4"),
    (SGLANG, f"{SGLANG} --kv-cache-dtype fp8_e4m3", COLLIDE, "KV dtype: auto against fp8_e4m3"),
    (SGLANG, f"{SGLANG} --served-model-name q", NEVER, "prefix: Qwen-Qwen3-8B against q"),
    (SGLANG, f"{SGLANG} {EAGLE}", NEVER, "tokens in a key: single against pairs"),
    (  # decode offload hashes single tokens, whatever drafts
        f"{SGLANG} {EAGLE} --disaggregation-mode prefill",
        f"{SGLANG} {EAGLE} --disaggregation-mode decode "
        "--disaggregation-decode-enable-offload-kvcache",
        NEVER,
        "tokens in a key: pairs against single",
    ),
    (MAMBA, f"{MAMBA} --speculative-algorithm NEXTN", EQUAL, ""),
    (f"{ALONE} MOONCAKE_TENANT_ID=blue {SGLANG}", f"{ALONE} {SGLANG}", EQUAL, ""),
    (SGLANG, SGLANG.replace("page_first", "page_first_direct"), COLLIDE, "memory layout"),
    (NAMED, NAMED_R1, NEVER, "rank and stage numbers in a key: 1 against 0"),
    # _0_k is rank 0 of the one and stage 0 of the other
    (NAMED, f"{NAMED_R1} --pp-size 2", COLLIDE, f"model: Qwen/Qwen3-8B against {R1}"),
    (SGLANG, SGLANG.replace("10.0.0.1", "10.0.0.2"), APART, "10.0.0.2:50051"),
    (f"MOONCAKE_TENANT_ID=b {SGLANG}", SGLANG, APART, "tenant: b against default"),
    (SGLANG, f"{SGLANG} --tp $TP", UNKNOWN, "TP is not set"),
    (SGLANG, vllm(), NEVER, "name their keys in different ways"),
    (vllm("-tp 2"), vllm("-tp 2 --port 8001"), EQUAL, ""),
    (vllm("-tp 2"), vllm("-tp 4"), COLLIDE, "tensor-parallel shards: 2 against 4"),
    (vllm("-tp 8"), vllm("-tp 16"), EQUAL, ""),  # 8 heads: two ranks hold each
    (vllm(model="org/no-model", words="-tp 2"), vllm(model="org/no-model"), UNKNOWN, "shards"),
    (vllm(model="a/m"), vllm(model="b/m"), COLLIDE, "model: a/m against b/m"),
    (vllm(model="a/m"), vllm(model="/x/m"), UNKNOWN, "whether the folder holds the same model"),
    (vllm(cache_prefix="x"), vllm(), NEVER, "cache_prefix: x against"),
    (vllm("--block-size 32"), vllm("--block-size 64"), NEVER, "block size: 32 against 64"),
    (vllm("--block-size 32"), vllm(), UNKNOWN, "left to the engine"),
    (vllm(front=SEED), vllm(), NEVER, "hash seed: 0 against vLLM's own"),
    (XXHASH, XXHASH, NEVER, "the seed of xxhash is drawn at random in each process"),
    (vllm(front="MOONCAKE_CONFIG_PATH=tenant.json"), vllm(), APART, "tenant: b against default"),
    (vllm(store_tp_size=8), vllm(), UNKNOWN, "store layout"),
    (vllm("--block-size $B"), vllm("--block-size 16"), UNKNOWN, "B is not set"),
    (vllm(f"{PCP} $N"), vllm(f"{DCP} $N"), UNKNOWN, "N is not set"),
    (vllm(f"{DCP} 1k"), vllm(f"{DCP} 1000"), EQUAL, ""),
    (
        vllm('--speculative-config \'{"model": "a"}\''),
        vllm('--speculative-config \'{"model": "b"}\''),
        UNKNOWN,
        "whether both drafts keep the same layers is not known",
    ),
    (vllm(front="MOONCAKE_CONFIG_PATH=far.json"), vllm(), UNKNOWN, "far.json"),
    (vllm(f"{PCP} 2"), vllm(), COLLIDE, "prefill context ranks: 2 against"),
    (vllm(front=RANDOM), vllm(front=RANDOM), EQUAL, ""),
    (lmcache(front=RANDOM), lmcache(front=RANDOM), NEVER, "drawn"),
    (f"{SGLANG} --tp 4 --dcp-size 2", f"{SGLANG} --tp 4", NEVER, "tp 4, dcp 2, page 64, pp 1"),
    (f"{SGLANG} {EXTRA} $EXTRA", SGLANG, UNKNOWN, "EXTRA is not set"),
    (f'{SGLANG} {EXTRA} \'{{"extra_backend_tag": "t"}}\'', SGLANG, NEVER, "prefix: t_Qwen"),
    (lmcache(front=f"{SEED} MOONCAKE_CONFIG_PATH=far.json"), lmcache(front=SEED), UNKNOWN, "far"),
    (lmcache(front=SEED), lmcache(front=SEED), EQUAL, ""),
    (lmcache(), lmcache(), NEVER, "PYTHONHASHSEED is not set"),
    (lmcache(front=SEED), lmcache("-tp 2", front=SEED), NEVER, "workers in a key: 1 against 2"),
    (lmcache(front=SEED, chunk_size=64), lmcache(front=SEED), NEVER, "chunk size: 64 against 256"),
    (lmcache("-tp 2", R1, SEED), lmcache("-tp 4", R1, SEED), EQUAL, ""),
]


@pytest.mark.parametrize(("first", "second", "verdict", "why"), PAIRS)
def test_two_processes(tmp_path: Path, first: str, second: str, verdict: Meeting, why: str) -> None:
    match = match_of(tmp_path, first, second)
    assert (match.verdict, why in "; ".join(match.reasons)) == (verdict, True), match.reasons
    assert compare_keys(match.second, match.first).verdict is verdict


def test_vllm_draws_its_seed_until_0_28(tmp_path: Path) -> None:
    config = json.dumps(CONNECTOR)
    image = "docker run --entrypoint vllm -e MOONCAKE_CONFIG_PATH=/mc.json vllm/vllm-openai"
    words = f"serve m --kv-transfer-config '{config}'"
    older, newer = launch_keys(
        sized(tmp_path, f"{image}:v0.28.0 {words}", f"{image}:v0.29.0 {words} --port 8001")
    )
    assert str(older.named["vLLM release"]) == "0.28.0"
    match = compare_keys(older, newer)
    drawn = "PYTHONHASHSEED is not set, and the seed of vLLM 0.28.0 is drawn at random"
    assert match.verdict is NEVER
    assert any(drawn in reason for reason in match.reasons)


def test_the_check_warns_of_one_model_alone(tmp_path: Path) -> None:
    def statuses(*lines: str) -> list[Status]:
        found = key_findings(sized(tmp_path, *lines))
        return [one.status for one in found if " and " in one.subject]

    assert statuses(vllm(), vllm("--block-size 32")) == [Status.UNKNOWN]
    assert statuses(vllm(), vllm(cache_prefix="x")) == [Status.WARN]
    assert statuses(vllm(), vllm()) == [Status.PASS]
    assert statuses(vllm(), vllm(model="a/other")) == []


def test_the_command_holds_two_launches_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []
    for name, line in (("a.sh", vllm("-tp 2")), ("b.sh", vllm("-tp 2", cache_prefix="x"))):
        (tmp_path / "mc.json").write_text(json.dumps(FILE))
        (tmp_path / name).write_text(line + "\n")
        names.append(str(tmp_path / name))
    assert run(["read", "--keys", names[0]]) == 0
    said = capsys.readouterr().out
    assert "Qwen3-8B@tp_rank:<rank>@pcp0@dcp0@pp_rank:<stage>@group:0@<hash" in said
    assert run(["read", "--keys", *names]) == 1
    said = capsys.readouterr().out
    assert "never equal" in said
    assert " * cache_prefix: " in said
    assert run(["read", "--keys", "--json", *names]) == 1
    (pair,) = json.loads(capsys.readouterr().out)["answer"]["pairs"]
    assert pair["verdict"] == "never equal"


def test_a_draft_that_is_not_known_is_no_defect(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text(vllm('--speculative-config "$SPEC"') + "\n")
    assert run(["read", "--keys", str(script)]) in (0, 1, 3)
