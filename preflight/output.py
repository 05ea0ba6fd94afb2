"""Printing that a reader may walk away from without changing what the command answers."""

from __future__ import annotations

import os
import sys
from typing import Any

import click


def say(text: str, *, err: bool = False, color: bool | None = None) -> None:
    """Print a line. A reader that is gone is no failure, and no reason for another exit code."""
    try:
        click.echo(text, err=err, color=color)
    except BrokenPipeError:
        stream = sys.stderr if err else sys.stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say_json(answer: dict[str, Any]) -> None:
    """One object on standard output."""
    import json

    say(json.dumps(answer, indent=2))
