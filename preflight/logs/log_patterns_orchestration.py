"""Known lines of what starts the server: Kubernetes' events, container runtimes, shells, modprobe.

Wording: Kubernetes (pkg/kubelet/eviction/helpers.go, the scheduler's noderesources plugin), runc,
crun, bash, dash, procps and kmod; those of the shells, sysctl and modprobe were provoked.
"""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage

# setrlimit(2) numbers (uapi/asm-generic/resource.h): name, the flag of docker, the check.
_LIMITS = {
    "6": ("RLIMIT_NPROC", "--ulimit nproc", "limits.threads"),
    "7": ("RLIMIT_NOFILE", "--ulimit nofile", "limits.nofile"),
    "8": ("RLIMIT_MEMLOCK", "--ulimit memlock", "memlock.runtime-limit"),
}
_BY_NAME = {
    "RLIMIT_NPROC": "6",
    "RLIMIT_NOFILE": "7",
    "RLIMIT_MEMLOCK": "8",
    "max user processes": "6",
    "open files": "7",
    "max locked memory": "8",
}


def _read_limit(groups: Groups, seen: Seen) -> Reading:
    given = groups.get("name", "")
    known = _LIMITS.get(_BY_NAME.get(given, given))
    if known is None:
        return Reading()
    name, flag, check = known
    return Reading(decided=f"the limit is {name} ({flag}).", checks=(check,))


def _read_resource(groups: Groups, seen: Seen) -> Reading:
    resource = groups.get("name", "")
    if resource.startswith("hugepages"):
        return Reading(
            decided="huge pages: a node offers those that were reserved when its kubelet started.",
            remedy="reserve them at the node's boot or restart its kubelet afterwards, and see "
            "Allocatable of kubectl describe node",
            checks=("hugetlb.shortage", "hugetlb.reservation"),
        )
    if "rdma" in resource or "hca" in resource:
        return Reading(
            decided="RDMA devices: the device plugin of the node offers none.",
            checks=("rdma.no-device",),
        )
    if "gpu" in resource:
        return Reading(decided="GPUs: the node has not as many free.", checks=("gpu.count",))
    return Reading()


def _read_evicted(groups: Groups, seen: Seen) -> Reading:
    if groups.get("name") == "ephemeral-storage":
        return Reading(
            decided="the node's disk: SSD offload into the container's own folder counts to it.",
            remedy="offload to a volume of its own, and set "
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES",
            checks=("storage.offload-space", "offload-quota-unset"),
        )
    return Reading()


def _read_peermem(groups: Groups, seen: Seen) -> Reading:
    if "kernel.peermem-symbol" in seen:
        return Reading(decided="the kernel says that its RDMA modules do not offer the symbol.")
    return Reading()


def _line(
    id_: str,
    layer: Layer,
    literals: tuple[str, ...],
    regex: str,
    checks: tuple[str, ...],
    cause: str,
    remedy: str,
    apart: str = "",
) -> Pattern:
    return Pattern(id_, layer, Stage.CAUSE, literals, regex, checks, cause, remedy, apart)


PATTERNS = (
    _line(
        "runtime.evicted",
        Layer.RUNTIME,
        ("The node was low on resource: ", "The node had condition: [MemoryPressure"),
        r"The node was low on resource: (?P<name>memory|ephemeral-storage)|"
        r"The node had condition: \[(?P<name2>Memory)Pressure",
        ("memory.host", "memory.cgroup"),
        "Kubernetes ended the pod because the node was short of {name}",
        "lower --hicache-size or the segment; request as much memory as the limit; reserve fewer "
        "huge pages, which the node's memory does not show as used",
        "the kernel log has no kill then: the kubelet sends SIGTERM, later SIGKILL (137)",
    )._replace(read=_read_evicted),
    _line(
        "runtime.emptydir",
        Layer.RUNTIME,
        ("Usage of EmptyDir volume",),
        r"Usage of EmptyDir volume \"(?P<name>[^\"\n]{1,80})\" exceeds the limit "
        r"\"(?P<limit>[^\"\n]{1,20})\"",
        ("shm.space", "storage.offload-space"),
        "the volume {name} holds more than its sizeLimit of {limit}, so the pod was evicted",
        "raise sizeLimit; for /dev/shm see what the processes share",
    ),
    _line(
        "runtime.unschedulable",
        Layer.RUNTIME,
        ("nodes are available: ",),
        r"nodes are available: [^\n]{0,300}?\bInsufficient (?P<name>hugepages-\w{1,10}|memory|"
        r"[\w.-]{0,60}/?[\w-]{0,60}(?:rdma|hca|gpu)[\w-]{0,60}(?:/[\w-]{1,60})?)",
        ("memory.host",),
        "no node has as much of {name} left as the pod asks for",
        "see Allocatable and Allocated of kubectl describe node",
    )._replace(read=_read_resource),
    _line(
        "runtime.rlimit",
        Layer.RUNTIME,
        ("error setting rlimit type", "setrlimit `RLIMIT_"),
        r"error setting rlimit type (?P<name>\d{1,2}): operation not permitted|setrlimit `"
        r"(?P<name2>RLIMIT_\w{1,20})`: Operation not permitted",
        ("memlock.runtime-limit", "limits.nofile"),
        "the container runtime may not raise a limit that the container asks for: it runs rootless "
        "or in a container itself",
        "raise the limit of the runtime's own service or user (LimitMEMLOCK, limits.conf), then "
        "start it again; or run it as root",
    )._replace(read=_read_limit),
    _line(
        "runtime.ulimit",
        Layer.RUNTIME,
        (": cannot modify limit: ", "ulimit: error setting limit"),
        r"ulimit: (?P<name>[\w ]{1,40}): cannot modify limit|ulimit: error setting limit",
        ("memlock.limit", "limits.nofile", "limits.threads"),
        "the shell may not raise the limit above its own hard limit, and the server goes on with "
        "the old one",
        "raise it where the container or the session is started: docker --ulimit, LimitMEMLOCK of "
        "the service, limits.conf",
    )._replace(read=_read_limit, stage=Stage.WARNING),
    _line(
        "runtime.sysctl",
        Layer.RUNTIME,
        ("sysctl: permission denied on key", "sysctl: setting key", "/proc/sys/vm/"),
        r"sysctl: permission denied on key \"(?P<name>[\w.-]{1,80})\"|sysctl: setting key "
        r"\"(?P<name2>[\w.-]{1,80})\"[^\n]{0,40}: (?:Read-only|Permission|Operation)|"
        r"(?P<name3>/proc/sys/vm/\w{1,60}): (?:Read-only file system|Permission denied)",
        ("hugetlb.reservation", "memory.max-map-count"),
        "{name} cannot be set from here: the container has /proc/sys read-only, or the user is not "
        "root",
        "set it on the host, before the container starts",
    )._replace(stage=Stage.WARNING),
    _line(
        "kernel.peermem-symbol",
        Layer.KERNEL,
        ("symbol ib_register_peer_memory_client",),
        r"(?P<name>nvidia_peermem|nv_peer_mem): (?:Unknown symbol|disagrees about version of "
        r"symbol) ib_register_peer_memory_client",
        ("gpu.peer-memory",),
        "{name} was built for other RDMA modules than are loaded: it needs those of MLNX_OFED or "
        "DOCA, or a distribution's kernel with peer memory",
        "install the GPU driver again after the RDMA drivers, or use dma-buf: open driver and "
        "WITH_NVIDIA_PEERMEM=0",
    )._replace(stage=Stage.KERNEL),
    _line(
        "runtime.peermem",
        Layer.RUNTIME,
        ("could not insert 'nv", "Module nvidia_peermem not found", "Module nvidia-peermem not"),
        r"could not insert '(?P<name>nvidia[_-]peermem|nv_peer_mem)': (?P<error>[^\n]{1,80})|"
        r"Module (?P<name2>nvidia[_-]peermem) not found in directory",
        ("gpu.peer-memory",),
        "{name} cannot be loaded, so no NIC registers GPU memory by it",
        "install the GPU driver again after the RDMA drivers, on the host; or use dma-buf: open "
        "driver and WITH_NVIDIA_PEERMEM=0",
        "'Invalid argument' and 'Unknown symbol' are RDMA modules without peer memory, see dmesg; "
        "'not found' inside a container means nothing: load it on the host",
    )._replace(read=_read_peermem),
)
