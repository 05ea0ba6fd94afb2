"""All about the HugeTLB pools of a host: pages, limits, fragmentation, and after a reboot."""

from collections.abc import Mapping
from operator import add
from typing import NamedTuple

from checks.framework.needs import LaunchNeeds
from checks.framework.patterns import matched
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.hugetlb.boot import (
    RUN,
    SYSCTL_FOLDERS,
    PoolWriter,
    SysctlFile,
    pages_after_boot,
    read_pool_writers,
    read_sysctl_files,
)
from checks.hugetlb.pools import HugeTlb, read_hugetlb
from checks.hugetlb.stock import HugeTlbLimit, hugetlb_limit
from checks.numa.nodes import Meminfo, read_meminfo, read_node_free

BUDDYINFO = "/proc/buddyinfo"
THP = "/sys/kernel/mm/transparent_hugepage"


class HugetlbFacts(NamedTuple):
    """All facts about the huge pages of a host.

    Attributes:
        limits: What the hugetlb cgroup leaves, by page size; None if nothing limits.
        free_blocks: By node, how many free blocks of each order (2^order base pages) the kernel
            holds, zones together.
        node_free_bytes: Free memory by node.
        writers: Who sets the pools at boot. thp_*: the setting in force, the word in brackets.
        sysctl_files: Those that are applied at boot, in their order.
        boot_unread: Why it is not known what sets the pools at boot; None if that was read.
        lasting: ``writers`` without the files of /run/sysctl.d; None if /run has no such file.
    """

    hugetlb: HugeTlb
    meminfo: Meminfo | Unknown
    limits: Mapping[int, HugeTlbLimit | Unknown | None]
    free_blocks: Mapping[int, tuple[int, ...]] | Unknown
    node_free_bytes: Mapping[int, int]
    writers: tuple[PoolWriter, ...]
    thp_enabled: str | Unknown
    thp_shmem: str | Unknown
    sysctl_files: tuple[SysctlFile, ...] = ()
    boot_unread: Unknown | None = None
    lasting: tuple[PoolWriter, ...] | None = None

    def boot_writers(self, page_bytes: int) -> tuple[PoolWriter, ...]:
        """Return who sets pools at boot: ``writers`` or ``lasting``, whichever leaves fewer pages.

        Args:
            page_bytes: The page size of the pool that is compared.
        """
        default = self.hugetlb.default_page_size_bytes
        lasting = self.writers if self.lasting is None else self.lasting
        return min(
            (self.writers, lasting),
            key=lambda writers: (pages_after_boot(writers, page_bytes, default) or (0, ""))[0],
        )

    @property
    @or_unknown
    def memory_available_bytes(self) -> int | Unknown:
        return require(self.meminfo).value("MemAvailable")


def read_hugetlb_facts(root: Root, needs: LaunchNeeds | None) -> HugetlbFacts:
    """Read pools, limits, free memory, and files that set pools at boot; ``needs`` is not used."""
    meminfo = read_meminfo(root)
    hugetlb = read_hugetlb(root, meminfo)
    sizes = () if isinstance(hugetlb.pools, Unknown) else tuple(hugetlb.pools)
    sysctl_files = read_sysctl_files(root)
    of_run = any(file.path.startswith(RUN) for file in sysctl_files)
    lasting = read_sysctl_files(root, lasting=True) if of_run else ()
    at_boot = root.names(SYSCTL_FOLDERS[0]), root.text("/proc/cmdline")
    return HugetlbFacts(
        hugetlb,
        meminfo,
        {size: hugetlb_limit(root, size) for size in sizes},
        _free_blocks(root),
        read_node_free(root),
        read_pool_writers(root, sysctl_files),
        _word_in_brackets(root, f"{THP}/enabled"),
        _word_in_brackets(root, f"{THP}/shmem_enabled"),
        sysctl_files,
        next((fact for fact in at_boot if isinstance(fact, Unknown) and not fact.absent), None),
        read_pool_writers(root, lasting) if of_run else None,
    )


@or_unknown
def _free_blocks(root: Root) -> Mapping[int, tuple[int, ...]] | Unknown:
    """Add up the free blocks of each node by order, over its zones, from /proc/buddyinfo."""
    by_node: dict[int, tuple[int, ...]] = {}
    for line in require(root.text(BUDDYINFO)).splitlines():
        # "Node 0, zone   Normal   4381  1093 ..."
        head, comma, rest = line.partition(",")
        fields, counts = head.split(), rest.split()[2:]
        if not comma or len(fields) != 2 or not fields[1].isdecimal() or not counts:
            continue
        if not all(count.isdecimal() for count in counts):
            return Unknown(f"{BUDDYINFO}: not a row of counts: {line.strip()[:40]!r}")
        row = [int(count) for count in counts]
        before = by_node.get(int(fields[1]), (0,) * len(row))
        by_node[int(fields[1])] = tuple(map(add, before, row))
    return by_node or Unknown(f"{BUDDYINFO}: no line reads as counts of free blocks")


def _word_in_brackets(root: Root, name: str) -> str | Unknown:
    return matched(root.text(name), r"\[([^]]*)\]", str, f"{name}: no choice in brackets")
