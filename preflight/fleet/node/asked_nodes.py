"""Which nodes are asked over ssh, and where this program is on them, as the command line says."""

from __future__ import annotations

from typing import NamedTuple


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
