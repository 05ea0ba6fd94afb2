"""A sizing's inputs as plain records: what was given, and the launch that it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.programs.memory_records import Launch, StoreSettings
from preflight.programs.store_environment import Note


class Input(NamedTuple):
    """A value as shown to the user, and where it came from."""

    value: int | str | bool | list[int] | None
    origin: str


class Flags(NamedTuple):
    """What the command line says; None where it says nothing. Sizes in bytes."""

    tp_size: int
    hicache_bytes: int
    segment_bytes: int
    arena_bytes: int | None = None
    hugepage_bytes: int | None = None
    available_bytes: int | None = None
    pp_size: int = 1
    dp_size: int = 1
    local_buffer_bytes: int | None = None
    segment_scope: str = "instance"
    protocol: str | None = None
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None  # empty: the ranks are bound to no node
    use_hugepage: bool | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None


class SizingInputs(NamedTuple):
    """Everything that a verdict depends on, but the pools themselves.

    flags: as given, or as they would have to be given for the launch that ``source`` names.
    start_unknown: why it may not start although all is mapped, None for no such reason.
    """

    flags: Flags
    launch: Launch
    nic_nodes_unknown: Unknown | None
    shown: Mapping[str, Input]
    notes: tuple[Note, ...]
    source: str | None = None
    start_unknown: Unknown | None = None

    @property
    def ranks(self) -> int:
        return len(self.launch.processes)

    @property
    def settings(self) -> StoreSettings:
        """Those of the first process that asks for huge pages, or of the first; ranks have one."""
        every = [process.settings for process in self.launch.processes]
        if not every:  # a master or a router alone maps nothing
            return StoreSettings(False, self.launch.default_page_bytes)
        return next((settings for settings in every if settings.hugepages), every[0])
