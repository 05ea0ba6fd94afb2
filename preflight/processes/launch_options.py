"""What the command line says of a launch beside the launch itself."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.installed import Installed


class LaunchOptions(NamedTuple):
    """What the command line says beside the launch.

    installed: of the machine of a capture; None for this one, beside this program.
    """

    available_bytes: int | None = None
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None
    model_config: str | None = None  # the text of a config.json
    gpu_bytes: int | None = None  # the memory of the smallest GPU
    installed: Installed | None = None
