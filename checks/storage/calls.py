"""What only the running machine tells about a folder: what it is, and what can be done in it."""

from __future__ import annotations

import os
from typing import Any


def folder(path: str) -> dict[str, Any]:
    """Return what ``path`` is for this user, with the size of its file system in bytes."""
    import stat

    mode = os.lstat(path).st_mode
    space = os.statvfs(path)
    return {
        "link": stat.S_ISLNK(mode),
        "folder": os.path.isdir(path),
        "writable": os.access(path, os.W_OK | os.X_OK),
        "read_only": bool(space.f_flag & os.ST_RDONLY),
        "size_bytes": space.f_blocks * space.f_frsize,
        "available_bytes": space.f_bavail * space.f_frsize,
        "full_of_files": space.f_files > 0 and space.f_favail == 0,
    }


def direct(path: str) -> dict[str, Any]:
    """Return whether files of the folder can be opened with O_DIRECT: tried on one without a name.

    O_TMPFILE leaves nothing behind, whatever becomes of this process.
    """
    import errno

    try:
        handle = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
    except OSError as error:
        return {"direct": False, "errno": errno.errorcode.get(error.errno or 0, "")}
    os.close(handle)
    return {"direct": True}
