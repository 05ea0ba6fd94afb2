"""What only the running machine tells about memory: what a file system has left."""

from __future__ import annotations

import os


def space(path: str) -> dict[str, int | bool]:
    """Return the bytes of ``path``'s file system, and what an unprivileged process may still take.

    full_of_files: its file system counts files, and has no room for another. Source: ``statvfs``.
    """
    found = os.statvfs(path)
    return {
        "size_bytes": found.f_blocks * found.f_frsize,
        "available_bytes": found.f_bavail * found.f_frsize,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
        "full_of_files": found.f_files > 0 and found.f_favail == 0,
    }
