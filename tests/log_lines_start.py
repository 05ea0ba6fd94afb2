"""Lines of set-ups and starts that fail, for ``tests.log_lines``: the line, and its pattern."""

from __future__ import annotations

# Those with a time of 1121 17:, of shells, of ZeroMQ and of transformers were provoked.
LINES: tuple[tuple[str, str], ...] = (
    (
        "E1121 17:25:27.172955 22462 client_service.cpp:3736] MountLocalDiskSegment failed, "
        "error code is UNABLE_OFFLOAD",
        "mooncake.offload-mount",
    ),
    (
        "E1121 17:25:27.172989 22462 file_storage.cpp:169] Failed to mount file storage: "
        "UNABLE_OFFLOAD",
        "mooncake.offload-mount",
    ),
    (
        "E1121 17:25:27.172991 22462 real_client.cpp:1140] file storage init failed with "
        "error: UNABLE_OFFLOAD",
        "mooncake.offload-init",
    ),
    (
        "E1121 17:25:27.246381 22502 aligned_client_buffer.cpp:78] "
        "AlignedClientBufferAllocator: posix_memalign failed with error 12 (Cannot allocate "
        "memory)",
        "mooncake.offload-buffer",
    ),
    (
        "AlignedClientBufferAllocator: failed to allocate hugepage memory of size 1342177280",
        "mooncake.offload-buffer",
    ),
    (
        "Failed to preallocate file: /data/off/data.bin, capacity: 10737418240, error: No "
        "space on the file system",
        "mooncake.offload-preallocate",
    ),
    (
        "Failed to create storage directory: /data/off",
        "mooncake.offload-preallocate",
    ),
    (
        "E1121 17:25:27.383950 22576 real_client.cpp:1256] Missing required config: "
        "metadata_server",
        "mooncake.config-key",
    ),
    (
        "E1121 17:25:27.408526 22576 real_client.cpp:1200] Invalid size value for config key "
        "'global_segment_size': x",
        "mooncake.config-key",
    ),
    (
        "E1121 17:25:27.483631 22587 real_client.cpp:793] local_hostname is empty",
        "mooncake.config-key",
    ),
    (
        "E1121 17:25:45.022109 23209 real_client.cpp:6572] Failed to bind UDS socket "
        "'@mooncake_client_51960.sock': Address already in use",
        "mooncake.client-socket",
    ),
    (
        "E1121 17:25:45.022131 23209 real_client.cpp:1101] Failed to start IPC server at "
        "@mooncake_client_51960.sock",
        "mooncake.client-ended",
    ),
    (
        "F1121 17:25:45.022140 23209 real_client_main.cpp:134] Failed to setup client: "
        "INTERNAL_ERROR",
        "mooncake.client-ended",
    ),
    (
        "E1121 real_client.cpp:1992] client_id=12345-678, error=shm_not_mapped",
        "mooncake.client-restarted",
    ),
    (
        "E1121 real_client.cpp:2403] Failed to map shared memory from fd: 7, name: /x, "
        "error: Cannot allocate memory",
        "mooncake.shared-memory",
    ),
    (
        "E1121 17:25:50.098667 23247 client_service.cpp:654] Failed to read current master "
        "view: ETCD_OPERATION_ERROR",
        "mooncake.etcd-master",
    ),
    (
        '{"level":"warn","logger":"etcd-client","msg":"retrying of unary invoker '
        'failed","target":"etcd-endpoints://0xc0000a2000/127.0.0.1:1","attempt":0}',
        "mooncake.etcd-master",
    ),
    (
        "RedisStoragePlugin: authentication failed for 10.0.0.1:6379",
        "mooncake.redis-refused",
    ),
    (
        "Unsupported transport barex, please rebuild Mooncake",
        "mooncake.transport-build",
    ),
    (
        "Protocol 'nvlink' requires -DUSE_MNNVL=ON",
        "mooncake.transport-build",
    ),
    (
        "No HCA detected and neither NVLink nor TCP transport is compiled in",
        "mooncake.transport-build",
    ),
    (
        "ClientSession: malformed READ status frame (peer likely speaks the legacy protocol)",
        "mooncake.frame",
    ),
    (
        "SocketHandShakePlugin: unexpected handshake message type",
        "mooncake.frame",
    ),
    (
        "ServerSession: remote-supplied address 0x7f0a00000000 with size 65536 is not within "
        "any registered buffer",
        "mooncake.remote-address",
    ),
    (
        "Address 0x7f0a rkey not found for mlx5_0",
        "mooncake.remote-address",
    ),
    (
        "NvlinkTransport: cuMemImportFromShareableHandle failed: 801",
        "mooncake.nvlink",
    ),
    (
        "NvlinkTransport: device 0 cannot p2p access device 4",
        "mooncake.nvlink",
    ),
    (
        "IntraNodeNvlinkTransport: cudaIpcOpenMemHandle failed: invalid argument",
        "mooncake.nvlink",
    ),
    (
        "RdmaTransport: cannot publish segments",
        "mooncake.publish",
    ),
    (
        "E1121 17:25:28.557512 22642 transfer_metadata.cpp:1470] Failed to set location of "
        "127.0.0.1:13238",
        "mooncake.publish",
    ),
    (
        "TcpTransport: unable to find available tcp port for data transmission",
        "mooncake.no-transfer-port",
    ),
    (
        "The node was low on resource: memory. Container egg was using 5053216Ki, which "
        "exceeds its request of 0.",
        "runtime.evicted",
    ),
    (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 638834513199, "
        "available: 434266920Ki.",
        "runtime.evicted",
    ),
    (
        "The node had condition: [MemoryPressure].",
        "runtime.evicted",
    ),
    (
        'Usage of EmptyDir volume "dshm" exceeds the limit "1Gi".',
        "runtime.emptydir",
    ),
    (
        "0/3 nodes are available: 3 Insufficient hugepages-2Mi. preemption: 0/3 nodes are "
        "available: 3 No preemption victims found",
        "runtime.unschedulable",
    ),
    (
        "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient rdma/hca_shared_devices_a.",
        "runtime.unschedulable",
    ),
    (
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "runtime.unschedulable",
    ),
    (
        "0/3 nodes are available: 3 Insufficient memory.",
        "runtime.unschedulable",
    ),
    (
        "OCI runtime create failed: runc create failed: unable to start container process: "
        "error during container init: error setting rlimits for ready process: error setting "
        "rlimit type 8: operation not permitted: unknown",
        "runtime.rlimit",
    ),
    (
        "Error: crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied",
        "runtime.rlimit",
    ),
    (
        "bash: ulimit: max locked memory: cannot modify limit: Operation not permitted",
        "runtime.ulimit",
    ),
    (
        "dash: 1: ulimit: error setting limit (Operation not permitted)",
        "runtime.ulimit",
    ),
    (
        'sysctl: permission denied on key "vm.nr_hugepages"',
        "runtime.sysctl",
    ),
    (
        'sysctl: setting key "vm.nr_hugepages": Read-only file system',
        "runtime.sysctl",
    ),
    (
        "bash: /proc/sys/vm/nr_hugepages: Read-only file system",
        "runtime.sysctl",
    ),
    (
        "[12.1] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
        "kernel.peermem-symbol",
    ),
    (
        "[11.4] nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err -22)",
        "kernel.peermem-symbol",
    ),
    (
        "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument",
        "runtime.peermem",
    ),
    (
        "modprobe: FATAL: Module nvidia_peermem not found in directory "
        "/lib/modules/6.8.0-45-generic",
        "runtime.peermem",
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any "
        "local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, "
        "message: address already in use",
        "start.port-taken",
    ),
    (
        "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "start.port-taken",
    ),
    (
        "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:45945')",
        "start.port-taken",
    ),
    (
        "OSError: [Errno 98] Address already in use",
        "start.port-taken",
    ),
    (
        "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.99.99.99:5555')",
        "start.address-foreign",
    ),
    (
        "ERROR:    [Errno 99] error while attempting to bind on address ('10.99.99.99', "
        "30000): cannot assign requested address",
        "start.address-foreign",
    ),
    (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
        "1/2 clients joined.",
        "start.rendezvous",
    ),
    (
        "n1:9:26 [3] misc/shmutils.cc:71 NCCL WARN Error: failed to extend "
        "/dev/shm/nccl-fjwOOB to 5967876 bytes",
        "start.nccl-shm",
    ),
    (
        "n1:9:26 [3] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory "
        "segment /dev/shm/nccl-KWfVyt (size 5967872)",
        "start.nccl-shm",
    ),
    (
        "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
        "start.nccl-shm",
    ),
    (
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed "
        "or device error.",
        "start.nccl",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: "
        "../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
        "start.nccl",
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: "
        "can't allocate memory: you tried to allocate 34359738368 bytes. Error code 12 "
        "(Cannot allocate memory)",
        "start.cpu-memory",
    ),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 40.0 GiB for an array "
        "with shape (5368709120,) and data type float64",
        "start.cpu-memory",
    ),
    (
        "OSError: [Errno 12] Cannot allocate memory",
        "start.no-memory",
    ),
    (
        "RuntimeError: unable to mmap 67108864 bytes from file </torch_1>: Cannot allocate "
        "memory (12)",
        "start.no-memory",
    ),
    (
        "RuntimeError: unable to write to file </torch_123_456>",
        "start.shared-file",
    ),
    (
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        "'/models/nope'. Use `repo_type` argument if needed.",
        "start.model-missing",
    ),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and "
        "couldn't find them in the cached files.",
        "start.model-missing",
    ),
    (
        "ValueError: Unrecognized model in em/. Should have a `model_type` key in its config.json.",
        "start.model-missing",
    ),
    (
        "Failed to initialize NVML: Driver/library version mismatch",
        "start.nvml",
    ),
    (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "start.nvml",
    ),
    (
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "start.cuda-busy",
    ),
    (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "start.cuda-busy",
    ),
    (
        "Watchdog timeout (self.watchdog_timeout=300)",
        "start.watchdog",
    ),
    (
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "start.watchdog",
    ),
    (
        "ValueError: Invalid hicache storage backend extra config JSON: Expecting value: line 1",
        "sglang.store-config",
    ),
    (
        "Configuration loading failed: missing key",
        "sglang.store-config",
    ),
    (
        "ValueError: Unsupported layout for models with head_dim != v_head_dim and "
        "io_backend='kernel': page_head; expected 'page_first'.",
        "sglang.layout",
    ),
    (
        "ValueError: Unsupported IO backend: foo",
        "sglang.layout",
    ),
    (
        "ValueError: Unsupported layout page_head for io backend 'direct'",
        "sglang.layout",
    ),
    (
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
        "runtime.shm",
    ),
    (
        "[50763.383266] sg[11988]: segfault at 10 ip 0000556137c9d132 sp 00007fff186c0950 "
        "error 6 in sg[1132,556137c9d000+1000] likely on CPU 1 (core 1, socket 0)",
        "kernel.segfault",
    ),
    (
        "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
        "kernel.aer",
    ),
    (
        "pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received from "
        "0000:3b:00.0",
        "kernel.aer",
    ),
    ("NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x24:0x65:1436)", "kernel.gpu-init"),
    ("MemoryError", "start.no-memory"),
    ("OSError: [Errno 99] Cannot assign requested address", "start.address-foreign"),
    (
        "RuntimeError: CUDA error: OS call failed or operation not supported on this OS",
        "cuda.argument",
    ),
    (
        "RuntimeError: CUDA unexpectedly failed: Error 804: forward compatibility was "
        "attempted on non supported HW",
        "cuda.driver",
    ),
    ("Initialization failed. warmup error: HTTPConnectionPool", "process.ended"),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to "
        "locate the files on the Hub",
        "start.model-missing",
    ),
    (
        "[48081.579826] __vm_enough_memory: pid: 22567, comm: python3, bytes: 8796093026304 not "
        "enough memory for the allocation",
        "kernel.overcommit",
    ),
    (
        "E1121 17:35:00.392853 16307 segment.cpp:216] buffer=139762295898112 or size=67108865 "
        "is not aligned to 16777216 as required by Cachelib",
        "mooncake.slabs",
    ),
    (
        "AssertionError: The environment variable SGLANG_DISAGGREGATION_THREAD_POOL_SIZE=3 must "
        "be greater than or equal to SGLANG_DISAGGREGATION_QUEUE_SIZE=4.",
        "start.transfer-threads",
    ),
    (
        "ValueError: Cannot resolve host 'nodeb': [Errno -2] Name or service not known",
        "start.name",
    ),
    ("ValueError: Can not get local ip", "start.name"),
    ("socket.gaierror: [Errno -2] Name or service not known", "start.name"),
)
