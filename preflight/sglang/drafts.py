"""The drafts of a server that drafts tokens: which host pools they bring, or join."""

from typing import NamedTuple

from checks.base.unknown import Unknown
from checks.releases.sglang import DraftPool, SglangRelease
from preflight.processes.processes import SglangServer
from preflight.sglang.model import Model, Models
from preflight.sglang.model_geometry import LayerKind, ModelGeometry

# These draft from the text, or from the target itself: no cache of their own on the host.
_WITHOUT_POOL = ("NGRAM", "UNO", "FROZEN_KV_MTP")
# These always bring a model with a pool of its own.
_SIDECARS = ("EAGLE3", "STANDALONE")


class Drafts(NamedTuple):
    """A server's drafts, as its host pools see them.

    algorithm: "" without speculative decoding. packed: the one-layer pools that join the target's.
    own: the model whose pool comes on top; Unknown, with the draft's name, where there may be one;
    None without. model: what was read of it, for its weights and its hidden states.
    """

    algorithm: str = ""
    packed: int = 0
    own: ModelGeometry | Unknown | None = None
    model: Model | None = None

    @property
    def sends_hidden_states(self) -> bool:
        """Whether prefill hands its hidden states to decode (EAGLE's draft continues from them)."""
        return self.algorithm in ("EAGLE", "EAGLE3", "FROZEN_KV_MTP")


def server_drafts(
    server: SglangServer, target: Model, release: SglangRelease, models: Models
) -> Drafts:
    """Return the drafts of ``server``, whose own model is ``target``."""
    algorithm = server.value("speculative_algorithm")
    if isinstance(algorithm, Unknown):
        return Drafts("unknown", own=algorithm)
    if not algorithm:
        return Drafts()
    named = str(algorithm).upper()
    name = "EAGLE" if named == "NEXTN" else named
    if name in _WITHOUT_POOL:
        return Drafts(name)
    path = server.value("speculative_draft_model_path")
    if name == "EAGLE" and (path is None or path == server.value("model_path")):
        return _own_head(server, target, release)
    if name not in ("EAGLE", *_SIDECARS):
        drafts = Drafts(name, own=Unknown(f"the pool of a {name} draft is not computed here"))
        return drafts if release.draft is not DraftPool.NONE else Drafts(name)
    model = models.named(path, f"{name} without --speculative-draft-model-path")
    geometry = model.geometry
    if release.draft is DraftPool.NONE:
        return Drafts(name, model=model)
    if isinstance(geometry, Unknown):
        return Drafts(
            name, own=Unknown(f"draft model {model.name}: {geometry.reason}"), model=model
        )
    if name == "EAGLE" and geometry.nextn_layers:
        return _head(server, name, model, geometry, release)
    return Drafts(name, own=geometry, model=model)


def _own_head(server: SglangServer, target: Model, release: SglangRelease) -> Drafts:
    """Return the multi-token-prediction head that the target's checkpoint carries."""
    geometry = target.geometry
    if release.draft is DraftPool.NONE:
        return Drafts("EAGLE", model=target)
    if isinstance(geometry, Unknown):
        reason = f"draft model, the head of {target.name}: {geometry.reason}"
        return Drafts("EAGLE", own=Unknown(reason), model=target)
    if not geometry.nextn_layers:
        reason = f"draft model, the head of {target.name}: its config.json names none"
        return Drafts("EAGLE", own=Unknown(reason), model=target)
    return _head(server, "EAGLE", target, geometry, release)


def _head(
    server: SglangServer, name: str, model: Model, geometry: ModelGeometry, release: SglangRelease
) -> Drafts:
    """Return the drafts that have a one-layer head for each runner.

    They are packed, or, before 0.5.18, the first is a pool of its own.
    """
    if release.packed_drafts:
        runners = 1
        if server.value("enable_multi_layer_eagle") is True:
            steps = server.value("speculative_num_steps")
            if not isinstance(steps, int):
                reason = f"draft model {model.name}: --speculative-num-steps decides its layers"
                return Drafts(name, own=Unknown(reason), model=model)
            runners = max(1, steps)
        return Drafts(name, packed=runners, model=model)
    layers = (LayerKind.FULL,) * geometry.nextn_layers
    index = tuple(range(len(layers))) if geometry.index_layers else ()
    head = geometry._replace(
        name=f"the head of {geometry.name}", layers=layers, index_layers=index, nextn_layers=0
    )
    return Drafts(name, own=head, model=model)
