"""vLLM beside a master: what each KV connector takes is in the same numbers as SGLang's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.needs import LaunchNeeds
from checks.framework.pages import Spot
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown, require
from preflight.cli.main import run
from preflight.engines.consumers.consumer import MOST_CHUNK_BYTES, Consumer
from preflight.engines.consumers.vllm import (
    _CONNECTORS,
    _NO_MEMORY,
    _WITHOUT_MOONCAKE,
    read_dynamo_vllm,
    read_vllm,
    store_config,
)
from preflight.engines.consumers.vllm_arguments import expand_numbers, vllm_arguments
from preflight.launches.launch_files import read_text
from preflight.launches.source import Origin, Word
from preflight.needs.launch_needs import launch_needs
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.host_groups import host_groups
from preflight.processes.processes import understand
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


def needs_of(sizing: LaunchSizing) -> LaunchNeeds:
    assert sizing.unread == ()
    return launch_needs(sizing)


def read(*texts: str, environment: dict[str, str] | None = None) -> Consumer:
    words = [Word(text, ORIGIN) for text in texts]
    given = {name: Word(text, ORIGIN) for name, text in (environment or {}).items()}
    return read_vllm(words, given, lambda name: Unknown(f"{name}: not here", absent=True))


def test_a_store_of_each_worker_is_on_huge_pages(tmp_path: Path) -> None:
    needs = needs_of(sized(tmp_path, "-tp 4", transfer("MooncakeStoreConnector")))
    pages = [usage.mapped[Spot(2 * MIB, None)] for usage in require(needs.usages)[:4]]
    assert pages == [(10 + 1) * 512] * 4
    ranks = [one for one in needs.processes if one.program == "vllm"]
    assert [one.role for one in ranks] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [(one.kind, one.port) for one in needs.services] == [("master", 50051)]
    assert isinstance(ranks[0].gpu_registered_bytes, Unknown)


def test_every_child_of_a_multi_connector_counts(tmp_path: Path) -> None:
    pool = transfer("OffloadingConnector", cpu_bytes_to_use=20 * GIB)
    store = transfer("MooncakeStoreConnector")
    needs = needs_of(sized(tmp_path, "-tp 2 -dp 2", multi(store, pool)))
    assert len([one for one in needs.processes if one.program == "vllm"]) == 4
    # One pool an engine, in /dev/shm, in the engine's first worker.
    assert [one.shm_bytes for one in needs.processes if one.program == "vllm"] == [
        20 * GIB,
        0,
        20 * GIB,
        0,
    ]
    assert sum(require(one.regular_bytes) for one in needs.processes) >= 40 * GIB


def test_the_pool_is_an_interval_of_one_chunk(tmp_path: Path) -> None:
    sizing = sized(tmp_path, "", transfer("OffloadingConnector", cpu_bytes_to_use=20 * GIB))
    assert sizing.least is not None
    least = [each.bytes for one in sizing.least.asked for each in one.allocations]
    assert least == [20 * GIB - MOST_CHUNK_BYTES]


def test_over_rdma_the_segment_is_registered_and_the_pool_is_not(tmp_path: Path) -> None:
    pool = transfer("OffloadingConnector", cpu_bytes_to_use=GIB)
    store = transfer("MooncakeStoreConnector")
    needs = needs_of(
        sized(tmp_path, "", multi(store, pool), protocol="rdma", device_name="mlx5_0,mlx5_1")
    )
    (rank,) = [one for one in needs.processes if one.program == "vllm"]
    assert rank.registered_bytes == 11 * GIB
    assert rank.rdma is not None
    assert rank.rdma.devices == ("mlx5_0", "mlx5_1")
    assert rank.rdma.origin == "mc.json"


def test_a_standalone_store_contributes_no_segment(tmp_path: Path) -> None:
    file = {"mode": "standalone-store", "global_segment_size": 0}
    shown = sized(tmp_path, "-tp 2", transfer("MooncakeStoreConnector"), **file).shown
    assert shown is not None
    assert [[each.bytes for each in one.allocations] for one in shown.asked] == [[GIB], [GIB]]


def test_an_engine_without_a_connector_takes_nothing(tmp_path: Path) -> None:
    sizing = sized(tmp_path, "-tp 8", None)
    assert sizing.status == "fits"
    assert sizing.shown is not None
    assert sizing.shown.asked == ()


def test_a_connector_that_nobody_here_knows_is_named(tmp_path: Path) -> None:
    sizing = sized(tmp_path, "", multi(transfer("NixlConnector"), transfer("MooncakeConnector")))
    assert sizing.status == "unknown"
    assert "what NixlConnector takes: not counted" in sizing.reason


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


def test_a_store_file_that_is_not_here_is_unknown_by_name(tmp_path: Path) -> None:
    config = json.dumps(transfer("MooncakeStoreConnector"))
    words = f"vllm serve m --kv-transfer-config '{config}'"
    sizing = test_unread.sized(tmp_path, f"MOONCAKE_CONFIG_PATH=/far/mc.json {words}\n")
    assert sizing.status == "unknown"
    assert "/far/mc.json" in sizing.reason


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


def test_the_simple_pool_is_divided_among_the_workers() -> None:
    simple = {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}
    words = ("serve", "m", "-tp", "4", "--kv-offloading-size", "8")
    (pool,) = read(*words, environment=simple).pools
    assert (pool.memory.bytes, pool.of_engine) == (2 * GIB, False)


@pytest.mark.parametrize("words", ["--config c.yaml", "--config=c.yaml"])
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


def nodes(*words: str) -> list[tuple[str, list[int]]]:
    text = "".join(f"vllm serve m {each}\n" for each in words)
    reading = read_text(text, "launch.sh", {})
    found = host_groups(understand(reading.commands, lambda path: Unknown(path)))
    return [(group.what, sorted(group.numbers)) for group in found]


def test_one_engine_on_several_hosts_is_a_group_for_each() -> None:
    two = "-tp 16 --nnodes 2 --master-addr 10.0.0.1 --node-rank"
    assert nodes(f"{two} 0 &", f"{two} 1 --headless &") == [
        ("node rank 0 of 10.0.0.1", [0]),
        ("node rank 1 of 10.0.0.1", [1]),
    ]
    data = "-dp 4 -dpl 2 --data-parallel-address 10.0.0.1"
    assert nodes(f"{data} &", f"{data} --headless --data-parallel-start-rank 2 &") == [
        ("node rank 0 of 10.0.0.1", [0]),
        ("node rank 2 of 10.0.0.1", [1]),
    ]
    assert nodes(f"{two} $RANK &", f"{two} $RANK &") == []
    assert nodes("-dp 2 &", "-dp 2 --port 8001 &") == []


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


def test_a_pool_that_lmcache_holds_is_named() -> None:
    """In the engine or in a server of its own, by the release of vLLM: no launch passes over it."""
    found = read("serve", "m", "--kv-offloading-size", "2000", "--kv-offloading-backend", "lmcache")
    assert "CPU pool of 1.95 TiB" in found.uncounted[0]


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


def objects(values: Any) -> Any:
    names = st.sampled_from("kv_role kv_connector a b".split())
    return st.dictionaries(names, values, min_size=1, max_size=3)


JSON_VALUES = st.recursive(
    st.sampled_from([1, 2.5, True, None, "kv_both", "a,b", "80g x", "ü"]),
    lambda inner: st.lists(inner, max_size=2) | objects(inner),
    max_leaves=4,
)


@given(objects(JSON_VALUES), st.booleans(), st.booleans())
def test_a_dotted_flag_is_a_part_of_its_json(
    config: dict[str, Any], equals: bool, underscores: bool
) -> None:
    """As vLLM's own parser folds them (argparse_utils.py parse_args), wherever they stand."""

    def dotted(value: Any, path: str) -> list[str]:
        if isinstance(value, dict) and value:
            return [word for key in value for word in dotted(value[key], f"{path}.{key}")]
        text = value if isinstance(value, str) else json.dumps(value)
        return [f"{path}={text}"] if equals else [path, text]

    name = "--kv_transfer_config" if underscores else "--kv-transfer-config"
    given_words = ["m", *dotted(config, name), "--attention_config.x=$Y", "-tp", "2"]
    arguments = vllm_arguments([Word(text, ORIGIN) for text in given_words])
    assert json.loads(arguments.flags["kv-transfer-config"].text) == config
    assert arguments.unread is None
    assert arguments.number("tensor-parallel-size", 1) == 2


def test_dotted_flags_as_vllm_reads_their_values() -> None:
    """Numbers with suffixes, lists by +, a later value, and one that is not known."""

    def value(*texts: str) -> Any:
        words = [Word(text, ORIGIN, ("$X",) * ("$X" in text)) for text in texts]
        return vllm_arguments(words).setting("a").value

    assert json.loads(value("--a.b", "80m", "--a.c+", "x,y", "--a.c+=z", "--a.b=2k")) == {
        "b": 2000,
        "c": ["x", "y", "z"],
    }
    assert json.loads(value("--a.b", "-1", "--a", '{"c": 1}')) == {"b": -1}
    for words in (("--a.b=$X", "--a.c=1"), ("--a.c=1", "--a.b=$X")):
        assert isinstance(value(*words), Unknown)
