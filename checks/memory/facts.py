"""The host's memory, what its cgroup leaves of it, and the limits on mapping it."""

from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown
from checks.memory.cgroup import MemoryHeadroom, memory_headroom
from checks.numa.meminfo import Meminfo, read_meminfo

SHM = "/dev/shm"
MAX_MAP_COUNT = "/proc/sys/vm/max_map_count"
OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
MOUNTS = "/proc/self/mountinfo"
READ_ONLY, NO_FILE_LEFT = "it is mounted read-only", "it holds as many files as it may"
SHM_REFUSALS = {"read_only": READ_ONLY, "full_of_files": NO_FILE_LEFT}
# Mount option of cgroup v2: huge pages count against memory.max too (since Linux 6.7).
HUGETLB_ACCOUNTING = "memory_hugetlb_accounting"


class MemoryFacts(NamedTuple):
    """Sizes in bytes.

    headroom: the tightest memory limit over the cgroup and its ancestors; None where none binds.
    killing_headroom: the same of the limits at which the kernel kills; memory.high is none.
    overcommit: 0 heuristic, 1 always, 2 never beyond CommitLimit. shm_*: /dev/shm as mounted here.
    shm_refuses: why no file can be made there, "" where nothing was seen that stands in the way.
    hugetlb_charged: huge pages count against the memory cgroup. sizes None: not a file system.
    """

    meminfo: Meminfo | Unknown
    headroom: MemoryHeadroom | Unknown | None
    overcommit: int | Unknown
    max_map_count: int | Unknown
    swappiness: int | Unknown
    shm_size_bytes: int | Unknown
    shm_available_bytes: int | Unknown
    hugetlb_charged: bool | Unknown
    killing_headroom: MemoryHeadroom | Unknown | None = None
    shm_refuses: str = ""

    def value(self, key: str) -> int | Unknown:
        """Return a row of /proc/meminfo in bytes."""
        return self.meminfo if isinstance(self.meminfo, Unknown) else self.meminfo.value(key)


def read_memory(root: Root, needs: LaunchNeeds | None) -> MemoryFacts:
    """Read the host's memory below ``root``."""
    size, available, refuses = _shm(root)
    return MemoryFacts(
        read_meminfo(root),
        memory_headroom(root),
        _overcommit(root),
        root.count(MAX_MAP_COUNT),
        root.count("/proc/sys/vm/swappiness"),
        size,
        available,
        _hugetlb_charged(root),
        memory_headroom(root, throttles=False),
        refuses,
    )


def _overcommit(root: Root) -> int | Unknown:
    policy = root.integer(OVERCOMMIT)
    if isinstance(policy, Unknown) or policy in (0, 1, 2):
        return policy
    return Unknown(f"{OVERCOMMIT}: no policy of the kernel: {policy}")


def _shm(root: Root) -> tuple[int | Unknown, int | Unknown, str]:
    answer = root.call("memory.space", SHM)
    if isinstance(answer, Unknown):
        return answer, answer, ""
    numbers = []
    for key in ("size_bytes", "available_bytes"):
        value = answer.get(key) if isinstance(answer, dict) else None
        numbers.append(
            value if isinstance(value, int) else Unknown(f"memory.space {SHM}: has no {key}")
        )
    told = answer if isinstance(answer, dict) else {}
    refuses = [why for key, why in SHM_REFUSALS.items() if told.get(key) is True]
    return numbers[0], numbers[1], "".join(refuses[:1])


@or_unknown
def _hugetlb_charged(root: Root) -> bool | Unknown:
    content = known(root.text(MOUNTS))
    lines = [line for line in content.splitlines() if " - cgroup2 " in line]
    return any(HUGETLB_ACCOUNTING in line.rpartition(" - ")[2] for line in lines)
