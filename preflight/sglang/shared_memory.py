"""What an SGLang server certainly writes to /dev/shm, before it has loaded anything.

The first rank of a tensor-parallel group makes a ring buffer there (24 MiB, a sparse file), and
zeroes the flags at its end: one page. What else lies there depends on what only a start tells: the
ring's chunks on what is sent, NCCL's segments on which GPUs reach each other, torch's on the model.
Host pools do not: they are memfd or anonymous memory. Source: shm_broadcast.py ShmRingBuffer and
parallel_state.py, 0.5.2 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping

from preflight.sglang.ranks import Ranks

# A tmpfs gives out pages of the kernel's size, the smallest of which this is.
PAGE_BYTES = 4096
_SWITCH = "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"
# True to every release: environ.py EnvBool, and before 0.5.11 get_bool_env_var, which takes no
# other word. Where it is on for newer ones alone, less is counted than is written.
_ON = ("true", "1")


def least_shm_bytes(ranks: Ranks, environment: Mapping[str, str]) -> int:
    """Bytes that the server's first rank on this host writes to /dev/shm, at least."""
    alone = ranks.tp < 2 or ranks.here < 2 or ranks.node_rank != 0
    on = environment.get(_SWITCH, "true").lower() in _ON
    return PAGE_BYTES if on and not alone else 0
