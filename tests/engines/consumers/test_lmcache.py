"""LMCache inside vLLM's workers and as a server of its own: settings, pools, store clients."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from preflight.engines.consumers.consumer import Consumer
from preflight.engines.consumers.lmcache import (
    _unquote,
    lmcache_values,
    mooncake_setup,
    override,
    read_lmcache,
    read_lmcache_server,
    setup_client,
)
from preflight.engines.programs.memory_records import StoreClient
from preflight.launches.source import Origin, Word

ORIGIN = Origin("launch.sh", 1)
RIGHT = {
    "local_hostname": "10.0.0.2",
    "metadata_server": "P2PHANDSHAKE",
    "mooncake_master_server_addr": "10.0.0.1:50051",
    "global_segment_size": "4GB",
}


def words(*texts: str) -> list[Word]:
    return [Word(text, ORIGIN) for text in texts]


def read(overrides: dict[str, Any] | None = None, /, **environment: str) -> Consumer:
    files = {"lm.yaml": "max_local_cpu_size: 20\n", "mc.json": json.dumps(RIGHT)}
    given = {name: Word(text, ORIGIN) for name, text in environment.items()}
    absent = Unknown("not here", absent=True)
    return read_lmcache(given, lambda name: files.get(name, absent), overrides or {})


def extra(**more: object) -> dict[str, Any]:
    return {"lmcache.extra_config": {**RIGHT, **more}, "lmcache.remote_url": "mooncakestore://a:1"}


def server(*texts: str) -> Consumer:
    command = words("lmcache", "server", *texts)
    return read_lmcache_server(command, command[2:])


@pytest.mark.parametrize(
    ("environment", "overrides", "gib"),
    [
        ({}, {}, 5),
        ({"LMCACHE_CONFIG_FILE": "lm.yaml"}, {}, 20),
        ({"LMCACHE_CONFIG_FILE": "lm.yaml", "LMCACHE_MAX_LOCAL_CPU_SIZE": "7"}, {}, 7),
        ({"LMCACHE_CONFIG_FILE": "lm.yaml", "LMCACHE_MAX_LOCAL_CPU_SIZE": "7GB"}, {}, 20),
        ({"LMCACHE_MAX_LOCAL_CPU_SIZE": "7"}, {"lmcache.max_local_cpu_size": 2.5}, 2.5),
        ({"LMCACHE_MAX_LOCAL_CPU_SIZE": "'7'"}, {"lmcache.max_local_cpu_size": "x"}, 7),
    ],
)
def test_where_the_pools_size_comes_from(
    environment: dict[str, str], overrides: dict[str, Any], gib: float
) -> None:
    (pool,) = read(overrides, **environment).pools
    assert pool.memory.bytes == int(gib * GIB)


def test_what_is_refused_or_not_here_is_said() -> None:
    """In LMCache's own words; a size with a unit is lost."""
    lost = read(LMCACHE_MAX_LOCAL_CPU_SIZE="20GB")
    assert "max_local_cpu_size: TypeError" in lost.refused_by[0].says
    assert "20GB" in lost.misread[0]
    assert read(LMCACHE_CONFIG_FILE="far.yaml").uncounted == ("what LMCache takes (not here)",)
    (refused,) = read(LMCACHE_MIN_RETRIEVE_TOKENS="-1").refused_by
    assert refused.says == "LMCache: ValueError: min_retrieve_tokens must be >= 0, got -1"


def test_an_empty_address_of_the_controller_is_given_and_empty_ports_are_not() -> None:
    on = {"LMCACHE_ENABLE_CONTROLLER": "1", "LMCACHE_CONTROLLER_PULL_URL": ""}
    on |= {"LMCACHE_CONTROLLER_REPLY_URL": "a:1", "LMCACHE_LMCACHE_WORKER_PORTS": "1"}
    assert read(None, **on).refused_by == ()
    del on["LMCACHE_LMCACHE_WORKER_PORTS"]
    assert "lmcache_worker_ports is required" in read(None, **on).refused_by[0].says


@pytest.mark.parametrize(
    ("text", "value"), [("'a'", "a"), ("'a','b'", "'a','b'"), ("'a' b'", "a' b"), ("a", "a")]
)
def test_quotes_go_from_one_text_alone(text: str, value: str) -> None:
    assert _unquote(text) == value


def test_the_file_wins_over_the_extra_config() -> None:
    given = extra(global_segment_size="9GB")
    (client,) = read(given, MOONCAKE_CONFIG_PATH="mc.json").clients
    assert isinstance(client.store.client, StoreClient)
    assert client.store.client.segment_bytes == 4 * GIB


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata_server": ""},
        {"local_hostname": None},
        {"global_segment_size": "4GiB"},
        {"protocol": "xyz"},
        {"local_buffer_size": 1},
    ],
)
def test_a_setup_that_fails_is_not_looked_at(wrong: dict[str, object]) -> None:
    found = read(extra(**wrong))
    assert found.clients == ()
    assert "it says that setup completed" in found.misread[0]


def test_an_extra_config_that_is_no_mapping_is_refused() -> None:
    found = read({"lmcache.extra_config": [1]})
    assert [one.says for one in found.refused_by] == [
        "AttributeError: extra_config is [1], and no mapping"
    ]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"enable_hidden_state_cache": True}, "hidden states take"),
        ({"external_lookup_client": "mooncakestore://a:1"}, "lookup client takes"),
        ({"extra_config": {"first_rank_max_local_cpu_size": 50}}, "pool of a first worker takes"),
    ],
)
def test_memory_that_is_in_no_number_is_named(settings: dict[str, Any], what: str) -> None:
    found = read({f"lmcache.{name}": value for name, value in settings.items()})
    assert found.uncounted == (f"what LMCache's {what}",)


def test_the_servers_store_takes_mooncakes_own_keys() -> None:
    adapter = {"type": "mooncake_store", "local_hostname": "a", "metadata_server": "P2PHANDSHAKE"}
    given = json.dumps({**adapter, "protocol": "rdma", "master_server_addr": "10.0.0.1:50051"})
    found = server("--l1-size-gb", "1", "--eviction-policy", "LRU", "--l2-adapter", given)
    assert found.clients[0].store.master == "10.0.0.1:50051"
    assert found.pools[0].memory.registered


def test_an_egm_pool_of_the_store_is_named() -> None:
    """Mooncake 0.3.14's setup(dict) takes it, and LMCache hands its keys on as they are."""
    egm = {**RIGHT, "mooncake_enable_egm_store_pool": True}
    assert read({**extra(), "lmcache.extra_config": egm}).uncounted == (
        "the EGM pool of its store",
    )
    off = {**RIGHT, "mooncake_enable_egm_store_pool": False}
    assert read({**extra(), "lmcache.extra_config": off}).uncounted == ()


def test_keys_for_mooncake() -> None:
    raw = {"protocol": "rdma", "mooncake_protocol": "tcp", "transfer_timeout": 3, "other": 1}
    setup = mooncake_setup({**raw, "mooncake_rdma_devices": "mlx5_0", "device_name": None})
    assert setup == {
        "global_segment_size": "3355443200",
        "local_buffer_size": "1073741824",
        "protocol": "tcp",
        "device_name": "",
        "rdma_devices": "mlx5_0",
    }
    assert setup_client(setup) == ("local_hostname is missing: setup returns -600", None)


@pytest.mark.parametrize(
    ("file", "environment", "name", "value"),
    [
        ("extra_config: {a: 1}", {"LMCACHE_EXTRA_CONFIG": '{"b": 3}'}, "extra_config", {"b": 3}),
        ("local_cpu: yes", {}, "local_cpu", True),
        ("local_cpu: 'yes'", {}, "local_cpu", False),
        ("local_cpu: null", {}, "local_cpu", None),
        (None, {"LMCACHE_EXTRA_CONFIG": "{bad"}, "extra_config", None),
        ("chunk_size: 128", {"LMCACHE_CHUNK_SIZE": "x"}, "chunk_size", 128),
        (None, {"LMCACHE_PLUGIN_LOCATIONS": "a"}, "runtime_plugin_locations", ["a"]),
        ("local_disk: file:///a/,/b", {}, "local_disk", "/a/,/b"),
    ],
)  # fmt: skip
def test_values(file: str | None, environment: dict[str, str], name: str, value: object) -> None:
    assert lmcache_values(file, environment)[name] == value


def test_an_override_that_cannot_be_read_leaves_the_value() -> None:
    values = lmcache_values(None, {})
    override(values, "chunk_size", "x")
    override(values, "extra_config", "{bad")
    override(values, "nothing", 1)
    assert (values["chunk_size"], values["extra_config"]) == (256, None)
