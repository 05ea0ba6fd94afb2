"""What only the running machine tells about memory: how much a file system has left."""

from __future__ import annotations

import os


def space(path: str) -> dict[str, int]:
    """``statvfs`` of ``path``: its size, and what an unprivileged process may still take, bytes."""
    found = os.statvfs(path)
    return {
        "size_bytes": found.f_blocks * found.f_frsize,
        "available_bytes": found.f_bavail * found.f_frsize,
    }
