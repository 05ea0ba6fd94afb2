"""The table of well-known models (``data/models.json``), and which of them a name means.

An entry, under the model's published name: ``config``, the fields of its ``config.json`` that size
the KV cache; ``source``, where they were read; where known, ``aliases``, and its weights:
``weights_bytes`` (with ``weights_source``), the number of its ``parameters``, or their ``billions``
where the name does not say them.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from checks.base.unknown import Unknown
from preflight.base.data_file import data_file
from preflight.sglang.model_geometry import ModelGeometry, geometry_from_config

# Suffixes under which the same architecture is published: chat tuning, dates of Qwen's refreshes,
# and then weight formats. None of them changes the shape of the KV cache; a format that stores it
# as fp8 says so in its own config.json, so a name alone never promises more than the published
# dtype.
_TUNED = re.compile(r"-(?:instruct|thinking|reasoning|chat|it|pt|base|hf|bf16|2507|2512)$")
_QUANTIZED = re.compile(
    r"[-_.](?:fp8|dynamic|block|static|pertensor|awq|marlin|int4|int8|[48]bit|w8a8|w4a16|w4a8|w8a16"
    r"|gptq|autoround|bnb|unsloth|quantized|nvfp4|mxfp4|fp4|gguf|q[2-8](?:_k)?(?:_[ms])?)$"
)
# Its quantized checkpoints ask for an fp8 KV cache (hf_quant_config.json): the table has those that
# are known by the publisher's name too.
_OTHER_CACHE = re.compile(r"(?:^|/|models--)nvidia(?:/|--)")


# The parameters that a name says, in billions: Qwen3-VL-235B-A22B. Of several experts' (17B-16E,
# 8x7B) it says fewer than there are.
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
# The fewest bytes of a parameter, by what a name says of its format: 8 bits, 4 (as gpt-oss, whose
# name says nothing), or as few as the 2 of a GGUF.
_EIGHT_BITS = re.compile(r"fp8|int8|8bit|w8a|q8")
_LEAST_PARAMETER_BYTES = {"8 bits": 1.0, "own": 0.5, "other": 0.25}
# How far below the number in its name the parameters of a model are.
_LEAST_OF_NAME = 0.95


# Of two names: how alike a misspelt one is to the one that is meant.
_ALIKE = 0.85

# Models that people name and SGLang has no class for (srt/models of 0.5.23).
_NOT_SERVED = {"minimax-m1": "MiniMaxM1ForCausalLM"}


class WellKnownModel(NamedTuple):
    """``weights_bytes``: of a checkpoint under its own name; None where not known."""

    name: str
    geometry: ModelGeometry
    weights_bytes: int | None
    least_weights_bytes: int
    source: str


def well_known_model(model_path: str) -> WellKnownModel | Unknown:
    """Return the model that a ``--model-path`` names by its last component, in any case.

    ``Qwen/Qwen3-8B``, ``/models/DeepSeek-R1/``, ``qwen3-235b-a22b-instruct-2507-fp8`` and the
    hub cache's ``models--Qwen--Qwen3-8B/snapshots/...`` are found; a merely similar name is not.
    """
    table = _table()
    for family, architecture in _NOT_SERVED.items():
        if family in model_path.lower():
            return Unknown(f"{model_path!r:.200}: SGLang has no {architecture}, as of 0.5.23")
    path = model_path.strip().replace("\\", "/").lower()
    name = _name(path)
    quantized = False
    own = f"nvidia/{name}"
    nobodys = path.startswith("/") or "/" not in path  # a folder, likely with a copy of it
    if own in table and (nobodys or _OTHER_CACHE.search(path)):
        name, quantized = own, True
    while name not in table:
        shorter = _TUNED.sub("", name)
        if shorter == name and not _OTHER_CACHE.search(path):
            shorter = _QUANTIZED.sub("", name)
            quantized = True
        if shorter == name:
            why = f"{model_path!r:.200}: not in the table of well-known models"
            advice = "give the model's config.json with --model-config"
            if near := get_close_matches(name, table, 1, _ALIKE):
                advice += f", or write {table[near[0]][0]} where that is meant"
            return Unknown(why, absent=True, advice=advice)
        name = shorter
    title, entry = table[name]
    geometry = geometry_from_config(entry["config"], title)
    if isinstance(geometry, Unknown):
        return geometry
    own_bytes = entry.get("weights_bytes") or 2 * entry.get("parameters", 0)
    suffix = _name(path).removeprefix(name)
    eight = _EIGHT_BITS.search(suffix) and "4" not in suffix
    kind = "8 bits" if quantized and eight else "other" if quantized else "own"
    named = _BILLIONS.search(title)
    billions = entry.get("billions") or (float(named[1]) if named else 0)
    parameters = own_bytes / 2 or billions * 1e9 * _LEAST_OF_NAME
    least = int(parameters * _LEAST_PARAMETER_BYTES[kind])
    weights = None if quantized else own_bytes or None
    return WellKnownModel(title, geometry, weights, least, entry["source"])


def _name(path: str) -> str:
    """Return the model's name in a lower-case path or hub name, as its publisher spells it."""
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part.startswith("models--"):  # the hub's cache: models--Qwen--Qwen3-8B/snapshots/0a1b
            return part.rpartition("--")[2]
    # ModelScope's cache writes a dot as three underscores: Qwen2___5-7B-Instruct.
    return parts[-1].replace("___", ".") if parts else ""


def well_known_names() -> tuple[str, ...]:
    """Return every model of the table, as published."""
    return tuple(dict.fromkeys(title for title, _ in _table().values()))


@cache
def _table() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the entries by lower-case name and alias."""
    path = data_file("models.json")
    with open(path, encoding="utf-8") as file:
        models: dict[str, dict[str, Any]] = json.load(file)
    return {
        name.lower(): (title, entry)
        for title, entry in models.items()
        for name in (title, *entry.get("aliases", ()))
    }
