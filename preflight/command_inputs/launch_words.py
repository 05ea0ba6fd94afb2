"""The launch as the command line gives it, and which checks it is held against."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import date


class LaunchWords(NamedTuple):
    """The launch as the command line gives it; ``words`` is empty without one."""

    words: tuple[str, ...] = ()
    env_files: tuple[str, ...] = ()
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None
    model_config: str | None = None
    gpu_bytes: int | None = None
    is_command: bool = False  # a command however few words; else one word is a file
    host_group: str | None = None
    by_program: bool = False  # name processes by program and place, not by their line


class Waiver(NamedTuple):
    """What a check finds is known and does not count.

    Attributes:
        until: Last day of this; None for always.
    """

    check: str
    reason: str
    until: "date | None" = None

    @property
    def text(self) -> str:
        """The reason, as it is shown beside what it waives."""
        return self.reason if self.until is None else f"{self.reason} (until {self.until})"

    def is_over(self, day: "date") -> bool:
        return self.until is not None and self.until < day


class Chosen(NamedTuple):
    """The choice of checks."""

    only: tuple[str, ...] = ()  # patterns over ids (rdma.*)
    skip: tuple[str, ...] = ()  # patterns over ids
    ignore: tuple[Waiver, ...] = ()  # waivers of the command line
    waivers: str | None = None  # a file of more, each with a reason and a last day
    locked: tuple[Waiver, ...] = ()  # of a lock; --ignore for the same check replaces it


ALL_CHECKS = Chosen()
