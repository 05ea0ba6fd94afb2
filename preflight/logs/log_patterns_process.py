"""Known lines about how processes end, and about what they run in: containers, CUDA, libraries."""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage

_SIGBUS_CHECKS = ("shm.space", "hugetlb.node-shortage", "hugetlb.cgroup-limit")
_KILL_CHECKS = ("memory.cgroup", "memory.host", "hicache-size-per-rank")
_KILLS = ("kernel.oom-cgroup", "kernel.oom-host", "kernel.oom-policy", "kernel.oom-cpuset")
# "exit code: -7", "exit code 137", "exited with code 135", "Exit Code: 137", "exitCode=137".
_ENDED = (
    r"(?:exit code|exited with code|exited with status|exit status|Exit Code|exitCode\"?|ExitCode"
    r"\"?)[ :=()]{0,8}(?:%s)(?!\d)"
)
_ENDED_LITERALS = (
    "exit code",
    "exited with",
    "exit status",
    "Exit Code",
    "exitCode",
    "ExitCode",
)


def _read_sigbus(groups: Groups, seen: Seen) -> Reading:
    if "kernel.sigbus-poison" in seen:
        return Reading(decided="the kernel log names broken memory.", checks=("system.kernel-old",))
    if "runtime.shm" in seen:
        return Reading(decided="/dev/shm is named in this log.", checks=("shm.space",))
    if "mark.hugepage-size" in seen or "mark.hugepage-shm" in seen:
        return Reading(
            decided="huge pages were in use: a node or the cgroup was short of them when they were "
            "touched.",
            checks=("hugetlb.node-shortage", "hugetlb.cgroup-limit", "shm.space"),
        )
    return Reading(decided="nothing in this log says that huge pages were used: /dev/shm first.")


def _read_sigkill(groups: Groups, seen: Seen) -> Reading:
    if any(id_ in seen for id_ in (*_KILLS, "kernel.oom-victim", "runtime.oom-killed")):
        return Reading(
            decided="the kill for want of memory is in this log.", stage=Stage.CONSEQUENCE
        )
    return Reading(decided="no kernel line is in this log: dmesg -T | grep -i oom decides.")


def _read_signal(groups: Groups, seen: Seen) -> Reading:
    if "threads.refused" in seen or "kernel.pids" in seen:
        return Reading(
            decided="a thread was refused in this log, and a C++ program aborts at that.",
            checks=("limits.threads",),
            stage=Stage.CONSEQUENCE,
        )
    return Reading()


def _read_library(groups: Groups, seen: Seen) -> Reading:
    library = groups.get("name", "")
    if library.startswith("libcudart"):
        return Reading(
            decided=f"{library}: a Mooncake built for another CUDA than the image's.",
            remedy="install the flavour that fits: mooncake-transfer-engine for CUDA 12, "
            "mooncake-transfer-engine-cuda13 for CUDA 13",
        )
    if library.startswith("libcuda.so"):
        return Reading(
            decided=f"{library}: the driver's library is not in this container.",
            remedy="start the container with --gpus all and the NVIDIA container toolkit",
            checks=("software.library-missing", "gpu.driver"),
        )
    if library.startswith(("libmlx5", "libibverbs", "librdmacm")):
        return Reading(
            decided=f"{library}: Mooncake 0.3.12 and later need it even for TCP.",
            remedy="apt install ibverbs-providers libibverbs1 librdmacm1 in the image",
            checks=("software.library-missing", "rdma.provider-missing"),
        )
    return Reading()


ENDS = (
    Pattern(
        "process.sigbus",
        Layer.RUNTIME,
        Stage.SYMPTOM,
        (*_ENDED_LITERALS, "Bus error", "SIGBUS"),
        _ENDED % "-7|135" + r"|\bBus error\b|\bSIGBUS\b",
        _SIGBUS_CHECKS,
        "a process touched memory that could not be given (SIGBUS): /dev/shm is full, or a huge "
        "page is missing on the NUMA node or in the hugetlb cgroup, although the mapping succeeded",
        "docker --shm-size or --ipc=host; reserve huge pages on each node with a NIC in use; in "
        "Kubernetes ask for hugepages-2Mi",
        "df /dev/shm; nodeN/hugepages/../free_hugepages; hugetlb.2MB.max of the cgroup",
    )._replace(read=_read_sigbus),
    Pattern(
        "process.sigkill",
        Layer.RUNTIME,
        Stage.SYMPTOM,
        (*_ENDED_LITERALS, "Killed"),
        _ENDED % "-9|137" + r"|^(?:[^\n]{0,120}\s)?\d*\s*Killed(?:\s{2,}[^\n]{0,200})?$",
        _KILL_CHECKS,
        "a process was killed (SIGKILL), most often by the kernel for want of memory, at the "
        "container's limit or the host's",
        "lower --hicache-size (each rank takes it for itself), or raise the memory limit",
        "dmesg of that time; a kill by the orchestrator (liveness probe, eviction) leaves none",
    )._replace(read=_read_sigkill),
    Pattern(
        "process.signal",
        Layer.RUNTIME,
        Stage.SYMPTOM,
        (*_ENDED_LITERALS, "Segmentation fault"),
        _ENDED % "-11|139|-6|134" + r"|\bSegmentation fault\b",
        ("software.mooncake-duplicate", "software.library-missing"),
        "a process crashed (SIGSEGV or SIGABRT)",
        "see the last lines of that process; two Mooncakes or CUDAs in one image do this",
        "an F line of glog or 'Check failure stack trace' before it is Mooncake's own refusal",
    )._replace(read=_read_signal),
    Pattern(
        "process.ended",
        Layer.SGLANG,
        Stage.CONSEQUENCE,
        (
            "scheduler died during initialization",
            "Received sigquit from a child process",
            "crashed with exit code",
            "EngineDeadError",
            "Scheduler hit an exception",
            "Initialization failed. warmup error",
        ),
        r"scheduler died during initialization|Received sigquit|crashed with exit code|"
        r"EngineDeadError|Scheduler hit an exception|Initialization failed\. warmup error",
        (),
        "a process of the server ended, and the server with it",
        "see what was logged before it; nothing at all before an exit code of 1 is numactl, which "
        "was refused (numa.policy-refused)",
    ),
    Pattern(
        "runtime.oom-killed",
        Layer.RUNTIME,
        Stage.CAUSE,
        ("OOMKilled",),
        r"OOMKilled(?!\"?\s*:\s*false)",
        ("memory.cgroup", "hicache-size-per-rank"),
        "the container reached its memory limit",
        "raise resources.limits.memory or docker --memory, or lower --hicache-size; huge pages do "
        "not count to it",
        "docker's OOMKilled may be false when a child was killed: dmesg decides",
    ),
    Pattern(
        "runtime.shm",
        Layer.RUNTIME,
        Stage.CAUSE,
        ("/dev/shm", "shared memory (shm)"),
        r"Insufficient space in /dev/shm: (?P<have>\d+)/(?P<need>\d+) MiB|"
        r"(?:No space left on device|[Oo]ut of (?:shared )?memory|is too small|bus error)"
        r"[^\n]{0,120}(?:/dev/shm|\(shm\))|"
        r"/dev/shm[^\n]{0,80}No space left on device",
        ("shm.space",),
        "/dev/shm is too small for what the processes share; docker gives 64 MiB",
        "docker --shm-size=64g or --ipc=host; in Kubernetes an emptyDir of medium Memory",
        "Mooncake's own L2 pools are not in /dev/shm",
    ),
    Pattern(
        "runtime.rdma-device",
        Layer.RUNTIME,
        Stage.CAUSE,
        ("error gathering device information",),
        r"while adding custom device \\?\"(?P<name>[^\"\n]{1,80})\"",
        ("rdma.uverbs-permission", "rdma.no-device"),
        "the host has no {name}, which the container was to get",
        "load the NIC's modules (ib_uverbs) on the host before",
    ),
    Pattern(
        "runtime.gpu",
        Layer.RUNTIME,
        Stage.CAUSE,
        ("could not select device driver", "nvidia-container-cli:"),
        r"could not select device driver \"[^\"]{0,20}\" with capabilities: \[\[gpu\]\]|"
        r"nvidia-container-cli: (?P<error>[^\n]{1,120})",
        ("gpu.driver",),
        "the container got no GPU",
        "install the NVIDIA container toolkit and its driver on the host, restart the runtime",
    ),
    Pattern(
        "runtime.nofile",
        Layer.RUNTIME,
        Stage.CAUSE,
        ("Too many open files", "Fail to set RLIMIT_NOFILE"),
        r"Too many open files|Fail to set RLIMIT_NOFILE(?:: (?P<error>[^\n]{1,80}))?",
        ("limits.nofile",),
        "the limit of open files is too low for the sockets and queue pairs of a server",
        "docker --ulimit nofile=1048576, LimitNOFILE in the unit",
    ),
    Pattern(
        "runtime.proxy",
        Layer.RUNTIME,
        Stage.CAUSE,
        ("ProxyError", "Tunnel connection failed", "Proxy Authentication Required"),
        r"ProxyError|Tunnel connection failed: (?P<code>\d{3})|Proxy Authentication Required",
        ("proxy-in-the-way",),
        "a call inside the cluster went to an HTTP proxy",
        "name the hosts literally in no_proxy, or unset http_proxy and https_proxy",
    ),
)

LIBRARIES = (
    Pattern(
        "library.missing",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("cannot open shared object file",),
        r"(?P<name>[\w.+-]{1,80}\.so[\w.]{0,20}): cannot open shared object file",
        ("software.library-missing",),
        "{name} is not in the image, or not where the loader looks",
        "install the package that has it; ldconfig -p lists what the loader finds",
        "it is the image that lacks it, not Mooncake, whatever the caller makes of the error",
    )._replace(read=_read_library),
    Pattern(
        "library.symbol",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("undefined symbol", "' not found (required by"),
        r"undefined symbol: (?P<name>[\w@.]{1,120})|"
        r"version [`'](?P<version>[\w.]{1,40})' not found",
        ("software.library-missing", "software.mooncake-duplicate"),
        "a library is of another version than what was built against it",
        "install one flavour of Mooncake, for the CUDA and the C library of the image",
    ),
)

CUDA = (
    Pattern(
        "cuda.memory",
        Layer.CUDA,
        Stage.CAUSE,
        ("CUDA out of memory", "CUDA error: out of memory"),
        r"CUDA out of memory(?:\. Tried to allocate (?P<asked>[\d.]+ \w+)\. GPU (?P<name>\d+) "
        r"has a total capacity of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free)?|"
        r"CUDA error: out of memory",
        ("gpu.memory-busy",),
        "a GPU has no memory left: another process holds it, or --mem-fraction-static is too high",
        "end the process that nvidia-smi shows, or lower --mem-fraction-static",
        "nvidia-smi before the start: a GPU that is not empty is someone else's",
    ),
    Pattern(
        "sglang.gpu-memory",
        Layer.SGLANG,
        Stage.CAUSE,
        ("Please try to increase --mem-fraction-static", "The memory capacity is unbalanced"),
        r"Not enough memory\. Please try to increase --mem-fraction-static(?:[^\n]{0,40}="
        r"(?P<fraction>[\d.]+))?|memory capacity is unbalanced",
        ("gpu.memory-busy",),
        "the GPU's memory does not suffice for weights and KV: another process holds it, or the "
        "fraction is too low",
        "end the process that nvidia-smi shows, then raise --mem-fraction-static",
    ),
    Pattern(
        "cuda.driver",
        Layer.CUDA,
        Stage.CAUSE,
        (
            "no CUDA-capable device is detected",
            "Found no NVIDIA driver",
            "CUDA driver version is insufficient",
            "system not yet initialized",
            "No CUDA GPUs are available",
            "forward compatibility was attempted",
        ),
        r"no CUDA-capable device is detected|Found no NVIDIA driver|CUDA driver version is "
        r"insufficient|system not yet initialized|No CUDA GPUs are available|"
        r"forward compatibility was attempted",
        ("gpu.driver", "gpu.count"),
        "CUDA finds no usable GPU: no driver in the container, one too old for this image's CUDA, "
        "or (not yet initialized) no fabric manager",
        "start the container with --gpus all; upgrade the driver; start nvidia-fabricmanager",
        "nvidia-smi in the same container",
    ),
    Pattern(
        "cuda.ordinal",
        Layer.CUDA,
        Stage.CAUSE,
        ("invalid device ordinal",),
        r"invalid device ordinal",
        ("gpu.count",),
        "a rank asks for a GPU that is not there",
        "see --tp-size and CUDA_VISIBLE_DEVICES against the GPUs of the container",
    ),
    Pattern(
        "cuda.argument",
        Layer.CUDA,
        Stage.SYMPTOM,
        ("CUDA error: invalid argument", "CUDA error: OS call failed"),
        r"CUDA error: (?:invalid argument|OS call failed)",
        ("memory.host", "register-chunk-ignored", "pci.iommu"),
        "a CUDA call was refused; while HiCache starts, it is the pinning of a large host pool",
        "set SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB=8; upgrade torch (older ones cannot pin above "
        "4 GB)",
        "the traceback: pin_memory or cudaHostRegister is this, a kernel is not",
    ),
)

PATTERNS = (*ENDS, *LIBRARIES, *CUDA)
