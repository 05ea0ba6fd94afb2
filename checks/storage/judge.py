"""Checks of the folders and files that a launch names."""

from collections.abc import Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import (
    Evidence,
    Fill,
    Finding,
    Kind,
    Setting,
    Subject,
    UnjudgedError,
    command,
    passed,
    skip,
    unknown,
)
from checks.base.needs import LaunchNeeds, Storage
from checks.base.units import format_bytes, format_need
from checks.base.unknown import Unknown
from checks.storage.facts import Folder, StorageFacts

CHECKS = CheckSet()


def _offloads(needs: LaunchNeeds | None) -> list[Storage]:
    offloads = [item for item in the_launch(needs).storage if item.kind == "offload"]
    if not offloads:
        raise UnjudgedError(skip("the launch offloads to no folder"))
    return offloads


@CHECKS.check("storage.offload-path", _offloads)
def offload_path(items: list[Storage], storage: StorageFacts) -> Iterator[Finding]:
    """Judge whether Mooncake may use each offload folder."""
    for item in items:
        if isinstance(item.path, Unknown):
            yield unknown(Subject(item.owner, "process"), item.path)
        else:
            yield _folder(item, item.path, storage)


def _folder(item: Storage, path: str, storage: StorageFacts) -> Finding:
    """Judge one offload folder: its path, then type, permission, mount and O_DIRECT."""
    evidence = (Evidence(item.origin, path),)
    if not path.startswith("/"):
        text = "Mooncake: storage_filepath must be an absolute path"
        return passed(path, evidence=evidence).failed(text)
    if ".." in path.split("/"):
        return passed(path, evidence=evidence).failed("Mooncake: path traversal is not allowed")
    folder = storage.folders.get(path, Unknown("not looked at"))
    make = (command("install", "-d", "-o", Fill.USER_ID, path, as_root=True),)
    if isinstance(folder, Unknown):
        if not folder.absent:
            return unknown(path, folder)
        text = "the folder does not exist"
        return passed(path, "absent", evidence=evidence).failed(text, "make it", make)
    where = path if not folder.parent else f"{folder.path}, the nearest that exists"
    seen = (*evidence, Evidence("lstat, access, statvfs", repr(folder._asdict())))
    finding = passed(path, where, evidence=seen)
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
        return unknown(path, folder.direct, have=where)
    return finding


@CHECKS.check("storage.offload-space", _offloads)
def offload_space(items: list[Storage], storage: StorageFacts) -> Iterator[Finding]:
    """Judge whether each offload folder has room for all its users."""
    for item in items:
        path = item.path
        if isinstance(path, Unknown):
            yield unknown(Subject(item.owner, "process"), path)
            continue
        folder = storage.folders.get(path, Unknown("not looked at"))
        if isinstance(folder, Unknown):
            yield unknown(path, folder, need=format_bytes(item.need_bytes))
        else:
            yield _space(item, path, folder)


def _space(item: Storage, path: str, folder: Folder) -> Finding:
    """Hold the bytes that will be written against the free space."""
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


@CHECKS.check("storage.files", the_launch)
def files(needs: LaunchNeeds, storage: StorageFacts) -> Iterator[Finding]:
    """Judge whether each file of the launch exists; a model's name on a hub is no path."""
    items = [item for item in needs.storage if item.kind != "offload"]
    looked = [i for i in items if isinstance(i.path, Unknown) or i.path.startswith("/")]
    if not looked:
        yield skip("the launch names no file of this host")
    for item in looked:
        if isinstance(item.path, Unknown):
            yield unknown(f"{item.kind} of {item.owner}", item.path)
            continue
        is_file = storage.files.get(item.path, Unknown("not looked at"))
        evidence = (Evidence(item.origin, item.path),)
        if isinstance(is_file, Unknown) and not is_file.absent:
            yield unknown(item.path, is_file)
            continue
        there = passed(item.path, "there", item.kind, evidence=evidence)
        have, text = "nothing there", "it does not exist here; it may exist in the container"
        if is_file is False:
            have, text = "a folder", "it is opened as a file, and the error ends the process"
        advice = "mount or copy it, or correct the path"
        yield there if is_file is True else there._replace(have=have).failed(text, advice)
