"""The model that a server names: its geometry, its weights, and the fields that size its buffers.

From ``--model-config``, the model's own folder, or the table of well-known models; each name is
read once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.sglang.model_geometry import ModelGeometry, geometry_from_config
from preflight.sglang.well_known_models import well_known_model

# Where a multimodal config keeps its language model.
_NESTED = ("text_config", "language_config", "llm_config")


class Model(NamedTuple):
    """``weights_bytes``: None where the table does not know them; then they are no fewer than
    ``least_weights_bytes``. ``hidden_size`` and ``context_tokens``: None where the config that was
    read does not say."""

    name: str
    geometry: ModelGeometry | Unknown
    weights_bytes: int | Unknown | None = None
    hidden_size: int | None = None
    context_tokens: int | None = None
    least_weights_bytes: int = 0


class Models:
    """Models by their path, as a host below ``root`` has them."""

    def __init__(self, root: Root, stated_config: str | None = None) -> None:
        self._root = root
        self._stated_config = stated_config
        self._read: dict[str, Model] = {}

    def target(self, path: object) -> Model:
        """Return the model of ``--model-path``, or the one that ``--model-config`` states."""
        if self._stated_config is not None:
            return _from_config(self._stated_config, "--model-config", None)
        return self.named(path, "no --model-path")

    def named(self, path: object, missing: str) -> Model:
        """Return the model at ``path``; ``missing``: what to say where there is none."""
        if not isinstance(path, str):
            unknown = path if isinstance(path, Unknown) else Unknown(missing)
            return Model(missing, unknown)
        if path not in self._read:
            self._read[path] = self._at(path)
        return self._read[path]

    def _at(self, path: str) -> Model:
        folder = path.rstrip("/")
        own = self._root.text(f"{folder}/config.json") if path.startswith("/") else None
        if isinstance(own, str):
            return _from_config(own, path, checkpoint_bytes(self._root.locate(folder)))
        known = well_known_model(path)
        if isinstance(known, Unknown):
            return Model(path, known)
        weights, least = known.weights_bytes, known.least_weights_bytes
        return Model(path, known.geometry, weights, least_weights_bytes=least)


def checkpoint_bytes(folder: str) -> int | Unknown:
    """Return the bytes of a local checkpoint's weights.

    They are its safetensors index's total, or its files' sizes.
    """
    index = os.path.join(folder, "model.safetensors.index.json")
    try:
        with open(index, encoding="utf-8") as file:
            total = json.load(file)["metadata"]["total_size"]
        if isinstance(total, int) and not isinstance(total, bool) and total > 0:
            return total
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # no index, or none that can be used: the files themselves
    try:
        sizes = [
            entry.stat().st_size
            for entry in os.scandir(folder)
            if entry.name.endswith((".safetensors", ".bin")) and entry.is_file()
        ]
    except OSError as error:
        return Unknown(f"{folder}: {error.strerror or error}", absent=True)
    return sum(sizes) or Unknown(f"{folder}: holds no weights", absent=True)


def _from_config(text: str, name: str, weights_bytes: int | Unknown | None) -> Model:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Model(name, Unknown(f"{name}: config.json: {error}"), weights_bytes)
    if not isinstance(config, Mapping):
        return Model(name, Unknown(f"{name}: config.json: not a JSON object"), weights_bytes)
    fields: Mapping[str, object] = config
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping) and nested:
            fields = nested
            break
    return Model(
        name,
        geometry_from_config(config, name),
        weights_bytes,
        _number(fields.get("hidden_size")),
        # Scaled rotary positions stretch the context: then the config alone does not say it.
        None if fields.get("rope_scaling") else _number(fields.get("max_position_embeddings")),
    )


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40:
        return value
    return None
