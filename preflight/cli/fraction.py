"""A part of all, as ``60%``."""

from typing import Any

import click

from preflight.cli.formats import AnyParamType


class Fraction(AnyParamType):
    """``60%`` or ``0.6``, as a part of 1."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return a part of all: 60% or 0.6."""
        text = str(value).strip()
        try:
            part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            part = -1.0
        if not 0 < part <= 1:
            self.fail(f"{value!r} is not a part of all: write 60% or 0.6", param, ctx)
        return part
