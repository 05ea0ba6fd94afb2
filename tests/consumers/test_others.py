"""TensorRT-LLM's store, AscendStore, MemCache, Dynamo's KVBM: what is read, and what is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.base.units import GIB
from checks.base.unknown import Unknown
from preflight.consumers.consumer import Consumer
from preflight.consumers.others import (
    ascend_store,
    read_kvbm,
    read_trtllm,
    trtllm_size_bytes,
    trtllm_store,
)
from preflight.judging.store_keys import Meeting, launch_keys, matches
from preflight.launches.source import Origin, Word
from preflight.programs.memory_records import StoreClient
from tests.consumers.test_vllm import read, transfer
from tests.processes.test_unread import sized

ORIGIN = Origin("launch.sh", 1)
FILE = {"master_server_address": "10.0.0.1:50051", "model_key": "m"}
YAML = "kv_connector_config: {connector: mooncake-store}\ntensor_parallel_size: 4\n"


def words(text: str) -> list[Word]:
    return [Word(each, ORIGIN) for each in text.split()]


def trtllm(
    text: str = "m --extra_llm_api_options c.yaml", yaml: str = YAML, **file: Any
) -> Consumer:
    files = {"c.yaml": yaml, "mc.json": json.dumps({**FILE, **file})}
    absent = Unknown("not here", absent=True)
    environment = {"MOONCAKE_CONFIG_PATH": Word("mc.json", ORIGIN)}
    return read_trtllm(words(text), environment, lambda name: files.get(name, absent))


def ascend(file: dict[str, Any] | None, backend: str = "mooncake", **environment: str) -> Consumer:
    from preflight.consumers.vllm import read_vllm

    config = json.dumps(transfer("AscendStoreConnector", backend=backend))
    given = {name: Word(text, ORIGIN) for name, text in environment.items()}
    if file is not None:
        given["MOONCAKE_CONFIG_PATH"] = Word("mc.json", ORIGIN)
    texts = {
        "mc.json": json.dumps(file),
        "mmc.conf": "# x\nock.mmc.local_service.dram.size = 2GB\n",
    }
    flags = [*words("serve m -tp 2 --kv-transfer-config"), Word(config, ORIGIN)]
    return read_vllm(flags, given, lambda name: texts.get(name, Unknown(name)))


def kvbm(**environment: str) -> Consumer:
    return read_kvbm({name: Word(text, ORIGIN) for name, text in environment.items()})


@pytest.mark.parametrize(
    ("size", "becomes"), [("4GiB", 4 * GIB), (5, 5), ("1.5 GiB", 3 * GIB // 2), ("7", 7)]
)
def test_a_size_of_tensorrt_llm(size: object, becomes: int) -> None:
    assert trtllm_size_bytes(size) == becomes


@pytest.mark.parametrize(
    ("size", "why"),
    [("4GB", "uses the ambiguous unit 'GB'"), ("4g", "ambiguous"), ("4x", "unknown size unit 'x'"),
     (True, "expected a size, got True"), ("-1", "cannot parse size '-1'"), (None, "cannot parse")],
)  # fmt: skip
def test_a_size_that_tensorrt_llm_refuses(size: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        trtllm_size_bytes(size)


def test_each_rank_of_tensorrt_llm_has_a_client_and_staging() -> None:
    found = trtllm(global_segment_size="4GiB", role="producer")
    assert found.workers == 4
    assert trtllm("m --extra_llm_api_options=c.yaml").workers == 4
    assert found.clients[0].store.client[:2] == (4 * GIB, GIB)  # type: ignore[index]
    (pool,) = found.pools
    assert (pool.memory.bytes, pool.memory.least_bytes, pool.memory.registered) == (GIB, 0, True)
    assert trtllm().pools[0].memory.bytes == 2 * GIB  # both directions
    assert trtllm(role="capacity").pools == ()
    # What it asks of MemAvailable itself: of each rank both, and 32 GiB to stay free.
    assert found.gate_bytes == 4 * 5 * GIB + 32 * GIB
    assert trtllm(role="capacity", global_segment_size=0).gate_bytes == 0
    plain = trtllm()
    assert isinstance(plain.clients[0].store.client, StoreClient)
    assert plain.clients[0].store.client.segment_bytes == 3355443200
    assert plain.ports[0][1].value == 8000
    assert "TensorRT-LLM" in plain.uncounted[0]


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ({"model_key": ""}, "needs a model key"),
        ({"master_server_address": ""}, "master_server_address is required"),
        ({"local_buffer_size": 0}, "local_buffer_size must be > 0"),
        ({"global_segment_size": "4GB"}, "ambiguous"),
        ({"role": "x"}, "is not one of"),
        ({"global_segment_size": 5}, "setup returns -600"),
    ],
)
def test_a_store_that_tensorrt_llm_refuses(file: dict[str, Any], why: str) -> None:
    assert why in trtllm(**file).refused[0]


def test_what_is_not_known_of_tensorrt_llm_is_named() -> None:
    assert "c.yaml" not in str(trtllm("m").clients)
    assert trtllm("m").clients == ()
    assert "not here" in trtllm("m --config far.yaml").uncounted[1]
    assert "no JSON" not in str(trtllm(yaml="a: [").refused)
    assert trtllm(yaml="a: [").refused[0].startswith("c.yaml: ValueError")
    assert "pipeline parallelism" in trtllm(yaml=f"{YAML}pipeline_parallel_size: 2\n").refused[0]
    rendered = "kv_connector_config: {mooncake_store: {pool: p}}\n"
    given = read_trtllm(words("m --config c.yaml"), {}, lambda name: rendered)
    assert "kv_connector_config.mooncake_store" in given.uncounted[1]
    assert isinstance(trtllm("m --tp_size x", yaml="").ranks, Unknown)


def test_two_of_tensorrt_llm_meet_by_namespace_and_model_key(tmp_path: Path) -> None:
    lines = "".join(
        f"MOONCAKE_CONFIG_PATH={name} trtllm-serve m --config c.yaml --port {port} &\n"
        for name, port in (("mc.json", 1), ("mc.json", 2), ("other.json", 3))
    )
    files = {"mc.json": FILE, "other.json": {**FILE, "namespace": "n"}}
    texts = {name: json.dumps(file) for name, file in files.items()}
    found = sized(tmp_path, lines, **texts, **{"c.yaml": YAML})
    verdicts = [match.verdict for match in matches(launch_keys(found))]
    assert verdicts == [Meeting.UNKNOWN, Meeting.NEVER, Meeting.NEVER]
    assert found.status == "unknown"


def test_a_segment_on_ascend_is_known_by_size_and_not_by_place() -> None:
    found = ascend({**FILE, "global_segment_size": "4GB"})
    (client,) = found.clients
    assert isinstance(client.store.client, Unknown)
    assert "a worker's segment of 4.00 GiB" in client.store.client.reason
    assert client.store.master == "10.0.0.1:50051"
    assert "NPU" in found.registers_gpu
    both = {"MOONCAKE_MASTER": "b:1", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "7"}
    own = ascend_store(json.dumps(FILE), both)
    assert (own["master_server_address"], own["global_segment_size"]) == ("b:1", 7)
    assert ascend_store("{}", {})["global_segment_size"] == GIB


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (None, "The environment variable 'MOONCAKE_CONFIG_PATH' is not set."),
        ({"protocol": "rdma"}, "does not support protocol 'rdma'"),
        ({"global_segment_size": "4GiB"}, "Invalid format: '4GiB'"),
        ({"enable_ssd_offload": True}, "ssd_offload_path is empty"),
        ({"enable_ssd_offload": True, "ssd_offload_path": "x"}, "must be an absolute path"),
    ],
)
def test_a_store_that_ascend_refuses(file: dict[str, Any] | None, why: str) -> None:
    assert why in ascend(file).refused[0]


def test_memcache_is_named_with_its_size() -> None:
    assert ascend(None, "memcache", MMC_LOCAL_CONFIG_PATH="mmc.conf").uncounted == (
        "what MemCache takes on host and device: 2GB of DRAM in each worker",
    )
    assert "MMC_LOCAL_CONFIG_PATH is not set" in ascend(None, "memcache").uncounted[0]
    assert ascend(None, "yuanrong").uncounted == ("what AscendStoreConnector's yuanrong takes",)


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


def test_a_file_of_tensorrt_llm_is_an_object() -> None:
    with pytest.raises(AttributeError, match="'list' object has no attribute 'get'"):
        trtllm_store("[1]")


@pytest.mark.parametrize(
    ("size", "tensorrt_llm", "ascend"),
    [
        ("4gb", None, 4 * GIB),
        ("1.5gb", None, 3 * GIB // 2),
        ("4GiB", 4 * GIB, None),
        ("4g", None, None),
        (0, 0, 0),
    ],
)
def test_the_table_of_the_page(size: object, tensorrt_llm: int | None, ascend: int | None) -> None:
    def comes_to(read: Any) -> int | None:
        try:
            return int(read()["global_segment_size"])
        except ValueError:
            return None

    text = json.dumps({**FILE, "global_segment_size": size})
    assert comes_to(lambda: trtllm_store(text)) == tensorrt_llm
    assert comes_to(lambda: ascend_store(text, {})) == ascend
