"""Where the cgroup of this process that holds a controller is mounted, in either version.

A process's path (/proc/self/cgroup) is the host's, or begins at the root of its cgroup namespace;
a mount shows a hierarchy from the top or from a lower folder (/proc/self/mountinfo).
Source: Linux cgroups(7), cgroup_namespaces(7).
"""

import re
from typing import NamedTuple

from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require

MEMBERSHIPS = "/proc/self/cgroup"
MOUNTS = "/proc/self/mountinfo"
CGROUP_MOUNT = "/sys/fs/cgroup"
# PROC_CGROUP_INIT_INO, include/linux/proc_ns.h: the namespace that the kernel starts with.
_FIRST_NAMESPACE = "cgroup:[4026531835]"

# cgroups(7): hierarchy, controllers, path.
_MEMBERSHIP = regex(r"[0-9]+:[^:]*:/.*")


class CgroupMount(NamedTuple):
    """Where a process's cgroup is mounted."""

    filesystem: str  # cgroup (version 1) or cgroup2
    point: str
    parts: tuple[str, ...]  # the process's folders below ``point``

    @property
    def folders(self) -> tuple[str, ...]:
        """The process's cgroup, then each ancestor that the mount shows."""
        parts = self.parts
        return tuple("/".join((self.point, *parts[:n])) for n in range(len(parts), -1, -1))


def own_mount(root: Root, controller: str) -> CgroupMount | Unknown | None:
    """Return where the cgroup is mounted that limits this process by ``controller`` ("memory",
    "pids").

    Returns:
        None if no cgroup does; Unknown if the files do not tell where.
    """
    memberships = _read_memberships(root)
    if isinstance(memberships, Unknown):
        return none_if_absent(memberships, None)
    paths = _paths_of(memberships, controller)
    if "cgroup" in paths:  # one version at a time has a controller
        paths.pop("cgroup2", None)
    if not paths:
        return None
    mounts = root.text(MOUNTS)
    if isinstance(mounts, Unknown):
        # Files that tell no mounts are read where most hosts have the hierarchy, if it is there.
        filesystem, path = next(iter(paths.items()))
        point = CGROUP_MOUNT if filesystem == "cgroup2" else f"{CGROUP_MOUNT}/{controller}"
        if not mounts.absent or isinstance(root.names(point), Unknown):
            return mounts
        return CgroupMount(filesystem, point, tuple(x for x in _parts(path) if x != ".."))
    doubt: Unknown | None = None
    for line in mounts.splitlines():
        mount = _mount_of(line, paths, controller)
        if mount is None:
            continue
        if isinstance(mount, Unknown):
            doubt = mount if doubt is None else doubt
            continue
        entries = root.names(mount.folders[0])
        if not isinstance(entries, Unknown):
            return mount
        if not entries.absent:
            return entries
    if doubt is not None:  # no other mount shows it
        return doubt
    # Version 2 is listed beside those of version 1 too, where a process that nobody moved is at
    # its top, which has no limits. Memory that version 1 does not hold is limited by version 2.
    beside = any(not line.startswith("0::") for line in memberships.splitlines())
    if beside and controller != "memory" and paths == {"cgroup2": "/"}:
        return None
    # Nor has the top of any hierarchy, if it is the kernel's own.
    at_the_top = set(paths.values()) == {"/"}
    if at_the_top and root.call("system.cgroup_namespace") == _FIRST_NAMESPACE:
        return None
    return Unknown(f"{MOUNTS}: shows no {controller} cgroup of this process")


@or_unknown
def _read_memberships(root: Root) -> str | Unknown:
    """Read /proc/self/cgroup, empty without hierarchies.

    Returns:
        Unknown if a line names no cgroup.
    """
    content = require(root.text(MEMBERSHIPS))
    lines = filter(str.strip, content.splitlines())
    if not all(_MEMBERSHIP.fullmatch(line) for line in lines):
        return Unknown(f"{MEMBERSHIPS}: not a list of cgroups: {content.strip()[:40]!r}")
    return content


def cgroup_limit(root: Root, name: str) -> int | Unknown | None:
    """Read the limit in a cgroup's file; None if the file says ``max`` or does not exist."""
    content = root.word(name)
    return None if content == "max" else none_if_absent(root.count(name), None)


def no_limit(name: str) -> str:
    """Return the text that removes a limit: version 1 answers ``max`` with EINVAL (seen)."""
    return "-1" if name.endswith("limit_in_bytes") else "max"


def _paths_of(memberships: str, controller: str) -> dict[str, str]:
    """Return the process's path in each hierarchy that can hold the controller, by file system
    (cgroup, cgroup2).

    Args:
        memberships: The text of /proc/self/cgroup.
    """
    paths = {}
    for line in memberships.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers and path:
            paths["cgroup2"] = path
        elif controller in controllers.split(","):
            paths["cgroup"] = path
    return paths


def _mount_of(line: str, paths: dict[str, str], controller: str) -> CgroupMount | Unknown | None:
    """Read a line of mountinfo; None if it mounts no hierarchy with the controller.

    Args:
        paths: As ``_paths_of`` returns them.

    Returns:
        Unknown if the process's cgroup lies outside of the mounted part.
    """
    before, dash, after = line.partition(" - ")
    fields, filesystem = before.split(), after.split()
    if not dash or len(fields) < 5 or len(filesystem) < 3 or filesystem[0] not in paths:
        return None
    if filesystem[0] == "cgroup" and controller not in filesystem[2].split(","):
        return None
    top, point = _parts(_unescape(fields[3])), _unescape(fields[4]).rstrip("/")
    membership = _parts(paths[filesystem[0]])
    # In a cgroup namespace the membership is relative to its root, while mountinfo may still name
    # the host's subtree.
    shown = membership[: len(top)] == top
    below = membership[len(top) :] if shown else membership
    if ".." in top and not shown:
        # Mounted from above the namespace, whose root has a name there that nothing here tells.
        return Unknown(f"{MOUNTS}: {point} begins above the cgroup namespace of this process")
    if ".." in below:
        return Unknown(f"{MEMBERSHIPS}: {paths[filesystem[0]]} is outside what is mounted here")
    return CgroupMount(filesystem[0], point, below)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part and part != ".")


def _unescape(path: str) -> str:
    """Return a mountinfo path with its blanks, which it writes as the octal escape 040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
