"""Known lines of Mooncake's store: room, settings in the environment, SSD offload.

Wording: Mooncake 0.3.8 to 0.3.14 (client_service.cpp, real_client.cpp, config.cpp,
file_storage.cpp, uring_file.cpp); most lines were provoked with the real library.
"""

from __future__ import annotations

from checks.base.units import GIB, format_bytes
from preflight.logs.log_pattern import Groups, Layer, Pattern, Printer, Reading, Seen, Stage, number

_line = Printer(Layer.MOONCAKE).line


def _read_uring_buffer(groups: Groups, seen: Seen) -> Reading:
    errno, size = groups.get("errno"), number(groups, "size")
    if errno == "14" and size and size > GIB:
        return Reading(
            f"{format_bytes(size)} are more than the 1 GiB that the kernel takes for one buffer.",
            "errno 14 with a buffer above 1 GiB is its size, whatever memlock is.",
            cause="io_uring takes no fixed buffer above 1 GiB, and the offload buffer is one",
            remedy="set MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES to 1 GiB at most, or leave it: "
            "reads work, a little slower",
            checks=("io-uring.unavailable",),
        )
    if errno == "12":
        text = f"{format_bytes(size)} a thread, of what RLIMIT_MEMLOCK leaves." if size else ""
        return Reading(text, "errno 12 is RLIMIT_MEMLOCK, which io_uring counts for each user.")
    return Reading()


def _read_uring(groups: Groups, seen: Seen) -> Reading:
    error = groups.get("error", "")
    if "not permitted" in error:
        return Reading(decided="EPERM: seccomp, or kernel.io_uring_disabled.")
    if "not implemented" in error:
        return Reading(decided="ENOSYS: a kernel without io_uring, or a sandbox such as gVisor.")
    if "allocate memory" in error:
        return Reading(
            decided="ENOMEM: RLIMIT_MEMLOCK (before kernel 5.12).",
            checks=("memlock.io-uring-buffers", "io-uring.unavailable"),
        )
    return Reading()


def _read_size(groups: Groups, seen: Seen) -> Reading:
    size = number(groups, "size")
    return Reading(f"{size} bytes are {format_bytes(size)}." if size and size > 0 else "")


STORE = (
    Pattern(
        "mooncake.no-space",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        ("due to insufficient space. Consider lowering", "NO_AVAILABLE_HANDLE"),
        r"due to insufficient space\. Consider|NO_AVAILABLE_HANDLE",
        ("segment-nowhere", "segment-size-plain", "launch.sizes"),
        "the store has no room for an object: the segments together are too small, all of it is "
        "under lease, or there are fewer segments than replicas",
        "raise the segments, lower eviction_high_watermark_ratio or the lease's time; "
        "replica_num must not exceed the number of segments",
        "'Mem Storage: a / b' in the master's log: b of 0 is no segment at all, a far below b is "
        "fragments or leases, a near b is a full store",
    ),
    Pattern(
        "mooncake.local-buffer",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        ("Failed to allocate buffer for put", "BUFFER_OVERFLOW"),
        r"Failed to allocate buffer for put[^\n]{0,300}?(?:value|total) size: (?P<size>\d+)|"
        r"BUFFER_OVERFLOW",
        ("local-buffer-ignored",),
        "an object does not fit into the client's local buffer",
        "raise the local buffer's size (SGLang's 16 MiB are fixed: it copies nothing through it)",
        read=_read_size,
    ),
    _line(
        "mooncake.lease",
        Stage.WARNING,
        "lease_expired_before_data_transfer_completed",
        r"lease_expired_before_data_transfer_completed",
        ("numa.gpu-nic-distance", "pci.link-degraded"),
        "a read took longer than the object's lease, so it counts as a miss",
        "see why transfers are slow (TCP instead of RDMA, a far NIC), or raise "
        "default_kv_lease_ttl of the master",
    ),
    _line(
        "mooncake.size-refused",
        Stage.CAUSE,
        ", must be 0 or ",
        r"Invalid (?P<name>\w{1,40}): (?P<size>-?\d+), must be 0 or (?P<rule>[^\n]{1,80})",
        ("segment-size-refused", "number-out-of-range"),
        "Mooncake takes no {name} of {size} bytes: it must be 0 or {rule}",
        "write a size within that, in bytes",
        "a huge number where a small one was meant is a negative one",
    )._replace(read=_read_size),
    _line(
        "mooncake.registration-limit",
        Stage.CAUSE,
        "Registration limit is smaller than segment",
        r"Registration limit is smaller than segment alignment",
        ("region-size-hangs",),
        "MC_MAX_MR_SIZE is smaller than the unit in which segments are cut",
        "unset MC_MAX_MR_SIZE",
    ),
    _line(
        "mooncake.nofile",
        Stage.WARNING,
        "Failed to set file descriptor limit",
        r"Failed to set file descriptor limit",
        ("limits.nofile",),
        "Mooncake may not raise its limit of open files",
        "docker --ulimit nofile=1048576, LimitNOFILE in the unit",
    ),
    _line(
        "mooncake.disk-descriptor",
        Stage.CAUSE,
        "Expected DiskDescriptor",
        r"Expected DiskDescriptor",
        ("offload-one-sided", "offload-without-switch"),
        "an object is on disk for one side and in memory for the other: offload is turned on in "
        "the master or the client alone",
        "give --enable_offload=true to the master and the switch to every client",
    ),
)

SETTINGS = (
    Pattern(
        "mooncake.environment",
        Layer.MOONCAKE,
        Stage.WARNING,
        (
            "gnore value from environment variable",
            "environment value: ",
            "[Mooncake] Warning: invalid value",
            "using default",
            "Error: sto",
        ),
        r"gnore value from environment variable (?P<name>MC_\w{1,60})|Invalid (?P<name2>M[CO]"
        r"[\w]{1,60})(?: environment)?(?: value)?[:=] ?'?(?P<value>[^\n]{0,40})|"
        r"invalid value '(?P<value2>[^'\n]{0,60})' for env (?P<name3>M[CO]\w{1,60})",
        ("number-defaulted", "number-out-of-range", "choice-unknown", "switch-misread"),
        "a variable of the environment is not what Mooncake takes; it goes on with its default",
        "mend or unset the variable",
        "a warning only: it explains a failure only where that setting decides",
    ),
    _line(
        "mooncake.port-range",
        Stage.WARNING,
        "Invalid port range",
        r"Invalid port range \[(?P<low>-?\d+), (?P<high>-?\d+)\]",
        ("port-range-reset", "network.port-range"),
        "Mooncake does not take the ports {low} to {high} and uses its own range",
        "write a range whose first port is not above its last, within 1024 to 65535",
    ),
    _line(
        "mooncake.affinity",
        Stage.WARNING,
        "cannot be enabled at",
        r"MC_ENABLE_HCA_PEER_AFFINITY and MC_ENABLE_DEST_DEVICE_AFFINITY cannot be enabled",
        ("peer-affinity-conflict",),
        "the two ways to choose a peer's NIC exclude each other: neither is used",
        "unset one of them",
    ),
    _line(
        "mooncake.filters",
        Stage.WARNING,
        "MC_MS_FILTERS is set but auto discovery is disabled",
        r"MC_MS_FILTERS is set but auto discovery is disabled",
        ("filters-ignored",),
        "MC_MS_FILTERS does nothing where devices are named",
        "unset it, or name no devices",
    ),
)

OFFLOAD = (
    _line(
        "mooncake.offload-path",
        Stage.CAUSE,
        "FileStorageConfig: ",
        r"FileStorageConfig: (?P<rule>[^:\n]{4,120})(?:: (?P<name>[^\n]{1,200}))?",
        ("storage.offload-path", "offload-path-refused", "offload-watermarks-refused"),
        "SSD offload is refused: {rule}",
        "give an absolute path of an existing folder, writable, with no symbolic link and no .. "
        "in it; a folder for each rank",
    ),
    Pattern(
        "mooncake.offload-refused",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        (
            "Invalid FileStorage configuration",
            "Failed to create storage backend",
            "Failed to init storage backend",
        ),
        r"Invalid FileStorage configuration|Failed to init storage backend|"
        r"Failed to create storage backend(?!: )",
        (
            "storage.offload-path",
            "offload-path-refused",
            "offload-watermarks-refused",
            "offload-buffer-misread",
        ),
        "the client ends because of its offload's settings, after all memory was taken",
        "see the line of FileStorageConfig before it; without one, the backend's own settings",
        unless=("mooncake.offload-path",),
    ),
    Pattern(
        "mooncake.offload-disk",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("insufficient disk space", "No space left on device", "Failed to evict file"),
        r"insufficient disk space|Failed to evict file|"
        r"^(?![^\n]{0,2000}(?:register memory|max_mr_size|/dev/shm|posix_fallocate))[^\n]{0,2000}"
        r"No space left on device",
        ("storage.offload-space", "offload-quota-unset", "shm.space"),
        "a file system is full: where no quota is set, every rank may take 90 % of the disk",
        "set MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES for each rank, or free space",
        "df of the offload folder and of /dev/shm tells which file system it is",
    ),
    Pattern(
        "mooncake.uring-buffer",
        Layer.MOONCAKE,
        Stage.WARNING,
        ("io_uring_register_buffers failed",),
        r"io_uring_register_buffers failed errno=(?P<errno>\d+) [^\n]{0,80}? size=(?P<size>\d+)",
        ("memlock.io-uring-buffers",),
        "the offload's buffer was not pinned for io_uring: reads take the slower way",
        "raise memlock (docker --ulimit memlock=-1), or lower "
        "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES",
        "errno 12 is memlock, errno 14 a buffer above 1 GiB",
        _read_uring_buffer,
    ),
    Pattern(
        "mooncake.uring-file",
        Layer.MOONCAKE,
        Stage.WARNING,
        ("Failed to register buffer with UringFile",),
        r"Failed to register buffer with UringFile",
        ("memlock.io-uring-buffers",),
        "the offload's buffer was not pinned for io_uring: reads take the slower way",
        "raise memlock, or lower MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES",
        unless=("mooncake.uring-buffer",),
    ),
    Pattern(
        "mooncake.uring",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("io_uring_queue_init failed",),
        r"io_uring_queue_init failed: (?P<error>[^\n]{1,80})",
        ("io-uring.unavailable",),
        "the kernel gives this process no io_uring ({error})",
        "unset MOONCAKE_OFFLOAD_USE_URING, or start the container with a seccomp profile that "
        "allows it and kernel.io_uring_disabled=0",
        "cat /proc/sys/kernel/io_uring_disabled: 0 leaves seccomp",
        _read_uring,
    ),
)

PATTERNS = (*STORE, *SETTINGS, *OFFLOAD)
