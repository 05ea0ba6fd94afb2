"""The table of models: a key that nothing reads is a misprint, and a size that comes out wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.paths import ROOT

TABLE = ROOT / "preflight/data/models.json"
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
    for folder in ("preflight/sglang", "preflight/capacity", "preflight/fit"):
        for path in (ROOT / folder).glob("*.py"):
            read |= set(re.findall(r"\w+", " ".join(re.findall(r'"([^"\n]*)"', path.read_text()))))
    wrong = [
        f"{TABLE.name}: {model}: {key}: no code reads it; see model_geometry.py for what is read"
        for model, row in json.loads(TABLE.read_text()).items()
        for key in keys(row)
        if key not in read
    ]
    assert wrong == []
