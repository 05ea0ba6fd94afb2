"""Known lines of a Mooncake client that does not come up: its settings, its build, its peers.

Wording: Mooncake 0.3.13.post1 (real_client.cpp, client_service.cpp, file_storage.cpp,
aligned_client_buffer.cpp, transfer_engine_impl.cpp, tcp_transport_session_impl.h); settings, the
offload's refusals, the socket and the dead etcd were provoked with the real library.
"""

from __future__ import annotations

from checks.base.units import format_bytes
from preflight.logs.log_pattern import Groups, Layer, Printer, Reading, Seen, Stage, number

_line = Printer(Layer.MOONCAKE).line


def _read_size(groups: Groups, seen: Seen) -> Reading:
    size = number(groups, "size")
    return Reading(f"{size} bytes are {format_bytes(size)}." if size else "")


def _read_slabs(groups: Groups, seen: Seen) -> Reading:
    size, address, slab = (number(groups, name) for name in ("size", "address", "slab"))
    if not slab or size is None or address is None:
        return Reading()
    over = [f"its size ({format_bytes(size)})"] * bool(size % slab)
    over += [f"its address ({address:#x})"] * bool(address % slab)
    return Reading(f"What is no multiple is {' and '.join(over)}." if over else "")


def _read_offload(groups: Groups, seen: Seen) -> Reading:
    if groups.get("error") == "UNABLE_OFFLOAD":
        return Reading(
            decided="UNABLE_OFFLOAD: the master runs without --enable_offload=true.",
            checks=("offload-one-sided", "offload-without-switch"),
        )
    return Reading(decided="it is no refusal of the master's switch: see its own log.")


PATTERNS = (
    _line(
        "mooncake.offload-mount",
        Stage.CAUSE,
        ("MountLocalDiskSegment failed, error code is", "Failed to mount file storage: "),
        r"(?:MountLocalDiskSegment failed, error code is|Failed to mount file storage:) "
        r"(?P<error>\w{1,60})",
        ("offload-one-sided", "service.reachable"),
        "the master does not take this client's SSD, and the client's setup ends for it ({error}, "
        "rc -1300)",
        "start mooncake_master with --enable_offload=true, or turn the client's offload off",
    )._replace(read=_read_offload),
    _line(
        "mooncake.offload-init",
        Stage.CONSEQUENCE,
        ("file storage init failed with error",),
        r"file storage init failed with error: (?P<error>\w{1,60})",
        ("offload-one-sided", "storage.offload-path"),
        "the SSD offload did not come up ({error}), so the setup ends",
        "see the lines before it",
    ),
    _line(
        "mooncake.offload-buffer",
        Stage.CAUSE,
        ("AlignedClientBufferAllocator: ",),
        r"AlignedClientBufferAllocator: (?:failed to allocate (?P<what>[\w -]{1,40}?) memory of "
        r"size (?P<size>\d+)|posix_memalign failed with error (?P<errno>\d+))",
        ("memory.host", "memory.cgroup", "hugetlb.shortage"),
        "the offload's buffer (MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES, 1.25 GiB a client where "
        "it is not set) could not be had",
        "lower MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES; with huge pages reserve the pages",
    )._replace(read=_read_size),
    _line(
        "mooncake.offload-preallocate",
        Stage.CAUSE,
        ("Failed to preallocate file: ", "Failed to create storage directory: "),
        r"Failed to preallocate file: (?P<name>[^\n,]{1,200}), capacity: (?P<size>\d+), error: "
        r"(?P<error>[^\n]{1,60})|Failed to create storage directory: (?P<name2>[^\n]{1,200})",
        ("storage.offload-space", "storage.offload-path"),
        "the SSD offload cannot make its file or folder {name}",
        "free the space there, lower MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES, or see who owns it",
    )._replace(read=_read_size),
    _line(
        "mooncake.config-key",
        Stage.CAUSE,
        ("Missing required config: ", "value for config key '", "local_hostname is empty"),
        r"Missing required config: (?P<name>\w{1,60})|Invalid (?:size|integer) value for config key"
        r" '(?P<name2>\w{1,60})': (?P<value>[^\n]{0,80})|(?P<name3>local_hostname) is empty",
        ("store-config-refused", "segment-size-refused", "store-service-refused"),
        "the store's setting {name} is missing, empty or not of its kind (rc -600)",
        "set {name}: a size is a number of bytes, or a number with KB, MB, GB or TB",
    ),
    _line(
        "mooncake.slabs",
        Stage.CAUSE,
        ("as required by Cachelib",),
        r"buffer=(?P<address>\d+) or size=(?P<size>\d+) is not aligned to (?P<slab>\d+) as "
        r"required",
        ("segment-not-slabs", "segment-base-unaligned"),
        "the master runs with --memory_allocator=cachelib, and a client's segment is no multiple "
        "of {slab} bytes in size or address",
        "leave --memory_allocator=offset, or give each client a multiple of 16 MiB, on regular "
        "pages or those of 1 GiB",
    )._replace(read=_read_slabs),
    _line(
        "mooncake.client-socket",
        Stage.CAUSE,
        ("Failed to bind UDS socket '",),
        r"Failed to bind UDS socket '(?P<name>[^'\n]{1,120})': (?P<error>[^\n]{1,60})",
        ("network.port-taken", "service-port-taken"),
        "another mooncake_client of this host's network has the same --port: its socket is {name}",
        "give each mooncake_client of the host a --port of its own, or end the one that runs",
        "a container with the host's network shares these sockets, whatever its file system",
    ),
    _line(
        "mooncake.client-ended",
        Stage.CONSEQUENCE,
        ("Failed to setup client: ", "Failed to start IPC server at "),
        r"Failed to setup client: (?P<error>\w{1,60})|Failed to start IPC server at",
        ("service.reachable",),
        "mooncake_client ended, because its setup failed",
        "see the lines before it",
    ),
    _line(
        "mooncake.client-restarted",
        Stage.SYMPTOM,
        ("error=shm_not_mapped",),
        r"client_id=(?P<name>[\w-]{1,60}), error=shm_not_mapped",
        ("service.reachable", "standalone-without-switch"),
        "mooncake_client does not know the memory of a server that uses it: it was restarted after "
        "that server had registered",
        "restart the server; start mooncake_client before it",
    ),
    _line(
        "mooncake.shared-memory",
        Stage.CAUSE,
        ("Failed to map shared memory from fd: ",),
        r"Failed to map shared memory from fd: -?\d+, name: [^\n,]{0,200}, error: "
        r"(?P<error>[^\n]{1,60})",
        ("hugetlb.cgroup-limit", "memory.cgroup", "memory.max-map-count"),
        "mooncake_client cannot map the pool that a server shares with it ({error})",
        "give the container of mooncake_client the same limits of memory and huge pages",
    ),
    _line(
        "mooncake.etcd-master",
        Stage.CAUSE,
        (
            "Failed to read current master view: ",
            "Failed to get new master view: ",
            "Failed to create HA backend coordinator: ",
            "No master is available in HA backend",
            "retrying of unary invoker failed",
        ),
        r"Failed to (?:read current|get new) master view: (?P<error>\w{1,60})|Failed to create HA "
        r"backend coordinator|No master is available in HA backend|retrying of unary invoker failed"
        r"\",\"target\":\"[^\"\n]{0,80}/(?P<name>[\w.:-]{1,80})\"",
        ("service.reachable", "service.address", "proxy-in-the-way"),
        "which master leads is asked of etcd, which does not answer or names none",
        "see the address behind etcd://, that no proxy stands between, and that a master runs with "
        "--enable_ha",
        "etcdctl endpoint health from the same container",
    ),
    _line(
        "mooncake.redis-refused",
        Stage.CAUSE,
        ("RedisStoragePlugin: authentication failed", "RedisStoragePlugin: failed to select"),
        r"RedisStoragePlugin: (?:authentication failed for|failed to select database \d+ for) "
        r"(?P<name>[^\s]{1,120})",
        ("service.reachable",),
        "Redis at {name} answers and refuses the password or the database",
        "see MC_REDIS_PASSWORD and MC_REDIS_DB_INDEX",
    ),
    _line(
        "mooncake.transport-build",
        Stage.CAUSE,
        (
            "please rebuild Mooncake",
            "please rebuild mooncake",
            "TCP transport is compiled in",
            "Protocol '",
            "is not compiled in",
        ),
        r"Unsupported transport (?P<name>[\w-]{1,40}), please rebuild|--protocol="
        r"(?P<name2>\w{1,40}) requires [^\n]{1,60}rebuild|No HCA detected and neither|"
        r"Protocol '(?P<name3>\w{1,40})' requires -D\w+|"
        r"MC_FORCE_TCP is set but USE_TCP is not compiled in",
        ("rdma.no-device", "choice-unknown"),
        "this build of Mooncake does not have the transport that is asked for or left over",
        "write rdma or tcp in MOONCAKE_PROTOCOL, or install the build that has the other",
    ),
    _line(
        "mooncake.frame",
        Stage.CAUSE,
        ("ClientSession: malformed ", "SocketHandShakePlugin: unexpected handshake message type"),
        r"ClientSession: malformed (?:READ status|WRITE ack) frame|unexpected handshake message "
        r"type",
        ("software.version-skew",),
        "a peer speaks another release's language over TCP",
        "install one version of Mooncake on all peers",
    ),
    _line(
        "mooncake.remote-address",
        Stage.CAUSE,
        ("is not within any registered buffer", " rkey not found for "),
        r"remote-supplied address (?P<address>\S{1,24}) with size \d+ is not within any registered "
        r"buffer|Address (?P<address2>\S{1,24}) rkey not found for",
        ("software.version-skew", "rdma.region-too-large"),
        "a peer asks for an address that is not registered here: it remembers a process that was "
        "restarted since, or the registration failed",
        "restart the peer; see whether a registration failed at this process's start",
    ),
    _line(
        "mooncake.nvlink",
        Stage.CAUSE,
        ("NvlinkTransport: ",),
        r"(?:Intran|IntraN|N)(?:odeN)?vlinkTransport: (?P<call>cuMem\w{1,40}|cudaIpc\w{1,30}) "
        r"failed(?:: (?P<error>[^\n]{1,100}))?|vlinkTransport: device (?P<name>\d+) cannot p2p "
        r"access device \d+",
        ("gpu.imex", "gpu.count"),
        "memory was to be shared between GPUs over NVLink, which is refused",
        "give the container /dev/nvidia-caps-imex-channels and all GPUs that share; see nvidia-smi "
        "topo -m for which GPUs reach each other",
    ),
    _line(
        "mooncake.publish",
        Stage.CONSEQUENCE,
        ("cannot publish segments", "Failed to set location of "),
        r"Transport: cannot publish segments|Failed to set location of (?P<name>[^\s]{1,80})",
        ("service.reachable",),
        "the metadata server did not take what this process offers",
        "see the metadata server's own line before it",
    ),
    _line(
        "mooncake.no-transfer-port",
        Stage.CAUSE,
        ("unable to find available tcp port for data transmission",),
        r"unable to find available tcp port for data transmission",
        ("network.port-range", "port-range-reset"),
        "no free port was found for Mooncake's data over TCP",
        "free ports, or widen the range (MC_MIN_PRC_PORT, MC_MAX_PRC_PORT)",
    ),
)
