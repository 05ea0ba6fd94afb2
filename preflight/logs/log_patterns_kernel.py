"""Known lines of the kernel log: the words that decide what an errno meant.

Wording: mlx5 (mlx5_core/cmd.c), erdma (erdma_verbs.c, erdma_cmdq.c), mm/oom_kill.c,
mm/hugetlb.c, mm/page_alloc.c, kernel/seccomp.c, NVIDIA's open kernel modules (os-mlock.c),
drivers/pci; Linux 5.15 to 6.12.
"""

from __future__ import annotations

from checks.base.units import KIB, format_bytes
from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage, number

# audit's arch and system call numbers; uapi/asm-generic/unistd.h, arch/x86/entry/syscalls.
_CALLS = {
    ("c000003e", "237"): "mbind",
    ("c000003e", "238"): "set_mempolicy",
    ("c000003e", "239"): "get_mempolicy",
    ("c000003e", "203"): "sched_setaffinity",
    ("c000003e", "425"): "io_uring_setup",
    ("c000003e", "279"): "move_pages",
    ("c00000b7", "235"): "mbind",
    ("c00000b7", "237"): "set_mempolicy",
    ("c00000b7", "236"): "get_mempolicy",
    ("c00000b7", "122"): "sched_setaffinity",
    ("c00000b7", "425"): "io_uring_setup",
    ("c00000b7", "239"): "move_pages",
}
_PAGE_BYTES = 4 * KIB


def _read_victim(groups: Groups, seen: Seen) -> Reading:
    sizes = [number(groups, name) for name in ("anon", "file", "shmem")]
    known = [size for size in sizes if size is not None]
    if not known:
        return Reading()
    return Reading(
        f"{groups.get('name', 'it')} held {format_bytes(sum(known) * KIB)} of memory, of which "
        f"{format_bytes((number(groups, 'shmem') or 0) * KIB)} shared."
    )


def _read_kill(groups: Groups, seen: Seen) -> Reading:
    hit = seen.get("kernel.oom-victim")
    return _read_victim(hit.first, seen) if hit else Reading()


def _read_erdma_size(groups: Groups, seen: Seen) -> Reading:
    size, most = number(groups, "size"), number(groups, "most")
    if size is None or most is None:
        return Reading()
    if size == 0:
        return Reading(
            "A region of 0 bytes was asked for: the limit is not what failed.",
            cause="a region of no bytes was registered, or a length was cut to 0",
            remedy="look for a size of 0 among the store's settings; upgrade Mooncake",
            checks=("launch.sizes", "rdma.region-too-large"),
        )
    return Reading(f"{format_bytes(size)} in one region, the device takes {format_bytes(most)}.")


def _read_seccomp(groups: Groups, seen: Seen) -> Reading:
    call = _CALLS.get((groups.get("arch", ""), groups.get("call", "")))
    if call is None:
        return Reading(decided="a system call that no part of a launch needs.", stage=Stage.WARNING)
    if call == "io_uring_setup":
        return Reading(
            decided="the call is io_uring_setup.",
            remedy="unset MOONCAKE_OFFLOAD_USE_URING, or allow io_uring in the seccomp profile",
            checks=("io-uring.unavailable",),
        )
    return Reading(decided=f"the call is {call}.")


def _read_pages(groups: Groups, seen: Seen) -> Reading:
    pages = number(groups, "pages")
    if pages is None or pages > 1 << 48:
        return Reading()
    return Reading(f"{pages} pages of 4 KiB are {format_bytes(pages * _PAGE_BYTES)} in one call.")


def _read_hugetlb(groups: Groups, seen: Seen) -> Reading:
    asked, got = number(groups, "asked"), number(groups, "got")
    if asked is None or got is None:
        return Reading()
    return Reading(f"{max(asked - got, 0)} of {asked} pages of {groups['page']} are missing.")


def _line(
    id_: str,
    literal: str,
    regex: str,
    checks: tuple[str, ...],
    cause: str,
    remedy: str,
    apart: str = "",
    stage: Stage = Stage.KERNEL,
) -> Pattern:
    return Pattern(id_, Layer.KERNEL, stage, (literal,), regex, checks, cause, remedy, apart)


_KILLS = ("kernel.oom-cgroup", "kernel.oom-host", "kernel.oom-policy", "kernel.oom-cpuset")
_SAME_TIME = "the time of the line has to be that of the failure: dmesg -T"

PATTERNS = (
    _line(
        "kernel.mlx5-no-resources",
        "status no resources(0xf)",
        r"mlx5_core (?P<name>[0-9a-f:.]{1,16}[0-9a-f])\b[^\n]{0,200}?"
        r"CREATE_MKEY\(0x200\)[^\n]{0,40} failed, "
        r"status no resources\(0xf\), syndrome \((?P<syndrome>0x[0-9a-f]+)\)",
        ("rdma.resources",),
        "the NIC {name} has no memory key left: regions of killed processes leak them",
        "end the processes that hold regions (`rdma resource show mr`), then reload mlx5_core or "
        "reboot; end servers by SIGTERM",
        _SAME_TIME,
    ),
    _line(
        "kernel.mlx5-limits",
        "status limits exceeded(0x8)",
        r"mlx5_core (?P<name>[0-9a-f:.]{1,16}[0-9a-f])\b[^\n]{0,200}?"
        r"CREATE_MKEY\(0x200\)[^\n]{0,40} failed, "
        r"status limits exceeded\(0x8\), syndrome \((?P<syndrome>0x[0-9a-f]+)\)",
        ("rdma.resources",),
        "the function {name} is at its own limit of memory keys",
        "register fewer and larger regions, or raise the limit in the firmware's configuration",
        _SAME_TIME,
    ),
    _line(
        "kernel.mlx5-command",
        "mlx5_cmd_out_err",
        r"mlx5_core (?P<name>[0-9a-f:.]{1,16}[0-9a-f])\b[^\n]{0,200}?"
        r"(?P<command>\b(?!CREATE_MKEY\b)[A-Z][A-Z0-9_]{3,40})\(0x"
        r"[0-9a-f]+\)[^\n]{0,40} failed, status (?P<status>[\w ]{1,40})\(0x[0-9a-f]+\)",
        ("rdma.resources", "rdma.port-down"),
        "the NIC {name} refused {command}: {status}",
        "see the vendor's list for the syndrome; restart the process, then the driver",
        _SAME_TIME,
        stage=Stage.SYMPTOM,
    ),
    _line(
        "kernel.erdma-size",
        "Out of mr size",
        r"(?:infiniband )?(?P<name>erdma\w{0,20})?[^\n]{0,40}Out of mr size: (?P<size>\d+), "
        r"max (?P<most>\d+)",
        ("rdma.region-too-large",),
        "one region is larger than the eRDMA device takes",
        "upgrade Mooncake, which splits regions, or keep segment and L2 pool of a process below it",
    )._replace(read=_read_erdma_size),
    _line(
        "kernel.erdma-command",
        "return with error",
        r"(?P<name>erdma\w{0,20})?[^\n]{0,40}CMD\(hdr (?:0x)?(?P<header>[0-9a-f]+)\) return with "
        r"error (?P<error>-?\d+)",
        ("rdma.table-capacity", "rdma.erdma-driver"),
        "the eRDMA device refused a command; while memory is registered, its page tables are full",
        "back the memory by huge pages, shrink it, or upgrade the eRDMA driver",
        _SAME_TIME,
    ),
    _line(
        "kernel.erdma-count",
        "Out of MRs",
        r"Out of MRs: (?P<count>\d+), max (?P<most>\d+)",
        ("rdma.resources",),
        "the device holds {count} regions of {most}",
        "register fewer and larger regions; end the processes that hold them",
    ),
    _line(
        "kernel.oom-cgroup",
        "oom-kill:constraint=CONSTRAINT_MEMCG",
        r"oom-kill:constraint=CONSTRAINT_MEMCG[^\n]{0,400}?(?:oom_memcg=(?P<cgroup>[^,\s]{1,200}))?"
        r"[^\n]{0,600}?task=(?P<name>[^,\s]{1,40}),pid=(?P<pid>\d+)",
        ("memory.cgroup",),
        "the container's memory limit was reached and {name} (pid {pid}) was killed",
        "raise the limit of the container or pod, or lower --hicache-size, which each rank takes "
        "for itself; huge pages do not count to it",
        "the host may have had memory to spare: /proc/meminfo shows the host's",
    )._replace(read=_read_kill),
    _line(
        "kernel.oom-policy",
        "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY",
        r"oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=(?P<nodes>[^,\s]{0,40})"
        r"[^\n]{0,800}?task=(?P<name>[^,\s]{1,40}),pid=(?P<pid>\d+)",
        ("numa.node-memory", "hugetlb.after-reboot"),
        "NUMA node {nodes}, to which {name} is bound, had no memory left while others may have had",
        "spread the ranks over the nodes, lower the pools of that node's ranks, or bind less hard",
    )._replace(read=_read_kill),
    _line(
        "kernel.oom-cpuset",
        "oom-kill:constraint=CONSTRAINT_CPUSET",
        r"oom-kill:constraint=CONSTRAINT_CPUSET[^\n]{0,100}?mems_allowed=(?P<nodes>[\d,-]{0,60})"
        r"[^\n]{0,800}?task=(?P<name>[^,\s]{1,40}),pid=(?P<pid>\d+)",
        ("numa.node-memory", "numa.cpuset-excludes"),
        "the NUMA nodes that the cpuset allows had no memory left",
        "give the cgroup more nodes in cpuset.mems, or lower the pools",
    )._replace(read=_read_kill),
    _line(
        "kernel.oom-host",
        "oom-kill:constraint=CONSTRAINT_NONE",
        r"oom-kill:constraint=CONSTRAINT_NONE[^\n]{0,900}?task=(?P<name>[^,\s]{1,40}),"
        r"pid=(?P<pid>\d+)",
        ("memory.host", "hicache-size-per-rank", "numa.node-memory"),
        "the host had no memory left and {name} (pid {pid}) was killed",
        "lower --hicache-size (each rank takes it for itself), the segment, or the huge pages "
        "reserved and not used",
        "the pools' pages are touched as they are used, so it comes minutes after a clean start",
    )._replace(read=_read_kill),
    _line(
        "kernel.oom-victim",
        "Killed process ",
        r"Killed process (?P<pid>\d+) \((?P<name>[^)\n]{1,40})\)[^\n]{0,40}total-vm:\d+kB, "
        r"anon-rss:(?P<anon>\d+)kB, file-rss:(?P<file>\d+)kB(?:, shmem-rss:(?P<shmem>\d+)kB)?",
        ("memory.host", "memory.cgroup"),
        "the kernel killed {name} (pid {pid}) for want of memory",
        "lower --hicache-size or the segment, or raise the container's memory limit",
        "'Memory cgroup out of memory' is the container's limit, 'Out of memory' the host's",
    )._replace(read=_read_victim, unless=_KILLS),
    _line(
        "kernel.nvidia-cannot-map",
        "Cannot map memory with base addr",
        r"Cannot map memory with base addr (?P<address>0x[0-9a-f]+) and size of "
        r"(?P<pages>0x[0-9a-f]+) pages",
        ("memory.host", "register-chunk-ignored"),
        "the NVIDIA driver could not lock pages that are to be pinned for a GPU",
        "free memory (drop caches), set SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB=8",
        "seen beside page allocation failures and OOM kills: memory is short or in pieces",
    )._replace(read=_read_pages),
    _line(
        "kernel.hugetlb-boot",
        "HugeTLB: allocating ",
        r"HugeTLB: allocating (?P<asked>\d+) of page size (?P<page>[\w. ]{1,20}?) failed"
        r"(?: node(?P<name>\d+))?\.  ?Only allocated (?P<got>\d+) hugepages",
        ("hugetlb.after-reboot", "hugetlb.reservation", "hugetlb.shortage"),
        "the kernel got fewer huge pages at its boot than its command line asks for",
        "ask for fewer, or for pages on the nodes that have the memory (hugepages=0:N,1:M)",
    )._replace(read=_read_hugetlb),
    _line(
        "kernel.seccomp",
        "type=1326",
        r"type=1326 [^\n]{0,200}?comm=\"?(?P<name>[^\"\s]{1,20})\"?[^\n]{0,200}? "
        r"arch=(?P<arch>[0-9a-f]+) syscall=(?P<call>\d+)",
        ("numa.policy-refused",),
        "a seccomp profile denied a system call of {name}",
        "docker --cap-add SYS_NICE, or --security-opt seccomp=unconfined to prove it",
    )._replace(read=_read_seccomp),
    _line(
        "kernel.page-allocation",
        "page allocation failure",
        r"(?P<name>[^\s:]{1,40}): page allocation failure: order:(?P<order>\d+)",
        ("memory.host", "numa.node-memory"),
        "the kernel found no free block of 2^{order} pages for {name}",
        "free memory, or compact it (vm.compact_memory); keep less reserved as huge pages",
        _SAME_TIME,
    ),
    _line(
        "kernel.xid",
        "NVRM: Xid",
        r"NVRM: Xid \((?P<name>PCI:[\w:.]{1,20})\): (?P<xid>\d+)",
        ("gpu.driver", "pci.link-degraded"),
        "the GPU {name} reported error Xid {xid}",
        "see NVIDIA's list of Xid errors; 79 is a GPU that fell off the bus, 31 a wrong address",
    ),
    _line(
        "kernel.iommu-fault",
        "fault",
        r"(?:DMAR: \[DMA (?:Write|Read)[^\n]{0,120}fault addr|AMD-Vi: Event logged \[IO_PAGE_FAULT|"
        r"arm-smmu[^\n]{0,60}(?:Unhandled context fault|event 0x10))",
        ("pci.iommu",),
        "the IOMMU stopped a device's access",
        "boot with iommu=pt, and upgrade the driver of the device that it names",
    ),
    _line(
        "kernel.pci-bandwidth",
        "available PCIe bandwidth, limited by",
        r"(?P<name>[0-9a-f]{4}:[0-9a-f:.]{7,10}): (?P<rate>[\d.]+ Gb/s) available PCIe bandwidth, "
        r"limited by (?P<link>[^\n]{1,60}?) at ",
        ("pci.link-degraded",),
        "the device {name} has {rate}: its link is {link}",
        "reseat the card, see the slot and the risers",
        stage=Stage.WARNING,
    ),
    _line(
        "kernel.link-down",
        "ink is down",
        r"(?:mlx5_core|erdma|ionic|bnxt_\w+)[^\n]{0,80}[Ll]ink is down|"
        r"mlx5_core[^\n]{0,80}Link down",
        ("rdma.port-down",),
        "a NIC lost its link",
        "see the cable, the module and the switch's port",
        _SAME_TIME,
    )._replace(literals=("ink is down", ": Link down")),
    _line(
        "kernel.cable",
        "Port module event",
        r"mlx5_core (?P<name>[0-9a-f:.]{1,16}[0-9a-f])\b[^\n]{0,200}?"
        r"Port module event[^\n]{0,40}?module \d+, Cable "
        r"(?P<event>unplugged|error[^\n]{0,60})",
        ("rdma.port-down",),
        "the cable of {name}: {event}",
        "see the cable and the module",
    ),
    _line(
        "kernel.sigbus-poison",
        "hardware memory corruption",
        r"Killing (?P<name>[^\s:]{1,40}):(?P<pid>\d+) due to hardware memory corruption",
        ("system.kernel-old",),
        "a page of memory is broken: {name} (pid {pid}) got SIGBUS for it",
        "replace the memory module that mcelog or EDAC names; take the page out of the pool",
        "the one SIGBUS that no reservation cures",
    ),
)
