"""The launch as the command line gives it."""

from __future__ import annotations

from typing import NamedTuple


class LaunchWords(NamedTuple):
    """The launch as the command line gives it; ``words`` is empty without one.

    is_command: they are a command however few; else one word alone is a file to read.
    """

    words: tuple[str, ...] = ()
    env_files: tuple[str, ...] = ()
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None
    model_config: str | None = None
    gpu_bytes: int | None = None
    is_command: bool = False
