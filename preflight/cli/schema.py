"""``mooncake-preflight schema``: what ``--json`` prints, as JSON Schema."""

from __future__ import annotations

from pathlib import Path

import click

from preflight.cli.commands import command

FOLDER = Path(__file__).parents[1] / "schemas"
_ENDING = "-v1.schema.json"


@command(
    "schema",
    "mooncake-preflight schema",
    "mooncake-preflight schema check > check-v1.schema.json",
)
@click.argument("name", required=False)
def schema(name: str | None) -> int:
    """Print the JSON Schema of what a command prints with --json; without NAME, all names."""
    from preflight.base.output import say
    from preflight.base.usage_error import UsageError

    names = sorted(file.name.removesuffix(_ENDING) for file in FOLDER.glob(f"*{_ENDING}"))
    if name is None:
        say("\n".join(names))
    elif name in names:
        say((FOLDER / f"{name}{_ENDING}").read_text(encoding="utf-8").rstrip("\n"))
    else:
        raise UsageError(f"{name}: no schema has this name: one of {', '.join(names)}")
    return 0
