"""Lines of set-ups and starts that fail: the line, and its pattern."""

from __future__ import annotations

# Those with a time of 1121 17:, of shells, of ZeroMQ and of transformers were provoked.
LINES: tuple[tuple[str, str], ...] = (
    (
        "E1121 17:25:27.172989 22462 file_storage.cpp:169] Failed to mount file storage: "
        "UNABLE_OFFLOAD",
        "mooncake.offload-mount",
    ),
    (
        "AlignedClientBufferAllocator: failed to allocate hugepage memory of size 1342177280",
        "mooncake.offload-buffer",
    ),
    (
        "Failed to create storage directory: /data/off",
        "mooncake.offload-preallocate",
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
        "F1121 17:25:45.022140 23209 real_client_main.cpp:134] Failed to setup client: "
        "INTERNAL_ERROR",
        "mooncake.client-ended",
    ),
    (
        '{"level":"warn","logger":"etcd-client","msg":"retrying of unary invoker '
        'failed","target":"etcd-endpoints://0xc0000a2000/127.0.0.1:1","attempt":0}',
        "mooncake.etcd-master",
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
        "SocketHandShakePlugin: unexpected handshake message type",
        "mooncake.frame",
    ),
    (
        "Address 0x7f0a rkey not found for mlx5_0",
        "mooncake.remote-address",
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
        "E1121 17:25:28.557512 22642 transfer_metadata.cpp:1470] Failed to set location of "
        "127.0.0.1:13238",
        "mooncake.publish",
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
        "Error: crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied",
        "runtime.rlimit",
    ),
    (
        "dash: 1: ulimit: error setting limit (Operation not permitted)",
        "runtime.ulimit",
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
        "[11.4] nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err -22)",
        "kernel.peermem-symbol",
    ),
    (
        "modprobe: FATAL: Module nvidia_peermem not found in directory "
        "/lib/modules/6.8.0-45-generic",
        "runtime.peermem",
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
        "ERROR:    [Errno 99] error while attempting to bind on address ('10.99.99.99', "
        "30000): cannot assign requested address",
        "start.address-foreign",
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
        "torch.distributed.DistBackendError: NCCL error in: "
        "../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
        "start.nccl",
    ),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 40.0 GiB for an array "
        "with shape (5368709120,) and data type float64",
        "start.cpu-memory",
    ),
    (
        "RuntimeError: unable to mmap 67108864 bytes from file </torch_1>: Cannot allocate "
        "memory (12)",
        "start.no-memory",
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
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "start.nvml",
    ),
    (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "start.cuda-busy",
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
        "pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received from "
        "0000:3b:00.0",
        "kernel.aer",
    ),
    ("MemoryError", "start.no-memory"),
    ("OSError: [Errno 99] Cannot assign requested address", "start.address-foreign"),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to "
        "locate the files on the Hub",
        "start.model-missing",
    ),
    ("ValueError: Can not get local ip", "start.name"),
    ("socket.gaierror: [Errno -2] Name or service not known", "start.name"),
)
