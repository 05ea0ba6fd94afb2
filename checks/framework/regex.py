"""Regular expressions compiled at first use: a start uses 35 of 220; all take 1/10 of a start."""

from __future__ import annotations

import re
from typing import Any, cast


def regex(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return ``re.compile(text, flags)`` for a module, compiled when a method is first used."""
    return cast("re.Pattern[str]", _LazyPattern(text, flags))


class _LazyPattern:
    """Take each attribute of the compiled expression when it is first asked for, and keep it."""

    def __init__(self, text: str, flags: int) -> None:
        self._arguments = (text, flags)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(re.compile(*self._arguments), name)
        setattr(self, name, attribute)
        return attribute
