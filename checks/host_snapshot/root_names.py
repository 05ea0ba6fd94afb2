"""How a host that is no folder is named, and the error of one that cannot be opened."""

import os

# A host in words (described.py): described:memory=2tb,gpus=8xH800, or a TOML file of these keys.
DESCRIBED = "described:"


class CaptureError(Exception):
    """A root that cannot be opened: the message is a sentence for the user."""


def is_description(path: str) -> bool:
    """Tell whether a root is a description of a host, not a host that was read."""
    return path.startswith(DESCRIBED) or (path.endswith(".toml") and os.path.isfile(path))
