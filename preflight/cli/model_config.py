"""What ``--model-config`` names, read within bounds."""

import sys

from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within

# Characters of a config.json: those of published models have some thousands.
_LARGEST_CONFIG = 4 << 20


def config_text(path: str) -> str:
    """Read what ``--model-config`` names, within bounds: a device has no end, a model no text."""
    name = f"--model-config {path}"

    def read() -> str:
        file = sys.stdin if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115
        with file:
            return file.read(_LARGEST_CONFIG + 1)

    try:
        text = within(limit_seconds(), name, read)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{name}: {why}: give a config.json") from None
    if len(text) > _LARGEST_CONFIG:
        raise UsageError(f"{name}: more than {_LARGEST_CONFIG >> 20} MiB: give a config.json")
    return text
