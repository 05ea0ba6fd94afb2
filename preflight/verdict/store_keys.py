"""The keys that each process writes to a store and asks for, and whether two ever meet.

What a key's text holds, or is hashed from, must be the same on both sides: else neither finds what
the other wrote. What it does not hold must be the same too, or both use one name for other bytes.
Read in SGLang 0.5.23 ``mooncake_store.py``, ``mooncake_direct_linker.py`` (the model's path, and K
and V of all layers in one object) and ``radix_cache.py`` (pairs of tokens with an EAGLE draft),
vLLM 0.33.0 ``mooncake/store/data.py``, ``worker.py`` and ``v1/core/kv_cache_utils.py``, LMCache
0.5.6 ``utils.py`` CacheEngineKey and ``token_database.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import combinations
from typing import Any, NamedTuple

from checks.framework.unknown import Unknown
from checks.releases.mooncake import parse_version
from checks.releases.sglang import NEWEST_KNOWN, sglang_release
from preflight.engines.consumers.consumer import Client, Consumer, attempt
from preflight.engines.consumers.vllm_arguments import human_readable_int
from preflight.engines.programs.store_config import StoreConfig
from preflight.engines.sglang.launch import hashes_pairs
from preflight.engines.sglang.model_geometry import AttentionKind, ModelGeometry
from preflight.engines.sglang.server import SglangServer
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.processes import LaunchProcess
from preflight.processes.services import master_address


class Unsure(NamedTuple):
    """A value that is not certain: equal to the same value, and unknown against any other."""

    value: Any
    why: str

    def __str__(self) -> str:
        return str(self.value)


LEFT = Unsure("left to the engine", "what the engine chooses is not known")
VLLM = "vLLM MooncakeStoreConnector"
_NO_MODEL = Unknown("the model is not known")
_DRAWN = "drawn at random in each process"
_COMMON_SEED = (0, 29, 0, 0)  # the first vLLM whose wheel has one; 0.28.0 draws it still
_TOKENS = {True: "pairs", False: "single"}


class Meeting(str, Enum):
    """How the keys of two processes relate."""

    EQUAL = "equal"
    NEVER = "never equal"
    COLLIDE = "the same keys for other bytes"
    UNKNOWN = "unknown"
    APART = "another store"


class StoreKeys(NamedTuple):
    """One process's keys in one store.

    Attributes:
        family: Of programs that name keys alike.
        named: What the key's text holds or is hashed from.
        content: What the bytes behind a key depend on.
        pattern: A key as written.
        random: Why no two processes agree, or "".
        store: Master, tenant.
    """

    process: LaunchProcess
    family: str
    named: Mapping[str, Any]
    content: Mapping[str, Any]
    pattern: str
    random: str
    store: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The last part of the model's name in lower case, "" if it is not known."""
        consumer, server = self.process.consumer, self.process.server
        if consumer is not None:
            model = consumer.model
        else:
            model = None if server is None else server.value("model_path")
        return model.rstrip("/").rpartition("/")[2].lower() if isinstance(model, str) else ""


class KeyMatch(NamedTuple):
    """Two processes' keys: the verdict, and the sentences behind it."""

    first: StoreKeys
    second: StoreKeys
    verdict: Meeting
    reasons: tuple[str, ...]


def launch_keys(sizing: LaunchSizing) -> tuple[StoreKeys, ...]:
    """Return the keys of every process of a launch that stores KV cache, one for each of its
    stores.

    Stores of engines other than SGLang, vLLM and LMCache are left out.
    """
    shown = sizing.shown
    version = shown.inputs.shown.get("sglang_version") if shown is not None else None
    release = "" if version is None else str(version.value)
    keys: list[StoreKeys] = []
    for process in sizing.inputs.processes:
        server, consumer = process.server, process.consumer
        geometry = sizing.inputs.geometry.get(process.number, _NO_MODEL)
        if server is not None and server.store is not None:
            keys.append(_sglang_keys(process, server, server.store, release, geometry))
        elif consumer is not None:
            for client in consumer.clients:
                if client.family == "LMCache":
                    keys.append(_lmcache_keys(process, consumer, client, geometry))
                elif client.family == VLLM:
                    keys.append(_vllm_keys(process, consumer, client, geometry))
    return tuple(keys)


def matches(
    ours: Sequence[StoreKeys], others: Sequence[StoreKeys] | None = None
) -> Iterator[KeyMatch]:
    """Compare every two processes of ``ours``, or each of ``ours`` with each of ``others``."""
    pairs = combinations(ours, 2) if others is None else ((a, b) for a in ours for b in others)
    for first, second in pairs:
        yield compare_keys(first, second)


def compare_keys(first: StoreKeys, second: StoreKeys) -> KeyMatch:
    """Compare the keys of two processes.

    A known difference of names outranks a doubt.
    """
    apart, unsure = _differences(first.store, second.store)
    if apart:
        return KeyMatch(first, second, Meeting.APART, tuple(apart))
    if first.family != second.family:
        why = f"{first.family} and {second.family} name their keys in different ways"
        return KeyMatch(first, second, Meeting.NEVER, (why,))
    drawn = [f"{each.process.name}: {each.random}" for each in (first, second) if each.random]
    never, maybe = _differences(first.named, second.named)
    if never or drawn:
        return KeyMatch(first, second, Meeting.NEVER, tuple(dict.fromkeys((*drawn, *never))))
    other, bytes_unsure = _differences(first.content, second.content)
    unsure = [*unsure, *maybe, *(bytes_unsure if not other else [])]
    if unsure:
        return KeyMatch(first, second, Meeting.UNKNOWN, tuple(unsure))
    if other:
        return KeyMatch(first, second, Meeting.COLLIDE, tuple(other))
    return KeyMatch(first, second, Meeting.EQUAL, ())


def _differences(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return a sentence for each value that differs, and one for each that may differ.

    A missing value is taken as None.
    """
    differs, unsure = [], []
    for name in dict.fromkeys((*first, *second)):
        a, b = first.get(name), second.get(name)
        lost = [each.reason for each in (a, b) if isinstance(each, Unknown)]
        if lost:
            unsure.append(f"{name}: {lost[0]}")
        elif a != b and (doubts := [each for each in (a, b) if isinstance(each, Unsure)]):
            unsure.append(f"{name}: {a} against {b}: {doubts[0].why}")
        elif a != b:
            differs.append(f"{name}: {a} against {b}")
    return differs, unsure


def _is_mla(geometry: ModelGeometry | Unknown) -> bool | Unknown:
    return geometry if isinstance(geometry, Unknown) else geometry.kind is AttentionKind.MLA


def _comparable_model(model: Any) -> Any:
    """Return the model, to compare bytes by; Unsure for a folder, which may hold any model."""
    if isinstance(model, str) and model.startswith(("/", ".", "~")):
        return Unsure(model, "whether the folder holds the same model is not known")
    return model


def _master(address: Any, tenant: Any) -> dict[str, Any]:
    if isinstance(address, str) and address:
        address = master_address(address)
    elif address in (None, ""):
        address = LEFT
    return {"master": address, "tenant": tenant}


def _sglang_keys(
    process: LaunchProcess,
    server: SglangServer,
    store: StoreConfig,
    release: str,
    geometry: ModelGeometry | Unknown,
) -> StoreKeys:
    """Return the keys of SGLang's HiCache, or of its linker.

    Args:
        release: "" for the newest known.
    """
    model = server.value("model_path")
    served = server.value("served_model_name")
    served = model if server.links or served in (None, "") else served
    unread = isinstance(store.source, Unknown) and not store.extra
    tag, lcm = (
        store.source if unread else store.extra.get(name)
        for name in ("extra_backend_tag", "tp_lcm_size")
    )
    parts = [*([str(tag)] if tag is not None else []), str(served).replace("/", "-")]
    lost = [value for value in (served, tag) if isinstance(value, Unknown)]
    prefix = lost[0] if lost else "_".join(parts)
    mla = _is_mla(geometry)
    tp, pp = server.number("tp_size"), server.number("pp_size")
    groups = server.attention_dp
    if isinstance(tp, int) and isinstance(groups, int):
        tp = tp // max(1, groups)
    try:
        sglang = sglang_release(release)
    except ValueError:  # none that is known, or none at all: as the newest
        sglang = sglang_release(NEWEST_KNOWN)
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    decoded = server.mode == "decode" and offloads  # what is generated is hashed token by token
    pairs = False if decoded else hashes_pairs(server, sglang, geometry)
    page = server.value("page_size")
    layout = None if server.links else server.value("hicache_mem_layout")
    split = lcm if layout == "page_head" and lcm not in (None, 0) else tp
    # Latent rows are whole on every rank: one rank writes them, and no rank is named.
    shards: Any = 1 if mla is True else split
    stage_in_keys = sglang.stage_in_keys
    # The rank and the stage are bare numbers: one's 0 reads as the other's 0.
    staged = pp if isinstance(pp, Unknown) else pp > 1 and stage_in_keys
    numbers: Any = staged if isinstance(staged, Unknown) else (mla is not True) + staged
    if isinstance(mla, Unknown):
        why = f"whether its KV cache is latent (MLA): {mla.reason}"
        if not isinstance(staged, Unknown):
            numbers = Unsure(f"as {model} has it{' with stages' * staged}", why)
        if isinstance(split, int) and split > 1:
            shards = Unsure(split, why)
    has_scheme = "hicache_storage_key_scheme" in server.arguments.settings
    scheme = server.value("hicache_storage_key_scheme") if has_scheme else None
    named = {
        "prefix": prefix,
        "page size": LEFT if page is None else page,
        "tokens in a key": pairs if isinstance(pairs, Unknown) else _TOKENS[pairs],
        "rank and stage numbers in a key": numbers,
        "place of a stage in a key without a rank": stage_in_keys or mla is not True,
        "key scheme": scheme,
        "decode context parallel": _dcp_prefix(server, tp, pp, page),
        "SGLang release": Unsure(release, "whether both name their keys alike is not known"),
    }
    same = {
        "model": _comparable_model(model),
        "tensor-parallel shards": shards,
        "pipeline stages": pp,
        "KV dtype": server.value("kv_cache_dtype"),
        "memory layout": layout,
    }
    stage = "_<stage>" if pp != 1 and stage_in_keys else ""
    rank = (stage or "_" * stage_in_keys) if mla is True else f"_<rank>{stage}"
    if server.links:
        rank = "_tp<rank>" * (mla is not True) + "_cp<rank>_pp<stage>"
    pattern = f"{prefix if isinstance(prefix, str) else '<model>'}_<sha256 of a page>{rank}_k"
    tenant = store.settings["tenant_id"].value
    if tenant in (None, "") or store.value("standalone_storage") is True:  # setup_dummy has none
        tenant = "default"
    where = _master(store.value("master_server_address"), tenant)
    family = "SGLang linker" if server.links else "SGLang HiCache"
    return StoreKeys(process, family, named, same, pattern, "", where)


def _dcp_prefix(server: SglangServer, tp: Any, pp: Any, page: Any) -> Any:
    """Return the prefix that decode context parallelism gives a key; 1 without it, or Unknown."""
    dcp = server.number("dcp_size") if "dcp_size" in server.arguments.settings else 1
    lost = [value for value in (dcp, tp, pp, page) if isinstance(value, Unknown)]
    if dcp == 1 or lost:
        return 1 if dcp == 1 else lost[0]
    return f"tp {tp}, dcp {dcp}, page {page}, pp {pp}"


def _vllm_keys(
    process: LaunchProcess, consumer: Consumer, client: Client, geometry: ModelGeometry | Unknown
) -> StoreKeys:
    """Return the keys of vLLM's store connector."""
    values = {name: setting.value for name, setting in consumer.settings.items()}
    model = values["model"]
    name = model if isinstance(model, Unknown) else str(model).rstrip("/").rpartition("/")[2]
    prefix = client.keys.get("cache_prefix", "")
    tp, pp = _number(values["tensor_parallel_size"]), _number(values["pipeline_parallel_size"])
    dcp = _number(values["decode_context_parallel_size"])
    pcp = _number(values["prefill_context_parallel_size"])
    shards: Any = _shards(geometry, tp, dcp)
    algorithm = values["prefix_caching_hash_algo"]
    seed, drawn = _seed(process, algorithm)
    draft = values["speculative_config"]
    if not isinstance(draft, Unknown):  # its layers may lie beside the model's
        unsure = Unsure(str(draft), "whether both drafts keep the same layers is not known")
        draft = unsure if draft else "none"
    layout: Any = "of each rank"
    rearranged = client.keys.get("store_tp_size") is not None
    if rearranged or client.keys.get("enable_store_tp_lcm") is True:
        layout = Unknown("which of store_tp_size's layouts vLLM takes follows from the KV cache")
    named = {
        "cache_prefix": str(prefix),
        "model name": name,
        "store layout": layout,
        "block size": _as_text(values["block_size"]),
        "hash": algorithm,
        "hash seed": seed,
        "vLLM release": _release(consumer, "vllm"),
    }
    same = {
        "model": _comparable_model(model),
        "tensor-parallel shards": shards,
        "prefill context ranks": _as_text(pcp),
        "decode context ranks": _as_text(dcp),
        "pipeline stages": pp,
        "KV dtype": values["kv_cache_dtype"],
        "draft": draft,
    }
    shown = name if isinstance(name, str) else "<model>"
    front = f"{prefix}@" if prefix else ""
    pattern = f"{front}{shown}@tp_rank:<rank>@pcp0@dcp0@pp_rank:<stage>@group:0@<hash of a block>"
    where = _master(client.store.master, client.keys.get("tenant", "default"))
    if isinstance(client.store.client, Unknown):
        where = dict.fromkeys(where, client.store.client)
    return StoreKeys(process, client.family, named, same, pattern, drawn, where)


def _release(consumer: Consumer, product: str) -> Unsure:
    named = consumer.named.get(product)
    text = "as read" if named is None else named.release
    return Unsure(text, "whether both name keys alike is not known")


def _as_text(value: Any) -> Any:
    """Return a value as a key may spell it: 16 and "16" are equal.

    None gives ``LEFT``.
    """
    if value is None:
        return LEFT
    return value if isinstance(value, Unknown) else str(value)


def _number(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    number = attempt(lambda: human_readable_int(value))
    return Unknown(f"{value!r} is no number") if isinstance(number, str) else number


def _shards(geometry: ModelGeometry | Unknown, tp: Any, dcp: Any) -> Any:
    """Count the distinct shards of the KV heads: further ranks write the same bytes.

    Unknown or Unsure if a size or the model is not known.
    """
    if not isinstance(tp, int):
        return tp
    if isinstance(dcp, Unknown):
        return dcp
    if tp == 1 or dcp not in (1, "1"):
        return tp
    if isinstance(geometry, Unknown):
        return Unsure(tp, f"how many ranks hold the same heads: {geometry.reason}")
    if geometry.kind is AttentionKind.MLA:
        return 1
    return tp // max(1, tp // max(1, geometry.heads.kv_heads))


def _seed(process: LaunchProcess, algorithm: Any) -> tuple[Any, str]:
    """Return the seed of the hashes in keys, and why it is random, "" if it is not.

    The seed is PYTHONHASHSEED; without it, vLLM's common one if hash and release have it.
    """
    word = process.command.environment.get("PYTHONHASHSEED")
    if word is not None and not word.unresolved:
        # To Python's own hash "random" is no seed; vLLM hashes the word as any other.
        return word.text, _DRAWN if word.text == "random" and algorithm == "builtin" else ""
    if word is not None:
        return Unknown(f"PYTHONHASHSEED follows from {', '.join(word.unresolved)}"), ""
    if isinstance(algorithm, str) and not algorithm.startswith("sha256"):
        return _DRAWN, f"PYTHONHASHSEED is not set, and the seed of {algorithm} is {_DRAWN}"
    named = None if process.consumer is None else process.consumer.named.get("vllm")
    if named is not None and parse_version(named.release) < _COMMON_SEED:
        why = f"PYTHONHASHSEED is not set, and the seed of vLLM {named.release} is {_DRAWN}"
        return _DRAWN, why
    return "vLLM's own", ""


def _lmcache_keys(
    process: LaunchProcess, consumer: Consumer, client: Client, geometry: ModelGeometry | Unknown
) -> StoreKeys:
    """Return the keys of LMCache in vLLM."""
    values = {name: setting.value for name, setting in consumer.settings.items()}
    model, keys = values.get("model"), client.keys
    tp, pp = _number(values["tensor_parallel_size"]), _number(values["pipeline_parallel_size"])
    mla = _is_mla(geometry)
    world: Any = next((size for size in (tp, pp) if isinstance(size, Unknown)), None)
    if world is None:
        world = tp * pp
        first = keys["save_only_first_rank"] and world > 1
        if first and isinstance(mla, Unknown):
            world = Unsure(world, f"whether its KV cache is latent (MLA): {mla.reason}")
        elif first and mla:
            world = 1
    algorithm = keys["pre_caching_hash_algorithm"]
    seed, drawn = _seed(process, algorithm)
    named = {
        "model name": model,
        "workers in a key": world,
        "chunk size": keys["chunk_size"],
        "hash": algorithm,
        "hash seed": seed,
        "KV dtype": values["kv_cache_dtype"],
        "a key for each layer": keys["use_layerwise"],
        "LMCache release": _release(consumer, "lmcache"),
    }
    same = {"pipeline stages": pp, "serializer": keys["remote_serde"]}
    shown = model if isinstance(model, str) else "<model>"
    count = world if isinstance(world, int) else "<workers>"
    pattern = f"{shown}@{count}@<worker>@<hash of a chunk>@<dtype>"
    where = _master(client.store.master, keys.get("tenant", "default"))
    return StoreKeys(process, "LMCache", named, same, pattern, drawn, where)
