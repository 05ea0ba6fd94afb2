"""Text of others, as it may stand in a line of a terminal."""

from __future__ import annotations

import re

# Escape sequences in a file of the host must not reach the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def clean(text: str) -> str:
    """Return one line, with what would move the cursor written out."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", re.sub(r"[\t\n]", " ", text))
