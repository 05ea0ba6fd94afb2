"""Which nodes are asked over ssh, and where this program is on them, as the command line says."""

from __future__ import annotations

from typing import NamedTuple

from preflight.fleet.base.option_words import option_words


class SshNodes(NamedTuple):
    """Which nodes, and how to come to them. connect_seconds: until ssh is through."""

    nodes: tuple[str, ...]
    nodes_files: tuple[str, ...]
    exclude: tuple[str, ...]
    timeout_seconds: float
    connect_seconds: float
    fanout: int | None
    user: str | None
    ssh_options: str


class Remote(NamedTuple):
    """command: this program on a node. carry: whether to take it along: auto, always, never.

    python: what runs the program that is taken along.
    """

    command: str
    python: str
    carry: str

    @property
    def words(self) -> tuple[str, ...]:
        """Those that start the program. Raises UsageError."""
        give = "the program's path on the nodes"
        return option_words("--remote-command", self.command, give)
