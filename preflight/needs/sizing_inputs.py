"""What a sizing depends on, as plain records, whether flags or a launch say it."""

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.unknown import Unknown
from preflight.engines.programs.memory_records import Launch, StoreSettings
from preflight.engines.programs.store_environment import Note

# More ranks than any one host has run; a larger number is a slip of the keyboard.
MOST_RANKS = 1024


class Input(NamedTuple):
    """A value as shown to the user, and where it came from.

    Attributes:
        assumed: Nothing names it, and nothing that is installed tells it.
    """

    value: int | str | bool | list[int] | None
    origin: str
    assumed: bool = False


class RuleTerms(NamedTuple):
    """A launch as Mooncake's documented helper takes one: sizes of one rank, in bytes."""

    tp_size: int
    hicache_bytes: int
    segment_bytes: int
    arena_bytes: int | None = None
    pp_size: int = 1
    dp_size: int = 1
    segment_scope: str = "instance"  # or process: SGLang does not divide the segment


class SizingInputs(NamedTuple):
    """All that a verdict depends on, except the pools themselves.

    Attributes:
        terms: Of the documented rule.
        available_bytes: Huge pages stated in place of the host's.
        hugepage_bytes: The page size that the command line names.
        nic_nodes: The NICs' NUMA nodes, as stated.
        nic_nodes_unknown: Why they are not known, or None.
        source: The launch's name, None for flags.
        start_unknown: Why the launch may not start although all is mapped, or None.
    """

    terms: RuleTerms
    launch: Launch
    nic_nodes_unknown: Unknown | None
    shown: Mapping[str, Input]
    notes: tuple[Note, ...]
    source: str | None = None
    start_unknown: Unknown | None = None
    available_bytes: int | None = None
    hugepage_bytes: int | None = None
    nic_nodes: tuple[int, ...] | None = None

    @property
    def ranks(self) -> int:
        return len(self.launch.processes)

    @property
    def settings(self) -> StoreSettings:
        """Return the settings of the first process that asks for huge pages, else of the first."""
        every = [process.settings for process in self.launch.processes]
        if not every:  # a master or a router alone maps nothing
            return StoreSettings(False, self.launch.default_page_bytes)
        return next((settings for settings in every if settings.hugepages), every[0])
