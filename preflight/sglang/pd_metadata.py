"""The buffers through which a prefill server hands a request's metadata to a decode server.

``MetadataBuffers`` (disaggregation/utils.py; alike in SGLang 0.5.9, 0.5.12, 0.5.16, 0.5.20 and
0.5.23): plain memory, registered with the NICs like the cache itself.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.processes.processes import SglangServer
from preflight.programs.store_environment import Note
from preflight.sglang.drafts import Drafts
from preflight.sglang.ranks import Ranks

# Per slot: output_ids, cached_tokens, two of log probabilities, output_topk_p (16 x 4 bytes each),
# output_topk_index (16 x 8), the two of top log probabilities (128 x 4) and bootstrap_room (8 x 8).
_SLOT_BYTES = 5 * 64 + 128 + 2 * 512 + 64
# output_hidden_states without a draft that continues from them: 16 x 4 bytes.
_NO_HIDDEN_BYTES = 64
# resolve_max_num_reqs (mem_cache/kv_cache_configurator.py): the most requests where none is said.
_MOST_REQUESTS = 4096
_CHECKSUM_BYTES = 64
# Slots for each request; a decode server of MiniMax's sparse models has 8 (scheduler.py).
_SLOTS_PER_REQUEST = 2


class Metadata(NamedTuple):
    """One rank's buffers, at most; ``notes`` where a part of them is not known."""

    bytes: int = 0
    registered: bool = False
    notes: tuple[Note, ...] = ()


def pd_metadata(server: SglangServer, ranks: Ranks, drafts: Drafts) -> Metadata:
    """Return the most that the buffers of one rank of ``server`` take; nothing outside PD."""
    if server.mode not in ("prefill", "decode"):
        return Metadata()
    notes: list[Note] = []
    requests = server.value("max_running_requests")
    if isinstance(requests, int) and requests > 0:
        requests = max(1, requests // ranks.attention_dp)
    elif isinstance(requests, Unknown):
        text = f"the PD metadata of {server.command.origin} is left out: {requests.reason}"
        return Metadata(notes=(Note("pd-metadata-unknown", text),))
    else:
        requests = _MOST_REQUESTS
    hidden = _NO_HIDDEN_BYTES
    if drafts.sends_hidden_states:
        model = drafts.model
        if model is None or model.hidden_size is None or isinstance(model.geometry, Unknown):
            name = "the draft model" if model is None else model.name
            text = (
                f"the PD metadata of {server.command.origin} is counted without the hidden states "
                f"that its draft continues from: the hidden_size of {name} is not known"
            )
            notes.append(Note("pd-metadata-unknown", text))
        else:
            hidden = model.hidden_size * model.geometry.dtype_bytes
    slot = _SLOT_BYTES + hidden
    if server.value("disaggregation_enable_kv_checksum") is True:
        slot += _CHECKSUM_BYTES
    backend = server.value("disaggregation_transfer_backend")
    registered = backend not in ("mooncake_tcp", "fake")
    return Metadata(_SLOTS_PER_REQUEST * requests * slot, registered, tuple(notes))
