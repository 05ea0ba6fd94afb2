"""The commands for scripts: ``mooncake-preflight schema``, ``bundle`` and ``completion``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from preflight.base.output import say
from preflight.cli.commands import command
from preflight.cli.options import FILE, FILE_TIMEOUT

FOLDER = Path(__file__).parents[1] / "report" / "schemas"
_ENDING = "-v1.schema.json"
COMPLETED = ("mooncake-preflight", "mooncake-hicache-sizing")


@command(
    "schema", "mooncake-preflight schema", "mooncake-preflight schema check > check-v1.schema.json"
)
@click.argument("name", required=False)
def schema(name: str | None) -> int:
    """Print the JSON Schema of what a command prints with --json; without NAME, all names."""
    from preflight.base.usage_error import UsageError

    names = sorted(file.name.removesuffix(_ENDING) for file in FOLDER.glob(f"*{_ENDING}"))
    if name is None:
        say("\n".join(names))
    elif name in names:
        say((FOLDER / f"{name}{_ENDING}").read_text(encoding="utf-8").rstrip("\n"))
    else:
        raise UsageError(f"{name}: no schema has this name: one of {', '.join(names)}")
    return 0


@command(
    "bundle",
    "mooncake-preflight bundle mooncake-preflight.pyz",
    "docker cp mooncake-preflight.pyz sglang-0:/tmp/",
    "docker exec sglang-0 python3 /tmp/mooncake-preflight.pyz check /launch.sh",
)
@FILE_TIMEOUT
@click.argument("file", type=FILE)
def bundle(*, file: str) -> int:
    """Write this program as one FILE that a Python alone runs, if nothing can be installed.

    It needs Python 3.10 or newer and no package. Shell scripts it reads with the release of Python
    that made it, on the same kind of machine; with another, give a launch that was read already
    (read --record). What needs the real Mooncake is left out.

    Exit codes: 0 it is written; 64 usage error; 70 a defect of this program.
    """
    from preflight.base.bundle import readers, script_pythons, zipapp
    from preflight.base.within import limit_seconds, save

    content = b"#!/usr/bin/env python3\n" + zipapp(*readers())
    save(file, file, content, 0o755, limit_seconds())
    pythons = ", ".join(script_pythons()) or "no Python: tree-sitter-bash is not installed here"
    say(f"{file}: {len(content)} bytes; python3 {file} check launch.sh")
    say(f"shell scripts are read with: {pythons} ({os.uname().machine})")
    return 0


@command(
    "completion",
    'eval "$(mooncake-preflight completion bash)"',
    "mooncake-preflight completion zsh > ~/.zfunc/_mooncake-preflight",
    "mooncake-preflight completion fish > ~/.config/fish/completions/mooncake-preflight.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print what makes a shell complete options, files and ids of both commands."""
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None  # click knows these three
    for name in COMPLETED:
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        made = completion_class(completion, {}, name, variable)
        say(made.source_template % made.source_vars())
    return 0
