"""vLLM beside a master: what each KV connector takes is in the same numbers as SGLang's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from preflight.cli.main import run
from preflight.engines.consumers.consumer import Consumer
from preflight.engines.consumers.vllm import (
    _CONNECTORS,
    _NO_MEMORY,
    _WITHOUT_MOONCAKE,
    read_dynamo_vllm,
    read_vllm,
    store_config,
)
from preflight.engines.consumers.vllm_arguments import expand_numbers
from preflight.launches.source import Origin, Word
from preflight.needs.launch_sizing import LaunchSizing
from tests.processes import test_unread
from tests.tables import each_row

STORE = {
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "127.0.0.1:50051",
    "protocol": "tcp",
    "global_segment_size": "10GB",
    "local_buffer_size": "1GB",
}
ORIGIN = Origin("launch.sh", 1)
EXECUTOR = "--distributed-executor-backend"


def transfer(name: str, role: str = "kv_both", **extra: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": role, "kv_connector_extra_config": extra}


def multi(*children: dict[str, Any]) -> dict[str, Any]:
    return transfer("MultiConnector", connectors=list(children))


def sized(folder: Path, words: str, config: dict[str, Any] | None, **file: Any) -> LaunchSizing:
    given = "" if config is None else f" --kv-transfer-config '{json.dumps(config)}'"
    words = words if words[:1].isalpha() else f"org/Model-8B {words}"
    variables = "export MC_STORE_USE_HUGEPAGE=1 MOONCAKE_CONFIG_PATH=mc.json"
    script = f"{variables}\nmooncake_master &\nvllm serve {words}{given}\n"
    return test_unread.sized(folder, script, {"mc.json": json.dumps({**STORE, **file})})


def read(*texts: str, environment: dict[str, str] | None = None) -> Consumer:
    words = [Word(text, ORIGIN) for text in texts]
    given = {name: Word(text, ORIGIN) for name, text in (environment or {}).items()}
    return read_vllm(words, given, lambda name: Unknown(f"{name}: not here", absent=True))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("MooncakeConector", "what MooncakeConector takes: vLLM has MooncakeConnector"),
        # vLLM Ascend's own, and one that is like none.
        ("MooncakeConnectorV1", "what MooncakeConnectorV1 takes"),
        ("MyConnector", "what MyConnector takes"),
    ],
)
def test_a_misspelt_connector_is_given_the_nearest_name(name: str, says: str) -> None:
    config = json.dumps({"kv_connector": name, "kv_role": "kv_both"})
    assert read("m", "--kv-transfer-config", config).uncounted == (says,)


@each_row(
    ("words", "engines", "workers"),
    [
        ("-tp 8 -pp 2", 1, 16),
        ("--tensor_parallel_size=8 --nnodes 2", 1, 4),
        ("-tp 2 -dp 4", 4, 2),
        ("-tp 2 -dp 8 -dpl 2", 2, 2),
        ("-tp 4 -dp 2 --data-parallel-rank 1", 1, 4),
        ("-tp 4 -dp 4 --nnodes 2", 2, 4),
        ("-tp 2 --prefill-context-parallel-size 2", 1, 4),
        *((words, None, None) for words in ("-tp x", "-tp 0", f"{EXECUTOR} ray")),  # unknown
    ],
)
def test_workers_on_this_host(words: str, engines: int | None, workers: int | None) -> None:
    found = read("serve", "m", *words.split())
    if engines is None:
        assert isinstance(found.ranks, Unknown)
    else:
        assert (found.engines, found.workers) == (engines, workers)


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["--kv-transfer-config", '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
          '"kv_connector_extra_config":{"cpu_bytes_to_use": 80m}}'], 80 * 10**6),
        (["--kv-offloading-size", "1.5"], 3 * GIB // 2),
        (["--kv-offloading-size", "1", "--kv-transfer-config",
          '{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}'], GIB),
    ],
)  # fmt: skip
def test_how_a_pools_size_is_written(words: list[str], size: int) -> None:
    (pool,) = read("serve", "m", *words).pools
    assert (pool.memory.bytes, pool.of_engine) == (size, True)


@pytest.mark.parametrize("words", ["--config c.yaml", "--kv-transfer-config.kv_role kv_both"])
def test_words_that_are_not_read_leave_all_others_unknown(words: str) -> None:
    found = read("serve", "m", *words.split())
    assert words.split()[0] in found.uncounted[0]
    assert isinstance(found.ranks, Unknown)


def test_the_bootstrap_port_is_the_prefillers() -> None:
    def ports(role: str, **environment: str) -> dict[str, Any]:
        config = json.dumps(transfer("MooncakeConnector", role))
        found = read("serve", "m", "--kv-transfer-config", config, environment=environment)
        return {what: setting.value for what, setting in found.ports}

    assert ports("kv_producer") == {"HTTP port": 8000, "bootstrap port": 8998}
    assert ports("kv_producer", VLLM_MOONCAKE_BOOTSTRAP_PORT="9100")["bootstrap port"] == 9100
    assert ports("kv_consumer") == {"HTTP port": 8000}


@each_row(
    ("size", "becomes"),
    [
        *(("4GB", 4 * GIB), ("4 gb", 4 * GIB), ("1.5gb", 3 * GIB // 2), ("100 B", 100), (-5, -5)),
        *((size, None) for size in ("4GiB", "4G", "4TB", "1e9", "-1")),
    ],
)
def test_a_size_of_the_stores_file(size: object, becomes: int | None) -> None:
    text = json.dumps({"global_segment_size": size})
    if becomes is not None:
        assert store_config(text)["global_segment_size"] == becomes
        return
    with pytest.raises(ValueError, match="Invalid format"):
        store_config(text)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"kv_connector": ["a"], "kv_role": "kv_both"}, "kv_connector: Input should be a valid"),
        (
            {**transfer("OffloadingConnector"), "kv_connector_extra_config": [1]},
            "kv_connector_extra_config: Input should be a valid dictionary",
        ),
    ],
)
def test_a_connector_of_another_type_is_refused(config: dict[str, Any], why: str) -> None:
    words = ("serve", "m", "--kv-transfer-config", json.dumps(config))
    (said,) = read(*words).refused_by
    assert said.says.startswith(why)
    assert said.every


def test_a_headless_node_has_no_http_port() -> None:
    assert read("serve", "m", "-dp", "4", "-dpl", "2", "--headless").ports == ()


def test_numbers_with_a_suffix_are_written_out_behind_no_quote() -> None:
    written = '{"a": 80000000, "b": "80m", "c": 2048}'
    assert expand_numbers('{"a": 80m, "b": "80m", "c": 2K}') == written


def test_a_worker_of_dynamo_is_a_vllm_without_its_http_port(tmp_path: Path) -> None:
    words = [Word(t, ORIGIN) for t in "--model m -tp 2 --kv-offloading-size 4".split()]
    found = read_dynamo_vllm(words, {}, lambda name: Unknown(name))
    assert (found.workers, found.pools[0].memory.bytes, found.ports) == (2, 4 * GIB, ())


@pytest.mark.parametrize(
    ("release", "refused", "pools", "uncounted"),
    [("0.7.0", False, 1, 0), ("1.1.1", True, 0, 0), (None, False, 1, 1)],
)
def test_connectors_of_dynamo_are_refused_by_the_releases_that_refuse_them(
    release: str | None, refused: bool, pools: int, uncounted: int
) -> None:
    """From 1.0.0 on; of an unknown release the pool counts, and that it may be refused is said."""
    words = [Word(t, ORIGIN) for t in "--model m --connector kvbm --tensor-parallel-size 2".split()]
    environment = {"DYN_KVBM_CPU_CACHE_GB": Word("4", ORIGIN)}
    found = read_dynamo_vllm(words, environment, lambda name: Unknown(name), release)
    assert any("--kv-transfer-config" in one for one in found.refused) == refused
    assert [pool.memory.bytes for pool in found.pools] == [4 * 10**9] * pools
    assert len(found.uncounted) == uncounted


KINDS = sorted({*_CONNECTORS, *_WITHOUT_MOONCAKE, *_NO_MEMORY})
KINDS += ["AscendStoreConnector", "FooConnector", "MooncakeConnectorV1"]


def test_each_connector_in_each_place_is_answered(tmp_path: Path) -> None:
    """Alone, in MultiConnector before and behind others, and beside an SGLang server."""
    lmcache, dynamo = transfer("LMCacheConnectorV1"), transfer("DynamoConnector")
    foo, store = transfer("FooConnector"), transfer("MooncakeStoreConnector")
    places = [
        place
        for each in map(transfer, KINDS)
        for place in (each, multi(each, lmcache, dynamo), multi(foo, store, each))
    ]
    lines = [f"vllm serve Qwen/Qwen3-8B --kv-transfer-config '{json.dumps(p)}' &" for p in places]
    server = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2"
    path = tmp_path / "launch.sh"
    path.write_text("\n".join([*lines, f"{server} --enable-hierarchical-cache\n"]))
    assert run(["check", "--root", "demo:h800", str(path)]) in (0, 1, 2, 3)


@each_row(
    ("utilization", "fraction"),
    [(None, 0.9), ("1", 1.0), ("1.01", None), ("0.01", 0.01), ("0", None), ("all", None)],
)
def test_the_part_of_a_gpu_that_it_takes(utilization: str | None, fraction: float | None) -> None:
    """0.9 is the least default of the releases that were read; what is no part is unknown."""
    given = () if utilization is None else ("--gpu-memory-utilization", utilization)
    assert read("serve", "m", *given).gpu_fraction == fraction


def test_a_store_file_without_sizes_has_those_of_vllm() -> None:
    """DEFAULT_GLOBAL_SEGMENT_SIZE and DEFAULT_LOCAL_BUFFER_SIZE of mooncake_store.py."""
    read_file = store_config("{}")
    assert [read_file[f"{size}_size"] for size in ("global_segment", "local_buffer")] == [
        4 * GIB
    ] * 2
