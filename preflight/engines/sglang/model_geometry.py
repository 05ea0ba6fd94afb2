"""What one token's KV cache is made of, read from a model's Hugging Face ``config.json``.

The rules are those of SGLang's ``configs/model_config.py`` (0.5.23; get_hybrid_layer_ids,
is_hybrid_swa_model). It decides by the name of the architecture and not by the presence of a field:
Gemma 2 and 3 and Mistral declare a sliding window and still keep every layer's keys and values for
every token.
"""

import json
from collections.abc import Collection, Mapping
from enum import Enum
from functools import cache
from typing import NamedTuple

from checks.framework.unknown import Unknown
from preflight.base.program import data_file

# Where a multimodal config keeps its language model.
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
# The spellings and their order of SGLang's get_total_num_kv_heads.
_KV_HEADS = (
    "n_head_kv num_kv_heads num_key_value_heads multi_query_group_num num_attention_groups"
).split()
# No published model comes near; a larger number in a config is not a number of layers.
MOST_LAYERS = 4096
# Head counts, widths and ranks: the same kind of bound.
MOST_WIDTH = 1 << 20
# What a layer_types list may hold where every layer keeps every token.
_KNOWN_TYPES = frozenset(
    "full_attention sliding_attention chunked_attention linear_attention attention "
    "deepseek_sparse_attention".split()
)


class Architectures(NamedTuple):
    """``data/model_architectures.json``: architectures that SGLang treats in their own way.

    Attributes:
        sliding: A second, smaller pool for their sliding-window layers.
        sparse: Their index_topk is honoured (is_deepseek_dsa).
        attention_twice: One latent-attention block twice per layer (SGLang: num_attention_layers =
            layers * 2).
        other_pools: Their pools follow rules of their own, which nothing here computes.
        other_hybrids: Fields of hybrids whose layers are told apart in ways that nothing here
            reads.
    """

    sliding: tuple[str, ...]
    sparse: tuple[str, ...]
    attention_twice: tuple[str, ...]
    other_pools: tuple[str, ...]
    other_hybrids: tuple[str, ...]


@cache
def _architectures() -> Architectures:
    """Return the names of architectures with pools of their own kind."""
    with open(data_file("model_architectures.json"), encoding="utf-8") as file:
        table: dict[str, list[str]] = json.load(file)
    return Architectures(**{name: tuple(names) for name, names in table.items()})


class LayerKind(Enum):
    FULL = "full"  # keeps every token
    SLIDING = "sliding"  # keeps a window, in a pool of its own
    LINEAR = "linear"  # keeps one state per request


class AttentionKind(Enum):
    MHA = "mha"  # keys and values per head, sharded over tensor-parallel ranks
    MLA = "mla"  # one latent row per token, whole on every rank


class Heads(NamedTuple):
    """The key/value heads of one kind of layer, of the whole model."""

    kv_heads: int
    head_dim: int
    v_head_dim: int


class LinearState(NamedTuple):
    """One linear-attention layer's state per request slot (Gated DeltaNet: Qwen3-Next)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    temporal_item_bytes: int


class ModelGeometry(NamedTuple):
    """The shape of a model's KV cache.

    ``heads`` and ``sliding`` count for MHA alone, ``kv_lora_rank`` and ``qk_rope_head_dim`` for MLA
    alone.

    Attributes:
        layers: The kind of each layer, in order.
        index_layers: The layers that keep index keys of their own (sparse attention), in order;
            empty without an indexer.
        index_pool: Tokens that one index key stands for.
        sliding: The heads of the sliding-window layers; None without such layers.
        linear: The state of a linear-attention layer, Unknown if its shape is not derivable.
        dtype_bytes: One element of the KV cache under ``--kv-cache-dtype auto``.
        nextn_layers: The layers of a multi-token-prediction head that the checkpoint carries.
        vision: Its architecture reads images too, by its name.
    """

    name: str
    kind: AttentionKind
    layers: tuple[LayerKind, ...]
    dtype_bytes: int
    heads: Heads
    sliding: Heads | None = None
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    index_layers: tuple[int, ...] = ()
    index_head_dim: int = 0
    index_pool: int = 1
    linear: LinearState | Unknown | None = None
    nextn_layers: int = 0
    vision: bool = False

    def count(self, layer_kind: LayerKind) -> int:
        return self.layers.count(layer_kind)


def geometry_from_config(config: Mapping[str, object], name: str) -> ModelGeometry | Unknown:
    """Return the geometry that SGLang would give the model ``name`` with this ``config.json``.

    Never raises, whatever the JSON holds: Unknown says which field is missing or not understood.
    """
    try:
        return _geometry(config, name)
    except OwnPoolsError as refusal:
        return OwnPools(f"{name}: config.json: {refusal}", refusal.architecture)
    except ConfigError as refusal:
        return Unknown(f"{name}: config.json: {refusal}")


def _geometry(config: Mapping[str, object], name: str) -> ModelGeometry:
    """Return the shape of a model's KV cache.

    Raises:
        ConfigError: For a wrong or missing field.
    """
    text = text_config(config)
    architectures = string_list(config, "architectures") or string_list(text, "architectures")
    if not architectures:
        raise ConfigError("has no architectures, by which SGLang chooses the pools")
    layers = layer_kinds(text, architectures)
    nextn = text.get("num_nextn_predict_layers")
    if not isinstance(nextn, int) or isinstance(nextn, bool) or not 0 < nextn <= MOST_LAYERS:
        nextn = 0
    linear = _linear(text, architectures) if LayerKind.LINEAR in layers else None
    dtype_bytes = _dtype_bytes(config)
    vision = architectures[0].endswith("ForConditionalGeneration")
    if text.get("kv_lora_rank") is not None:
        if LayerKind.SLIDING in layers:
            raise ConfigError("sliding-window layers of latent attention are not understood")
        sparse = architectures[0] in _architectures().sparse and text.get("index_topk") is not None
        # Some models share an indexer between several layers.
        index_layers = tuple(n for n in range(len(layers)) if sparse and not _shares_index(text, n))
        return ModelGeometry(
            name,
            AttentionKind.MLA,
            layers,
            dtype_bytes,
            Heads(1, 0, 0),
            kv_lora_rank=positive(text, "kv_lora_rank"),
            qk_rope_head_dim=positive(text, "qk_rope_head_dim"),
            index_layers=index_layers,
            index_head_dim=positive(text, "index_head_dim") if index_layers else 0,
            index_pool=positive(text, "index_kpool") if text.get("index_kpool") else 1,
            linear=linear,
            nextn_layers=nextn,
            vision=vision,
        )
    head_dim = _head_dim(text)
    # SGLang reads a v_head_dim of 0 as unset.
    v_head_dim = positive(text, "v_head_dim") if text.get("v_head_dim") else head_dim
    return ModelGeometry(
        name,
        AttentionKind.MHA,
        layers,
        dtype_bytes,
        Heads(_kv_heads(text), head_dim, v_head_dim),
        sliding=_sliding_heads(text) if LayerKind.SLIDING in layers else None,
        linear=linear,
        nextn_layers=nextn,
        vision=vision,
    )


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the language model's part of a config, or the whole config if it has no such part.

    Fields that are left out have the defaults of the model type.
    """
    text = config
    for _ in range(2):  # thinker_config holds a text_config
        for key in _NESTED:
            nested = text.get(key)
            if isinstance(nested, Mapping) and nested:
                text = nested
                break
    model_type = text.get("model_type")
    if not isinstance(model_type, str) or "auto_map" in config:
        return text  # a checkpoint that brings its own class has defaults that only its code tells
    # What transformers' class of the model type takes for a field that is left out.
    with open(data_file("config_defaults.json"), encoding="utf-8") as file:
        table: dict[str, dict[str, object]] = json.load(file)["defaults"]
    return {**table.get(model_type, {}), **text}


def _sliding_heads(text: Mapping[str, object]) -> Heads:
    """Return the heads of the window layers: from fields for window layers, else for all layers."""
    head_dim = positive(text, "swa_head_dim") if text.get("swa_head_dim") else _head_dim(text)
    v_head_dim = positive(text, "swa_v_head_dim") if text.get("swa_v_head_dim") else head_dim
    key, other = "swa_num_key_value_heads", text.get("attention_other_setting")
    if text.get(key) is not None:
        kv_heads = positive(text, key)
    elif isinstance(other, Mapping):  # Step-3.5: get_swa_num_kv_heads
        kv_heads = positive(other, "num_attention_groups")
    else:
        kv_heads = _kv_heads(text)
    return Heads(kv_heads, head_dim, v_head_dim)


def _head_dim(text: Mapping[str, object]) -> int:
    """Return a head's width: as written, else hidden_size / attention heads.

    Raises ConfigError.
    """
    if text.get("head_dim") is not None:
        return positive(text, "head_dim")
    width = positive(text, "hidden_size") // positive(text, "num_attention_heads")
    if not width:
        raise ConfigError("hidden_size is less than num_attention_heads")
    return width


def _kv_heads(text: Mapping[str, object]) -> int:
    """Return the number of KV heads; if no field names it, that of attention heads."""
    if text.get("multi_query") is True:
        return 1
    written = (key for key in _KV_HEADS if text.get(key) is not None)
    return positive(text, next(written, "num_attention_heads"))


def _shares_index(text: Mapping[str, object], layer: int) -> bool:
    """Return whether a layer uses another layer's index (dsa_layer_skips_topk).

    Raises:
        ConfigError: For fields that are not understood, such as cli_factor, by which LongCat counts
            two blocks as one layer.
    """
    if text.get("indexer_types") is None and text.get("cli_factor") not in (None, 1):
        raise ConfigError("cli_factor: which layers keep index keys is not understood")
    for key, shared in (("indexer_types", "shared"), ("index_topk_pattern", "S")):
        pattern = text.get(key)
        if pattern is None:
            continue
        types = tuple(pattern) if isinstance(pattern, str) else string_list(text, key)
        if not types:
            raise ConfigError(f"{key}: which layers keep index keys is not understood")
        return layer < len(types) and types[layer] == shared
    if text.get("index_topk_freq") is None:
        return False
    every, first = positive(text, "index_topk_freq", MOST_LAYERS), 2
    if text.get("index_skip_topk_offset") is not None:
        first = positive(text, "index_skip_topk_offset", MOST_LAYERS)
    return max(layer - first + 1, 0) % every != 0


def _linear(text: Mapping[str, object], architectures: tuple[str, ...]) -> LinearState | Unknown:
    """Return the linear layers' state; Unknown if not derivable.

    Raises:
        ConfigError: For a field.
    """
    # The one shape that SGLang's qwen3_next.py and its kin share (Mamba2StateShape.create).
    if text.get("linear_key_head_dim") is None:
        return Unknown(f"{architectures[0]}: the state of its linear layers is not derivable")
    temporal = text.get("mamba_ssm_dtype")
    return LinearState(
        positive(text, "linear_num_key_heads"),
        positive(text, "linear_num_value_heads"),
        positive(text, "linear_key_head_dim"),
        positive(text, "linear_value_head_dim"),
        positive(text, "linear_conv_kernel_dim"),
        # SGLang keeps the temporal state as float32 unless the config asks for less.
        2 if temporal in ("bfloat16", "float16") else 4,
    )


def _dtype_bytes(config: Mapping[str, object]) -> int:
    """Return 1 if the checkpoint asks for an fp8 KV cache, else 2.

    SGLang serves no float32.
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return 2
    algorithm, scheme = (quantization.get(f"kv_cache_{key}") for key in ("quant_algo", "scheme"))
    # ModelOpt's checkpoints alone are served so (modelopt_quant.py, from_config).
    modelopt = str(quantization.get("quant_method")).startswith("modelopt")
    if modelopt and isinstance(scheme, Mapping):
        return 1 if (scheme.get("type"), scheme.get("num_bits")) == ("float", 8) else 2
    return 1 if isinstance(algorithm, str) and algorithm.upper() == "FP8" else 2


class ConfigError(Exception):
    """A config that lacks a field, or has another than is understood; the text says which."""


class OwnPoolsError(ConfigError):
    """An architecture whose pools follow rules that nothing here computes."""

    def __init__(self, architecture: str) -> None:
        why = "its pools have rules of their own, which are not computed here"
        super().__init__(f"{architecture}: {why} (--model-config does not help)")
        self.architecture = architecture


class OwnPools(Unknown):
    """Why there is no geometry: a model whose pools follow rules that nothing here computes."""

    __slots__ = ("architecture",)

    def __init__(self, reason: str, architecture: str) -> None:
        super().__init__(reason)
        self.architecture = architecture

    def of(self, what: str) -> "OwnPools":
        """Return the same with ``what`` in front of the reason."""
        return OwnPools(f"{what}{self.reason}", self.architecture)


def config_helps(missing: Unknown) -> bool:
    """Tell whether a config.json could tell the geometry that is missing."""
    return not isinstance(missing, OwnPools)


def layer_kinds(
    text: Mapping[str, object], architectures: tuple[str, ...]
) -> tuple[LayerKind, ...]:
    """Return the kind of each attention layer, in order.

    Args:
        text: The language model's part of a config.json.

    Raises:
        ConfigError: For what is missing or not understood.
    """
    table = _architectures()
    for architecture in architectures:
        if architecture.startswith(table.other_pools):
            raise OwnPoolsError(architecture)
    count = positive(text, "num_hidden_layers", MOST_LAYERS)
    for key in table.other_hybrids:
        if text.get(key) not in (None, False):
            raise ConfigError(f"{key} is not understood")
    if not set(table.sliding).isdisjoint(architectures):
        return _sliding_layers(text, architectures, count)
    # MiniMax counts its layers of full attention as 1; those of the hybrids before M2 differ.
    kinds = text.get("attn_type_list")
    if kinds is not None and (not isinstance(kinds, list) or any(each != 1 for each in kinds)):
        raise ConfigError("attn_type_list is not understood")
    interval = text.get("full_attention_interval")
    types = string_list(text, "layer_types")
    for layer_type in types[:count]:
        if layer_type not in _KNOWN_TYPES:
            raise ConfigError(f"layer type {layer_type!r:.40} is not understood")
    if interval is not None or "linear_attention" in types:
        if types:
            return _typed_layers(types, count, LayerKind.LINEAR)
        every = positive(text, "full_attention_interval", MOST_LAYERS)
        return _full_layers(count, LayerKind.LINEAR, range(every, count + 1, every))
    linear = text.get("linear_attn_config")
    if linear is not None:  # Kimi-Linear names its full-attention layers, counted from one
        full = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
        if not isinstance(full, list):
            raise ConfigError("linear_attn_config does not name full_attn_layers")
        return _full_layers(count, LayerKind.LINEAR, full)
    twice = not set(table.attention_twice).isdisjoint(architectures)
    return (LayerKind.FULL,) * (count << twice)


def _full_layers(count: int, other: LayerKind, full: Collection[object]) -> tuple[LayerKind, ...]:
    """Return the kind of each layer: those of ``full``, counted from one, have full attention."""
    return tuple(LayerKind.FULL if layer in full else other for layer in range(1, count + 1))


def _sliding_layers(
    text: Mapping[str, object], architectures: tuple[str, ...], count: int
) -> tuple[LayerKind, ...]:
    """Return the kind of each of ``count`` layers, some with a window.

    Raises ConfigError.
    """
    if "Llama4ForConditionalGeneration" in architectures:
        return _full_layers(count, LayerKind.SLIDING, range(4, count + 1, 4))
    pattern = text.get("hybrid_layer_pattern")
    if isinstance(pattern, list):
        if len(pattern) < count or any(each not in (0, 1) for each in pattern):
            raise ConfigError("hybrid_layer_pattern does not give each layer 0 or 1")
        return tuple(LayerKind.SLIDING if each else LayerKind.FULL for each in pattern[:count])
    types = string_list(text, "layer_types")
    if not types:
        raise ConfigError("has no layer_types, by which SGLang splits the pools")
    return _typed_layers(types, count, LayerKind.SLIDING)


def _typed_layers(types: tuple[str, ...], count: int, other: LayerKind) -> tuple[LayerKind, ...]:
    """Return each layer's kind, full or ``other``, by ``types``.

    Raises ConfigError.
    """
    if len(types) < count:
        raise ConfigError(f"layer_types names {len(types)} of {count} layers")
    allowed = {"full_attention": LayerKind.FULL, f"{other.value}_attention": other}
    for layer_type in types[:count]:
        if layer_type not in allowed:
            raise ConfigError(f"layer type {layer_type!r:.40} is not understood here")
    return tuple(allowed[layer_type] for layer_type in types[:count])


def positive(text: Mapping[str, object], key: str, most: int = MOST_WIDTH) -> int:
    """Return the config's field ``key``, a whole number from 1 to ``most``.

    Raises ConfigError.
    """
    value = text.get(key)
    if value is None:
        raise ConfigError(f"has no {key}")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise ConfigError(f"{key} is {_shown(value)}, not a whole number from 1 to {most}")
    return value


def string_list(text: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the field ``key`` if it is a list of strings; else empty."""
    value = text.get(key)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return ()
    return tuple(value)


def _shown(value: object) -> str:
    """Return a scalar as written, cut short; for another value its type, in words."""
    if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return f"{value!r:.40}"
    return f"of type {type(value).__name__}"
