"""The commands of both programs, for tests of what all of them have in common."""

from __future__ import annotations

from collections.abc import Iterator

import click

from preflight.cli.main import command as program
from preflight.cli.sizing import command as sizing

PROGRAMS = {"mooncake-preflight": program, "mooncake-hicache-sizing": sizing}


def below(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command with the words that one types, and for a group all that are in it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from below(found, f"{path} {name}")
    yield path, command


EVERY = {path: each for name, one in PROGRAMS.items() for path, each in below(one, name)}
# Those that are no group.
LEAVES = {path: each for path, each in EVERY.items() if not isinstance(each, click.Group)}


def accept(command: click.Command, words: list[str]) -> None:
    """Let a command's parser take the words; nothing is run. Raises ClickException."""
    context = command.make_context("it", words)
    if isinstance(command, click.Group):
        _, found, rest = command.resolve_command(context, words)
        assert found is not None
        accept(found, rest)
