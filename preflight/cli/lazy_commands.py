"""A group whose commands are imported when asked for: start-up pays for the one that runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """``later``: command name -> module that has it, under the name after the colon."""

    def __init__(self, *arguments: Any, later: Mapping[str, str] | None = None, **named: Any):
        super().__init__(*arguments, **named)
        self._later = dict(later or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = self._later.get(cmd_name)
        if where is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = where.partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found
