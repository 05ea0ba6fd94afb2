"""How a host that is no folder is named, and the error of one that cannot be opened."""

import os

# A host in words (described.py): described:memory=2tb,gpus=8xH800, or a TOML file of these keys.
DESCRIBED = "described:"


class CaptureError(Exception):
    """A root that cannot be opened: the message is a sentence for the user."""


def is_description(path: str) -> bool:
    """Return whether this root is no host that was there, but one in words."""
    return path.startswith(DESCRIBED) or (path.endswith(".toml") and os.path.isfile(path))
