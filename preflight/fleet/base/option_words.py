"""An option whose value is a command line: its words."""

from __future__ import annotations

import shlex

from preflight.base.usage_error import UsageError


def option_words(option: str, text: str, give: str = "") -> tuple[str, ...]:
    """Raises UsageError; for none at all too, where ``give`` says what belongs there."""
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}") from None
    if give and not found:
        raise UsageError(f"{option} is empty: give {give}")
    return found
