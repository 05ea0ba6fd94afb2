"""One line for every known pattern, as its program prints it, and the pattern that explains it.

Lines with a glog head and a time of 1121 07: were printed by the real Mooncake; the others are
quoted from the sources that the pattern modules name, filled with plausible values.
"""

from __future__ import annotations

from tests import log_lines_start

_E = "E1121 07:41:24.118824 4907 "
_W = "W1121 07:41:24.118824 4907 "
_MLX5 = "[ 5012.117731] mlx5_core 0000:3b:00.0: mlx5_cmd_out_err:816:(pid 4907): "
_OOM = "[ 6210.91] oom-kill:constraint="
_TASK = "task_memcg=/a,task=python3,pid=2343,uid=0"

# (line, ids of the patterns that explain it, the first first)
LINES: tuple[tuple[str, str], ...] = (
    # kernel
    (
        _MLX5 + "CREATE_MKEY(0x200) op_mod(0x0) failed, status no resources(0xf), "
        "syndrome (0x2aac7c), err(-11)",
        "kernel.mlx5-no-resources",
    ),
    (
        _MLX5 + "CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), "
        "syndrome (0x18af6), err(-12)",
        "kernel.mlx5-limits",
    ),
    (
        _MLX5 + "CREATE_QP(0x500) op_mod(0x0) failed, status bad resource(0x5), "
        "syndrome (0x9c6e1a), err(-22)",
        "kernel.mlx5-command",
    ),
    (
        "[ 91.2] infiniband erdma_0: ERROR: Out of mr size: 85899345920, max 68719476736",
        "kernel.erdma-size",
    ),
    (
        "[ 91.2] erdma 0000:00:07.0: CMD(hdr 0x1d00000004) return with error 5",
        "kernel.erdma-command",
    ),
    ("[ 91.2] erdma 0000:00:07.0: ERROR: Out of MRs: 8192, max 8192", "kernel.erdma-count"),
    (
        f"{_OOM}CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/a,{_TASK}",
        "kernel.oom-cgroup",
    ),
    (
        f"{_OOM}CONSTRAINT_MEMORY_POLICY,nodemask=1,cpuset=/,mems_allowed=0-1,global_oom,{_TASK}",
        "kernel.oom-policy",
    ),
    (
        f"{_OOM}CONSTRAINT_CPUSET,nodemask=(null),cpuset=pod,mems_allowed=0,{_TASK}",
        "kernel.oom-cpuset",
    ),
    (
        f"{_OOM}CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,{_TASK}",
        "kernel.oom-host",
    ),
    (
        "[ 6210.91] Out of memory: Killed process 2343 (python3) total-vm:413235352kB, "
        "anon-rss:132608000kB, file-rss:71616kB, shmem-rss:33268040kB, UID:0",
        "kernel.oom-victim",
    ),
    (
        "[13039.8] Cannot map memory with base addr 0x75fb76000000 and size of 0x200000 pages",
        "kernel.nvidia-cannot-map",
    ),
    (
        "[ 0.91] HugeTLB: allocating 262144 of page size 2.00 MiB failed.  "
        "Only allocated 191222 hugepages.",
        "kernel.hugetlb-boot",
    ),
    (
        "audit: type=1326 audit(1763711111.460:84): auid=4294967295 uid=0 gid=0 ses=4294967295 "
        'pid=29064 comm="numactl" exe="/usr/bin/numactl" sig=0 arch=c000003e syscall=238 compat=0 '
        "ip=0x46fe1f code=0x50000",
        "kernel.seccomp",
    ),
    (
        "[ 81.1] python3: page allocation failure: order:9, mode:0xcc0(GFP_KERNEL)",
        "kernel.page-allocation",
    ),
    ("[ 81.1] NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.", "kernel.xid"),
    (
        "[ 81.1] DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0x7f00 "
        "[fault reason 0x05]",
        "kernel.iommu-fault",
    ),
    (
        "[ 4.1] mlx5_core 0000:3b:00.0: 31.504 Gb/s available PCIe bandwidth, limited by "
        "8.0 GT/s PCIe x4 link at 0000:3a:00.0 (capable of 252.048 Gb/s)",
        "kernel.pci-bandwidth",
    ),
    ("[ 81.1] mlx5_core 0000:3b:00.0 ens1f0np0: Link down", "kernel.link-down"),
    (
        "[ 81.1] mlx5_core 0000:3b:00.0: Port module event: module 0, Cable unplugged",
        "kernel.cable",
    ),
    (
        "[ 81.1] Memory failure: 0x1f00: Killing python3:2343 due to hardware memory corruption",
        "kernel.sigbus-poison",
    ),
    # huge pages and mappings
    (
        "RuntimeError: Failed to map shared memory using 2MB hugepages (size 6291456 bytes, need "
        "3 hugepages): Cannot allocate memory. Configure enough hugepages",
        "mooncake.l2-hugepages",
    ),
    ("RuntimeError: Failed to map shared memory: Cannot allocate memory", "mooncake.l2-map"),
    (
        "RuntimeError: Failed to create anonymous shared memory (Check "
        "/proc/sys/vm/nr_hugepages?): No such file or directory",
        "mooncake.memfd",
    ),
    (
        _E + "mmap_arena.cpp:103] Arena hugepage mmap failed for pool_size=209715200 bytes, "
        "errno=12 (Cannot allocate memory); regular-page fallback disabled because "
        "MC_STORE_USE_HUGEPAGE explicitly requested hugepages",
        "mooncake.arena-hugepages",
    ),
    (
        _W + "mmap_arena.cpp:115] Arena hugepage mmap failed for pool_size=209715200 bytes, "
        "errno=12 (Cannot allocate memory); retrying without huge pages",
        "mooncake.arena-regular",
    ),
    (
        _E + "mmap_arena.cpp:211] Arena OOM: requested=83886080, aligned_size=83886080, "
        "aligned_offset=16777216, pool_size=94371840",
        "mooncake.arena-full",
    ),
    (
        _E + "utils.cpp:363] mmap failed, size=16777216, errno=12 (Cannot allocate memory)",
        "mooncake.mmap",
    ),
    (
        _E + "utils.cpp:435] mmap failed (hugepage=yes), size=83886080, errno=12 (Cannot "
        "allocate memory)",
        "mooncake.numa-mmap",
    ),
    (
        _E + "utils.cpp:452] mbind failed for NUMA 1, errno=1 (Operation not permitted)",
        "mooncake.mbind",
    ),
    (_E + "real_client.cpp:1020] Failed to allocate segment memory", "mooncake.segment-memory"),
    ("MemoryError: std::bad_alloc", "mooncake.bad-alloc"),
    (
        _W + "utils.h:308] Invalid MC_STORE_HUGEPAGE_SIZE='512MB'. Supported: 2MB, 1GB. "
        "Fallback to 2MB.",
        "mooncake.hugepage-size",
    ),
    # host memory
    (
        "ValueError: Not enough host memory available. Requesting 40.00 GB but only have 34.13 GB "
        "free. Please reduce the size of the hierarchical cache.",
        "sglang.host-memory",
    ),
    (
        "ValueError: Not enough host memory for DSA indexer hierarchical cache. Requesting 34.40 "
        "GB but only have -2.13 GB free.",
        "sglang.host-memory",
    ),
    ("[TP0] Not enough host memory for request 5f2a9c", "sglang.host-memory-request"),
    (
        "ValueError: Not enough host memory for M3.1 NVFP4 KV, index and draft caches",
        "sglang.host-memory-other",
    ),
    (
        "ValueError: No host memory is left for HiCache after the 10 GiB reserve; set "
        "--hicache-ratio or --hicache-size explicitly.",
        "sglang.auto-size",
    ),
    (
        "RuntimeError: Cannot automatically size HiCache host memory; set --hicache-size "
        "explicitly (GB per rank)",
        "sglang.auto-cgroup",
    ),
    (
        "Cannot determine cgroup memory headroom: Cannot resolve cgroup memory path: /../c1. "
        "Checking explicitly sized HiCache pools against host available memory",
        "sglang.cgroup-unread",
    ),
    (
        "AssertionError: The host memory should be larger than the device memory with the current "
        "protocol",
        "sglang.host-smaller",
    ),
    (
        "RuntimeError: MooncakeHostMemAllocator.alloc returned a null pointer for 28.000 GB "
        "(30064771072 bytes); the mooncake host memory allocator could not map the segment",
        "sglang.no-pointer",
    ),
    (
        "RuntimeError: Pinned host memory allocation of 28.0 GiB (30064771072 bytes) returned a "
        "null pointer",
        "sglang.no-pointer",
    ),
    (
        "RuntimeError: cudaHostRegister failed (rc=1, invalid argument) at offset=0 "
        "size=34760392704 (total=34760392704, chunk_limit=34760392704); host buffer is not pinned",
        "cuda.host-register",
    ),
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
        _W + "rdma_context.cpp:216] The buffer length exceeds device max_mr_size, shrink it to "
        "68719476736: Success [0]",
        "mooncake.region-truncated",
    ),
    (
        _E + "rdma_context.cpp:578] Buffer length 85899345920 exceeds device max_mr_size "
        "68719476736 (should have been chunked before registration, #2017)",
        "mooncake.region-too-large",
    ),
    (
        _E + "transfer_engine_impl.cpp:647] Transfer Engine does not support zero length memory "
        "region",
        "mooncake.zero-length",
    ),
    (
        _E + "transfer_engine_impl.cpp:655] Transfer Engine does not support overlapped memory "
        "region",
        "mooncake.overlap",
    ),
    (
        _E + "rdma_context.cpp:1328] DMA BUF supported required for GPU RDMA without "
        "nvidia-peermem on GPU device 3 mapped to RNIC mlx5_3",
        "mooncake.dmabuf-unsupported",
    ),
    (
        _E + "rdma_context.cpp:457] Failed to retrieve dmabuf for 140000 base=140000 size=4096 "
        "cuda error=operation not supported",
        "mooncake.dmabuf-failed",
    ),
    (
        _E + "efa_context.cpp:587] fi_mr_reg failed for 0x7f0a40000000: Cannot allocate memory",
        "mooncake.efa-register",
    ),
    (
        _E + "transfer_executor_base.cpp:523] Register mem ret: 103900, errmsg: EL0004: Failed to "
        "allocate memory",
        "mooncake.ascend-register",
    ),
    (
        _E + "rdma_transport.cpp:448] Failed to register memory region (chunk 0) with context 3",
        "mooncake.register-local",
    ),
    (
        _E + "client_service.cpp:3523] register_local_memory_failed base=0x7f0a size=83886080, "
        "error=-203",
        "mooncake.register-local",
    ),
    (
        "RuntimeError: Failed to register buffer to Mooncake Store, error code: -600",
        "sglang.register",
    ),
    ("RuntimeError: Mooncake memory registration failed (ret=-1)", "sglang.register"),
    ("libibverbs: Warning: RLIMIT_MEMLOCK is 16384 bytes.", "library.memlock"),
    ("libibverbs: Warning: fork()-safety requested but init failed", "library.fork-safe"),
    (
        _E + "rdma_context.cpp:175] RDMA context setup failed: fork compatibility: Invalid "
        "argument [22]",
        "mooncake.fork-support",
    ),
    (
        "libibverbs: Warning: no userspace device-specific driver found for "
        "/sys/class/infiniband_verbs/uverbs0",
        "library.provider",
    ),
    (
        "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': no such file",
        "library.provider",
    ),
    # devices
    (
        _W + "topology.cpp:201] No RDMA devices found, check your device installation",
        "mooncake.no-rdma-devices",
    ),
    (
        "I1121 07:41:24.1 4907 transfer_engine_impl.cpp:395] Using TCP transport (no HCA detected)",
        "mooncake.fallback-transport",
    ),
    (
        "Using cross-node NVLink transport (MC_FORCE_MNNVL or no HCA detected)",
        "mooncake.fallback-transport",
    ),
    ("Topology discovery complete. Found 0 HCAs.", "mooncake.zero-hcas"),
    (_E + "rdma_transport.cpp:1139] RdmaTransport: No available RNIC", "mooncake.no-rnic"),
    (_E + "rdma_context.cpp:1433] No matched device found: mlx5_9", "mooncake.device-missing"),
    (_W + "rdma_context.cpp:1228] Device mlx5_1 port not active", "mooncake.port-inactive"),
    (
        _W + "topology.cpp:135] Device mlx5_1 has no active ports, skipping",
        "mooncake.no-active-port",
    ),
    (
        _W + "topology.cpp:67] Device /dev/infiniband/uverbs0 is not accessible for read/write",
        "mooncake.uverbs",
    ),
    (
        _W + "topology.cpp:54] Device mlx5_0 path /dev/infiniband/uverbs0 does not exist",
        "mooncake.uverbs",
    ),
    (_W + "topology.cpp:224] Skipping unavailable device: mlx5_2", "mooncake.device-skipped"),
    (
        _W + "topology.cpp:111] Failed to open device mlx5_0: Permission denied [13]",
        "mooncake.device-open",
    ),
    (
        _E + "rdma_context.cpp:211] Failed to open device mlx5_0 on port 1 with GID 3",
        "mooncake.context",
    ),
    (_E + "rdma_context.cpp:1208] ibv_open_device(mlx5_0) failed", "mooncake.ibv-open"),
    (_E + "rdma_context.cpp:1194] ibv_get_device_list failed", "mooncake.device-list"),
    (_W + "rdma_context.cpp:1369] No suitable GID found on mlx5_0/1", "mooncake.gid-none"),
    (
        _E + "rdma_context.cpp:1392] Failed to query GID 244 on mlx5_0/1: No data available",
        "mooncake.gid-query",
    ),
    (
        _W + "rdma_context.cpp:1400] GID is NULL, please check your GID index by specifying "
        "MC_GID_INDEX",
        "mooncake.gid-null",
    ),
    (
        _W + "rdma_context.cpp:1377] User-specified GID index 0 on mlx5_0/1 has no associated "
        "network device, may not be optimal for RDMA operations",
        "mooncake.gid-no-netdev",
    ),
    (_W + "topology.cpp:87] mlx5_0:1 has no GID table entries", "mooncake.gid-table"),
    (
        _E + "client_service.cpp:879] RDMA protocol requires device names when auto discovery is "
        "disabled",
        "mooncake.device-names-wanted",
    ),
    (_E + "client_service.cpp:1000] unsupported_protocol protocol=rmda", "mooncake.protocol"),
    (
        _E + "client_service.cpp:901] Failed to install RDMA transport with specified devices",
        "mooncake.transport-install",
    ),
    (
        _W + "worker_pool.cpp:1014] Worker: Received context async event port error for context "
        "mlx5_0",
        "mooncake.port-event",
    ),
    (
        "ValueError: Invalid IB devices specified for all GPUs: ['mlx5_9']. Available devices: "
        "['mlx5_0', 'mlx5_1']",
        "sglang.ib-device-invalid",
    ),
    (
        "RuntimeError: InfiniBand sysfs path not found: /sys/class/infiniband. Please ensure",
        "sglang.ib-sysfs",
    ),
    ("ValueError: No valid IB devices specified", "sglang.ib-none"),
    (
        "ValueError: No IB devices configured for GPU 3. Available GPUs: [0, 1]",
        "sglang.ib-gpu-missing",
    ),
    ("Failed to parse device_name as JSON: {0: mlx5_0}", "sglang.device-json"),
    ("ValueError: Unsupported custom mem pool type: FOO", "sglang.custom-pool"),
    ("E efa_context.cpp:99] fi_write failed: Invalid argument", "mooncake.efa-transfer"),
    # connections
    (
        _E + "rdma_endpoint.cpp:1194] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer "
        "lid, peer qp num: local=10.0.0.1:12345@mlx5_0, peer=10.0.0.2:12345@mlx5_0, qp_index=0, "
        "path_mtu=5, port_num=1: Connection timed out",
        "mooncake.qp-rtr",
    ),
    (
        _E + "rdma_endpoint.cpp:429] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer "
        "lid, peer qp num: Connection timed out [110]",
        "mooncake.qp-rtr",
    ),
    (
        _E + "rdma_endpoint.cpp:448] [Handshake] Failed to modify QP to RTS: Invalid argument [22]",
        "mooncake.qp-rts",
    ),
    (
        _E + "rdma_endpoint.cpp:1149] [Handshake] Failed to modify QP to INIT, check local context "
        "port num: Invalid argument",
        "mooncake.qp-init",
    ),
    (
        _E + "rdma_endpoint.cpp:145] Failed to create QP: Cannot allocate memory [12]",
        "mooncake.qp-create",
    ),
    (
        _E + "rdma_context.cpp:269] Failed to create completion queue: Cannot allocate memory [12]",
        "mooncake.cq-create",
    ),
    (
        _E + "rdma_context.cpp:224] Failed to allocate new protection domain on device mlx5_0: "
        "Resource temporarily unavailable [11]",
        "mooncake.pd-create",
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
    (
        _E + "rdma_transport.cpp:955] Memory region not registered by any active device(s): 0x7f",
        "mooncake.not-registered",
    ),
    (
        _E + "nvlink_transport.cpp:714] Requested address 0x7f00 to 0x7f80 not found!",
        "mooncake.address-not-found",
    ),
    (
        _E + "rdma_endpoint.cpp:462] Active handshake RPC failed; resetting endpoint. rc=-1",
        "mooncake.handshake",
    ),
    (
        _E + "transfer_metadata.cpp:1519] Handshake rejected by 10.0.0.2:15428: Failed to open",
        "mooncake.handshake-rejected",
    ),
    # services
    (_E + "master_client.cpp:239] RPC call failed: invalid rpc arg", "mooncake.wire"),
    (
        _E + "master_client.cpp:459] Version mismatch: server=0.3.13 client=0.3.12",
        "mooncake.version",
    ),
    (_E + "master_client.cpp:361] Client not available", "mooncake.master-unreachable"),
    (_E + "client_service.cpp:4857] Failed to ping master", "mooncake.master-lost"),
    (
        _E + "client_service.cpp:4886] Failed to connect to master 10.0.0.1:50051: RPC_FAIL",
        "mooncake.master-connect",
    ),
    (
        _E + "master_client.cpp:367] RPC call timed out: request timeout",
        "mooncake.rpc-timeout",
    ),
    (_E + "master_client.cpp:370] RPC call failed: connection reset", "mooncake.rpc-failed"),
    (
        _E + "client_service.cpp:1545] mount_segment_to_master_failed base=0x7fad6f000000 "
        "size=83886080, error=RPC_FAIL",
        "mooncake.mount",
    ),
    (_E + "real_client.cpp:331] Failed to mount segment: RPC_FAIL", "mooncake.mount-failed"),
    (
        _E + "transfer_metadata_plugin.cpp:340] PUT http://127.0.0.1:1/metadata?key=mooncake "
        "curl: Couldn't connect to server err: Failed to connect to 127.0.0.1 port 1",
        "mooncake.metadata-curl",
    ),
    (
        _E + "transfer_metadata_plugin.cpp:348] PUT http://10.0.0.1:8080/metadata?key=a http=502 "
        "body: Bad gateway",
        "mooncake.metadata-http",
    ),
    (
        _E + "transfer_metadata_plugin.cpp:454] EtcdStoragePlugin: unable to connect "
        "10.0.0.1:2379: context deadline exceeded",
        "mooncake.metadata-store",
    ),
    ("Error from etcd client: 14", "mooncake.metadata-store"),
    (
        "F1121 07:41:24.1 4907 transfer_metadata_plugin.cpp:592] Unable to find metadata storage "
        "plugin htp with conn string: htp://a",
        "mooncake.metadata-scheme",
    ),
    (
        _E + "client_service.cpp:853] Failed to initialize transfer engine, rc=-200",
        "mooncake.engine",
    ),
    ("Mooncake Transfer Engine initialization failed.", "mooncake.engine-sglang"),
    (_E + "real_client.cpp:811] Failed to create client", "mooncake.client"),
    (
        _E + "transfer_metadata_plugin.cpp:1030] SocketHandShakePlugin: connect()127.0.0.1:15329: "
        "Connection refused [111]",
        "mooncake.handshake-connect",
    ),
    (
        "TcpTransport: connect: Cannot assign requested address",
        "mooncake.connect-local-ports",
    ),
    (
        _E + "transfer_metadata_plugin.cpp:850] SocketHandShakePlugin: failed to get IP address of "
        "peer server nodeb:15000, check DNS and /etc/hosts, or use IPv4 address instead: Success",
        "mooncake.peer-name",
    ),
    (
        _E + "transfer_task.cpp:1285] Failed to open segment for endpoint='127.0.0.1:15329'",
        "mooncake.peer-stale",
    ),
    (
        _E + "tcp_transport.cpp:617] TcpTransport::getConnection failed to create connection to "
        "10.0.0.2:15000. Error: connect: No route to host",
        "mooncake.tcp-connection",
    ),
    (
        _E + "master_admin_service.cpp:269] Failed to start master admin server on 0.0.0.0:55903: "
        "Address already in use",
        "mooncake.port-taken",
    ),
    (
        _E + "http_metadata_server.cpp:121] Failed to start HTTP metadata server on 0.0.0.0:55903",
        "mooncake.port-taken",
    ),
    (
        _E + "transfer_engine_impl.cpp:143] P2P: No valid port found for local TCP service.",
        "mooncake.no-port",
    ),
    (_E + "transfer_engine_impl.cpp:165] not valid LAN address found", "mooncake.no-address"),
    (
        _W + "real_client.cpp:858] Failed to create client on port 12864, retry 1/20",
        "mooncake.client-retry",
    ),
    (
        "I1121 07:22:48.187289 11964 master_service.cpp:2619] Task cleanup thread stopped",
        "mooncake.master-ended",
    ),
    ("ERROR: unknown command line flag 'no_such_flag'", "mooncake.flag-unknown"),
    (
        "F1121 07:27:14.5 15562 master.cpp:173] Mem eviction ratio must be between 0.0 and 1.0",
        "mooncake.flag-value",
    ),
    (
        "F1121 master.cpp:65] Invalid value for --rpc_port: 70000. too large",
        "mooncake.flag-invalid",
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
    (
        "F1121 17:08:33.289680 31190 master.cpp:1424] Failed to initialize default config: Failed "
        "to parse JSON file: * Line 1, Column 1",
        "mooncake.master-config",
    ),
    (
        "F1121 17:08:30.821857 30635 master.cpp:439] Failed to resolve rpc_interface=nosuch0: "
        "network interface 'nosuch0' was not found",
        "mooncake.master-interface",
    ),
    (
        "F1121 07:41:24.1 4907 etcd_helper.cpp:496] Etcd is not enabled in compilation",
        "mooncake.not-built-in",
    ),
    # store, settings, offload
    (
        _W + "client_service.cpp:1890] Failed to start put operation for key=k2 due to "
        "insufficient space. Consider lowering eviction_high_watermark_ratio or mounting more "
        "segments.",
        "mooncake.no-space",
    ),
    ("Failed to start put operation: NO_AVAILABLE_HANDLE", "mooncake.no-space"),
    (
        _E + "real_client.cpp:1965] Failed to allocate buffer for put operation, key: k0, value "
        "size: 50000000",
        "mooncake.local-buffer",
    ),
    (
        _W + "client_service.cpp:1410] lease_expired_before_data_transfer_completed key=a",
        "mooncake.lease",
    ),
    (
        _E + "real_client.cpp:1286] Invalid global_segment_size: 1024, must be 0 or at least "
        "16777216",
        "mooncake.size-refused",
    ),
    (
        _E + "real_client.cpp:978] Registration limit is smaller than segment alignment",
        "mooncake.registration-limit",
    ),
    (
        _W + "transfer_engine_impl.cpp:85] Failed to set file descriptor limit. Continuing "
        "initialization",
        "mooncake.nofile",
    ),
    ("RuntimeError: Expected DiskDescriptor", "mooncake.disk-descriptor"),
    (
        _W + "config.cpp:136] Ignore value from environment variable MC_IB_PORT",
        "mooncake.environment",
    ),
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
    (
        _W + "config.cpp:790] Invalid port range [1, 2], falling back to default [12300, 14300]",
        "mooncake.port-range",
    ),
    (
        _E + "config.cpp:509] MC_ENABLE_HCA_PEER_AFFINITY and MC_ENABLE_DEST_DEVICE_AFFINITY "
        "cannot be enabled at the same time",
        "mooncake.affinity",
    ),
    (
        _W + "client_service.cpp:826] MC_MS_FILTERS is set but auto discovery is disabled; "
        "ignoring whitelist: mlx5_0",
        "mooncake.filters",
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
    ("ValueError: Invalid FileStorage configuration", "mooncake.offload-refused"),
    (
        _E + "storage_backend.cpp:1244] Still insufficient disk space after evicting files.",
        "mooncake.offload-disk",
    ),
    ("OSError: [Errno 28] No space left on device", "mooncake.offload-disk"),
    (
        _W + "uring_file.cpp:85] [SharedUringRing] io_uring_register_buffers failed errno=12 "
        "(Cannot allocate memory) buf=0x7f13c2ffd000 size=67108864 pages=16384",
        "mooncake.uring-buffer",
    ),
    (
        _W + "file_storage.cpp:112] Failed to register buffer with UringFile",
        "mooncake.uring-file",
    ),
    (
        _E + "uring_file.cpp:229] [SharedUringRing] io_uring_queue_init failed: Operation not "
        "permitted",
        "mooncake.uring",
    ),
    # SGLang
    ("RuntimeError: Failed to setup Mooncake store, error code: -900", "sglang.store-setup"),
    (
        "RuntimeError: [TP0] Warmup put failed after 10 attempts, Transfer Engine might not be "
        "ready",
        "sglang.warmup",
    ),
    ("ModuleNotFoundError: No module named 'mooncake'", "sglang.mooncake-missing"),
    (
        "Mooncake's tensor allocator requires mooncake >= 0.3.8.post1. Please upgrade Mooncake",
        "sglang.mooncake-old",
    ),
    (
        "RuntimeError: MooncakeStore with standalone_storage=True requires "
        "MooncakeHostTensorAllocator. ",
        "sglang.standalone",
    ),
    ("ValueError: invalid literal for int() with base 10: '512mb'", "sglang.segment-size"),
    (
        "ValueError: Invalid global_segment_size: missing number before 'gb'",
        "sglang.segment-size",
    ),
    (
        "ValueError: Either the environment variable 'MOONCAKE_MASTER' or 'MOONCAKE_CLIENT' is "
        "not set.",
        "sglang.store-config",
    ),
    (
        "RuntimeError: Failed to load config from /etc/mooncake.json: [Errno 2]",
        "sglang.store-config",
    ),
    ("ValueError: Launch mooncake store server timeout", "sglang.store-timeout"),
    (
        "ValueError: Failed to create storage backend: Either master_server_address or "
        "client_server_address is required in extra_config",
        "sglang.store-config sglang.backend",
    ),
    ("ValueError: Unsupported layout: page_head", "sglang.layout"),
    (
        "ValueError: HiCache cannot build the MHA host pool for --hicache-io-backend direct",
        "sglang.layout",
    ),
    ("Pin budget: 0 tokens (ratio=0.000)", "sglang.cold-cache"),
    (
        "launch_server.py: error: unrecognized arguments: --hicache-sizes 3",
        "sglang.argument-unknown",
    ),
    (
        "launch_server.py: error: argument --tp-size/--tp: invalid int value: 'x'",
        "sglang.argument-refused",
    ),
    ("ValueError: --hicache-host-memory-fraction must be in (0, 1].", "sglang.hicache-arguments"),
    (
        "ValueError: port at 30000 is not available in 30 seconds. port at 30000 is not available",
        "sglang.port",
    ),
    (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): "
        "address already in use",
        "sglang.port",
    ),
    ("set_mempolicy: Operation not permitted", "sglang.numa-binding"),
    ("setting membind: Invalid argument", "sglang.numa-binding"),
    (
        "numactl rejected hard memory binding ('--cpunodebind=0 --membind=0'); falling back to "
        "soft preferred policy",
        "sglang.numa-soft",
    ),
    ("libnuma: Warning: node argument 3 is out of range", "sglang.numa-range"),
    ("/tmp/x: line 2: exec: numactl: not found", "sglang.numactl-missing"),
    (
        "KVTransferError(bootstrap_room=12): Failed to get kvcache from prefill instance, it "
        "might be dead",
        "sglang.peer-dead",
    ),
    (
        "RuntimeError: Transfer thread failed because of x. Prefill instance with "
        "bootstrap_port=8998 is dead.",
        "sglang.prefill-dead",
    ),
    # threads
    (
        "[48614.602061] cgroup: fork rejected by pids controller in /docker/9f1c",
        "kernel.pids",
    ),
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
    ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "threads.errno-11"),
    ("Pod was evicted: The node had condition: [PIDPressure].", "threads.node-pids"),
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
    ("container exited with code 135", "process.sigbus"),
    ("start.sh: line 3: 4907 Bus error (core dumped) python3", "process.sigbus"),
    (
        "RuntimeError: Rank 1 scheduler died during initialization (exit code: -9). If exit code "
        "is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom`",
        "process.sigkill process.ended",
    ),
    ("      Exit Code:    137", "process.sigkill"),
    ("start.sh: line 3:  4907 Killed                  python3 -m sglang", "process.sigkill"),
    ("Killed", "process.sigkill"),
    ("container exited with code 139", "process.signal"),
    (
        "Received sigquit from a child process. It usually means the child failed.",
        "process.ended",
    ),
    ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered", "process.ended"),
    ("      Reason:       OOMKilled", "runtime.oom-killed"),
    ("Insufficient space in /dev/shm: 4095/4096 MiB required", "runtime.shm"),
    (
        "docker: Error response from daemon: error gathering device information while adding "
        'custom device "/dev/infiniband": no such file or directory',
        "runtime.rdma-device",
    ),
    (
        'docker: could not select device driver "" with capabilities: [[gpu]].',
        "runtime.gpu",
    ),
    ("Fail to set RLIMIT_NOFILE: not allowed to raise maximum limit", "runtime.nofile"),
    ("OSError: [Errno 24] Too many open files", "runtime.nofile"),
    ("OSError: Tunnel connection failed: 403 Forbidden", "runtime.proxy"),
    (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "library.missing",
    ),
    ("ImportError: store.so: undefined symbol: _ZN8mooncake3fooEv", "library.symbol"),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacity of 79.11 GiB of which 1.20 GiB is free.",
        "cuda.memory",
    ),
    (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
        "value: mem_fraction_static=0.8",
        "sglang.gpu-memory",
    ),
    ("RuntimeError: No CUDA GPUs are available", "cuda.driver"),
    ("RuntimeError: CUDA error: invalid device ordinal", "cuda.ordinal"),
    ("RuntimeError: CUDA error: invalid argument", "cuda.argument"),
)
