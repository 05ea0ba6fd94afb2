"""Known lines of a server that does not come up, of the libraries that it starts with.

Wording: PyTorch 2 (c10d socket.cpp and TCPStore, alloc_cpu.cpp, MapAllocator.cpp), NCCL
(misc/shmutils.cc), ZeroMQ, CPython, transformers and huggingface_hub, NVML; those of ZeroMQ,
CPython and transformers were provoked.
"""

from __future__ import annotations

from checks.base.units import format_bytes
from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage, number


def _read_bytes(groups: Groups, seen: Seen) -> Reading:
    size = number(groups, "size")
    return Reading(f"One allocation was of {format_bytes(size)}." if size else "")


def _read_nccl(groups: Groups, seen: Seen) -> Reading:
    if "runtime.shm" in seen or "start.nccl-shm" in seen:
        return Reading(
            decided="/dev/shm is named in this log: it is that.",
            checks=("shm.space",),
            stage=Stage.CONSEQUENCE,
        )
    return Reading()


def _read_waiting(groups: Groups, seen: Seen) -> Reading:
    joined, wanted = number(groups, "joined"), number(groups, "wanted")
    if joined is None or wanted is None or joined >= wanted:
        return Reading()
    return Reading(f"{joined} of {wanted} came: {wanted - joined} did not reach the rendezvous.")


PATTERNS = (
    Pattern(
        "start.port-taken",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("Address already in use", "name: EADDRINUSE"),
        r"failed to bind to (?P<name>[^\s]{1,80}) \(errno: 98 - Address already in use\)|"
        r"failed to listen on any local network address\. port: (?P<name2>\d{1,5}),[^\n]{0,80}"
        r"EADDRINUSE|ZMQError: Address already in use(?: \(addr='(?P<name3>[^'\n]{1,80})'\))?|"
        r"OSError: \[Errno 98\] Address already in use",
        ("network.port-taken", "network.port-range", "service-port-taken"),
        "a port of the server is taken: by one that runs still, or by an outgoing connection",
        "end the process that has it (ss -ltnp), or give another --port, --nccl-port or port in "
        "--dist-init-addr",
        "a server that was killed may have left children: pgrep -af sglang",
    ),
    Pattern(
        "start.address-foreign",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("assign requested address",),
        r"OSError: \[Errno 99\] Cannot assign|"
        r"ZMQError: Cannot assign requested address(?: \(addr='(?P<name>[^'\n]{1,80})'\))?|"
        r"error while attempting to bind on address \('(?P<name2>[^']{1,60})', \d+\): "
        r"[Cc]annot assign requested address|"
        r"failed to bind to (?P<name3>[^\s]{1,80}) \(errno: 99 ",
        ("network.advertised-address", "service.address"),
        "the server was to listen on an address that is none of this host",
        "write 0.0.0.0 or an address of this host in --host; --dist-init-addr is rank 0's host's",
        "ip -br addr in the same container lists what may be bound",
    ),
    Pattern(
        "start.rendezvous",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("waiting for clients",),
        r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/"
        r"(?P<wanted>\d+) clients joined",
        ("service.reachable", "network.advertised-address"),
        "not all nodes or ranks came to the rendezvous in time",
        "see that every node was started with the same --dist-init-addr, --nnodes and a --node-rank"
        " of its own, and reaches that port; GLOO_SOCKET_IFNAME picks the interface",
    )._replace(read=_read_waiting),
    Pattern(
        "start.nccl-shm",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("/dev/shm/nccl-", "NCCL WARN Call to posix_fallocate failed"),
        r"failed to extend /dev/shm/nccl-\S{1,40} to (?P<size>\d+) bytes|Error while creating "
        r"shared memory segment /dev/shm/nccl-\S{1,40} \(size (?P<size2>\d+)\)\s*$|"
        r"Call to posix_fallocate failed ?: No space",
        ("shm.space",),
        "/dev/shm is too small for what NCCL shares between the ranks; docker gives 64 MiB",
        "docker --shm-size=64g or --ipc=host; in Kubernetes an emptyDir of medium Memory",
    )._replace(read=_read_bytes, unless=("runtime.shm",)),
    Pattern(
        "start.nccl",
        Layer.LIBRARY,
        Stage.SYMPTOM,
        ("ncclSystemError", "NCCL error in: "),
        r"ncclSystemError: System call|NCCL error in: [^\n]{0,200}unhandled system error",
        ("shm.space", "memlock.limit", "rdma.gid"),
        "NCCL was refused something by the system and does not say what",
        "start with NCCL_DEBUG=WARN: the line 'NCCL WARN' before it names the call",
        "/dev/shm of 64 MiB, memlock and a GID of another namespace are the usual ones",
    )._replace(read=_read_nccl),
    Pattern(
        "start.cpu-memory",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("DefaultCPUAllocator: can't allocate memory", "ArrayMemoryError: Unable to allocate"),
        r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (?P<size>\d+) bytes|"
        r"ArrayMemoryError: Unable to allocate (?P<asked>[\d.]+ \w+)",
        ("memory.host", "memory.overcommit", "memory.cgroup", "sglang.admission-gate"),
        "the host gave a process no memory for one allocation: too little is free, or the kernel "
        "commits no more (vm.overcommit_memory=2)",
        "lower --hicache-size (each rank takes it for itself), or reserve fewer huge pages",
        "a limit of the cgroup kills instead; this is MemAvailable, overcommit or ulimit -v",
    )._replace(read=_read_bytes),
    Pattern(
        "start.no-memory",
        Layer.LIBRARY,
        Stage.SYMPTOM,
        (
            "OSError: [Errno 12] Cannot allocate memory",
            "bytes from file </torch",
            "MemoryError",
        ),
        r"^MemoryError\s*$|OSError: \[Errno 12\] Cannot allocate memory|"
        r"unable to mmap (?P<size>\d+) bytes from file </?torch[^\n]{0,120}Cannot allocate memory",
        ("memory.overcommit", "memory.host", "memory.max-map-count"),
        "the kernel refused memory: for a fork it has to be able to promise all of the process's "
        "again where vm.overcommit_memory is 2",
        "sysctl vm.overcommit_memory=0; see CommitLimit and Committed_AS in /proc/meminfo",
        "with huge pages asked for (SGLANG_HUGEPAGE_SIZE, MC_STORE_USE_HUGEPAGE) it is their pool",
    )._replace(read=_read_bytes),
    Pattern(
        "start.shared-file",
        Layer.LIBRARY,
        Stage.CAUSE,
        ("unable to write to file </torch",),
        r"unable to write to file </?torch\S{1,60}>",
        ("shm.space",),
        "/dev/shm is too small for a tensor that processes share; docker gives 64 MiB",
        "docker --shm-size=64g or --ipc=host; in Kubernetes an emptyDir of medium Memory",
    ),
    Pattern(
        "start.model-missing",
        Layer.LIBRARY,
        Stage.CAUSE,
        (
            "Repo id must be in the form",
            "Incorrect path_or_model_id",
            "Unrecognized model in ",
            "We couldn't connect to 'https://huggingface.co'",
            "does not appear to have a file named",
            "LocalEntryNotFoundError",
        ),
        r"Repo id must be in the form [^\n]{0,60}: '(?P<name>[^'\n]{1,200})'|Incorrect "
        r"path_or_model_id: '(?P<name2>[^'\n]{1,200})'|Unrecognized model in (?P<name3>[^\s]{1,200}"
        r"?)\. Should|We couldn't connect to 'https://huggingface\.co'|"
        r"(?P<name4>[^\s]{1,200}) does not appear to have a file named|LocalEntryNotFoundError",
        ("storage.files", "proxy-in-the-way"),
        "the model of --model-path is not in this container, and cannot be fetched",
        "mount its folder at that path (docker -v, a volume of the pod), or let the container "
        "reach the hub; HF_HUB_OFFLINE=1 takes what is cached alone",
        "a path that begins with / and is not there is taken for a name on the hub",
    ),
    Pattern(
        "start.nvml",
        Layer.CUDA,
        Stage.CAUSE,
        ("Failed to initialize NVML", "NVIDIA-SMI has failed", "NVRM: API mismatch"),
        r"Failed to initialize NVML: (?P<error>[^\n]{1,60})|NVIDIA-SMI has failed because|"
        r"NVRM: API mismatch",
        ("gpu.driver",),
        "the GPU driver's kernel module and its libraries do not fit, or the module is not loaded",
        "reboot the host after the driver's upgrade, or reload the modules; start the container "
        "again",
        "'Unknown Error' in a container that had GPUs is systemd's daemon-reload taking the "
        "devices away: start the container again, with cgroup driver cgroupfs or --device",
    ),
    Pattern(
        "start.cuda-busy",
        Layer.CUDA,
        Stage.CAUSE,
        ("busy or unavailable", "uncorrectable ECC error"),
        r"CUDA-capable device\(?s?\)? (?:is/)?are busy or unavailable|uncorrectable ECC error",
        ("gpu.memory-busy", "gpu.driver", "gpu.mig"),
        "a GPU cannot be used: another process has it for itself, or its memory is broken",
        "nvidia-smi -q -d COMPUTE,ECC: set the compute mode to Default; a GPU with uncorrectable "
        "errors has to be reset or replaced",
    ),
    Pattern(
        "start.transfer-threads",
        Layer.SGLANG,
        Stage.CAUSE,
        ("SGLANG_DISAGGREGATION_THREAD_POOL_SIZE=",),
        r"SGLANG_DISAGGREGATION_THREAD_POOL_SIZE=(?P<threads>\d+) must be greater than or equal to "
        r"SGLANG_DISAGGREGATION_QUEUE_SIZE=(?P<queues>\d+)",
        ("transfer-threads-too-few",),
        "the prefill server has {threads} threads for {queues} queues of transfers",
        "set SGLANG_DISAGGREGATION_THREAD_POOL_SIZE to {queues} at least, or unset both: without "
        "it there are 4 to 12, by the CPUs",
    ),
    Pattern(
        "start.name",
        Layer.SGLANG,
        Stage.CAUSE,
        ("Cannot resolve host ", "Can not get local ip", "Name or service not known"),
        r"Cannot resolve host '(?P<name>[^'\n]{1,120})'|Can not get local ip|"
        r"gaierror: \[Errno -\d\] [^\n]{1,60}",
        ("service.address", "network.advertised-address"),
        "a name of the launch does not resolve here, or this host's own address cannot be told",
        "write an address, or mend DNS or /etc/hosts; SGLANG_LOCAL_IP_NIC picks the interface",
    ),
    Pattern(
        "start.watchdog",
        Layer.SGLANG,
        Stage.SYMPTOM,
        ("atchdog timeout",),
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<seconds>[\d.]+)",
        ("populate-takes-long", "rdma.subnets", "numa.gpu-nic-distance"),
        "a forward pass did not end in {seconds} s, and the server ended itself",
        "see what the ranks did last: py-spy dump of each; raise --watchdog-timeout for a slow "
        "first pass",
    ),
)
