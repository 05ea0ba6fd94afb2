"""What one token's KV cache is made of, read from a model's Hugging Face ``config.json``.

The rules are those of SGLang's ``configs/model_config.py`` (0.5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.sglang.model_layers import (
    ConfigError,
    LayerKind,
    layer_kinds,
    names,
    positive,
    small_count,
)

# Where a multimodal config keeps its language model.
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
# The architectures whose index_topk SGLang honours (is_deepseek_dsa).
_SPARSE = frozenset(
    (
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
        "Glm5NextForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "HYV4ForCausalLM",
    )
)


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
    """``heads`` and ``sliding`` count for MHA alone, the ranks for MLA alone.

    layers: the kind of each layer, in order. index_layers: the layers that keep index keys of
    their own (sparse attention), in order; empty without an indexer.
    sliding: the heads of the sliding-window layers; None without such layers.
    linear: the state of a linear-attention layer, Unknown where its shape is not derivable.
    dtype_bytes: one element of the KV cache under ``--kv-cache-dtype auto``.
    nextn_layers: the layers of a multi-token-prediction head that the checkpoint carries.
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
    linear: LinearState | Unknown | None = None
    nextn_layers: int = 0

    def count(self, kind: LayerKind) -> int:
        return self.layers.count(kind)


def geometry_from_config(config: Mapping[str, object], name: str) -> ModelGeometry | Unknown:
    """Return the geometry that SGLang would give the model ``name`` with this ``config.json``.

    Never raises, whatever the JSON holds: Unknown says which field is missing or not understood.
    """
    try:
        return _geometry(config, name)
    except ConfigError as refusal:
        return Unknown(f"{name}: config.json: {refusal}")


def _geometry(config: Mapping[str, object], name: str) -> ModelGeometry:
    text = _text_config(config)
    architectures = names(config, "architectures") or names(text, "architectures")
    if not architectures:
        raise ConfigError("has no architectures, by which SGLang chooses the pools")
    layers = layer_kinds(text, architectures)
    nextn = text.get("num_nextn_predict_layers")
    linear = _linear(text, architectures) if LayerKind.LINEAR in layers else None
    dtype_bytes = _dtype_bytes(config)
    if text.get("kv_lora_rank") is not None:
        if LayerKind.SLIDING in layers:
            raise ConfigError("sliding-window layers of latent attention are not understood")
        index_layers = _index_layers(text, architectures, len(layers))
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
            linear=linear,
            nextn_layers=small_count(nextn),
        )
    return ModelGeometry(
        name,
        AttentionKind.MHA,
        layers,
        dtype_bytes,
        _heads(text),
        sliding=_sliding_heads(text) if LayerKind.SLIDING in layers else None,
        linear=linear,
        nextn_layers=small_count(nextn),
    )


def _text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the language model's part of a config; the config itself where it is not nested."""
    text = config
    for _ in range(2):  # thinker_config holds a text_config
        for key in _NESTED:
            nested = text.get(key)
            if isinstance(nested, Mapping) and nested:
                text = nested
                break
    return text


def _heads(text: Mapping[str, object]) -> Heads:
    head_dim = _head_dim(text)
    # SGLang reads a v_head_dim of 0 as unset.
    v_head_dim = positive(text, "v_head_dim") if text.get("v_head_dim") else head_dim
    return Heads(_kv_heads(text), head_dim, v_head_dim)


def _sliding_heads(text: Mapping[str, object]) -> Heads:
    head_dim = positive(text, "swa_head_dim") if text.get("swa_head_dim") else _head_dim(text)
    v_head_dim = positive(text, "swa_v_head_dim") if text.get("swa_v_head_dim") else head_dim
    key = "swa_num_key_value_heads"
    kv_heads = positive(text, key) if text.get(key) is not None else _kv_heads(text)
    return Heads(kv_heads, head_dim, v_head_dim)


def _head_dim(text: Mapping[str, object]) -> int:
    if text.get("head_dim") is not None:
        return positive(text, "head_dim")
    width = positive(text, "hidden_size") // positive(text, "num_attention_heads")
    if not width:
        raise ConfigError("hidden_size is less than num_attention_heads")
    return width


def _kv_heads(text: Mapping[str, object]) -> int:
    # The spellings and their order of SGLang's get_total_num_kv_heads.
    if text.get("multi_query") is True:
        return 1
    for key in (
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ):
        if text.get(key) is not None:
            return positive(text, key)
    return positive(text, "num_attention_heads")


def _index_layers(
    text: Mapping[str, object], architectures: tuple[str, ...], count: int
) -> tuple[int, ...]:
    """Return the layers with an indexer of their own.

    Some models share one between several layers.
    """
    if text.get("index_topk") is None or architectures[0] not in _SPARSE:
        return ()
    types = names(text, "indexer_types")
    if types:
        return tuple(
            layer for layer in range(count) if layer >= len(types) or types[layer] != "shared"
        )
    for key in ("indexer_types", "cli_factor", "index_topk_pattern", "index_topk_freq"):
        if text.get(key) not in (None, 1):
            raise ConfigError(f"{key}: which layers keep index keys is not understood")
    return tuple(range(count))


def _linear(text: Mapping[str, object], architectures: tuple[str, ...]) -> LinearState | Unknown:
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
    """1 where the checkpoint asks for an fp8 KV cache; else 2, for SGLang serves no float32."""
    quantization = config.get("quantization_config")
    algorithm = (
        quantization.get("kv_cache_quant_algo") if isinstance(quantization, Mapping) else None
    )
    return 1 if isinstance(algorithm, str) and algorithm.upper() == "FP8" else 2
