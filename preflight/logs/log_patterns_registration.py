"""Known lines about registering memory with a NIC: one message, and an errno that has to be read.

Wording: Mooncake 0.3.8 to 0.3.14 (rdma_context.cpp, rdma_transport.cpp, transfer_engine_impl.cpp,
efa_transport.cpp), libibverbs (init.c), SGLang 0.5.23. Which errno means what: the kernel's
drivers/infiniband/core/umem.c, the mlx5 and erdma drivers, kernel/cgroup/rdma.c.
"""

from __future__ import annotations

from checks.base.units import format_bytes
from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage, number

_LINE = r"Failed to register memory (?P<address>0x[0-9a-fA-F]{1,16}): [^\n\[]{0,80}\[%s\]"
_LITERALS = ("Failed to register memory 0x",)
_MEMLOCK_CHECKS = ("memlock.limit", "memlock.inert-capability", "memlock.user-namespace")
_UNLIMITED = (
    "give the process an unlimited memlock: docker --ulimit memlock=-1, LimitMEMLOCK=infinity in "
    "containerd's or the service's unit"
)


def _read_enomem(groups: Groups, seen: Seen) -> Reading:
    if "kernel.mlx5-limits" in seen:
        return Reading(
            decided="the kernel's mlx5 line in this log says limits exceeded (0x8): the NIC's own "
            "limit of memory keys, not memlock.",
            cause="the mlx5 function has no memory key left under its own limit",
            remedy="register fewer and larger regions; end the processes that hold regions; or "
            "raise the function's limit in the firmware's configuration",
            checks=("rdma.resources",),
        )
    if "kernel.page-allocation" in seen:
        return Reading(
            decided="the kernel could not allocate pages for the driver: look at memory first, "
            "then at memlock.",
            checks=("memory.host", *_MEMLOCK_CHECKS),
        )
    hit = seen.get("library.memlock")
    if hit:
        limit = hit.first.get("limit", "?")
        return Reading(decided=f"libibverbs says that RLIMIT_MEMLOCK is {limit} bytes: it is that.")
    return Reading()


def _read_eagain(groups: Groups, seen: Seen) -> Reading:
    if "kernel.mlx5-no-resources" in seen:
        return Reading(
            decided="the kernel's mlx5 line in this log says no resources (0xf): memory keys.",
            checks=("rdma.resources",),
        )
    return Reading()


def _read_efault(groups: Groups, seen: Seen) -> Reading:
    if "mark.hugepage-size" in seen and "mooncake.dmabuf-unsupported" not in seen:
        return Reading(
            decided="this process has huge pages too: an address that lies in its segment or L2 "
            "pool (see the sizes logged before) is a node short of them, not the GPU."
        )
    return Reading()


def _read_einval(groups: Groups, seen: Seen) -> Reading:
    if "kernel.erdma-size" in seen:
        return Reading(
            decided="the kernel's erdma line in this log names the size.",
            checks=("rdma.region-too-large",),
        )
    if "library.fork-safe" in seen or "mark.hugepage-size" in seen:
        return Reading(
            decided="huge pages are in use here: an end that is not on a huge page is likely.",
            checks=("rdma.fork-safe", "rdma.region-too-large"),
        )
    return Reading()


def _read_eio(groups: Groups, seen: Seen) -> Reading:
    if "kernel.erdma-command" in seen:
        return Reading(decided="the kernel's erdma line in this log confirms it.")
    return Reading()


def _read_chunk(groups: Groups, seen: Seen) -> Reading:
    length, limit = number(groups, "length"), number(groups, "limit")
    if length and limit:
        return Reading(f"{format_bytes(length)} against {format_bytes(limit)}.")
    return Reading(f"Regions were cut to {format_bytes(limit)}." if limit else "")


def _read_efa(groups: Groups, seen: Seen) -> Reading:
    says = groups.get("error", "")
    if "Cannot allocate memory" in says or "-12" in says:
        return Reading(decided="out of memory means the NIC's page table, seldom the host's RAM.")
    return Reading()


PATTERNS = (
    Pattern(
        "mooncake.register-enomem",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % "12",
        (*_MEMLOCK_CHECKS, "memlock.runtime-limit", "rdma.resources"),
        "the kernel lets the process pin no more memory: RLIMIT_MEMLOCK is reached, which counts "
        "every registration once for each NIC, huge pages too",
        f"{_UNLIMITED}; an added IPC_LOCK counts only for uid 0 outside a user namespace",
        "ENOMEM has three causes: memlock (VmPin in /proc/PID/status stands near 'Max locked "
        "memory' of /proc/PID/limits), the NIC's limit of keys (dmesg: CREATE_MKEY .. 0x8), and "
        "memory itself",
        _read_enomem,
    ),
    Pattern(
        "mooncake.register-eagain",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % "11",
        ("rdma.resources", "rdma.cgroup-limit"),
        "no memory key was to be had: the NIC's are used up, often by killed servers whose "
        "regions leaked, or the rdma cgroup's hca_object is reached",
        "restart the processes that hold regions, or reload mlx5_core; raise rdma.max where that "
        "is what binds",
        "EAGAIN has two causes: dmesg has CREATE_MKEY .. no resources(0xf) for the NIC; "
        "rdma.current at rdma.max below /sys/fs/cgroup for the cgroup; `rdma resource show` "
        "counts the regions",
        _read_eagain,
    ),
    Pattern(
        "mooncake.register-efault",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % "14",
        ("gpu.peer-memory", "hugetlb.node-shortage", "hugetlb.cgroup-limit"),
        "the address cannot be pinned: GPU memory without nvidia_peermem (or allocated with "
        "expandable_segments), or a huge page that its NUMA node or the cgroup does not have",
        "modprobe nvidia_peermem, or WITH_NVIDIA_PEERMEM=0 with the open driver and kernel 5.12; "
        "remove expandable_segments from PYTORCH_CUDA_ALLOC_CONF",
        "lsmod | grep nvidia_peermem; an address that SGLang registers for the GPU's KV is GPU "
        "memory, Mooncake's segment and the L2 pools are host memory",
        _read_efault,
    ),
    Pattern(
        "mooncake.register-eio",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % "5",
        ("rdma.table-capacity", "rdma.region-too-large"),
        "the device refused the registration; Alibaba's eRDMA answers every refused command so, "
        "most often because its page tables are full",
        "back the memory by huge pages (MC_STORE_USE_HUGEPAGE=1), or shrink segment and L2 pools",
        "dmesg may have CMD(hdr ..) return with error; `rdma link` or /sys/class/infiniband names "
        "the driver",
        _read_eio,
    ),
    Pattern(
        "mooncake.register-einval",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % "22",
        ("rdma.region-too-large", "rdma.fork-safe"),
        "the size or alignment is refused: a region above the device's max_mr_size, one of no "
        "bytes, or one that does not end on a huge page under libibverbs' fork support",
        "upgrade Mooncake (it splits regions from the releases of August 2026 on), keep sizes "
        "multiples of the page size, set RDMAV_HUGEPAGES_SAFE=1 with rdma-core before 51",
        "ibv_devinfo -v shows max_mr_size; on eRDMA dmesg names the size",
        _read_einval,
    ),
    Pattern(
        "mooncake.register-eperm",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % "1",
        _MEMLOCK_CHECKS,
        "RLIMIT_MEMLOCK is 0: the process may pin nothing at all",
        _UNLIMITED,
        "EPERM is the limit of 0; any larger one fails with ENOMEM",
    ),
    Pattern(
        "mooncake.register-eopnotsupp",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % "95",
        ("gpu.peer-memory", "system.kernel-old"),
        "the driver knows no registration of this kind: dma-buf on an old kernel or driver",
        "load nvidia_peermem and unset WITH_NVIDIA_PEERMEM=0",
    ),
    Pattern(
        "mooncake.register-other",
        Layer.MOONCAKE,
        Stage.CAUSE,
        _LITERALS,
        _LINE % r"(?P<errno>\d{1,4})",
        ("memlock.limit", "rdma.region-too-large", "gpu.peer-memory"),
        "the kernel or the NIC refused to register memory (errno {errno})",
        "see dmesg for the driver's reason",
    ),
    Pattern(
        "mooncake.region-truncated",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("shrink it to",),
        r"buffer length exceeds device max_mr_size, shrink it to (?P<limit>\d+)",
        ("rdma.region-too-large",),
        "this Mooncake registers only the first part of a region above max_mr_size and tells its "
        "peers of the whole: transfers beyond it fail, on some addresses only",
        "upgrade Mooncake, or keep each region below max_mr_size",
        "it is logged as a warning, with the errno of something else behind it",
        _read_chunk,
    ),
    Pattern(
        "mooncake.region-too-large",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("exceeds device max_mr_size ",),
        r"Buffer length (?P<length>\d+) exceeds device max_mr_size (?P<limit>\d+)",
        ("rdma.region-too-large", "region-size-hangs"),
        "a region was handed to the NIC that is larger than it takes, or than MC_MAX_MR_SIZE says",
        "unset MC_MAX_MR_SIZE, or upgrade Mooncake: this is to be split before",
        read=_read_chunk,
    ),
    Pattern(
        "mooncake.zero-length",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("does not support zero length memory region",),
        r"does not support zero length memory region",
        ("launch.sizes", "segment-nowhere"),
        "a region of no bytes was to be registered: a segment or buffer size came out as 0",
        "look for a size of 0 or one that is read as 0 among the store's settings",
    ),
    Pattern(
        "mooncake.overlap",
        Layer.MOONCAKE,
        Stage.WARNING,
        ("does not support overlapped memory region",),
        r"does not support overlapped memory region",
        ("l2-halves-overlap", "two-transfer-engines"),
        "memory that is registered already was to be registered again with one transfer engine: "
        "harmless for the same pool, the end where it is V of an L2 pool on huge pages",
        "where 'Failed to register buffer to Mooncake Store, error code: -600' follows, take "
        "Mooncake 0.3.13.post1 in place of 0.3.14; else see that each pool is registered once",
    ),
    Pattern(
        "mooncake.dmabuf-unsupported",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("DMA BUF supported required",),
        r"DMA BUF supported required for GPU RDMA without nvidia-peermem on GPU device "
        r"(?P<gpu>\S+)(?: mapped to RNIC (?P<name>[\w.-]+))?",
        ("gpu.peer-memory", "gpu-memory-by-dma-buf"),
        "WITH_NVIDIA_PEERMEM=0 asks for dma-buf, which GPU {gpu} does not offer with this driver: "
        "the NIC is left out",
        "modprobe nvidia_peermem and unset WITH_NVIDIA_PEERMEM, or install the open kernel modules",
        "grep Open /proc/driver/nvidia/version",
    ),
    Pattern(
        "mooncake.dmabuf-failed",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("Failed to retrieve dmabuf for",),
        r"Failed to retrieve dmabuf for (?P<address>\d+)[^\n]{0,80}? size=(?P<size>\d+)"
        r"(?:[^\n]{0,20} error=(?P<error>[^\n]{1,80}))?",
        ("gpu.peer-memory",),
        "the driver exports no dma-buf for this GPU memory",
        "modprobe nvidia_peermem and unset WITH_NVIDIA_PEERMEM; remove expandable_segments from "
        "PYTORCH_CUDA_ALLOC_CONF",
    ),
    Pattern(
        "mooncake.efa-register",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("fi_mr_reg failed for", "fi_mr_regattr failed for"),
        r"fi_mr_reg(?:attr)? failed for (?:GPU memory )?(?P<address>\S{1,24}?)"
        r"(?:: (?P<error>[^\n]{1,80})|$|\s)",
        ("rdma.table-capacity", "rdma.region-too-large"),
        "the EFA refuses the region: its page table (about 24 million entries a NIC) is full, near "
        "95 GB with 4 KiB pages",
        "back the memory by huge pages, or bound it with MC_EFA_MAX_PTE_ENTRIES",
        "memlock fails with the same errno: compare VmPin in /proc/PID/status with the limit",
        _read_efa,
    ),
    Pattern(
        "mooncake.ascend-register",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("Register mem ret: ",),
        r"Register mem ret: (?P<code>-?\d+), errmsg: ?(?P<error>[^\n]{0,160})",
        ("ascend-host-memory",),
        "an Ascend NPU did not register memory (code {code}); with an HDK before 25.5.0 it takes "
        "20 to 32 GB of host memory",
        "upgrade the HDK to 25.5.0, or lower the segment",
        "npu-smi info shows the HDK's version",
    ),
    Pattern(
        "mooncake.register-local",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        (
            "Failed to register memory region (chunk",
            "Failed to register local memory",
            "register_local_memory_failed",
            "Local memory registration failed",
            "Failed to register memory with transport",
            "RdmaTransport: Failed to register memory",
        ),
        r"Failed to register memory region \(chunk|register_local_memory_failed base=|"
        r"[Ll]ocal memory(?: registration failed)?: ?|Failed to register memory with transport|"
        r"Failed to register memory: addr (?P<name>\S{1,24})",
        ("memlock.limit", "rdma.region-too-large", "gpu.peer-memory"),
        "memory was not registered with the NIC; the server may go on as if it were",
        "see the line with the errno, 'Failed to register memory 0x..', and dmesg",
        unless=("mooncake.register-enomem", "mooncake.register-efault", "mooncake.register-eio"),
    ),
    Pattern(
        "sglang.register",
        Layer.SGLANG,
        Stage.CONSEQUENCE,
        (
            "Failed to register buffer to Mooncake Store",
            "Mooncake Store Register Buffer Error",
            "Mooncake memory registration failed",
            "Failed to register GPU KV buffer with Mooncake",
            "Failed to register buffer, error code",
        ),
        r"Failed to register (?:GPU KV )?buffer[^\n]{0,40}?,? error code: (?P<code>-?\d+)|"
        r"Register Buffer Error|Mooncake memory registration failed|Failed to register buffer",
        ("memlock.limit", "l2-halves-overlap", "standalone-breaks-mha", "rdma.fork-safe"),
        "SGLang passes on that Mooncake did not register its pool",
        "see Mooncake's own line with the errno before it",
    ),
    Pattern(
        "library.memlock",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("Warning: RLIMIT_MEMLOCK is",),
        r"libibverbs: Warning: RLIMIT_MEMLOCK is (?P<limit>\d+) bytes",
        _MEMLOCK_CHECKS,
        "the process may pin {limit} bytes: no pool can be registered",
        _UNLIMITED,
        "libibverbs says it only below 32 KiB and not to root; its silence proves nothing",
    ),
    Pattern(
        "library.fork-safe",
        Layer.LIBRARY,
        Stage.WARNING,
        ("fork()-safety requested but init failed",),
        r"libibverbs: Warning: fork\(\)-safety requested but init failed",
        ("rdma.fork-safe",),
        "RDMAV_FORK_SAFE or IBV_FORK_SAFE is set, and libibverbs cannot arrange it",
        "unset it on kernels from 5.12 on, or register nothing before it is set up",
    ),
    Pattern(
        "mooncake.fork-support",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("RDMA context setup failed: fork compatibility",),
        r"RDMA context setup failed: fork compatibility[^\n]{0,160}",
        ("rdma.fork-safe",),
        "Mooncake could not set up fork support of libibverbs, so it uses no NIC",
        "let Mooncake be set up before anything else in the process registers memory",
    ),
    Pattern(
        "library.provider",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("no userspace device-specific driver found", "Warning: couldn't load driver"),
        r"libibverbs: Warning: (?:no userspace device-specific driver found for|"
        r"couldn't load driver) '?(?P<name>[^\s':]{1,80})",
        ("rdma.provider-missing",),
        "the image lacks the user-space library of the NIC, so libibverbs sees no device",
        "install ibverbs-providers (or rdma-core of the NIC's vendor) in the image",
        "the kernel has the device (/sys/class/infiniband), the program does not",
    ),
)
