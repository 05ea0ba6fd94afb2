"""Numbers of options, whose errors and help call them by plain names."""

from __future__ import annotations

import click


class Number(click.FloatRange):
    """``'abc' is not a valid number.``, where click says float range."""

    name = "number"


class Integer(click.IntRange):
    name = "integer"
