"""The model that a server names: its geometry, its weights, and the fields that size its buffers;
and the drafts of a server that drafts tokens: which host pools they bring, or join.

Well-known models are a table (``data/models.json``). An entry, under the model's published name:
``config``, the fields of its ``config.json`` that size the KV cache; ``source``, where they were
read; if known, ``aliases``, and its weights: ``weights_bytes`` (with ``weights_source``), the
number of its ``parameters``, or their ``billions`` where the name does not say them; ``bits``, of
a parameter of most layers as published, if fewer than 16.
"""

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.releases.sglang import DraftPool, SglangRelease
from preflight.base.program import data_file
from preflight.engines.sglang.model_geometry import (
    LayerKind,
    ModelGeometry,
    geometry_from_config,
    text_config,
)
from preflight.engines.sglang.server import SglangServer
from preflight.launches.source import placeholder_in

# Suffixes under which the same architecture is published: chat tuning, dates of Qwen's refreshes,
# and then weight formats. None of them changes the shape of the KV cache; a format that stores it
# as fp8 says so in its own config.json, so a name alone never promises more than the published
# dtype.
_TUNED = regex(r"-(?:instruct|thinking|reasoning|chat|it|pt|base|hf|bf16|2507|2512)$")
_QUANTIZED = regex(
    r"[-_.](?:fp8|dynamic|block|static|pertensor|awq|marlin|int4|int8|[48]bit|w8a8|w4a16|w4a8|w8a16"
    r"|gptq|autoround|bnb|unsloth|quantized|nvfp4|mxfp4|fp4|gguf|q[2-8](?:_k)?(?:_[ms])?)$"
)
# Its quantized checkpoints ask for an fp8 KV cache (hf_quant_config.json): the table has those that
# are known by the publisher's name too.
_OTHER_CACHE = regex(r"(?:^|/|models--)nvidia(?:/|--)")

# The parameters that a name says, in billions: Qwen3-VL-235B-A22B. Of several experts' (17B-16E,
# 8x7B) it says fewer than there are.
_BILLIONS = regex(r"(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
# The fewest bytes of a parameter, by what a name says of its format: 8 bits, 4 (as gpt-oss, whose
# name says nothing), or as few as the 2 of a GGUF.
_EIGHT_BITS = regex(r"fp8|int8|8bit|w8a|q8")
_LEAST_PARAMETER_BYTES = {"8 bits": 1.0, "own": 0.5, "other": 0.25}
# How far below the number in its name the parameters of a model are.
_LEAST_OF_NAME = 0.95

# How far above it they are: a card rounds; a name leaves out embeddings (Llama-3.2-1B has 1.24).
_MOST_OF_CARD, _MOST_OF_NAME, _MOST_OF_SMALL_NAME = 1.03, 1.15, 1.3
_SMALL_BILLIONS = 5
# The most resident bytes of a parameter, by the bits of most of them: embeddings, and often
# attention, keep 16 bits, which weighs more in a small model (gpt-oss on H100: 0.72). A name of a
# format that is not read promises no fewer than 16.
_LARGE_BILLIONS = 100
_MOST_PARAMETER_BYTES = {4: (1.2, 0.75), 8: (1.35, 1.08), 16: (2.0, 2.0)}
_FOUR_BITS = regex(r"int4|4bit|w4a|fp4|awq|gptq")
# Names that say the size of one of several experts, or of the part that works (17B-16E, 8x7B, E4B).
_OF_A_PART = regex(r"\d+x\d|-\d+e\b|\be\d", re.IGNORECASE)

# Of two names: how alike a misspelt one is to the one that is meant.
_ALIKE = 0.85

# Models that people name and SGLang has no class for (srt/models of 0.5.23).
_NOT_SERVED = {"minimax-m1": "MiniMaxM1ForCausalLM"}


class WellKnownModel(NamedTuple):
    """A model of the table.

    Attributes:
        weights_bytes: Of a checkpoint under the published name; None if not known.
        least_weights_bytes: A lower bound, by the number format that the name tells.
        most_weights_bytes: An upper bound in the GPU's memory; None if none is known.
    """

    name: str
    geometry: ModelGeometry
    weights_bytes: int | None
    least_weights_bytes: int
    most_weights_bytes: int | None = None


def well_known_model(model_path: str) -> WellKnownModel | Unknown:
    """Return the table's model that the last part of a ``--model-path`` names; Unknown without one.

    ``Qwen/Qwen3-8B``, ``/models/DeepSeek-R1/``, ``qwen3-235b-a22b-instruct-2507-fp8`` and the hub
    cache's ``models--Qwen--Qwen3-8B/snapshots/...`` are found; a merely similar name is not.
    """
    table = _table()
    for family, architecture in _NOT_SERVED.items():
        if family in model_path.lower():
            return Unknown(f"{model_path!r:.200}: SGLang has no {architecture}, as of 0.5.23")
    path = model_path.strip().replace("\\", "/").lower()
    name = _published_name(path)
    quantized = False
    nvidia_name = f"nvidia/{name}"
    nobodys = path.startswith("/") or "/" not in path  # a folder, likely with a copy of it
    if nvidia_name in table and (nobodys or _OTHER_CACHE.search(path)):
        name, quantized = nvidia_name, True
    while name not in table:
        shorter = _TUNED.sub("", name)
        if shorter == name and not _OTHER_CACHE.search(path):
            shorter = _QUANTIZED.sub("", name)
            quantized = True
        if shorter == name:
            if left_out := placeholder_in(model_path):
                advice = f"write a value in place of {left_out}"
                return Unknown(f"{model_path!r:.200}: a placeholder, no model", advice=advice)
            why = f"{model_path!r:.200}: not in the table of well-known models"
            advice = "give the model's config.json with --model-config"
            from difflib import get_close_matches

            if near := get_close_matches(name, table, 1, _ALIKE):
                advice += f", or write {table[near[0]][0]} where that is meant"
            return Unknown(why, absent=True, advice=advice)
        name = shorter
    title, entry = table[name]
    geometry = geometry_from_config(entry["config"], title)
    if isinstance(geometry, Unknown):
        return geometry
    own_bytes = entry.get("weights_bytes") or 2 * entry.get("parameters", 0)
    suffix = _published_name(path).removeprefix(name)
    eight = _EIGHT_BITS.search(suffix) and "4" not in suffix
    weight_format = "8 bits" if quantized and eight else "other" if quantized else "own"
    named = _BILLIONS.search(title)
    billions = entry.get("billions") or (float(named[1]) if named else 0)
    parameters = own_bytes / 2 or billions * 1e9 * _LEAST_OF_NAME
    least = int(parameters * _LEAST_PARAMETER_BYTES[weight_format])
    weights = None if quantized else own_bytes or None
    most_parameters = _most_parameters(title, entry, billions)
    bits = entry.get("bits", 16)
    if quantized:
        bits = 8 if eight else 4 if _FOUR_BITS.search(suffix) else 16
    each = _MOST_PARAMETER_BYTES[bits][most_parameters >= _LARGE_BILLIONS * 1e9]
    return WellKnownModel(title, geometry, weights, least, int(most_parameters * each) or None)


def _most_parameters(title: str, entry: Mapping[str, Any], billions: float) -> float:
    """Return an upper bound of a model's parameters; 0 if none is known.

    Args:
        title: Its published name.
        entry: Its entry in the table.
        billions: Those that the entry or the name says.
    """
    if counted := entry.get("parameters"):
        return float(counted)
    if "weights_bytes" in entry:  # of two bytes each, or of one and more of them
        return float(entry["weights_bytes"])
    if "billions" in entry:
        return billions * 1e9 * _MOST_OF_CARD
    if _OF_A_PART.search(title):
        return 0
    small = billions < _SMALL_BILLIONS
    return billions * 1e9 * (_MOST_OF_SMALL_NAME if small else _MOST_OF_NAME)


def _published_name(path: str) -> str:
    """Return the model's published name from a path or a name on a hub; "" for an empty path."""
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part.startswith("models--"):  # the hub's cache: models--Qwen--Qwen3-8B/snapshots/0a1b
            return part.rpartition("--")[2]
    # ModelScope's cache writes a dot as three underscores: Qwen2___5-7B-Instruct.
    return parts[-1].replace("___", ".") if parts else ""


@cache
def _table() -> dict[str, tuple[str, dict[str, Any]]]:
    """Map each name and alias, in lower case, to (published name, entry of the table)."""
    path = data_file("models.json")
    with open(path, encoding="utf-8") as file:
        models: dict[str, dict[str, Any]] = json.load(file)
    return {
        name.lower(): (title, entry)
        for title, entry in models.items()
        for name in (title, *entry.get("aliases", ()))
    }


class Model(NamedTuple):
    """A model, as far as it is known.

    Attributes:
        weights_bytes: None if the table does not know them; then they are no fewer than
            ``least_weights_bytes``, and no more than ``most_weights_bytes`` if that is known.
        hidden_size and context_tokens: None if the config that was read does not say.
    """

    name: str
    geometry: ModelGeometry | Unknown
    weights_bytes: int | Unknown | None = None
    hidden_size: int | None = None
    context_tokens: int | None = None
    least_weights_bytes: int = 0
    most_weights_bytes: int | None = None


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
        return self.at_path(path, "no --model-path")

    def at_path(self, path: object, missing: str) -> Model:
        """Return the model at ``path``, read once.

        Args:
            missing: The reason if ``path`` is no text.
        """
        if not isinstance(path, str):
            unknown = path if isinstance(path, Unknown) else Unknown(missing)
            return Model(missing, unknown)
        if path not in self._read:
            self._read[path] = self._model_at(path)
        return self._read[path]

    def _model_at(self, path: str) -> Model:
        """Return the model at a path: by its config.json, or by its well-known name."""
        folder = path.rstrip("/")
        config_text = self._root.text(f"{folder}/config.json") if path.startswith("/") else None
        if isinstance(config_text, str):
            return _from_config(config_text, path, checkpoint_bytes(self._root.locate(folder)))
        known = well_known_model(path)
        if isinstance(known, Unknown):
            return Model(path, known)
        return Model(
            path,
            known.geometry,
            known.weights_bytes,
            least_weights_bytes=known.least_weights_bytes,
            most_weights_bytes=known.most_weights_bytes,
        )


def checkpoint_bytes(folder: str) -> int | Unknown:
    """Return the bytes of a local checkpoint's weights: the total that its index names, else the
    size of its .safetensors and .bin files.

    Returns:
        Unknown without weights.
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
        files = [each for each in os.scandir(folder) if each.is_file()]
        sizes = [f.stat().st_size for f in files if f.name.endswith((".safetensors", ".bin"))]
    except OSError as error:
        return Unknown(f"{folder}: {error.strerror or error}", absent=True)
    return sum(sizes) or Unknown(f"{folder}: holds no weights", absent=True)


def _from_config(text: str, name: str, weights_bytes: int | Unknown | None) -> Model:
    """Return the model of a config.json, with its shape or why the shape is not known."""
    try:
        config, why = json.loads(text), "not a JSON object"
    except (ValueError, RecursionError) as error:
        config, why = None, str(error)
    if not isinstance(config, Mapping):
        return Model(name, Unknown(f"{name}: config.json: {why}"), weights_bytes)
    fields = text_config(config)
    width, context = (
        value if type(value) is int and 0 < value < 1 << 40 else None
        for value in map(fields.get, ("hidden_size", "max_position_embeddings"))
    )
    # Scaled rotary positions stretch the context: then the config alone does not say it.
    context = None if fields.get("rope_scaling") else context
    return Model(name, geometry_from_config(config, name), weights_bytes, width, context)


# These draft from the text, or from the target itself: no cache of their own on the host.
_WITHOUT_POOL = ("NGRAM", "UNO", "FROZEN_KV_MTP")
# These always bring a model with a pool of its own.
_SIDECARS = ("EAGLE3", "STANDALONE")


class Drafts(NamedTuple):
    """A server's draft models, as the host pools see them.

    Attributes:
        algorithm: "" without speculative decoding.
        packed: The number of one-layer pools within the target's.
        separate: The model with its pool; Unknown, with the draft's name, if the draft may have
            one; None without.
        model: As read, for hidden states.
        weights_bytes: What its weights take beside the target's whole checkpoint, of all ranks
            together: 0 if they are part of it; None if not known.
    """

    algorithm: str = ""
    packed: int = 0
    separate: ModelGeometry | Unknown | None = None
    model: Model | None = None
    weights_bytes: int | Unknown | None = None

    @property
    def sends_hidden_states(self) -> bool:
        """Whether prefill hands its hidden states to decode (EAGLE's draft continues from them)."""
        return self.algorithm in ("EAGLE", "EAGLE3", "FROZEN_KV_MTP")


def server_drafts(
    server: SglangServer, target: Model, release: SglangRelease, models: Models
) -> Drafts:
    """Return the draft models of ``server`` as its host pools see them; empty without speculative
    decoding.

    Args:
        target: The server's own model.
    """
    algorithm = server.value("speculative_algorithm")
    if isinstance(algorithm, Unknown):
        return Drafts("unknown", separate=algorithm)
    if not algorithm:
        return Drafts()
    named = str(algorithm).upper()
    name = "EAGLE" if named == "NEXTN" else named
    if name in _WITHOUT_POOL:
        return Drafts(name)
    path, target_path = (
        path.rstrip("/") if isinstance(path := server.value(each), str) else path
        for each in ("speculative_draft_model_path", "model_path")
    )
    # Multi-token prediction: the head is in the target's own checkpoint.
    own_head = name == "EAGLE" and path in (None, target_path)
    if name not in ("EAGLE", *_SIDECARS):
        drafts = Drafts(name, separate=Unknown(f"the pool of a {name} draft is not computed here"))
        return drafts if release.draft is not DraftPool.NONE else Drafts(name)
    missing = f"{name} without --speculative-draft-model-path"
    model = target if own_head else models.at_path(path, missing)
    geometry = model.geometry
    weights = 0 if own_head else model.weights_bytes
    if release.draft is DraftPool.NONE:
        return Drafts(name, model=model)
    of_draft = f"draft model, the head of {model.name}" if own_head else f"draft model {model.name}"
    if isinstance(geometry, Unknown):
        unread = geometry.of(f"{of_draft}: ")
        return Drafts(name, separate=unread, model=model, weights_bytes=weights)
    if name == "EAGLE" and geometry.nextn_layers:
        # The head alone is loaded (the NextN class of model_config.py), of whatever checkpoint.
        drafts = _head_drafts(server, name, model, geometry, release)
        return drafts._replace(weights_bytes=0 if own_head else None)
    own_model = Unknown(f"{of_draft}: its config.json names none") if own_head else geometry
    return Drafts(name, separate=own_model, model=model, weights_bytes=weights)


def _head_drafts(
    server: SglangServer, name: str, model: Model, geometry: ModelGeometry, release: SglangRelease
) -> Drafts:
    """Return the drafts of multi-token prediction, whose head is in the checkpoint.

    Since 0.5.18 a one-layer pool for each runner is packed into the target's pool; before, the head
    has a separate pool.

    Args:
        name: The algorithm.
    """
    if release.packed_drafts:
        runners = 1
        if server.value("enable_multi_layer_eagle") is True:
            steps = server.value("speculative_num_steps")
            if not isinstance(steps, int):
                reason = f"draft model {model.name}: --speculative-num-steps decides its layers"
                return Drafts(name, separate=Unknown(reason), model=model)
            runners = max(1, steps)
        return Drafts(name, packed=runners, model=model)
    layers = (LayerKind.FULL,) * geometry.nextn_layers
    index = tuple(range(len(layers))) if geometry.index_layers else ()
    head = geometry._replace(
        name=f"the head of {geometry.name}", layers=layers, index_layers=index, nextn_layers=0
    )
    return Drafts(name, separate=head, model=model)
