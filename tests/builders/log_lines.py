"""Further lines of known patterns beside their examples, and the patterns that explain each.

Lines with a glog head and a time of 1121 07: were printed by the real Mooncake; the others are
quoted from the sources that the tables name, filled with plausible values.
"""

from __future__ import annotations

from tests.builders import log_lines_start

_E = "E1121 07:41:24.118824 4907 "
_W = "W1121 07:41:24.118824 4907 "

# (line, ids of the patterns that explain it, the first first)
LINES: tuple[tuple[str, str], ...] = (
    # host memory
    (
        "ValueError: Not enough host memory for DSA indexer hierarchical cache. Requesting 34.40 "
        "GB but only have -2.13 GB free.",
        "sglang.host-memory",
    ),
    (
        "RuntimeError: Pinned host memory allocation of 28.0 GiB (30064771072 bytes) returned a "
        "null pointer",
        "sglang.no-pointer",
    ),
    # what other programs print, quoted from logs of theirs
    (
        "slurmstepd: error: Detected 3 oom-kill event(s) in step 4711.batch cgroup. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
        "slurm.oom",
    ),
    ("srun: error: gpu001: task 0: Out Of Memory", "slurm.oom"),
    ("[2026-01-28 04:18:11] Exit code: -7", "process.sigbus"),
    (
        "Rank 0 scheduler is dead. Please check if there are relevant logs.",
        "process.ended",
    ),
    (
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "process.ended",
    ),
    ("n1:9:26 [3] NCCL WARN Cuda failure 2 'out of memory'", "cuda.memory"),
    ("RuntimeError: CUDA error: device-side assert triggered", "cuda.fault"),
    # registration
    *(
        (
            f"{_E}rdma_context.cpp:602] Failed to register memory 0x7f0a: {error} [{errno}]",
            f"mooncake.register-{name}",
        )
        for errno, name, error in (
            (12, "enomem", "Cannot allocate memory"),
            (11, "eagain", "Resource temporarily unavailable"),
            (14, "efault", "Bad address"),
            (5, "eio", "Input/output error"),
            (22, "einval", "Invalid argument"),
            (1, "eperm", "Operation not permitted"),
            (95, "eopnotsupp", "Operation not supported"),
            (28, "other", "No space left on device"),
        )
    ),
    (
        _E + "client_service.cpp:3523] register_local_memory_failed base=0x7f0a size=83886080, "
        "error=-203",
        "mooncake.register-local",
    ),
    ("RuntimeError: Mooncake memory registration failed (ret=-1)", "sglang.register"),
    (
        "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': no such file",
        "library.provider",
    ),
    # devices
    (
        "Using cross-node NVLink transport (MC_FORCE_MNNVL or no HCA detected)",
        "mooncake.fallback-transport",
    ),
    (
        _W + "topology.cpp:54] Device mlx5_0 path /dev/infiniband/uverbs0 does not exist",
        "mooncake.uverbs",
    ),
    # connections
    (
        _E + "rdma_endpoint.cpp:429] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer "
        "lid, peer qp num: Connection timed out [110]",
        "mooncake.qp-rtr",
    ),
    *(
        (
            f"{_E}worker_pool.cpp:654] Worker: Process failed for slice (opcode: 1, source_addr: "
            f"0x7f, length: 65536, dest_addr: 0x7e, local_nic: mlx5_0, peer_nic: b@mlx5_1, "
            f"dest_rkey: 1, retry_cnt: 0, max_retry_cnt: 8): {status}",
            id_,
        )
        for status, id_ in (
            ("remote access error", "rdma.remote-access"),
            ("transport retry counter exceeded", "rdma.retry-exceeded"),
            ("remote invalid request error", "rdma.mtu-mismatch"),
            ("local length error", "rdma.mtu-mismatch"),
            ("local protection error", "rdma.local-protection"),
            ("Work Request Flushed Error", "rdma.flushed"),
        )
    ),
    # services
    ("Error from etcd client: 14", "mooncake.metadata-store"),
    (
        _E + "http_metadata_server.cpp:121] Failed to start HTTP metadata server on 0.0.0.0:55903",
        "mooncake.port-taken",
    ),
    *(
        (line, "mooncake.flag-illegal")
        for line in (
            "ERROR: illegal value 'maybe' specified for bool flag 'enable_ha'",
            "ERROR: illegal value '' specified for int32 flag 'rpc_port'",
            "ERROR: boolean value (nometrics_port) specified for int32 command line flag",
            "ERROR: flag '--rpc_port' is missing its argument; flag description: Port for RPC "
            "server to listen on (0 = use port, preferred over port)",
        )
    ),
    *(
        (line, "mooncake.master-refuses")
        for line in (
            "F1121 17:08:21.282475 29267 master.cpp:1476] Invalid memory allocator: foo, must be "
            "'cachelib' or 'offset'",
            "F1121 17:08:21.803360 29382 master.cpp:1445] HA backend connection string must be set "
            "when enable_ha is true, backend_type=etcd. Only backend_type=etcd may fall back to "
            "etcd_endpoints",
            "E1121 17:08:26.179992 29818 master_service_supervisor.cpp:515] Failed to parse HA "
            "backend config: UNAVAILABLE_IN_CURRENT_MODE, backend_type=redis",
            "F1121 17:08:28.209219 30095 master.cpp:1453] enable_oplog requires enable_ha=true",
            "F1121 17:08:31.397794 30751 master.cpp:205] offloading_queue_limit must be greater "
            "than 0",
            "E1121 17:08:32.729952 31074 master_service.cpp:328] put_start_release_timeout=1 must "
            "be larger than put_start_discard_timeout_sec=30",
            "  what():  put_start_release_timeout must be larger than "
            "put_start_discard_timeout_sec",
            "E1121 17:08:34.474875 31418 master_service.cpp:263] Failed to create snapshot stores: "
            "Unknown snapshot object store type: ''",
            "E1121 17:11:06.062897 5588 master.cpp:1480] Invalid Client liveness configuration: "
            "Client liveness TTLs must be positive",
        )
    ),
    # store, settings, offload
    ("Failed to start put operation: NO_AVAILABLE_HANDLE", "mooncake.no-space"),
    (
        "[Mooncake] Warning: invalid value 'abc' for env MC_GID_INDEX, using default 3",
        "mooncake.environment",
    ),
    (
        _W + "config.cpp:164] Invalid MC_PKEY_INDEX environment value: zz. Error: stoi",
        "mooncake.environment",
    ),
    (
        _W + "utils.cpp:149] Invalid MC_MMAP_ARENA_POOL_SIZE='xx', using default 8.00 GB",
        "mooncake.environment",
    ),
    *(
        (f"{_E}file_storage_config.cpp:155] FileStorageConfig: {rule}", "mooncake.offload-path")
        for rule in (
            "storage_filepath must be an absolute path: off",
            "storage_filepath does not exist: /mnt/nosuch",
            "symbolic link is not allowed: /mnt/off_link",
            "storage_filepath is not a directory: /mnt/off_file",
            "path traversal is not allowed: /mnt/../off",
            "disk_eviction_low_watermark_ratio must be in (0, 1]",
        )
    ),
    ("OSError: [Errno 28] No space left on device", "mooncake.offload-disk"),
    # SGLang
    (
        "ValueError: Invalid global_segment_size: missing number before 'gb'",
        "sglang.segment-size",
    ),
    (
        "RuntimeError: Failed to load config from /etc/mooncake.json: [Errno 2]",
        "sglang.store-config",
    ),
    (
        "ValueError: Failed to create storage backend: Either master_server_address or "
        "client_server_address is required in extra_config",
        "sglang.store-config sglang.backend",
    ),
    (
        "ValueError: HiCache cannot build the MHA host pool for --hicache-io-backend direct",
        "sglang.layout",
    ),
    (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): "
        "address already in use",
        "sglang.port",
    ),
    ("setting membind: Invalid argument", "sglang.numa-binding"),
    # threads
    *(
        (line, "threads.refused")
        for line in (
            "RuntimeError: can't start new thread",
            "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource "
            "temporarily unavailable",
            "  what():  Resource temporarily unavailable",
            "RuntimeError: Resource temporarily unavailable",
            "libgomp: Thread creation failed: Resource temporarily unavailable",
            "OMP: System error #11: Resource temporarily unavailable",
            "pthread_create failed: Resource temporarily unavailable",
            "runtime/cgo: pthread_create failed: Resource temporarily unavailable",
            "E0710 15:24:06.605366961 2474524 thd.cc:157] pthread_create failed: Resource "
            "temporarily unavailable",
            "runtime: failed to create new OS thread (have 5 already; errno=11)",
            'failed to spawn thread: Os { code: 11, kind: WouldBlock, message: "Resource '
            'temporarily unavailable" }',
            "pyo3_runtime.PanicException: The global thread pool has not been initialized.: "
            "ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: WouldBlock, message: "
            '"Resource temporarily unavailable" }) }',
            "OS can't spawn worker thread: Resource temporarily unavailable (os error 11)",
            "libc++abi: terminating due to uncaught exception of type std::__1::system_error: "
            "thread constructor failed: Resource temporarily unavailable",
            "bash: fork: retry: Resource temporarily unavailable",
            "bash: fork: Resource temporarily unavailable",
            "sh: 0: Cannot fork",
            "timeout: fork system call failed: Resource temporarily unavailable",
            "mount failed: fork/exec /usr/bin/mount: resource temporarily unavailable",
            '[0.020s][warning][os,thread] Failed to start thread "G1 Conc#0" - pthread_create '
            "failed (EAGAIN) for attributes: stacksize: 1024k, guardsize: 4k, detached.",
        )
    ),
    *(
        (line, "process.terminate")
        for line in (
            "terminate called after throwing an instance of 'std::runtime_error'",
            "terminate called after throwing an instance of 'std::system_errorI1121 17:03:54.46 "
            "14020 master_service.cpp:2596] Task cleanup thread started",
            "terminate called after throwing an instance of 'terminate called recursively",
            "terminate called recursively",
            "terminate called without an active exception",
        )
    ),
    *log_lines_start.LINES,
    # processes, container, CUDA
    (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -7). If exit code "
        "is -9 (SIGKILL), a common cause is the OS OOM killer.",
        "process.sigbus process.ended",
    ),
    ("start.sh: line 3: 4907 Bus error (core dumped) python3", "process.sigbus"),
    (
        "RuntimeError: Rank 1 scheduler died during initialization (exit code: -9). If exit code "
        "is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom`",
        "process.sigkill process.ended",
    ),
    ("start.sh: line 3:  4907 Killed                  python3 -m sglang", "process.sigkill"),
    ("Killed", "process.sigkill"),
    (
        "Received sigquit from a child process. It usually means the child failed.",
        "process.ended",
    ),
    ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered", "process.ended"),
    ("Insufficient space in /dev/shm: 4095/4096 MiB required", "runtime.shm"),
    ("OSError: [Errno 24] Too many open files", "runtime.nofile"),
    ("RuntimeError: No CUDA GPUs are available", "cuda.driver"),
    ("RuntimeError: CUDA error: invalid argument", "cuda.argument"),
)
