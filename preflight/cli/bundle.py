"""``mooncake-preflight bundle``: this program as one file."""

from __future__ import annotations

import click

from preflight.cli.commands import command
from preflight.cli.options import FILE_TIMEOUT
from preflight.cli.value_types import FILE


@command(
    "bundle",
    "mooncake-preflight bundle mooncake-preflight.pyz",
    "docker cp mooncake-preflight.pyz sglang-0:/tmp/",
    "docker exec sglang-0 python3 /tmp/mooncake-preflight.pyz check /launch.sh",
)
@FILE_TIMEOUT
@click.argument("file", type=FILE)
def bundle(*, file: str) -> int:
    """Write this program as one FILE that a Python alone runs, where nothing can be installed.

    It needs Python 3.10 or newer and no package. What needs a compiled one is left out: the real
    Mooncake, rdma-core's bindings, and reading shell scripts. Read those where this program is
    installed: read --record launch.sh > launch.json, and check launch.json there.

    Exit codes: 0 it is written; 64 usage error; 70 a defect of this program.
    """
    from preflight.base.output import say
    from preflight.base.within import limit_seconds, save
    from preflight.fleet.remote.program import zipapp

    content = b"#!/usr/bin/env python3\n" + zipapp()
    save(file, file, content, 0o755, limit_seconds())
    say(f"{file}: {len(content)} bytes; python3 {file} check launch.sh")
    return 0
