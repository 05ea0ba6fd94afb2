"""A model's KV geometry: from config.json, from the table of well-known models, or Unknown."""

from __future__ import annotations

from typing import Any

import pytest

from checks.base.unknown import Unknown
from preflight.sglang.model import WellKnownModel, well_known_model, well_known_names
from preflight.sglang.model_geometry import (
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


def test_plain() -> None:
    found = geometry(QWEN3_8B)
    assert found.kind is AttentionKind.MHA
    assert found.layers == (LayerKind.FULL,) * 36
    assert found.heads == Heads(8, 128, 128)
    assert found.dtype_bytes == 2


def test_head_width_follows_the_hidden_size() -> None:
    config = {name: value for name, value in QWEN3_8B.items() if name != "head_dim"}
    assert geometry(config).heads.head_dim == 128
    assert geometry({**QWEN3_8B, "head_dim": None, "v_head_dim": 0}).heads == Heads(8, 128, 128)


def test_no_grouping_means_as_many_heads() -> None:
    config = {name: value for name, value in QWEN3_8B.items() if name != "num_key_value_heads"}
    assert geometry(config).heads.kv_heads == 32


def test_latent() -> None:
    found = geometry({**DEEPSEEK, "num_nextn_predict_layers": 1})
    assert found.kind is AttentionKind.MLA
    assert (found.kv_lora_rank, found.qk_rope_head_dim, found.nextn_layers) == (512, 64, 1)
    assert not found.index_layers


def test_sparse() -> None:
    found = geometry(
        {
            **DEEPSEEK,
            "architectures": ["DeepseekV32ForCausalLM"],
            "index_topk": 2048,
            "index_head_dim": 128,
        }
    )
    assert found.index_layers == tuple(range(61))
    assert found.index_head_dim == 128


def test_shared_index_keys() -> None:
    types = ["full", "shared", "shared", "full"] + ["shared"] * 57
    found = geometry(
        {**DEEPSEEK, "index_topk": 2048, "index_head_dim": 128, "indexer_types": types}
    )
    assert found.index_layers == (0, 3)


def test_sliding_window_layers_get_a_pool_of_their_own() -> None:
    found = geometry(GPT_OSS)
    assert found.layers == (LayerKind.SLIDING, LayerKind.FULL) * 2
    assert found.sliding == Heads(8, 64, 64)


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "MistralForCausalLM"])
def test_a_declared_window_alone_changes_nothing(architecture: str) -> None:
    found = geometry({**GPT_OSS, "architectures": [architecture]})
    assert found.layers == (LayerKind.FULL,) * 4
    assert found.sliding is None


def test_llama4_pattern_and_nested_config() -> None:
    text = {name: value for name, value in QWEN3_8B.items() if name != "architectures"}
    found = geometry(
        {
            "architectures": ["Llama4ForConditionalGeneration"],
            "text_config": {**text, "num_hidden_layers": 8},
        }
    )
    assert [kind is LayerKind.FULL for kind in found.layers] == [False, False, False, True] * 2


def test_mimo_pattern() -> None:
    found = geometry(
        {
            **QWEN3_8B,
            "architectures": ["MiMoV2FlashForCausalLM"],
            "num_hidden_layers": 3,
            "hybrid_layer_pattern": [0, 1, 1],
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_num_key_value_heads": 4,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
        }
    )
    assert found.heads == Heads(8, 192, 128)
    assert found.sliding == Heads(4, 192, 128)
    assert found.count(LayerKind.SLIDING) == 2


def test_linear_hybrid() -> None:
    known = well_known_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert isinstance(known, WellKnownModel)
    assert known.geometry.count(LayerKind.LINEAR) == 36
    assert known.geometry.count(LayerKind.FULL) == 12
    kimi = geometry(
        {
            **DEEPSEEK,
            "architectures": ["KimiLinearForCausalLM"],
            "num_hidden_layers": 4,
            "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]},
        }
    )
    assert kimi.layers == (LayerKind.LINEAR,) * 3 + (LayerKind.FULL,)
    assert isinstance(kimi.linear, Unknown)


def test_fp8_cache_of_the_checkpoint() -> None:
    assert (
        geometry({**QWEN3_8B, "quantization_config": {"kv_cache_quant_algo": "fp8"}}).dtype_bytes
        == 1
    )
    # fp8 weights alone leave the cache as it is.
    assert geometry({**QWEN3_8B, "quantization_config": {"quant_method": "fp8"}}).dtype_bytes == 2


@each_row(
    ("change", "word"),
    [
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


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, range(12)),
        ({"index_topk_freq": 4}, (0, 1, 5, 9)),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, (0, 1, 2, 6, 10)),
        ({"index_topk_pattern": "FSSFSS"}, (0, 3, 6, 7, 8, 9, 10, 11)),
        ({"index_topk_pattern": "FS" * 6, "index_topk_freq": 4}, (0, 2, 4, 6, 8, 10)),
        ({"indexer_types": ["full", "shared"], "index_topk_freq": 4}, (0, *range(2, 12))),
    ],
)
def test_layers_that_share_an_index(fields: dict[str, Any], layers: tuple[int, ...]) -> None:
    """As dsa_layer_skips_topk of 0.5.23 says for these fields, by hand."""
    config = {**DEEPSEEK, "num_hidden_layers": 12, "index_topk": 2048, "index_head_dim": 128}
    found = geometry_from_config({**config, **fields}, "model")
    assert isinstance(found, ModelGeometry)
    assert found.index_layers == tuple(layers)


@pytest.mark.parametrize(
    "fields",
    [
        {"cli_factor": 2},
        {"index_topk_freq": 0},
        {"index_skip_topk_offset": 0},
        {"indexer_types": 3},
    ],
)
def test_index_layers_that_are_not_understood(fields: dict[str, Any]) -> None:
    config = {**DEEPSEEK, "index_topk": 2048, "index_head_dim": 128, "index_topk_freq": 4}
    found = geometry_from_config({**config, **fields}, "model")
    assert isinstance(found, Unknown)
    assert next(iter(fields)) in found.reason


def test_the_sliding_heads_of_step_3_5() -> None:
    """Its attention_other_setting has them, as get_swa_num_kv_heads reads it."""
    config = {
        **QWEN3_8B,
        "architectures": ["Step3p5ForCausalLM"],
        "layer_types": ["full_attention", "sliding_attention"] * 18,
        "attention_other_setting": {"num_attention_groups": 4},
    }
    found = geometry_from_config(config, "model")
    assert isinstance(found, ModelGeometry)
    assert found.sliding is not None
    assert (found.heads.kv_heads, found.sliding.kv_heads) == (8, 4)


@each_row("name", well_known_names())
def test_every_well_known_model_has_a_geometry(name: str) -> None:
    known = well_known_model(name)
    if isinstance(known, Unknown):  # what SGLang keeps of it is not computed here, and said so
        assert "its pools have rules of their own, which are not computed here" in known.reason
    else:
        assert known.source


def test_a_repack_that_asks_for_an_fp8_cache_has_one() -> None:
    plain, packed = (
        well_known_model(name) for name in ("Qwen/Qwen3-235B-A22B", "nvidia/Qwen3-235B-A22B-NVFP4")
    )
    assert isinstance(plain, WellKnownModel)
    assert isinstance(packed, WellKnownModel)
    assert (plain.geometry.dtype_bytes, packed.geometry.dtype_bytes) == (2, 1)
    assert packed.geometry.heads == plain.geometry.heads
    assert packed.weights_bytes is None
    # What nobody has read of that publisher stays unknown.
    assert isinstance(well_known_model("nvidia/Qwen3-14B-NVFP4"), Unknown)


@pytest.mark.parametrize(
    ("quantization", "dtype_bytes"),
    [
        ({"quant_method": "modelopt", "kv_cache_scheme": {"type": "float", "num_bits": 8}}, 1),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"type": "float", "num_bits": 4}}, 2),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, 2),
        ({"quant_method": "fp8"}, 2),
    ],
)
def test_the_cache_that_a_checkpoint_asks_for(
    quantization: dict[str, Any], dtype_bytes: int
) -> None:
    assert geometry({**QWEN3_8B, "quantization_config": quantization}).dtype_bytes == dtype_bytes


@each_row(
    ("path", "name"),
    [
        ("deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3-0324"),
        ("RedHatAI/Qwen3-32B-NVFP4", "Qwen3-32B"),
        ("/models/qwen3-235b-a22b-instruct-2507-AWQ-4bit", "Qwen3-235B-A22B"),
        ("JunHowie/Qwen3-30B-A3B-Thinking-2507-GPTQ-Int4", "Qwen3-30B-A3B"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "Llama-3.3-70B"),
        ("Qwen/Qwen3-VL-235B-A22B-Thinking-FP8", "Qwen3-VL-235B-A22B"),
        ("baidu/ERNIE-4.5-21B-A3B-PT", "ERNIE-4.5-21B-A3B"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B-v0.1"),
        # Its hf_quant_config.json asks for an fp8 cache: an entry of its own.
        ("nvidia/DeepSeek-V3.2-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4"),
        ("/models/DeepSeek-V3.2-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4"),
        ("somebody/DeepSeek-V3.2-NVFP4", "DeepSeek-V3.2"),
    ],
)
def test_spellings_of_a_model(path: str, name: str) -> None:
    known = well_known_model(path)
    assert isinstance(known, WellKnownModel)
    assert known.name == name


@pytest.mark.parametrize(
    ("fields", "heads"),
    [
        # transformers' Qwen2Config says 32, whatever the attention heads are: run on 0.5.23.
        ({"model_type": "qwen2"}, Heads(32, 128, 128)),
        ({"model_type": "qwen2", "num_key_value_heads": None}, Heads(28, 128, 128)),
        ({"model_type": "qwen2", "auto_map": {"AutoConfig": "own.Config"}}, Heads(28, 128, 128)),
        ({"model_type": "llama"}, Heads(28, 128, 128)),
        ({"model_type": "gemma3_text"}, Heads(4, 256, 256)),
        ({}, Heads(28, 128, 128)),
    ],
)
def test_a_field_left_out_is_that_of_its_class(fields: dict[str, Any], heads: Heads) -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "hidden_size": 3584,
        **fields,
    }
    assert geometry(config).heads == heads
