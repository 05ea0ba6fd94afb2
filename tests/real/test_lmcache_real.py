"""LMCache's own classes against ours: the same values and refusals, and keys that meet as said.

The configuration class is loaded from its wheel without what LMCache imports for a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.engines.consumers.lmcache import (
    lmcache_settings,
    lmcache_values,
    mooncake_setup,
    override,
    setup_of_older,
)
from preflight.verdict.store_keys import Meeting, compare_keys, launch_keys
from tests.builders.examples import few_changed, seeded
from tests.engines.consumers.test_store_keys import lmcache, sized
from tests.real.conftest import cut, install

pytestmark = pytest.mark.real
CASES = int(os.environ.get("PREFLIGHT_CASES", "1000"))
STORES = 5000
ENGINES = 46  # 1,035 pairs
# An answer of the class for each case that it reads from stdin, a line each.
ORACLE = """
import json, logging, os, sys, tempfile, types
for name in ("lmcache", "lmcache.v1"):
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(sys.argv[1], *name.split("."))]
    sys.modules[name] = package
from lmcache.v1.config import LMCacheEngineConfig, _CONFIG_DEFINITIONS
from lmcache.v1.config_base import validate_and_set_config_value
logging.disable(logging.CRITICAL)
path = os.path.join(tempfile.mkdtemp(), "lm.yaml")
for line in sys.stdin:
    file, environment, overrides = json.loads(line)
    for name in [name for name in os.environ if name.startswith("LMCACHE_")]:
        del os.environ[name]
    os.environ.update(environment)
    try:
        if file is None:
            config = LMCacheEngineConfig.from_env()
            config.validate()
        else:
            with open(path, "w") as out:
                out.write(file)
            config = LMCacheEngineConfig.from_file(path)
            config.update_config_from_env()
        for key, value in overrides.items():
            if key in _CONFIG_DEFINITIONS:
                validate_and_set_config_value(config, key, value)
        print(json.dumps({name: getattr(config, name) for name in _CONFIG_DEFINITIONS}))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""
TEXTS = [
    *("5", "20GB", "0", "-1", "1.5", "true", "yes", "1", "false", "", " 'a' ", '"7"', "a,b"),
    *("1,2", "file:///x/,/y", "{}", '{"a":1}', "{bad", "None", "legacy", "zz", "inf", "[1]"),
    *("cpu", "cuda", "receiver", "async", "mooncakestore://h:1", "PDBackend"),
]
NIXL = {"enable_nixl_storage": True, "nixl_backend": "x", "nixl_pool_size": 1}
VALUES: list[Any] = [
    *(5, 20, 0, -1, 1.5, True, False, None, "20GB", "yes", "true", "1", "a,b", "", "cpu", "cuda"),
    *([1, 2], ["a"], {"a": 1}, NIXL, {"enable_nixl_storage": True}, "receiver", ["PDBackend"], {}),
]
OFTEN = (
    "max_local_cpu_size local_cpu_use_hugepages local_cpu extra_config enable_controller "
    "lmcache_worker_ports controller_pull_url nixl_buffer_device remote_url chunk_size "
    "plugin_locations external_backends no_such_key min_retrieve_tokens"
).split()
# What a need follows from; of peer-to-peer, prefill/decode and NIXL no memory is counted.
USED = (
    "chunk_size enable_hidden_state_cache external_lookup_client extra_config local_cpu "
    "local_cpu_use_hugepages max_hidden_state_cpu_size max_local_cpu_size nixl_buffer_device "
    "pre_caching_hash_algorithm remote_config_url remote_serde remote_storage_plugins remote_url "
    "storage_plugins use_layerwise"
).split()
NOT_READ = ("AssertionError", "ValueError: nixl", "ValueError: pd_", "ValueError: Conflicting")
Case = tuple["str | None", dict[str, str], dict[str, Any]]


def case(random: Random) -> Case:
    names = list(lmcache_settings())

    def keys() -> set[str]:
        count = random.randint(0, 7)
        return {random.choice(OFTEN if random.random() < 0.6 else names) for _ in range(count)}

    environment = {f"LMCACHE_{key.upper()}": random.choice(TEXTS) for key in keys()}
    file = json.dumps({key: random.choice(VALUES) for key in keys()})  # JSON is YAML
    if random.random() < 0.05:
        file = random.choice(["", "[1]", "a: [", "x"])
    overrides = {key: random.choice([*VALUES, *TEXTS]) for key in keys()}
    plain = random.random() < 0.3
    return None if plain else file, environment, overrides if random.random() < 0.3 else {}


def ours(one: Case) -> Any:
    file, environment, overrides = one
    try:
        values = lmcache_values(file, environment)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for key, value in overrides.items():
        override(values, key, value)
    return values


def used(answer: Any) -> Any:
    return {name: answer[name] for name in USED} if isinstance(answer, dict) else answer


def test_the_same_values_as_lmcaches_own_class(tmp_path: Path) -> None:
    pytest.importorskip("requests", reason="LMCache's configuration module imports it")
    folder = install("lmcache", "0.5.6")
    random = seeded()
    cases = [case(random) for _ in range(CASES)]
    program = tmp_path / "oracle.py"
    program.write_text(ORACLE)
    lines = "".join(json.dumps(one) + "\n" for one in cases)
    done = subprocess.run(
        [sys.executable, str(program), str(folder)],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(theirs) == CASES, done.stderr[-2000:]
    refused = 0
    for one, their in zip(cases, theirs, strict=True):
        our = ours(one)
        if isinstance(their, str) and not their.startswith(NOT_READ):
            refused += 1
            # Of a long message ours is the beginning; YAML's names the file.
            yaml = their.startswith(("ParserError", "ScannerError"))
            assert isinstance(our, str), (one, their)
            assert our.startswith(their.split(":")[0] if yaml else our), (one, their)
            assert yaml or their.startswith(our), (one, their, our)
        elif isinstance(their, dict):
            assert used(our) == used(their), one
    assert CASES / 20 < refused < CASES / 2


def own_class(file: str, name: str, *constants: str) -> Any:
    space: dict[str, Any] = {
        "torch": SimpleNamespace(dtype=object),
        "LMCacheEngineConfig": object,
        "TORCH_DTYPE_TO_STR_DTYPE": {"auto": "auto", "fp8": "fp8"},
    }
    exec("from dataclasses import dataclass, field\nfrom typing import *", space)
    return cut(install("lmcache", "0.5.6") / file, space, name, *constants)[name]


STORE_KEYS = (
    "local_hostname metadata_server global_segment_size local_buffer_size protocol device_name "
    "master_server_address master_server_addr rdma_devices tenant_id transfer_timeout mooncake_ "
    "storage_root_dir prefer_local_alloc no_such_key"
).split()


def test_the_same_settings_of_the_store_as_lmcaches_own_class() -> None:
    file = "lmcache/v1/storage_backend/connector/mooncakestore_connector.py"
    constants = "_SETUP_DEFAULTS _MOONCAKE_PREFIX _LMCACHE_ONLY_KEYS _LEGACY_PASSTHROUGH_KEYS"
    own = own_class(file, "MooncakeStoreConfig", *constants.split())
    random = seeded()
    names = [front + name for name in STORE_KEYS for front in ("", "mooncake_")]
    for _ in range(STORES):
        raw = {name: random.choice(VALUES) for name in random.sample(names, random.randint(0, 9))}
        assert mooncake_setup(raw) == own._build_setup_dict(raw), raw


OLDER = ("0.3.5", "0.3.9.post2", "0.4.3", "0.4.4")
# The connector of an older release, with a store that prints what its setup is called with.
CONNECTOR = """
import __future__, ast, json, logging, os, sys, types
from dataclasses import dataclass
store = types.ModuleType("mooncake.store")
setup = lambda self, *words: seen.append(words)
store.MooncakeDistributedStore = type("Store", (), {"setup": setup})
store.ReplicateConfig, store.bind_to_numa_node = types.SimpleNamespace, None
sys.modules |= {"mooncake": types.ModuleType("mooncake"), "mooncake.store": store}
tree = ast.parse(open(sys.argv[1]).read())
tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef)]
base = type("Base", (), {"__init__": lambda self, *words: None})
space = {"dataclass": dataclass, "os": os, "json": json, "logger": logging.getLogger(),
         "RemoteConnector": base, "no_type_check": lambda function: function}
logging.disable(50)
exec(compile(tree, "", "exec", flags=__future__.annotations.compiler_flag), space)
connector = space["MooncakestoreConnector"]
by_url = {"host": "10.0.0.9", "port": 1, "dev_name": "mlx5_9"}
by_url = by_url if "host" in connector.__init__.__annotations__ else {}
for line in sys.stdin:
    seen, backend = [], types.SimpleNamespace(config=None, metadata=None)
    config = types.SimpleNamespace(extra_config=json.loads(line))
    try:
        connector(loop=None, local_cpu_backend=backend, lmcache_config=config, **by_url)
    except KeyError as error:
        seen.append(f"KeyError: {error}")
    print(json.dumps(seen[0]))
"""


@pytest.mark.parametrize("release", OLDER)
def test_the_setup_of_older_releases_as_their_own_connector_calls_it(
    tmp_path: Path, release: str
) -> None:
    """Over keys that are there or not, and an address of remote_url beside them."""
    file = "lmcache/v1/storage_backend/connector/mooncakestore_connector.py"
    random, names = seeded(), STORE_KEYS[:7]
    cases: list[dict[str, Any]] = [
        {name: 1 if "size" in name else random.choice(["", "x"])
         for name in (*names, "mooncake_master_server_addr") if random.random() < 0.9}
        for _ in range(CASES)
    ]  # fmt: skip
    (tmp_path / "own.py").write_text(CONNECTOR)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "own.py"), str(install("lmcache", release) / file)],
        input="".join(json.dumps(raw) + "\n" for raw in cases),
        capture_output=True,
        text=True,
        check=False,
    )
    own = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(own) == CASES, done.stderr[-2000:]
    url = "mooncakestore://10.0.0.9:1/?device=mlx5_9"
    called = (*names[:5], "rdma_devices", "master_server_addr")
    for raw, theirs in zip(cases, own, strict=True):
        ours = setup_of_older(raw, url, False, release)
        given = ours if isinstance(ours, str) else [ours[name] for name in called]
        assert given == (theirs if isinstance(theirs, str) else list(map(str, theirs))), raw


CHOICES: dict[str, list[Any]] = {
    "model": ["Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-R1"],
    "words": ["-tp 1", "-tp 2", "-tp 4"],
    "chunk_size": [256, 64],
    "seed": ["0", "1"],
    "dtype": ["auto", "fp8"],
}


def test_keys_meet_as_lmcaches_own_do(tmp_path: Path) -> None:
    key = own_class("lmcache/utils.py", "CacheEngineKey")
    engines = few_changed(seeded(), CHOICES, ENGINES)

    def written(one: dict[str, Any]) -> str:
        words = f"{one['words']} --kv-cache-dtype {one['dtype']}"
        front = f"PYTHONHASHSEED={one['seed']}"
        return lmcache(words, one["model"], front, chunk_size=one["chunk_size"])

    def own(one: dict[str, Any]) -> frozenset[str]:
        ranks = int(one["words"].split()[1])
        ranks = 1 if "DeepSeek" in one["model"] else ranks  # the first worker alone
        chunk = hash((one["chunk_size"], one["seed"])) & (2**63 - 1)
        keys = (key(one["model"], ranks, rank, chunk, one["dtype"], None) for rank in range(ranks))
        return frozenset(each.to_string() for each in keys)

    derived = launch_keys(sized(tmp_path, *map(written, engines)))
    theirs = [own(one) for one in engines]
    verdicts = set()
    for first, second in combinations(range(ENGINES), 2):
        verdict = compare_keys(derived[first], derived[second]).verdict
        equal = theirs[first] == theirs[second]
        assert equal or not theirs[first] & theirs[second]
        expected = Meeting.EQUAL if equal else Meeting.NEVER
        assert verdict is expected, (engines[first], engines[second])
        verdicts.add(verdict)
    assert len(verdicts) == 2
