"""The folders and files that a launch names, as this user finds them."""

import os
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown


def folder(path: str) -> dict[str, Any]:
    """Describe ``path`` for this user, with the size of its file system in bytes."""
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
    """Try to open a nameless file in the folder with O_DIRECT, which leaves nothing behind."""
    import errno

    try:
        handle = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
    except OSError as error:
        return {"direct": False, "errno": errno.errorcode.get(error.errno or 0, "")}
    os.close(handle)
    return {"direct": True}


class Folder(NamedTuple):
    """One path."""

    path: str
    parent: bool  # the nearest folder that exists is this one, not the path itself
    link: bool
    folder: bool
    writable: bool
    read_only: bool
    size_bytes: int
    available_bytes: int
    direct: bool | Unknown  # files in it can be opened with O_DIRECT; Unknown if nobody asks for it
    full_of_files: bool = False  # its file system was seen to have no room for another file


class StorageFacts(NamedTuple):
    """By path as the launch writes it; absent: Unknown(absent). files: False for a folder."""

    folders: Mapping[str, Folder | Unknown]
    files: Mapping[str, bool | Unknown]


def read_storage(root: Root, needs: LaunchNeeds | None) -> StorageFacts:
    """Read the launch's absolute paths."""
    folders: dict[str, Folder | Unknown] = {}
    files: dict[str, bool | Unknown] = {}
    for item in needs.storage if needs else ():
        path = item.path
        if isinstance(path, Unknown) or not path.startswith("/"):
            continue
        if item.kind == "offload":
            folders[path] = _folder(root, path, item.direct_io, item.created)
        else:
            name = f"{path.rstrip('/')}/config.json" if item.kind in ("model", "draft") else path
            content = root.mode(name)
            is_file = isinstance(content, int) and not stat.S_ISDIR(content)
            files[path] = content if isinstance(content, Unknown) else is_file
    return StorageFacts(folders, files)


def _folder(root: Root, path: str, direct_io: bool, created: bool) -> Folder | Unknown:
    """Return a folder, or if the process creates it, the nearest folder above."""
    place = path.rstrip("/") or "/"
    answer = root.call("storage.folder", place)
    first = answer
    while created and isinstance(answer, Unknown) and answer.absent and place != "/":
        place = place.rpartition("/")[0] or "/"
        answer = root.call("storage.folder", place)
    if isinstance(answer, Unknown):
        return first if isinstance(first, Unknown) else answer
    try:
        link, is_folder, writable, read_only = (
            answer[name] is True for name in ("link", "folder", "writable", "read_only")
        )
        return Folder(
            place,
            place != (path.rstrip("/") or "/"),
            link,
            is_folder,
            writable,
            read_only,
            int(answer["size_bytes"]),
            int(answer["available_bytes"]),
            _direct(root, place) if direct_io else Unknown("not asked for"),
            answer.get("full_of_files") is True,
        )
    except (TypeError, KeyError, ValueError) as error:
        return Unknown(f"storage.folder {place}: no such answer: {error}")


@or_unknown
def _direct(root: Root, path: str) -> bool | Unknown:
    """Read whether files in a folder can be opened with O_DIRECT."""
    answer = known(root.call("storage.direct", path))
    if not isinstance(answer, dict) or not isinstance(answer.get("direct"), bool):
        return Unknown(f"storage.direct {path}: no answer")
    if not answer["direct"] and answer.get("errno") not in ("EINVAL",):
        return Unknown(f"storage.direct {path}: {answer.get('errno')}")
    return bool(answer["direct"])
