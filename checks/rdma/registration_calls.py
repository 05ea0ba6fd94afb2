"""What was measured on this machine's RDMA devices before, and kept."""

from __future__ import annotations

import os
from typing import Any

# The system's folder, which root writes, and below a user's own state folder.
SYSTEM_FOLDER = "/var/lib/mooncake-preflight"
SUBFOLDER = "registration"
# One result for each device and page size; more is not ours.
MOST_FILES = 256
LARGEST_FILE_BYTES = 1 << 16


def state_folders() -> list[str]:
    """Where results may lie: the system's first, then this user's own."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(os.environ.get("HOME", ""), ".local/state")
    own = os.path.join(base, "mooncake-preflight")
    folders = [SYSTEM_FOLDER] + ([own] if own.startswith("/") else [])
    return [os.path.join(folder, SUBFOLDER) for folder in folders]


def saved() -> list[dict[str, Any]]:
    """Every result that can be read, each with the ``file`` that it lies in."""
    import json

    found = []
    for folder in state_folders():
        try:
            names = sorted(os.listdir(folder))[:MOST_FILES]
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(".json"):
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    content = json.loads(file.read(LARGEST_FILE_BYTES))
            except (OSError, ValueError, RecursionError):
                continue  # a result that cannot be read is none: the table is asked instead
            if isinstance(content, dict):
                found.append({**content, "file": path})
    return found
