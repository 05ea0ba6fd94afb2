"""The launch as the command line gives it, and which checks it is held against."""

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
    host_group: str | None = None


class Chosen(NamedTuple):
    """only, skip: patterns over ids (``rdma.*``). ignore: waivers, as ID=REASON.

    waivers: a file of them, each with a reason and a last day; None for none.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    waivers: str | None = None


ALL_CHECKS = Chosen()
