"""A model's KV geometry: from config.json, from the table of well-known models, or Unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from checks.framework.unknown import Unknown
from preflight.engines.sglang.model import _table, well_known_model
from preflight.engines.sglang.model_geometry import (
    AttentionKind,
    Heads,
    LayerKind,
    ModelGeometry,
    geometry_from_config,
)
from tests.tables import each_row

QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 2880,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


def geometry(config: dict[str, Any]) -> ModelGeometry:
    found = geometry_from_config(config, "model")
    assert isinstance(found, ModelGeometry), found
    return found


INDEX = {"index_topk": 2048, "index_head_dim": 128}
SPARSE = {**DEEPSEEK, **INDEX}
EVERY_4: dict[str, Any] = {"index_topk_freq": 4}
SHARED_INDEX: tuple[tuple[dict[str, Any], Iterable[int]], ...] = (
    ({}, range(12)),
    (EVERY_4, (0, 1, 5, 9)),
    ({**EVERY_4, "index_skip_topk_offset": 3}, (0, 1, 2, 6, 10)),
    ({"index_topk_pattern": "FSSFSS"}, (0, 3, 6, 7, 8, 9, 10, 11)),
    ({**EVERY_4, "index_topk_pattern": "FS" * 6}, (0, 2, 4, 6, 8, 10)),
    ({**EVERY_4, "indexer_types": ["full", "shared"]}, (0, *range(2, 12))),
)
FULL, SLIDING, LINEAR = LayerKind
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "hidden_size": 3584,
}
MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "num_hidden_layers": 3,
    "hybrid_layer_pattern": [0, 1, 1],
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
}
STEP = {
    "architectures": ["Step3p5ForCausalLM"],
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"],
    "attention_other_setting": {"num_attention_groups": 4},  # get_swa_num_kv_heads
}
KIMI = {
    "architectures": ["KimiLinearForCausalLM"],
    "num_hidden_layers": 4,
    "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
}
LLAMA4 = {"architectures": ["Llama4ForConditionalGeneration"]}


def by_modelopt(**scheme: object) -> dict[str, object]:
    quantization = {"quant_method": "modelopt", "kv_cache_scheme": scheme}
    return {"quantization_config": quantization}


@each_row(
    ("base", "change", "expected"),
    [
        (QWEN3_8B, {}, {"kind": AttentionKind.MHA, "layers": (FULL,) * 36, "dtype_bytes": 2}),
        (QWEN3_8B, {}, {"heads": Heads(8, 128, 128)}),
        # The width of a head follows from the hidden size, and without groups each has its own.
        (QWEN3_8B, {"head_dim": None, "v_head_dim": 0}, {"heads": Heads(8, 128, 128)}),
        (QWEN3_8B, {"num_key_value_heads": None}, {"heads": Heads(32, 128, 128)}),
        (DEEPSEEK, {}, {"kind": AttentionKind.MLA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}),
        (DEEPSEEK, {"num_nextn_predict_layers": 1}, {"nextn_layers": 1, "index_layers": ()}),
        (
            DEEPSEEK,
            {**INDEX, "architectures": ["DeepseekV32ForCausalLM"]},
            {"index_layers": tuple(range(61)), "index_head_dim": 128},
        ),
        # Layers that share an index, by hand as dsa_layer_skips_topk of 0.5.23 says.
        *(
            (SPARSE, {"num_hidden_layers": 12, **fields}, {"index_layers": tuple(layers)})
            for fields, layers in SHARED_INDEX
        ),
        (GPT_OSS, {}, {"layers": (SLIDING, FULL) * 2, "sliding": Heads(8, 64, 64)}),
        # A window that is declared changes nothing by itself.
        (GPT_OSS, {"architectures": ["Gemma3ForCausalLM"]}, {"layers": (FULL,) * 4}),
        (GPT_OSS, {"architectures": ["MistralForCausalLM"]}, {"sliding": None}),
        (
            {"text_config": {**QWEN3_8B, "num_hidden_layers": 8}},
            LLAMA4,
            {"layers": ((SLIDING,) * 3 + (FULL,)) * 2},
        ),
        (QWEN3_8B, MIMO, {"heads": Heads(8, 192, 128), "sliding": Heads(4, 192, 128)}),
        (QWEN3_8B, MIMO, {"layers": (FULL, SLIDING, SLIDING)}),
        (QWEN3_8B, STEP, {"heads": Heads(8, 128, 128), "sliding": Heads(4, 128, 128)}),
        (DEEPSEEK, KIMI, {"layers": (LINEAR,) * 3 + (FULL,)}),
        # fp8 weights alone leave the cache as it is.
        (QWEN3_8B, {"quantization_config": {"kv_cache_quant_algo": "fp8"}}, {"dtype_bytes": 1}),
        (QWEN3_8B, {"quantization_config": {"quant_method": "fp8"}}, {"dtype_bytes": 2}),
        (QWEN3_8B, by_modelopt(type="float", num_bits=8), {"dtype_bytes": 1}),
        (QWEN3_8B, by_modelopt(type="float", num_bits=4), {"dtype_bytes": 2}),
        (
            QWEN3_8B,
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "kv_cache_scheme": {"type": "float", "num_bits": 8},
                }
            },
            {"dtype_bytes": 2},
        ),
        # A field that is left out is that of transformers' class: Qwen2Config says 32 heads,
        # whatever the attention heads are (run on 0.5.23). A class of the checkpoint's own may not.
        (QWEN2, {"model_type": "qwen2"}, {"heads": Heads(32, 128, 128)}),
        (
            QWEN2,
            {"model_type": "qwen2", "num_key_value_heads": None},
            {"heads": Heads(28, 128, 128)},
        ),
        (QWEN2, {"model_type": "qwen2", "auto_map": {"a": "b"}}, {"heads": Heads(28, 128, 128)}),
        (QWEN2, {"model_type": "llama"}, {"heads": Heads(28, 128, 128)}),
        (QWEN2, {"model_type": "gemma3_text"}, {"heads": Heads(4, 256, 256)}),
        (QWEN2, {}, {"heads": Heads(28, 128, 128)}),
    ],
)
def test_what_a_config_says(
    base: dict[str, Any], change: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = geometry({**base, **change})
    assert {name: getattr(found, name) for name in expected} == expected


def test_linear_states_of_a_shape_that_is_not_derivable() -> None:
    assert isinstance(geometry({**DEEPSEEK, **KIMI}).linear, Unknown)


@each_row(
    ("change", "word"),
    [
        *(
            ({**SPARSE, "index_topk_freq": 4, name: value}, name)
            for name, value in (
                ("cli_factor", 2),
                ("index_topk_freq", 0),
                ("index_skip_topk_offset", 0),
                ("indexer_types", 3),
            )
        ),
        ({"architectures": None}, "architectures"),
        ({"num_hidden_layers": None}, "has no num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "not a whole number from 1 to 4096"),
        ({"num_hidden_layers": True}, "not a whole number"),
        ({"num_key_value_heads": [4, 8]}, "of type list"),
        ({"num_key_value_heads": 10**5000}, "of type int"),
        ({"head_dim": 0.5}, "0.5"),
        ({"head_dim": None, "hidden_size": 3}, "less than num_attention_heads"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "rules of their own"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"layer_types": ["conv", "full_attention"]}, "'conv'"),
        ({"architectures": ["GptOssForCausalLM"]}, "has no layer_types"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
    ],
)
def test_what_is_not_understood_is_unknown(change: dict[str, Any], word: str) -> None:
    found = geometry_from_config({**QWEN3_8B, **change}, "model")
    assert isinstance(found, Unknown)
    assert word in found.reason


@each_row("name", {title for title, _ in _table().values()})
def test_every_well_known_model_has_a_geometry(name: str) -> None:
    known = well_known_model(name)
    if isinstance(known, Unknown):  # what SGLang keeps of it is not computed here, and said so
        assert "its pools have rules of their own, which are not computed here" in known.reason
