"""Dynamo's SGLang worker is the SGLang server that it starts, without Dynamo's own flags."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.engines.consumers.consumer import Consumer
from preflight.engines.consumers.vllm import read_kvbm
from preflight.launches.source import Origin, Word
from tests.engines.consumers.test_vllm import read, transfer
from tests.paths import ROOT
from tests.processes.test_unread import sized

SERVER = (
    "--model-path Qwen/Qwen3-8B --tp 2 --page-size 64 --enable-hierarchical-cache "
    "--hicache-size 10 --disaggregation-mode prefill"
)


def kvbm(**environment: str) -> Consumer:
    return read_kvbm(
        {name: Word(text, Origin("launch.sh", 1)) for name, text in environment.items()}
    )


# What ai-dynamo 1.6.1's own parser (dynamo.sglang.args, parse_known_args) leaves for SGLang.
HANDED_ON = (
    ("--namespace n --tp 2 --endpoint dyn://a.b.c", "--tp 2"),
    ("--endpoint=dyn://a.b.c --page-size=64 --fpm-trace --dp 2", "--page-size=64 --dp 2"),
    ("--dyn-tool-call-parser hermes --hicache-size 4", "--hicache-size 4"),
    ("--enable-multimodal --enable-mixed-chunk --no-enable-rl", "--enable-mixed-chunk"),
    ("--gateway-workers 2 --tokenizer-worker-num 2", "--tokenizer-worker-num 2"),
    ("--output-modalities text image --tp-size 4", "--tp-size 4"),
    ("--use-sglang-tokenizer --base-gpu-id 1 --embedding-worker", "--base-gpu-id 1"),
    ("--custom-jinja-template t --chat-template c", "--chat-template c"),
)
# Its own values of SGLang's flags, of which it makes SGLang's behind that parser.
OWN_VALUES = (
    ("--disaggregation-mode encode --tp 2", "--tp 2"),
    ("--disaggregation-mode=pd --load-format=gms", "--disaggregation-mode=null --load-format=auto"),
    ("--disaggregation-mode prefill --load-format gms", "--disaggregation-mode prefill"),
)


@pytest.mark.parametrize(("words", "handed"), HANDED_ON + OWN_VALUES)
def test_the_words_that_dynamo_hands_on(tmp_path: Path, words: str, handed: str) -> None:
    (process,) = sized(tmp_path, f"python3 -m dynamo.sglang {words}\n").inputs.processes
    (alone,) = sized(tmp_path, f"python3 -m sglang.launch_server {handed}\n").inputs.processes
    assert process.server is not None
    assert alone.server is not None
    values = [
        {name: setting.value for name, setting in one.arguments.settings.items()}
        for one in (process.server, alone.server)
    ]
    assert values[0] == values[1]


# Where .ci/run puts the wheel.
DYNAMO = ROOT / ".cache/dynamo"
# Each of its flags that takes words, and those that take none, in front of one of SGLang's.
FLAGS = (
    "--namespace n;--endpoint dyn://a.b.c;--discovery-backend etcd;--request-plane nats;"
    "--event-plane zmq;--dyn-tool-call-parser hermes;--dyn-reasoning-parser qwen3;"
    "--custom-jinja-template t;--output-modalities text image;--use-sglang-tokenizer;"
    "--enable-multimodal;--embedding-worker;--no-enable-rl"
).split(";")


@pytest.mark.slow
@pytest.mark.skipif(
    not DYNAMO.is_dir(), reason="no ai-dynamo in .cache/dynamo, where .ci/run puts it"
)
def test_dynamos_own_parser_hands_on_the_same_words(tmp_path: Path) -> None:
    """ai-dynamo 1.6.1's argument groups, with a stand-in for its compiled runtime."""
    given = [words.split() for words, _ in HANDED_ON]
    given += [[*flag.split(), "--tp", "4", "--page-size=64"] for flag in FLAGS]
    told = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("dynamo_parser.py"))],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(DYNAMO), "PATH": "/usr/bin:/bin"},
    )
    left = json.loads(told.stdout)
    assert [" ".join(words) for words in left[: len(HANDED_ON)]] == [said for _, said in HANDED_ON]
    for words, theirs in zip(given, left, strict=True):
        test_the_words_that_dynamo_hands_on(tmp_path, " ".join(words), " ".join(theirs))


def test_arguments_in_a_file_of_dynamos_own_are_unknown_by_name(tmp_path: Path) -> None:
    words = f"python3 -m dynamo.sglang {SERVER} --disagg-config f"
    found = sized(tmp_path, f"{words} --disagg-config-key k\n")
    assert found.status == "unknown"
    assert "which of SGLang's arguments stand in --disagg-config" in found.reason
    assert not sized(tmp_path, f"{words}\n").unread


def test_the_pool_of_kvbm_is_of_the_engine() -> None:
    (pool,) = kvbm(DYN_KVBM_CPU_CACHE_GB="20").pools
    assert (pool.memory.bytes, pool.of_engine) == (20 * 10**9, True)
    assert kvbm(DYN_KVBM_DISK_CACHE_GB="8").pools == ()
    ports = {what: one.value for what, one in kvbm(DYN_KVBM_CPU_CACHE_GB="1").ports}
    assert ports == {"KVBM pub port": 56001, "KVBM ack port": 56002}


def test_what_kvbm_refuses_and_takes_for_something_else() -> None:
    assert "At least one cache tier" in kvbm().refused[0]
    lost = kvbm(DYN_KVBM_CPU_CACHE_GB="20GB")
    assert lost.refused
    assert lost.misread == ("DYN_KVBM_CPU_CACHE_GB=20GB: not a number to KVBM, which takes 0",)
    small = kvbm(DYN_KVBM_CPU_CACHE_GB="20", DYN_KVBM_DISK_CACHE_GB="8")
    assert "is less than DYN_KVBM_CPU_CACHE_GB" in small.ignored[0]
    blocks = kvbm(DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS="1000")
    assert (blocks.refused, "1000 blocks" in blocks.uncounted[0]) == ((), True)


def test_dynamos_pd_connector_is_a_multi_connector() -> None:
    """dynamo kvbm.vllm_integration.connector.pd_connector: KVBM first, then NIXL."""
    module = {"kv_connector_module_path": "kvbm.vllm_integration.connector"}
    children = [{**transfer("DynamoConnector"), **module}, transfer("NixlConnector")]
    config = {**transfer("PdConnector"), **module}
    config["kv_connector_extra_config"] = {"connectors": children}
    words = ("serve", "m", "--kv-transfer-config", json.dumps(config))
    found = read(*words, environment={"DYN_KVBM_CPU_CACHE_GB": "4"})
    assert found.connectors == ("PdConnector", "DynamoConnector", "NixlConnector")
    assert [pool.memory.bytes for pool in found.pools] == [4 * 10**9]
    assert found.uncounted == ("what NixlConnector takes",)
    config["kv_connector_module_path"] = "another.connector"
    words = ("serve", "m", "--kv-transfer-config", json.dumps(config))
    assert read(*words).uncounted == ("what PdConnector takes",)
