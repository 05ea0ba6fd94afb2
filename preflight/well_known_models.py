"""The geometry of well-known models, for a launch whose ``--model-path`` is not on this machine.

``data/models.json`` holds, for each model, the fields of its published ``config.json`` that size
the KV cache, and where they were published.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from typing import Any, NamedTuple

from checks.unknown import Unknown
from preflight.model_geometry import ModelGeometry, geometry_from_config

# Suffixes under which the same architecture is published: chat tuning, weight formats, dates of
# Qwen's refreshes. None of them changes the shape of the KV cache; a format that stores it as fp8
# says so in its own config.json, so a name alone never promises more than the published dtype.
_SUFFIX = re.compile(
    r"-(?:instruct|thinking|chat|it|base|hf|fp8|bf16|fp8-dynamic|awq|int4|int8|w8a8|w4a16|"
    r"gptq(?:-int[48])?|gguf|2507|block)$"
)


class WellKnownModel(NamedTuple):
    """``parameters``: of the published checkpoint at two bytes each; None where not known."""

    name: str
    geometry: ModelGeometry
    parameters: int | None
    source: str


def well_known_model(model_path: str) -> WellKnownModel | Unknown:
    """The model that a ``--model-path`` names by its last component, in any case.

    ``Qwen/Qwen3-8B``, ``/models/DeepSeek-R1/`` and ``qwen3-235b-a22b-instruct-2507-fp8`` are
    found; a name that is merely similar is not.
    """
    last = model_path.strip().rstrip("/\\").replace("\\", "/").rpartition("/")[2].lower()
    # The hub's cache folder: models--Qwen--Qwen3-8B.
    last = last.rpartition("--")[2]
    table = _table()
    name = last
    while name not in table:
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return Unknown(f"{model_path!r:.200}: not in the table of well-known models")
        name = shorter
    title, entry = table[name]
    geometry = geometry_from_config(entry["config"], title)
    if isinstance(geometry, Unknown):
        return geometry
    return WellKnownModel(title, geometry, entry.get("parameters"), entry["source"])


def well_known_names() -> tuple[str, ...]:
    """Every model of the table, as published."""
    return tuple(dict.fromkeys(title for title, _ in _table().values()))


@cache
def _table() -> dict[str, tuple[str, dict[str, Any]]]:
    """The entries by lower-case name and alias."""
    path = os.path.join(os.path.dirname(__file__), "data", "models.json")
    with open(path, encoding="utf-8") as file:
        models: dict[str, dict[str, Any]] = json.load(file)
    return {
        name.lower(): (title, entry)
        for title, entry in models.items()
        for name in (title, *entry.get("aliases", ()))
    }
