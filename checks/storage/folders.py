"""The folders and files that a launch names: what this user finds, and whether it will do."""

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from checks.framework.finding import (
    Evidence,
    Fill,
    Finding,
    Kind,
    Setting,
    Subject,
    UnjudgedError,
    command,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.needs import LaunchNeeds, Storage
from checks.framework.patterns import answered, of
from checks.framework.problem import Problems, the_launch
from checks.framework.root import Root
from checks.framework.units import format_bytes, format_need
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require


def folder(path: str) -> dict[str, Any]:
    """Describe ``path`` as this user finds it: its type, whether it is writable, and the bytes of
    its file system.

    Raises OSError.
    """
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
    """Try to open a nameless file in the folder with O_DIRECT, which leaves nothing behind.

    Return ``direct``, with the error's name as ``errno`` if it is False.
    """
    import errno

    try:
        handle = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
    except OSError as error:
        return {"direct": False, "errno": errno.errorcode.get(error.errno or 0, "")}
    os.close(handle)
    return {"direct": True}


class Folder(NamedTuple):
    """What was seen of the folder of an SSD offload."""

    path: str  # the folder that was looked at
    parent: bool  # ``path`` is the nearest that exists above the launch's folder, not that folder
    link: bool
    folder: bool
    writable: bool
    read_only: bool
    size_bytes: int
    available_bytes: int
    direct: bool | Unknown  # files in it can be opened with O_DIRECT; Unknown if nobody asks for it
    full_of_files: bool = False  # its file system was seen to have no room for another file


class StorageFacts(NamedTuple):
    """What was seen of the launch's paths, by path as the launch writes it.

    Attributes:
        folders: Those of SSD offload.
        files: Whether a path is a file, False for a folder. A path that does not exist is Unknown
            with ``absent``.
    """

    folders: Mapping[str, Folder | Unknown]
    files: Mapping[str, bool | Unknown]


def read_storage(root: Root, needs: LaunchNeeds | None) -> StorageFacts:
    """Look at the absolute paths that the launch names (of a model or draft, at its config.json).

    Relative paths are left out. Paths of offload become ``folders``, other paths ``files``.
    """
    folders: dict[str, Folder | Unknown] = {}
    files: dict[str, bool | Unknown] = {}
    for item in needs.storage if needs else ():
        path = item.path
        if isinstance(path, Unknown) or not path.startswith("/"):
            continue
        if item.kind == "offload":
            folders[path] = _look_at_folder(root, path, item.direct_io, item.created)
        else:
            name = f"{path.rstrip('/')}/config.json" if item.kind in ("model", "draft") else path
            content = root.mode(name)
            is_file = isinstance(content, int) and not stat.S_ISDIR(content)
            files[path] = content if isinstance(content, Unknown) else is_file
    return StorageFacts(folders, files)


def _look_at_folder(root: Root, path: str, direct_io: bool, created: bool) -> Folder | Unknown:
    """Look at the folder ``path``.

    If it does not exist, and the process creates it (``created``), look at the nearest folder above
    that exists.

    Args:
        direct_io: Try O_DIRECT too.
    """
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
    """Tell whether files in a folder can be opened with O_DIRECT.

    Returns:
        False if the kernel answers EINVAL, Unknown if it answers another error.
    """
    answer, wrong = require(root.call("storage.direct", path)), f"storage.direct {path}: no answer"
    direct = require(answered(answer, lambda has: of(bool, has["direct"]), wrong))
    refused_else = not direct and answer.get("errno") != "EINVAL"
    return Unknown(f"storage.direct {path}: {answer.get('errno')}") if refused_else else direct


CHECKS = Problems()


def _offloads(needs: LaunchNeeds | None) -> list[Storage]:
    offloads = [item for item in the_launch(needs).storage if item.kind == "offload"]
    if not offloads:
        raise UnjudgedError(skip("the launch offloads to no folder"))
    return offloads


@CHECKS("storage.offload-path", items=_offloads)
def offload_path(items: list[Storage], storage: StorageFacts) -> Iterator[Finding]:
    """Judge whether Mooncake may use each offload folder."""
    yield from (_judge_folder(item, storage) for item in items)


@or_unjudged
def _judge_folder(item: Storage, storage: StorageFacts) -> Finding:
    """Judge whether Mooncake can use one offload folder.

    Only the first failure is reported, of path, existence, symbolic link, directory, read-only
    mount, write permission, O_DIRECT.
    """
    path = passed(Subject(item.owner, "process")).require(item.path)
    finding = passed(path, evidence=(Evidence(item.origin, path),))
    if not path.startswith("/"):
        return finding.failed("Mooncake: storage_filepath must be an absolute path")
    if ".." in path.split("/"):
        return finding.failed("Mooncake: path traversal is not allowed")
    folder = storage.folders.get(path, Unknown("not looked at"))
    if isinstance(folder, Unknown) and folder.absent:
        make = (command("install", "-d", "-o", Fill.USER_ID, path, as_root=True),)
        return finding.failed("the folder does not exist", "make it", make, have="absent")
    folder = passed(path).require(folder)
    where = path if not folder.parent else f"{folder.path}, the nearest that exists"
    seen = Evidence("lstat, access, statvfs", repr(folder._asdict()))
    finding = finding._replace(have=where, evidence=(*finding.evidence, seen))
    if folder.link and not folder.parent:
        return finding.failed("it is a symbolic link, which Mooncake refuses", "name its target")
    if not folder.folder:
        return finding.failed("it is not a directory", "name a folder")
    if folder.read_only:
        return finding.failed("its file system is mounted read-only", "mount it writable")
    if not folder.writable:
        chown = (command("chown", Fill.USER_ID, folder.path, as_root=True),)
        return finding.failed(
            "this user may not write there", "give it to the server's user", chown
        )
    if folder.direct is False:
        text = "its file system has no O_DIRECT, which io_uring offload needs"
        return finding.failed(text, "use a local ext4 or xfs")
    if item.direct_io and isinstance(folder.direct, Unknown):
        return unknown_finding(path, folder.direct, have=where)
    return finding


@CHECKS("storage.offload-space", items=_offloads)
def offload_space(items: list[Storage], storage: StorageFacts) -> Iterator[Finding]:
    """Judge whether each offload folder has room for all its users."""
    yield from (_judge_space(item, storage) for item in items)


@or_unjudged
def _judge_space(item: Storage, storage: StorageFacts) -> Finding:
    """Judge whether one offload folder has room for all that its users will write.

    Warn if the room is too small, or if its file system has no inode left.
    """
    path = passed(Subject(item.owner, "process")).require(item.path)
    finding = passed(path, need=format_bytes(item.need_bytes))
    folder = finding.require(storage.folders.get(path, Unknown("not looked at")))
    have = format_bytes(folder.available_bytes, "{} free")
    need = format_need(item.need_bytes, folder.available_bytes)
    users = max(1, item.users)
    formula = f"{users} x {format_bytes(item.need_bytes // users)}"
    evidence = (Evidence(f"statvfs {folder.path}", f"{folder.available_bytes} bytes"),)
    finding = passed(path, have, need, formula, evidence=evidence)
    if folder.full_of_files:
        text, advice = "every write fails: its file system has no inode left", "remove files there"
        return finding.warned(text, f"{advice} (df -i {folder.path})", have=f"{have}, no inode")
    if folder.available_bytes >= item.need_bytes:
        return finding
    each = folder.available_bytes * 9 // 10 // users
    return finding.warned(
        "the disk gets full before offload stops by itself",
        f"let each process write {format_bytes(each)} at most",
        (Setting(Kind.ENVIRONMENT, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(each)),),
    )


@CHECKS("storage.files")
def files(needs: LaunchNeeds, storage: StorageFacts) -> Iterator[Finding]:
    """Judge whether each file exists that the launch names by an absolute path."""
    items = [item for item in needs.storage if item.kind != "offload"]
    looked = [i for i in items if isinstance(i.path, Unknown) or i.path.startswith("/")]
    yield from (_judge_file(item, storage) for item in looked)
    if not looked:
        yield skip("the launch names no file of this host")


@or_unjudged
def _judge_file(item: Storage, storage: StorageFacts) -> Finding:
    """Judge whether one file of the launch exists, and is no folder."""
    path = passed(f"{item.kind} of {item.owner}").require(item.path)
    answer = storage.files.get(path, Unknown("not looked at"))
    is_file = passed(path).require(none_if_absent(answer, None))
    there = passed(path, "there", item.kind, evidence=(Evidence(item.origin, path),))
    have, text = "nothing there", "it does not exist here; it may exist in the container"
    if is_file is False:
        have, text = "a folder", "it is opened as a file, and the error ends the process"
    advice = "mount or copy it, or correct the path"
    return there if is_file else there.failed(text, advice, have=have)
