"""Engines whose stores and pools are read and whose device side is not known: by name, not at all.

TensorRT-LLM's store connector (``_torch/pyexecutor/connectors/mooncake_store``: config 1c2e871,
staging 4374bcc, validation 016af0d), vLLM on Ascend's AscendStore with Mooncake or MemCache
(vllm-ascend ``ascend_store/backend``, 182b75e), Dynamo's KVBM (1.6.1, ``distributed/leader.rs``).
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from checks.base.units import GIB, MIB, format_bytes
from checks.base.unknown import Unknown
from preflight.consumers.consumer import (
    STORE_PATH,
    Client,
    Consumer,
    ConsumerParts,
    WorkerPool,
    attempt,
    chunked_pool,
    file_client,
    flags_of,
    json_object,
    lost_store,
    port_of,
    shown_store,
    store_file,
)
from preflight.launches.source import ReadFile, Word
from preflight.programs.consumer_grammar import human_readable_int, vllm_size_bytes
from preflight.programs.memory_records import OwnPool
from preflight.programs.sglang_arguments import SettingValue, file_text, word_value
from preflight.programs.store_processes import StoreProcess

# config.py DEFAULT_GLOBAL_SEGMENT_SIZE, DEFAULT_LOCAL_BUFFER_SIZE; staging.py
# MAX_STAGING_BUFFER_BYTES, for each direction.
_TRTLLM_SEGMENT_BYTES, _TRTLLM_LOCAL_BYTES, _STAGING_BYTES = 3355443200, GIB, GIB
# validation.py NODE_BUDGET_RESERVE_BYTES: what has to be left of MemAvailable beside both.
_RESERVE_BYTES = 32 * GIB
_DIRECTIONS = {"producer": 1, "consumer": 1, "both": 2, "capacity": 0}
_BINARY = {"": 1, "b": 1, "kib": 1024, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}
_AMBIGUOUS = frozenset("k kb m mb g gb t tb".split())
_TRTLLM_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")
# Flags of trtllm-serve; a YAML file's keys go before them.
_TRTLLM_SIZES = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
_TRTLLM_CONFIGS = ("extra_llm_api_options", "config", "extra_engine_args")
_TRTLLM_REST = "the host memory that TensorRT-LLM takes beside its store's client"
# mooncake_backend.py; before it was 3.125 GiB.
_ASCEND_BYTES = GIB
_MEMCACHE_DRAM = "ock.mmc.local_service.dram.size"
_KVBM_PORTS = {"DYN_KVBM_LEADER_ZMQ_PUB_PORT": 56001, "DYN_KVBM_LEADER_ZMQ_ACK_PORT": 56002}
_KVBM_NOTHING = "KVBM Configuration Error: At least one cache tier must be configured."


def trtllm_size_bytes(value: Any) -> int:
    """Read a size as its ``parse_size`` with strict units. Raises ValueError in its words."""
    if isinstance(value, bool):
        raise ValueError(f"expected a size, got {value!r}")
    if isinstance(value, int | float):
        return int(value)
    match = _TRTLLM_SIZE.match(str(value))
    if match is None:
        raise ValueError(f"cannot parse size {value!r}")
    number, unit = match.groups()
    if unit.lower() in _AMBIGUOUS:
        raise ValueError(f"size {value!r} uses the ambiguous unit {unit!r}")
    if unit.lower() not in _BINARY:
        raise ValueError(f"unknown size unit {unit!r} in {value!r}")
    return int(float(number) * _BINARY[unit.lower()])


def trtllm_store(text: str) -> dict[str, Any]:
    """Read a file as TensorRT-LLM's ``MooncakeStoreConnectorConfig.from_file`` does.

    Raises as it does.
    """
    raw = json_object(json.loads(text))
    role = str(raw.get("role", "both")).strip().lower()
    if role not in _DIRECTIONS:
        raise ValueError(f"role={role!r} is not one of: {', '.join(_DIRECTIONS)}")
    found = {
        "master_server_address": raw.get("master_server_address", ""),
        "metadata_server": raw.get("metadata_server") or "P2PHANDSHAKE",
        "protocol": raw.get("protocol", "rdma"),
        "device_name": raw.get("device_name", ""),
        "role": role,
        "namespace": str(raw.get("namespace", "trtllm")),
        "model_key": raw.get("model_key") or None,
        "tenant_id": raw.get("tenant_id") or "default",
        "global_segment_size": trtllm_size_bytes(
            raw.get("global_segment_size", _TRTLLM_SEGMENT_BYTES)
        ),
        "local_buffer_size": trtllm_size_bytes(raw.get("local_buffer_size", _TRTLLM_LOCAL_BYTES)),
    }
    if not found["master_server_address"]:
        raise ValueError("master_server_address is required")
    if found["local_buffer_size"] <= 0:
        raise ValueError("local_buffer_size must be > 0")
    if found["global_segment_size"] < 0:
        raise ValueError("global_segment_size must be >= 0")
    if found["model_key"] is None:
        raise ValueError(
            "The mooncake-store connector needs a model key to namespace its pool keys"
        )
    return found


def ascend_store(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Read a file as AscendStore's ``MooncakeStoreConfig.from_file`` does. Raises as it does."""
    raw = json_object(json.loads(text))
    segment = raw.get("global_segment_size", _ASCEND_BYTES)
    found = {
        "master_server_address": environment.get(
            "MOONCAKE_MASTER", raw.get("master_server_address")
        ),
        "metadata_server": raw.get("metadata_server"),
        "protocol": raw.get("protocol", "ascend"),
        "device_name": raw.get("device_name", ""),
        "global_segment_size": vllm_size_bytes(
            environment.get("MOONCAKE_GLOBAL_SEGMENT_SIZE", segment)
        ),
        "local_buffer_size": vllm_size_bytes(raw.get("local_buffer_size", _ASCEND_BYTES)),
    }
    path = raw.get("ssd_offload_path", "")
    if raw.get("enable_ssd_offload") and not path:
        raise ValueError("enable_ssd_offload is true but ssd_offload_path is empty.")
    if raw.get("enable_ssd_offload") and not posixpath.isabs(path):
        raise ValueError(f"ssd_offload_path must be an absolute path, got: {path!r}")
    if found["protocol"] != "ascend":
        protocol = found["protocol"]
        raise ValueError(f"MooncakeBackend does not support protocol {protocol!r}.")
    return found


def read_ascend_store(
    extra: Mapping[str, Any], environment: Mapping[str, Word], read_file: ReadFile
) -> Consumer:
    """Return what AscendStoreConnector takes in each worker; all of it by name.

    The Ascend driver allocates the segment, on the host or beside it: how much of it is host
    memory, and on which pages, is not known here.
    """
    backend = extra.get("backend", "mooncake")
    if backend == "memcache":
        return _memcache(environment, read_file)
    if backend != "mooncake":
        return Consumer("", uncounted=(f"what AscendStoreConnector's {backend} takes",))
    given = {name: word.text for name, word in environment.items() if not word.unresolved}
    config, path, refused = store_file(environment, read_file, lambda t: ascend_store(t, given))
    family = "vLLM AscendStoreConnector"
    if isinstance(config, Unknown):
        store = lost_store(config, path)._replace(master=config)
        return Consumer("", clients=(Client(store, family=family),), refused=refused)
    size = format_bytes(max(0, config["global_segment_size"]))
    why = Unknown(f"how Ascend's driver allocates a worker's segment of {size}")
    master, metadata = (config[key] or "" for key in ("master_server_address", "metadata_server"))
    store = StoreProcess(why, master=str(master), metadata=str(metadata), file=path)
    clients = (Client(store, family=family),)
    return Consumer("", settings=shown_store(config, path), clients=clients, refused=refused)


def _memcache(environment: Mapping[str, Word], read_file: ReadFile) -> Consumer:
    path = environment.get("MMC_LOCAL_CONFIG_PATH")
    if path is None or not path.text:
        return Consumer("", uncounted=("what MemCache takes (MMC_LOCAL_CONFIG_PATH is not set)",))
    text = file_text(path, read_file)
    if isinstance(text, Unknown):
        return Consumer("", uncounted=(f"what MemCache takes ({text.reason})",))
    lines = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    values = {name.strip(): value.strip() for name, _, value in lines}
    dram = values.get(_MEMCACHE_DRAM, "its default")
    return Consumer(
        "",
        settings={_MEMCACHE_DRAM: SettingValue(dram, path.text)},
        uncounted=(f"what MemCache takes on host and device: {dram} of DRAM in each worker",),
    )


def read_kvbm(environment: Mapping[str, Word]) -> Consumer:
    """Return the pinned host pool of Dynamo's KVBM: of an engine, in units of 10^9 bytes."""
    sizes: dict[str, float] = {}
    found = ConsumerParts()
    for tier in ("CPU", "DISK"):
        name = f"DYN_KVBM_{tier}_CACHE_GB"
        word = environment.get(name)
        text: str | Unknown = "" if word is None else word_value(word)
        blocks = environment.get(f"DYN_KVBM_{tier}_CACHE_OVERRIDE_NUM_BLOCKS")
        if isinstance(text, Unknown):
            found.uncounted.append(f"KVBM's {tier} tier ({text.reason})")
        elif blocks is not None and blocks.text.strip() not in ("", "0"):
            found.uncounted.append(f"KVBM's {tier} tier: {blocks.text} blocks of the model's size")
        size = attempt(lambda text=text: float(str(text)))  # type: ignore[misc]
        sizes[tier] = 0.0 if isinstance(size, str) or not 0 <= size < 1e9 else size
        if isinstance(size, str) and isinstance(text, str) and text:
            found.misread.append(f"{name}={text}: not a number to KVBM, which takes 0")
    if not found.uncounted and not any(sizes.values()):
        found.refused.append(_KVBM_NOTHING)
        return found.consumer()
    if 0 < sizes["DISK"] < sizes["CPU"]:
        found.ignored.append(
            "DYN_KVBM_DISK_CACHE_GB is less than DYN_KVBM_CPU_CACHE_GB: KVBM writes through, and "
            "the disk holds nothing that the host has not"
        )
    whole = int(sizes["CPU"] * 10**9)
    found.pools += [WorkerPool(chunked_pool(whole), of_engine=True)] if whole else []
    for name, default in _KVBM_PORTS.items():
        what = f"KVBM {name.split('_')[-2].lower()} port"
        found.ports.append((what, port_of(environment.get(name), default, name, "KVBM")))
    found.settings["kvbm.cpu_cache_gb"] = SettingValue(sizes["CPU"], "DYN_KVBM_CPU_CACHE_GB")
    return found.consumer()


def read_trtllm(
    words: Sequence[Word], environment: Mapping[str, Word], read_file: ReadFile
) -> Consumer:
    """Return what ``trtllm-serve`` takes: its store's client and staging; the rest by name."""
    given, others = flags_of(words[1:] if words and words[0].text == "serve" else words)
    flags = {name.replace("-", "_"): values[-1] for name, values in given.items()}
    model = word_value(others[0]) if others else None
    config: Any = {}
    file = next((flags[name] for name in _TRTLLM_CONFIGS if name in flags), None)
    if file is not None:
        text = file_text(file, read_file)
        config = text if isinstance(text, Unknown) else attempt(lambda: _yaml(text))
    refused, uncounted = [], [_TRTLLM_REST]
    if isinstance(config, str):
        refused.append(f"{file.text if file else ''}: {config}")
    if isinstance(config, Unknown):
        uncounted.append(f"what its configuration says ({config.reason})")
    config = config if isinstance(config, dict) else {}
    sizes = {}
    for flag, key in _TRTLLM_SIZES.items():
        word = next((flags[one] for one in (flag, key) if one in flags), None)
        value = config.get(key, 1 if word is None else word_value(word))
        read = attempt(lambda value=value: human_readable_int(str(value)))  # type: ignore[misc]
        known = isinstance(read, int) and read > 0
        lost = value if isinstance(value, Unknown) else Unknown(f"{key} {value!r} is not a number")
        sizes[key] = read if known else lost
    tp, pp = sizes.values()
    workers: Any = tp if isinstance(tp, Unknown) else pp
    if isinstance(tp, int) and isinstance(pp, int):
        workers = tp * pp
    found = Consumer("")
    kv = config.get("kv_connector_config")
    if isinstance(kv, dict) and ("mooncake_store" in kv or "mooncake" in str(kv.get("connector"))):
        found = _trtllm_store(kv, environment, read_file)
        if isinstance(pp, int) and pp > 1:
            refused.append("The mooncake-store connector does not support pipeline parallelism.")
    gate = found.gate_bytes * workers + _RESERVE_BYTES if isinstance(workers, int) else 0
    port = port_of(flags.get("port"), 8000, "--port", "trtllm-serve")
    return found._replace(
        workers=workers,
        gate_bytes=gate if found.gate_bytes else 0,
        settings={**found.settings, "model": SettingValue(model, "command line")},
        ports=(("HTTP port", port),),
        refused=(*refused, *found.refused),
        uncounted=(*uncounted, *found.uncounted),
    )


def _yaml(text: str) -> Any:
    import yaml

    try:
        return json_object(yaml.safe_load(text) or {})
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None


def _trtllm_store(
    kv: Mapping[str, Any], environment: Mapping[str, Word], read_file: ReadFile
) -> Consumer:
    """Return the client of each rank, as the store's file says.

    MOONCAKE_CONFIG_PATH counts before the file that TensorRT-LLM renders from its YAML file.
    """
    if STORE_PATH not in environment and kv.get("mooncake_store") is not None:
        what = "the store's file that TensorRT-LLM writes from kv_connector_config.mooncake_store"
        return Consumer("", uncounted=(what,))
    config, path, refused = store_file(environment, read_file, trtllm_store)
    family = "TensorRT-LLM"
    if isinstance(config, Unknown):
        store = lost_store(config, path)._replace(master=config)
        return Consumer("", clients=(Client(store, family=family),), refused=refused)
    store = file_client(config, path)
    keys = {name: config[name] for name in ("namespace", "model_key")}
    staging = _DIRECTIONS[config["role"]] * _STAGING_BYTES
    pool = WorkerPool(OwnPool(staging, 0, registered=config["protocol"] != "tcp"))
    return Consumer(
        "",
        settings=shown_store(config, path),
        clients=(Client(store, family=family, keys={**keys, "tenant": config["tenant_id"]}),),
        pools=(pool,) if staging else (),
        refused=store.refused,
        gate_bytes=config["global_segment_size"] + staging,
    )
