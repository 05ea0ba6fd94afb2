"""Checks of the folders and files that a launch names."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import (
    Evidence,
    Fill,
    Finding,
    Kind,
    Setting,
    Status,
    command,
    skip,
    unknown,
)
from checks.base.needs import LaunchNeeds, Storage
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.run.facts import Facts
from checks.storage.facts import Folder

CHECKS = CheckSet()
_NO_OFFLOAD = "the launch offloads to no folder"


def _offloads(check: str, needs: LaunchNeeds | None) -> list[Storage] | Finding:
    if needs is None:
        return skip(check)
    found = [item for item in needs.storage if item.kind == "offload"]
    return found or skip(check, _NO_OFFLOAD)


_PATH = "storage.offload-path"


@CHECKS.declare(_PATH, "storage")
def offload_path(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each folder."""
    items = _offloads(_PATH, needs)
    if isinstance(items, Finding):
        yield items
        return
    for item in items:
        if isinstance(item.path, Unknown):
            yield unknown(_PATH, item.owner, item.path.reason)
        else:
            yield _folder(item, item.path, facts)


def _folder(item: Storage, path: str, facts: Facts) -> Finding:
    evidence = (Evidence(item.origin, path),)
    wrong = ""
    if not path.startswith("/"):
        wrong = "storage_filepath must be an absolute path"
    elif ".." in path.split("/"):
        wrong = "path traversal is not allowed"
    if wrong:
        return Finding(_PATH, Status.FAIL, path, "", "", "", f"Mooncake: {wrong}", evidence)
    found = facts.storage.folders.get(path, Unknown("not looked at"))
    make = (command("install", "-d", "-o", Fill.USER_ID, path, as_root=True),)
    if isinstance(found, Unknown):
        if not found.absent:
            return unknown(_PATH, path, found.reason)
        text = "the folder does not exist"
        return Finding(_PATH, Status.FAIL, path, "absent", "", "", text, evidence, "make it", make)
    return _usable(item, path, found, evidence)


def _usable(item: Storage, path: str, found: Folder, evidence: tuple[Evidence, ...]) -> Finding:
    where = path if not found.parent else f"{found.path}, the nearest that exists"
    seen = (*evidence, Evidence("lstat, access, statvfs", repr(found._asdict())))
    own = (command("chown", Fill.USER_ID, found.path, as_root=True),)
    problems: list[tuple[str, str, tuple[Setting, ...]]] = []
    if found.link and not found.parent:
        problems.append(("it is a symbolic link, which Mooncake refuses", "name its target", ()))
    if not found.folder:
        problems.append(("it is not a directory", "name a folder", ()))
    if found.read_only:
        problems.append(("its file system is mounted read-only", "mount it writable", ()))
    elif not found.writable:
        problems.append(("this user may not write there", "give it to the server's user", own))
    if found.direct is False:
        problems.append(
            (
                "its file system has no O_DIRECT, which io_uring offload needs",
                "use a local ext4 or xfs",
                (),
            )
        )
    if problems:
        text, advice, settings = problems[0]
        return Finding(_PATH, Status.FAIL, path, where, "", "", text, seen, advice, settings)
    if item.direct_io and isinstance(found.direct, Unknown):
        return unknown(_PATH, path, found.direct.reason, have=where)
    return Finding(_PATH, Status.PASS, path, where, "", "", "", seen)


_SPACE = "storage.offload-space"


@CHECKS.declare(_SPACE, "storage")
def offload_space(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each folder, with all its users."""
    items = _offloads(_SPACE, needs)
    if isinstance(items, Finding):
        yield items
        return
    for item in items:
        path = item.path
        if isinstance(path, Unknown):
            yield unknown(_SPACE, item.owner, path.reason)
            continue
        found = facts.storage.folders.get(path, Unknown("not looked at"))
        if isinstance(found, Unknown):
            yield unknown(_SPACE, path, found.reason, need=format_bytes(item.need_bytes))
        else:
            yield _space(item, path, found)


def _space(item: Storage, path: str, found: Folder) -> Finding:
    have, need = f"{format_bytes(found.available_bytes)} free", format_bytes(item.need_bytes)
    users = max(1, item.users)
    formula = f"{users} x {format_bytes(item.need_bytes // users)}"
    evidence = (Evidence(f"statvfs {found.path}", f"{found.available_bytes} bytes"),)
    if found.available_bytes >= item.need_bytes:
        return Finding(_SPACE, Status.PASS, path, have, need, formula, "", evidence)
    each = found.available_bytes * 9 // 10 // users
    variable = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"
    return Finding(
        _SPACE,
        Status.WARN,
        path,
        have,
        need,
        formula,
        "the disk is full before offload stops by itself",
        evidence,
        f"let each process write {format_bytes(each)} at most",
        (Setting(Kind.ENVIRONMENT, variable, str(each)),),
    )


_FILES = "storage.files"


@CHECKS.declare(_FILES, "storage")
def files(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each absolute path; a model's name on a hub is none."""
    if needs is None:
        yield skip(_FILES)
        return
    items = [item for item in needs.storage if item.kind != "offload"]
    looked = [i for i in items if isinstance(i.path, Unknown) or i.path.startswith("/")]
    if not looked:
        yield skip(_FILES, "the launch names no file of this host")
    for item in looked:
        if isinstance(item.path, Unknown):
            yield unknown(_FILES, f"{item.kind} of {item.owner}", item.path.reason)
            continue
        found = facts.storage.files.get(item.path, Unknown("not looked at"))
        evidence = (Evidence(item.origin, item.path),)
        if not isinstance(found, Unknown):
            yield Finding(_FILES, Status.PASS, item.path, "there", item.kind, evidence=evidence)
        elif found.absent:
            text = "it does not exist here; in a container it may"
            yield Finding(_FILES, Status.FAIL, item.path, "absent", item.kind, "", text, evidence)
        else:
            yield unknown(_FILES, item.path, found.reason)
