"""Checks of the folders and files that a launch names."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.finding import (
    Check,
    CheckSet,
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
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


@CHECKS.declare(
    Check(
        _PATH,
        "Can SSD offload use its folder?",
        Consequence.WILL_NOT_START,
        "Mooncake takes an absolute path of an existing folder that is no symbolic link, holds no "
        "'..', and is writable; anything else throws Invalid FileStorage configuration. SGLang "
        "0.5.21 and later make a folder for each rank below the one that is named. With io_uring "
        "the files are opened with O_DIRECT, which some file systems do not have.",
        (
            (Status.PASS, "the folder can be used"),
            (Status.FAIL, "Mooncake refuses it, or writing there fails"),
            (Status.UNKNOWN, "a variable stands in the path, or it cannot be looked at"),
            (Status.SKIP, "no launch was given, or it offloads to no folder"),
        ),
        "make the folder on a local SSD, owned by the server's user, and name it absolutely",
        "Mooncake file_storage.cpp (FileStorageConfig::ValidatePath)",
        ("storage",),
    )
)
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
    make = (Setting(Kind.COMMAND, f"sudo install -d -o $(id -u) {path}", ""),)
    if isinstance(found, Unknown):
        if not found.absent:
            return unknown(_PATH, path, found.reason)
        text = "the folder does not exist"
        return Finding(_PATH, Status.FAIL, path, "absent", "", "", text, evidence, "make it", make)
    return _usable(item, path, found, evidence)


def _usable(item: Storage, path: str, found: Folder, evidence: tuple[Evidence, ...]) -> Finding:
    where = path if not found.parent else f"{found.path}, the nearest that exists"
    seen = (*evidence, Evidence("lstat, access, statvfs", repr(found._asdict())))
    own = (Setting(Kind.COMMAND, f"sudo chown $(id -u) {found.path}", ""),)
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


@CHECKS.declare(
    Check(
        _SPACE,
        "Has the file system room for all that offload may write?",
        Consequence.DIES_LATER,
        "Each process fills its folder up to MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES, 2 TiB unless "
        "it is set, and knows nothing of the others on the same disk. Where the disk is smaller "
        "than the sum, it fills up: writes fail, and so does everything else on it.",
        (
            (Status.PASS, "the free space is as much as all processes may write"),
            (Status.WARN, "the disk fills up before the limits are reached"),
            (Status.UNKNOWN, "the folder cannot be looked at"),
            (Status.SKIP, "no launch was given, or it offloads to no folder"),
        ),
        "set MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES to a tenth less than the free space divided "
        "by the processes",
        "Mooncake storage_backend.h, file_storage.cpp",
        ("storage",),
    )
)
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


@CHECKS.declare(
    Check(
        _FILES,
        "Are the models and configuration files there that the launch names?",
        Consequence.WILL_NOT_START,
        "A model path that starts with / is a folder of this host (or of the container); where it "
        "holds no config.json the server ends at once. A configuration that cannot be read ends "
        "the store's setup.",
        (
            (Status.PASS, "it is there"),
            (Status.FAIL, "it does not exist here"),
            (Status.UNKNOWN, "a variable stands in the path, or it cannot be looked at"),
            (Status.SKIP, "no launch was given, or it names no file of this host"),
        ),
        "mount or copy it, or correct the path",
        "SGLang server_args.py; Mooncake mooncake_config.py",
        ("storage",),
    )
)
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
