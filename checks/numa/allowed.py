"""Which CPUs and NUMA nodes this process may use, and which cpuset says so."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from checks.base.cgroup_mounts import CGROUP_MOUNT, MEMBERSHIPS
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown
from checks.numa.nodes import parse_cpu_list, parse_node_list

STATUS = "/proc/self/status"
CPUSET = "/proc/self/cpuset"
MOUNTED = "/proc/mounts"
# The files of a cpuset: version 2, version 1, version 1 of before 3.17, and without a prefix.
_FILES = (
    ("cpuset.cpus.effective", "cpuset.mems.effective"),
    ("cpuset.effective_cpus", "cpuset.effective_mems"),
    ("cpuset.cpus", "cpuset.mems"),
    ("cpus", "mems"),
)
Parser = Callable[[str], tuple[int, ...]]
List = tuple[int, ...] | Unknown


class Allowed(NamedTuple):
    """cpus, mems: of this process; where nothing tells, those of its cpuset.

    cpuset_*: what the innermost cpuset that says so allows, and its folder, "" without one.
    """

    cpus: List
    mems: List
    cpuset_cpus: List
    cpuset_mems: List
    cpuset_source: str


def read_allowed(root: Root) -> Allowed:
    """Read which CPUs and nodes are allowed. Never raises; what a file did not say is Unknown."""
    status = root.text(STATUS)
    source, cpuset_cpus, cpuset_mems = _cpuset(root)
    cpus = _allowed(status, "Cpus_allowed_list", parse_cpu_list)
    mems = _allowed(status, "Mems_allowed_list", parse_node_list)
    if isinstance(root.mode(STATUS), Unknown) and source:
        cpus, mems = cpuset_cpus, cpuset_mems
    return Allowed(cpus, mems, cpuset_cpus, cpuset_mems, source)


def read_list(root: Root, name: str, parse: Parser) -> List:
    """Read a file's list, Unknown where it is none."""
    content = root.text(name)
    return content if isinstance(content, Unknown) else _parsed(content, name, parse)


def _parsed(content: str, name: str, parse: Parser) -> List:
    try:
        return parse(content)
    except ValueError as error:
        return Unknown(f"{name}: {error}")


@or_unknown
def _allowed(status: str | Unknown, key: str, parse: Parser) -> List:
    for line in known(status).splitlines():
        label, _, value = line.partition(":")
        if label == key:
            return _parsed(value, f"{STATUS} {key}", parse)
    return Unknown(f"{STATUS}: has no {key} line", absent=True)


def _cpuset(root: Root) -> tuple[str, List, List]:
    """Return the folder of the cpuset that says what is allowed, and its CPUs and nodes."""
    memberships = root.text(MEMBERSHIPS)
    for top, path in (*_usual(memberships), *_mounted(root)):
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue
        for depth in range(len(parts), -1, -1):
            folder = "/".join((top, *parts[:depth]))
            for cpus_file, mems_file in _FILES:
                cpus = read_list(root, f"{folder}/{cpus_file}", parse_cpu_list)
                if isinstance(cpus, Unknown) and cpus.absent:
                    continue
                return folder, cpus, read_list(root, f"{folder}/{mems_file}", parse_node_list)
    missing = Unknown("no cpuset of this process is mounted here", absent=True)
    missing = memberships if isinstance(memberships, Unknown) else missing
    return "", missing, missing


def _usual(memberships: str | Unknown) -> Iterator[tuple[str, str]]:
    """Yield where this process's cpuset is on most hosts, with its path there."""
    for line in () if isinstance(memberships, Unknown) else memberships.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            yield CGROUP_MOUNT, path
        elif "cpuset" in controllers.split(","):
            yield f"{CGROUP_MOUNT}/cpuset", path


def _mounted(root: Root) -> Iterator[tuple[str, str]]:
    """Yield the same wherever cpusets are mounted: cpuset(7), before and beside cgroups."""
    path, mounts = root.word(CPUSET), root.text(MOUNTED)
    if isinstance(path, Unknown) or isinstance(mounts, Unknown):
        return
    for fields in (line.split() for line in mounts.splitlines()):
        if len(fields) > 3 and (
            fields[2] in ("cpuset", "cgroup2")
            or (fields[2] == "cgroup" and "cpuset" in fields[3].split(","))
        ):
            yield fields[1], path
