"""Which kind each layer of a model is, by SGLang's rules, and how a config's fields are read.

SGLang decides by the name of the architecture and not by the presence of a field: Gemma 2 and 3
and Mistral declare a sliding window and still keep every layer's keys and values for every token.
Source: ``configs/model_config.py`` of 0.5.23 (get_hybrid_layer_ids, is_hybrid_swa_model).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

# No published model comes near; a larger number in a config is not a number of layers.
MOST_LAYERS = 4096
# Head counts, widths and ranks: the same kind of bound.
MOST_WIDTH = 1 << 20

# SGLang gives these a second, smaller pool for their sliding-window layers.
_SLIDING = frozenset(
    (
        "GptOssForCausalLM",
        "GraniteSWAForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "Step3p5ForCausalLM",
        "MellumForCausalLM",
        "Llama4ForConditionalGeneration",
        "MiMoV2ForCausalLM",
        "MiMoV2FlashForCausalLM",
    )
)
# Their pools follow rules of their own, which nothing here computes.
_OTHER_POOLS = (
    "DeepseekV4",
    "MiniMaxM3Sparse",
    "MiniMaxText01",
    "Dots3Note",
    "Gemma4",
    "EmbeddingGemma2",
    "Inkling",
    "IQuestLoopCoder",
    "IQuestQ1",
    "Laguna",
    "Beam",
    "Muse",
    "UnlimitedOCR",
    "Step3p7",
    "Nanbeige",
    "Whisper",
    "Falcon",
    "RWForCausalLM",
    "MPTForCausalLM",
    "Dbrx",
    "GPTBigCode",
    "DeciLM",
    "MiniCPM3",
)
# Fields of hybrids whose layers are told apart in ways that nothing here reads.
_OTHER_HYBRIDS = (
    "hybrid_override_pattern",
    "layers_block_type",
    "attn_layer_period",
    "attn_type_list",
    "block_configs",
    "layer_group_size",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_cfg",
    "is_hybrid_swa",
)
# One latent-attention block twice per layer (SGLang: num_attention_layers = layers * 2).
_TWICE = frozenset(("LongcatFlashForCausalLM",))
# What a layer_types list may hold where every layer keeps every token.
_KNOWN_TYPES = frozenset(
    ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "attention")
)


class LayerKind(Enum):
    FULL = "full"  # keeps every token
    SLIDING = "sliding"  # keeps a window, in a pool of its own
    LINEAR = "linear"  # keeps one state per request


class ConfigError(Exception):
    """A config that does not say what is asked of it; its text says what is missing."""


def layer_kinds(
    text: Mapping[str, object], architectures: tuple[str, ...]
) -> tuple[LayerKind, ...]:
    """Return the kind of each attention layer, in order.

    text: the language model's part of a config.json. Raises ConfigError for what is missing or
    not understood.
    """
    for architecture in architectures:
        if architecture.startswith(_OTHER_POOLS):
            raise ConfigError(f"{architecture}: its pools follow rules of their own")
    count = positive(text, "num_hidden_layers", MOST_LAYERS)
    for key in _OTHER_HYBRIDS:
        if text.get(key) not in (None, False):
            raise ConfigError(f"{key} is not understood")
    if _SLIDING.intersection(architectures):
        return _sliding_layers(text, architectures, count)
    interval = text.get("full_attention_interval")
    types = names(text, "layer_types")
    for kind in types[:count]:
        if kind not in _KNOWN_TYPES:
            raise ConfigError(f"layer type {kind!r:.40} is not understood")
    if interval is not None or "linear_attention" in types:
        if types:
            return _typed_layers(types, count, LayerKind.LINEAR)
        every = positive(text, "full_attention_interval", MOST_LAYERS)
        return tuple(
            LayerKind.LINEAR if (layer + 1) % every else LayerKind.FULL for layer in range(count)
        )
    if text.get("linear_attn_config") is not None:
        return _kimi_linear_layers(text, count)
    return (LayerKind.FULL,) * (count * 2 if _TWICE.intersection(architectures) else count)


def _sliding_layers(
    text: Mapping[str, object], architectures: tuple[str, ...], count: int
) -> tuple[LayerKind, ...]:
    if "Llama4ForConditionalGeneration" in architectures:
        return tuple(
            LayerKind.SLIDING if (layer + 1) % 4 else LayerKind.FULL for layer in range(count)
        )
    pattern = text.get("hybrid_layer_pattern")
    if isinstance(pattern, list):
        if len(pattern) < count or any(kind not in (0, 1) for kind in pattern):
            raise ConfigError("hybrid_layer_pattern does not give each layer 0 or 1")
        return tuple(LayerKind.SLIDING if kind else LayerKind.FULL for kind in pattern[:count])
    types = names(text, "layer_types")
    if not types:
        raise ConfigError("has no layer_types, by which SGLang splits the pools")
    return _typed_layers(types, count, LayerKind.SLIDING)


def _typed_layers(types: tuple[str, ...], count: int, other: LayerKind) -> tuple[LayerKind, ...]:
    """``other``: the kind of a layer that is not of full attention."""
    if len(types) < count:
        raise ConfigError(f"layer_types names {len(types)} of {count} layers")
    allowed = {"full_attention": LayerKind.FULL, f"{other.value}_attention": other}
    for kind in types[:count]:
        if kind not in allowed:
            raise ConfigError(f"layer type {kind!r:.40} is not understood here")
    return tuple(allowed[kind] for kind in types[:count])


def _kimi_linear_layers(text: Mapping[str, object], count: int) -> tuple[LayerKind, ...]:
    """Kimi-Linear names its full-attention layers, counted from one."""
    linear = text.get("linear_attn_config")
    full = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
    if not isinstance(full, list):
        raise ConfigError("linear_attn_config does not name full_attn_layers")
    return tuple(
        LayerKind.FULL if layer + 1 in full else LayerKind.LINEAR for layer in range(count)
    )


def positive(text: Mapping[str, object], key: str, most: int = MOST_WIDTH) -> int:
    """Return the field ``key``, a whole number from 1 to ``most``. Raises ConfigError."""
    value = text.get(key)
    if value is None:
        raise ConfigError(f"has no {key}")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise ConfigError(f"{key} is {_shown(value)}, not a whole number from 1 to {most}")
    return value


def small_count(value: object) -> int:
    """A count that a config may leave out or null: 0 where it is not a small whole number."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_LAYERS:
        return value
    return 0


def names(text: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the field ``key`` where it is a list of strings; else empty."""
    value = text.get(key)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return ()
    return tuple(value)


def _shown(value: object) -> str:
    """A scalar as it is written, cut short; for the rest, what kind of value it is."""
    if isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 1 << 64):
        return f"{value!r:.40}"
    return f"of type {type(value).__name__}"
