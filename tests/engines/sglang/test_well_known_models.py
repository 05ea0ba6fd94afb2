"""The table of well-known models: its numbers follow from each other, and its names do not mix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from preflight.engines.sglang.model import WellKnownModel, _table, well_known_model
from preflight.engines.sglang.model_geometry import LayerKind, OwnPools
from tests.builders.capacity_launches import server_of, tier_of, tokens_of
from tests.builders.hosts import Host
from tests.needs.test_source_sizing import size
from tests.paths import ROOT
from tests.tables import each_row


def known(path: str) -> WellKnownModel:
    model = well_known_model(path)
    assert isinstance(model, WellKnownModel), model
    return model


def test_some_models_share_index_keys() -> None:
    """In GLM-5.2 three layers in four use another's."""
    assert known("GLM-5.2").geometry.index_layers == (0, 1, *range(2, 78, 4))


def test_which_models_carry_a_draft_layer() -> None:
    """The MTP layer decides the size of a draft's pool: some publish it, Kimi has none."""
    found = {name: well_known_model(name) for name, _ in _table().values()}
    layers = {
        name: model.geometry.nextn_layers
        for name, model in found.items()
        if isinstance(model, WellKnownModel)
    }
    theirs = (
        "DeepSeek-V3",
        "DeepSeek-R1",
        "GLM",
        "MiMo-7B",
        "nvidia/DeepSeek",
        "nvidia/GLM",
        "Ling",
    )
    assert {name for name, count in layers.items() if count} == {
        name for name in layers if name.startswith(theirs) and "Distill" not in name
    }


# Vocabulary and width of the feed-forward layers: in the published config.json, but of no use to a
# KV cache, so only here. The third: biases on Q, K and V (1), norms of Q and K (2), or neither.
DENSE = {
    "Qwen2.5-7B": (152064, 18944, "bias"),
    "Qwen2.5-14B": (152064, 13824, "bias"),
    "Qwen2.5-32B": (152064, 27648, "bias"),
    "Qwen2.5-72B": (152064, 29568, "bias"),
    "Qwen2-72B": (152064, 29568, "bias"),
    "Qwen3-8B": (151936, 12288, "norm"),
    "Qwen3-14B": (151936, 17408, "norm"),
    "Qwen3-32B": (151936, 25600, "norm"),
    "Llama-3.1-8B": (128256, 14336, ""),
    "Llama-3.1-70B": (128256, 28672, ""),
    "Llama-3.1-405B": (128256, 53248, ""),
    "Llama-3.3-70B": (128256, 28672, ""),
    "Mistral-Large-Instruct-2407": (32768, 28672, ""),
    "Mistral-Nemo-Base-2407": (131072, 14336, ""),
}


@each_row("name", DENSE)
def test_parameters_agree_with_the_shape(name: str) -> None:
    """The count follows from the fields: a wrong layer, head or width would show."""
    vocabulary, feed_forward, extra = DENSE[name]
    config: dict[str, Any] = _table()[name.lower()][1]["config"]
    geometry = known(name).geometry
    hidden, width = config["hidden_size"], geometry.heads.head_dim
    projected = width * (config["num_attention_heads"] + 2 * geometry.heads.kv_heads)
    attention = hidden * (projected + width * config["num_attention_heads"])
    attention += {"bias": projected, "norm": 2 * width, "": 0}[extra]
    layer = attention + 3 * hidden * feed_forward + 2 * hidden
    total = len(geometry.layers) * layer + 2 * vocabulary * hidden + hidden
    assert known(name).weights_bytes == 2 * total


def test_a_quantized_checkpoint_has_no_two_byte_weights() -> None:
    """The table's count times two bytes is the bf16 checkpoint's; an fp8 one holds half of that."""
    assert known("Qwen/Qwen3-32B").weights_bytes == 2 * 32762123264
    assert known("Qwen/Qwen3-32B-FP8").weights_bytes is None
    assert known("Qwen/Qwen3-32B-FP8").geometry == known("Qwen/Qwen3-32B").geometry


@each_row(
    ("path", "least"),
    [
        ("deepseek-ai/DeepSeek-R1", 688e9 / 4),  # as published: fp8
        ("deepseek-ai/DeepSeek-R1-AWQ", 688e9 / 8),
        ("zai-org/GLM-4.5", 355e9 / 2),
        ("zai-org/GLM-4.5-FP8", 355e9),
        ("x/GLM-4.5-w4a8-int8", 355e9 / 4),
        ("/models/fp8/GLM-4.5-AWQ", 355e9 / 4),
        ("openai/gpt-oss-120b", 120e9 / 2),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", 235e9 / 2),
        ("MiMo-V2-Flash", 309e9 / 2),
        ("Hy3-preview", 0),
    ],
)
def test_weights_that_are_not_known_have_a_lower_bound(path: str, least: float) -> None:
    """From the parameters in a name or on a model's card, and the bits that its name says."""
    assert 0.94 * least <= known(path).least_weights_bytes <= 1.001 * least


def test_no_bound_of_weights_excludes_what_is_published() -> None:
    """Bytes in the table, and those of others: of files, or in the memory of GPUs."""
    every = {name: well_known_model(name) for name, _ in _table().values()}
    bytes_ = {
        name: model.weights_bytes
        for name, model in every.items()
        if isinstance(model, WellKnownModel) and model.weights_bytes
    }
    bytes_ |= {
        "meta-llama/Llama-3.2-1B-Instruct": 2_471_645_608,  # its index: total_size
        "moonshotai/Kimi-K2.6": 640_000_000_000,  # 64 files of about 10 GB
        "openai/gpt-oss-120b": 78 * GIB,  # resident on four H100: 19.5 GiB each, a log
    }
    for name, published in bytes_.items():
        model = known(name)
        assert model.most_weights_bytes is not None, name
        assert model.least_weights_bytes <= published <= model.most_weights_bytes, name


# Tokens of L1 that SGLang 0.5.16 has in its own CI (memory_thresholds.json of 2026-07-17, which
# holds 0.99 of the mean): model, GPUs' MiB, tp, further flags, tokens.
H100, H200, B200 = 81_559, 143_771, 183_359
CI = [
    ("meta-llama/Llama-3.1-8B-Instruct", H100, 1, "", 410_364),
    ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", H100, 1, "", 463_468),
    ("meta-llama/Llama-3.2-1B-Instruct", H100, 1, "", 2_056_499),
    ("neuralmagic/Mixtral-8x7B-Instruct-v0.1-FP8", H100, 2, "", 694_058),
    ("zai-org/GLM-4.6", B200, 8, "", 934_400),
    ("moonshotai/Kimi-K2.5", H200, 8, "", 595_007),
    ("moonshotai/Kimi-K2.5", B200, 8, "", 965_631),
    ("MiniMaxAI/MiniMax-M2.5", H200, 8, "--ep=8 --mem-fraction-static=0.85", 3_051_633),
    ("openai/gpt-oss-120b", B200, 4, "", 8_598_613),
]


@each_row(("name", "gpu_mib", "tp", "flags", "tokens"), CI)
def test_the_tokens_of_published_runs_lie_within_the_bounds(
    tmp_path: Path, name: str, gpu_mib: int, tp: int, flags: str, tokens: int
) -> None:
    launch = f"python3 -m sglang.launch_server --model-path {name} --tp {tp} {flags}"
    found = tokens_of(server_of(tmp_path, launch, gpu_bytes=gpu_mib * MIB, sglang="0.5.16"), "L1")
    assert found.least <= tokens <= found.most
    assert found.least > 0 or "Kimi" in name  # its vision tower, and how its INT4 is kept


def test_the_weights_of_what_is_published_under_its_own_name() -> None:
    """DeepSeek-R1's safetensors; Hunyuan by hand: 64 experts and one that is shared."""
    assert known("DeepSeek-R1").weights_bytes == 688586727753
    attention = 4096 * 128 * (2 * 32 + 2 * 8) + 2 * 128
    layer = attention + 65 * 3 * 4096 * 3072 + 64 * 4096 + 2 * 4096
    assert known("Hunyuan-A13B").weights_bytes == 2 * (32 * layer + 128167 * 4096 + 4096)


def test_a_model_that_sglang_has_no_class_for_is_said_to_be_one() -> None:
    found = well_known_model("MiniMaxAI/MiniMax-M1-80k")
    assert isinstance(found, Unknown)
    assert "SGLang has no MiniMaxM1ForCausalLM" in found.reason


def test_every_entry_names_its_source() -> None:
    """A source that can be opened: a repository's file, or the publisher's config.json."""
    for title, entry in _table().values():
        assert "/" in entry["source"], title


def test_no_two_models_share_a_name() -> None:
    """An alias that is another model's title would hide it."""
    titles = [title.lower() for title, _ in _table().values()]
    assert all(_table()[title][0].lower() == title for title in titles)


def lines(name: str) -> list[str]:
    """The lines of a table of ``tests/data``, without its comments."""
    every = (ROOT / "tests/data" / name).read_text().splitlines()
    return [line for line in every if not line.startswith("#")]


@each_row("line", lines("model_spellings.txt"))
def test_spellings(line: str) -> None:
    """Hub names, folders and the caches' spellings find the model that they name, no neighbour."""
    path, name = line.split()
    found = well_known_model(path)
    assert (found.name if isinstance(found, WellKnownModel) else "-") == name


@each_row("line", lines("model_catalogue.txt"))
def test_the_table_agrees_with_another_catalogue(line: str) -> None:
    name, *numbers = line.split()
    if numbers == ["-"]:
        found = well_known_model(name)
        assert isinstance(found, Unknown)
        why = "rules of their own, which are not computed here (--model-config does not"
        assert why in found.reason
        return
    geometry = known(name).geometry
    full = geometry.count(LayerKind.FULL)
    row = geometry.kv_lora_rank + geometry.qk_rope_head_dim or geometry.heads.head_dim
    shape = (full, len(geometry.layers) - full, geometry.heads.kv_heads, row)
    assert (*shape, len(geometry.index_layers)) == tuple(map(int, numbers))


def test_step_3_5_slides_in_three_layers_of_four() -> None:
    geometry = known("stepfun-ai/Step-3.5-Flash-FP8").geometry
    full = [layer for layer, kind in enumerate(geometry.layers) if kind is LayerKind.FULL]
    assert full == list(range(0, 45, 4))
    assert geometry.sliding == geometry.heads == (8, 128, 128)


def test_the_parameters_of_ling_1t_follow_from_its_fields() -> None:
    """999.7 billion: 4 dense layers, 76 of 256 experts and one that is shared, a router each."""
    hidden, expert = 8192, 3 * 8192 * 2048
    heads = known("Ling-1T").geometry.heads
    attention = hidden * heads.head_dim * (64 + 2 * heads.kv_heads + 64)
    experts = 257 * expert + 256 * hidden
    layers = 80 * attention + 76 * experts + 4 * 3 * hidden * 18432
    assert round((layers + 2 * 157184 * hidden) / 1e9, 1) == 999.7


def test_a_misspelt_name_is_no_model_and_is_told_the_one_that_may_be_meant() -> None:
    found = well_known_model("Qwen/Qwen3-23B")
    assert isinstance(found, Unknown)
    assert found.advice.endswith("with --model-config, or write Qwen3-32B where that is meant")
    own = well_known_model("/models/entirely-my-own")
    assert isinstance(own, Unknown)
    assert own.advice == "give the model's config.json with --model-config"


# What is there for people, and of a config for other readers of it.
ABOUT = set(
    "source weights_source parameters torch_dtype qk_nope_head_dim kv_cache_quant_algo "
    "index_n_heads sliding_window sliding_window_pattern attention_head_dim use_cla use_mla".split()
)


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def test_each_key_of_a_model_is_one_that_the_code_reads() -> None:
    read = set(ABOUT)
    for folder in (
        "preflight/engines/sglang",
        "preflight/cache_sizing/capacity",
        "preflight/cache_sizing/fit",
    ):
        for path in (ROOT / folder).glob("*.py"):
            read |= set(re.findall(r"\w+", " ".join(re.findall(r'"([^"\n]*)"', path.read_text()))))
    wrong = [
        f"models.json: {model}: {key}: no code reads it; see model_geometry.py for what is read"
        for model, row in _table().values()
        for key in keys(row)
        if key not in read
    ]
    assert wrong == []


OWN_POOLS = sorted({t for t, _ in _table().values() if isinstance(well_known_model(t), OwnPools)})


@pytest.mark.parametrize("name", OWN_POOLS)
def test_no_config_is_asked_for_where_none_would_help(tmp_path: Path, name: str) -> None:
    host = tmp_path / "host"
    Host(memory_bytes=4096 * GIB).write(host)
    for flag in ("--hicache-size 20", "--hicache-ratio 2"):
        launch = "python3 -m sglang.launch_server --tp 8 --enable-hierarchical-cache "
        launch += f"--model-path {name} {flag}"
        sizing = size(host, launch)
        assert sizing.status in ("unknown", "fails")
        assert "with --model-config" not in sizing.reason
        l2 = tier_of(server_of(tmp_path, launch), "L2").tokens
        assert isinstance(l2, Unknown)
        assert "give --model-config" not in l2.reason
