"""vLLM's own code of keys and of its store's file against ours, cut out of its wheel.

Its modules import torch. The wheel has 336 MB, of which this needs four files, and no other way to
them: it is not downloaded here, and where MOONCAKE_PREFLIGHT_VLLM names no folder in which the
wheel of 0.33.0 was unpacked, this skips.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

import pytest

from preflight.engines.consumers.vllm import store_config
from preflight.verdict.store_keys import Meeting, compare_keys, launch_keys
from tests.builders.examples import few_changed, seeded
from tests.engines.consumers.test_store_keys import sized, vllm
from tests.real.conftest import cut

FOLDER = os.environ.get("MOONCAKE_PREFLIGHT_VLLM", "")
without_wheel = pytest.mark.skipif(
    not FOLDER, reason="MOONCAKE_PREFLIGHT_VLLM names no unpacked wheel of vLLM"
)
FILES = 5000
ENGINES = 46  # 1,035 pairs
TOKENS = range(1024)
CHOICES: dict[str, list[Any]] = {
    "model": ["a/m", "b/m", "a/n"],
    "tp": [1, 2, 4],
    "pp": [1, 2],
    "pcp": [1, 2],
    "prefix": ["", "x"],
    "block": [16, 32],
    "hash": ["sha256", "xxhash"],
    "seed": [None, "0", "random"],
}


def own_code(file: str, *names: str) -> dict[str, Any]:
    space: dict[str, Any] = {
        "os": os, "Any": Any, "Callable": Callable, "Sequence": Sequence, "dataclass": dataclass,
        "hashlib": hashlib, "pickle": pickle, "BlockHash": bytes, "xxhash": xxhash,
        "xxhash_cbor": None, "json": json, "re": re, "Literal": Literal,
    }  # fmt: skip
    return cut(Path(FOLDER, file), space, *names)


def xxhash(value: Any) -> bytes:
    """Stand in for a package that is not there: keys ask whether it is cryptographic alone."""
    return hashlib.md5(pickle.dumps(value)).digest()


def own(one: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> frozenset[str]:
    """Return the keys of every rank's blocks of one text."""
    data = own_code("vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/data.py",
               "KeyMetadata", "PoolKey")  # fmt: skip
    blocks = own_code("vllm/v1/core/kv_cache_utils.py", "resolve_none_hash_seed",
                      "hash_block_tokens", "DEFAULT_NONE_HASH_SEED",
                      "_NON_CRYPTO_HASH_FUNCTIONS")  # fmt: skip
    hashed = (
        own_code("vllm/utils/hashing.py", "sha256")["sha256"] if one["hash"] == "sha256" else xxhash
    )
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if one["seed"] is not None:
        monkeypatch.setenv("PYTHONHASHSEED", one["seed"])
    blocks["NONE_HASH"] = hashed(blocks["resolve_none_hash_seed"](hashed))
    above, size, hashes = None, one["block"], []
    for at in range(0, len(TOKENS), size):
        above = blocks["hash_block_tokens"](hashed, above, TOKENS[at : at + size])
        hashes.append(above.hex())
    name = one["model"].rstrip("/").split("/")[-1]  # worker.py
    ranks = product(range(one["tp"]), range(one["pcp"]), range(one["pp"]))
    return frozenset(
        data["PoolKey"](
            data["KeyMetadata"](name, tp, pcp, 0, pp, cache_prefix=one["prefix"]), each
        ).to_string()
        for tp, pcp, pp in ranks
        for each in hashes
    )


def written(one: dict[str, Any]) -> str:
    words = (
        f"-tp {one['tp']} -pp {one['pp']} --prefill-context-parallel-size {one['pcp']} "
        f"--block-size {one['block']} --prefix-caching-hash-algo {one['hash']}"
    )
    front = "" if one["seed"] is None else f"PYTHONHASHSEED={one['seed']}"
    return vllm(words, one["model"], front, cache_prefix=one["prefix"])


SIZES = ["4GB", "4 gb", "1.5gb", "4GiB", "4G", "1e9", "100 B", "-1", "", ".", "1.2.3kb", "0", 0, 1,
         -5, 2.5, True, None, [], 1 << 30]  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "metadata_server": ["", "P2PHANDSHAKE", None],
    "master_server_address": ["", "a:1", 1],
    "protocol": ["tcp", "rdma", "x", None],
    "device_name": ["", "a,b", None],
    "mode": ["embedded", "standalone-store", "x", None, 1],
    "global_segment_size": SIZES,
    "local_buffer_size": SIZES,
    "enable_offload": [True, False, "false", "", 0, None, []],
    "tenant_id": ["t", " t ", "", None, 1, "default"],
    "no_such_key": [1],
}


def answer(read: Callable[[str], Any], text: str) -> Any:
    """Return the values, or the error as one line."""
    try:
        found = read(text)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return found if isinstance(found, dict) else vars(found)


@without_wheel
def test_the_same_values_as_vllms_own_class(tmp_path: Path) -> None:
    own = own_code("vllm/distributed/mooncake_store.py", "MooncakeStoreConfig", "_parse_size",
              "_normalize_tenant_id", "DEFAULT_GLOBAL_SEGMENT_SIZE", "DEFAULT_LOCAL_BUFFER_SIZE",
              "DEFAULT_TENANT_ID", "MooncakeMode")["MooncakeStoreConfig"]  # fmt: skip
    random, file, refused = seeded(), tmp_path / "mc.json", 0
    for _ in range(FILES):
        names = random.sample(list(VALUES), random.randint(0, 5))
        text = json.dumps({name: random.choice(VALUES[name]) for name in names})
        text = text if random.random() < 0.98 else random.choice(["[1]", "1", "null", '"x"'])
        file.write_text(text)
        theirs, ours = answer(own.from_file, str(file)), answer(store_config, text)
        refused += isinstance(theirs, str)
        assert json.dumps(ours) == json.dumps(theirs), text
    assert FILES / 20 < refused < FILES * 3 / 4


@without_wheel
def test_keys_meet_as_vllms_own_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = few_changed(seeded(), CHOICES, ENGINES)
    derived = launch_keys(sized(tmp_path, *map(written, engines)))
    theirs = [own(one, monkeypatch) for one in engines]
    met = dict.fromkeys((Meeting.EQUAL, Meeting.COLLIDE, Meeting.NEVER, Meeting.UNKNOWN), 0)
    for first, second in combinations(range(ENGINES), 2):
        found = compare_keys(derived[first], derived[second])
        both = (engines[first], engines[second], found.verdict, found.reasons)
        # What a model's heads come to is not known of these: the key may meet, the bytes may not.
        assert (found.verdict is not Meeting.NEVER) == bool(theirs[first] & theirs[second]), both
        assert found.verdict is not Meeting.EQUAL or theirs[first] == theirs[second], both
        met[found.verdict] += 1
    assert all(met[each] for each in (Meeting.EQUAL, Meeting.COLLIDE, Meeting.NEVER)), met
