"""Which variables and flags hold secrets, by their names."""

from __future__ import annotations

import re

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
# Names that have TOKEN or KEY in them and count or tokenize.
_HARMLESS = re.compile(r"TOKENS|TOKENIZER|KEYS", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether the value of a variable or flag of this name is not to be shown."""
    return _SECRET.search(_HARMLESS.sub("", name)) is not None
