"""What launches of others start, by reading them; how an answer is held against it.

The files themselves are not kept here. A row: the file, its programs (how many, and settings that
tell them apart), and whether something of it is to be named as not read: a file, a program, or a
variable that nothing sets and that a setting follows from.
"""

from __future__ import annotations

from typing import Any

Program = tuple[str, int, dict[str, Any]]
UNCOUNTED = 1 << 30  # of what nobody can say how many start
S, M, C, P = "sglang", "mooncake_master", "mooncake_client", "store_service"

FOUND: dict[str, tuple[list[Program], bool]] = {
    "a01-issue7211-wqlxx.sh": (
        [(S, 1, {"tp_size": 8, "dp_size": 8, "hicache_ratio": 10.0, "store.device_name": "mlx5_4",
                 "store.global_segment_size": 5368709120,
                 "store.master_server_address": "172.16.106.102:50051"})], False),
    "a03-pr21259-mamba.sh": (
        [(S, 1, {"tp_size": 4, "port": 8188, "hicache_size": 20, "max_total_tokens": 655360,
                 "page_size": 64, "store.protocol": "rdma", "store.device_name": "mlx5_bond_0"})],
        False),
    "a05-issue854-pd-no-master.sh": (
        [(S, 1, {"tp_size": 8, "page_size": 16, "disaggregation_mode": "prefill"})], False),
    # bash leaves the ~ of --config=~/x as it is: the program finds no such file
    "a07-issue1382-store80g.sh": ([(M, 1, {}), (P, 1, {"HTTP port": 8082})], True),
    "a09-pr16808-extra.sh": (
        [(S, 1, {"store.global_segment_size": "4gb", "store.protocol": "rdma"})], False),
    "a11-issue4655-docker.sh": ([], True),
    "a13-gb200-dsv31-nixl.sh": (
        [(S, 1, {"tp_size": 4, "page_size": 512, "disaggregation_mode": "prefill", "port": 12347,
                 "store.global_segment_size": "4gb", "store.local_hostname": "10.173.2.70",
                 "store.check_server": True})], False),
    "a15-ascend-exp0.sh": (
        [(S, 1, {"tp_size": 16, "dp_size": 16, "max_total_tokens": 73728, "hicache_size": 20,
                 "model_path": "CHANGE_ME", "port": 30000})], True),
    "a17-plan1-tcp.sh": (
        [(M, 1, {"RPC port": 55051, "metadata port": 18888}),
         (S, 1, {"port": 30001, "hicache_ratio": 2.0, "store.protocol": "tcp"})], False),
    "a19-docker-l3-test.sh": ([(C, 1, {"segment_bytes": 1 << 30})], True),
    "b01-rbg-agg.yaml": (
        [(M, 1, {}), (P, 3, {"segment_bytes": 10 << 30}),
         (S, 1, {"model_path": "Qwen/Qwen3-0.6B", "store.global_segment_size": "5gb"})], False),
    "b05-rbg-v1alpha1-pd.yaml": (
        [(M, 1, {}), (P, 3, {"segment_bytes": 45 << 30}), ("sglang_router", 1, {}),
         (S, 1, {"tp_size": 4, "disaggregation_mode": "prefill"}),
         (S, 1, {"tp_size": 4, "disaggregation_mode": "decode"})], False),
    "b07-aibrix-stormservice.yaml": (
        [(S, 2, {"disaggregation_mode": "prefill"}), (S, 2, {"disaggregation_mode": "decode"}),
         (S, 1, {"disaggregation_mode": "null"})], False),
    "b09-ome-runtime.yaml": (
        [(S, 2, {"disaggregation_mode": "prefill"}), (S, 2, {"disaggregation_mode": "decode"}),
         ("sglang_router", 1, {})], True),
    "b11-sglang-compose.yaml": (
        [(S, 1, {"model_path": "meta-llama/Llama-3.1-8B-Instruct", "port": 30000})], False),
    "b13-kthena-helm.yaml": ([], True),
    "b15-mooncake-k8s.yaml": (
        [(M, 1, {"RPC port": 50051}), (P, 3, {"segment_bytes": 10 << 30})], False),
    "b17-mooncake-monitoring-compose.yml": ([], False),
    "b19-dynamo-dgd-v1beta1-kimik3.yaml": ([("dynamo.sglang", 6, {"tp_size": 8})], False),
    "c-infx-amd-server_sglang.sh": (
        [(S, 1, {"disaggregation_mode": "prefill", "port": 8000}), ("sglang_router", 1, {})], True),
    # a variable that nobody sets chooses between two ways: both are read, what each sets is open
    "c-infx-dsv4_fp4_b200_vllm_mtp.sh": ([(M, 1, {}), ("vllm", 1, {"block_size": "256"})], True),
    "c-infx-glm5.2_fp4_b300_sglang_mtp.sh": ([(S, 1, {}), ("sglang_router", 1, {})], True),
    "c-infx-minimaxm3_fp8_h200_mtp.sh": ([(M, 1, {}), ("vllm", 1, {"block_size": "128"})], True),
    "c-infx-qwen3.5_fp8_h200_mtp.sh": ([(S, 1, {"kv_cache_dtype": "fp8_e4m3"})], True),
    "c-mc-tone-1p1d-erdma.sh": ([], True),
    "c-sgl-bench_mix.sh": (
        [(S, 1, {"tp_size": 4, "hicache_ratio": 2.5, "hicache_size": 0, "port": 33301,
                 "mem_fraction_static": 0.25})], False),
    "c-sgl-hf3fs-bench.sh": (
        [(S, 1, {"tp_size": 1, "hicache_size": 0, "hicache_storage_backend": "hf3fs"}),
         (S, 1, {"tp_size": 16, "nnodes": 2, "hicache_size": 60})], True),
    "d-mc-efa-L609.sh": (
        [(S, 1, {"tp_size": 8, "dp_size": 2, "port": 8010,
                 "disaggregation_bootstrap_port": 8998})], True),
    "d-mc-guide-L140.sh": ([(M, 1, {"enable_ha": "true", "rpc_address": "10.0.0.1"})], False),
    "d-mc-guide-L542.sh": ([(M, 2, {"client_ttl": "10"})], False),
    "d-mc-guide-L896.sh": ([(M, 1, {})], True),
    "d-mc-iso-L32.sh": ([(S, 1, {"model_path": "Qwen/Qwen3-8B"})], False),
    "d-mc-iso-L62.sh": ([("vllm", 1, {"model": "/models/Qwen3-8B"})], True),
    "d-mc-lmcache.sh": ([(M, 1, {"metadata port": 8080, "metrics port": 9003})], False),
    "d-mc-skill-L293.sh": ([], False),  # a report, no launch
    "d-mc-ssd-L28.sh": ([(M, 1, {"RPC port": 50051})], False),
    "d-mc-ssd-L58.sh": ([(C, 1, {"segment_bytes": 4 << 30, "protocol": "rdma"})], True),
    "d-mc-ssdbench-L131.sh": (
        [(M, 1, {"metrics port": 9004}), (C, 1, {"segment_bytes": 80 << 30})], False),
    "d-mc-vllmstore-L50.sh": ([(M, 1, {"port": "50063"})], False),
    "d-sgl-benchhicache.sh": (
        [(S, 3, {"enable_hierarchical_cache": False}),
         (S, 1, {"enable_hierarchical_cache": True})], False),
    "d-sgl-epd-L166.sh": (
        [(S, 1, {"port": 30000, "encoder_only": True}), (S, 1, {"port": 30002}),
         (S, 1, {"port": 30003, "disaggregation_mode": "decode"}), ("sglang_router", 1, {})],
        True),
    "d-sgl-mcreadme-L213.sh": (
        [(S, 1, {"store.protocol": "rdma", "store.tenant_id": "tenant-a"})], True),
    "d-sgl-mcreadme-L272.sh": (
        [(S, 1, {"store.enable_ssd_offload": True,
                 "store.ssd_offload_path": "/mnt/mooncake-ssd"})], True),
    "d-sgl-mcreadme-L310.sh": (
        [(S, 1, {"store.master_server_address": "127.0.0.1:50051"})], True),
    "d-sgl-nixl-L105.sh": (
        [(S, 1, {"page_size": 64, "hicache_size": 64, "hicache_ratio": 2.0,
                 "hicache_storage_backend": "nixl"})], True),
    "d-sgl-nixl-L220.sh": ([(S, 1, {"tp_size": 2, "page_size": 256})], True),
    "d-sgl-pd-L426.sh": (
        [(S, 1, {"disaggregation_transfer_backend": "nixl", "port": 30000})], False),
    "d-sgl-simm.sh": ([(S, 1, {"hicache_storage_backend": "simm"})], True),
    "d-vllmascend-colocated.sh": ([(M, 1, {"port": "50088"})], False),
    # its servers are started by functions of SGLang's tests: each call is named
    "e-py-test-disagg-hicache.py": ([], True),
    "e-sglang-config-launch.sh": ([(S, 1, {"hicache_storage_backend": "mooncake"})], True),
    "e-slime-prefix.sh": (
        [(S, UNCOUNTED, {"model_path": "/root/Qwen3-4B", "tp_size": 2, "hicache_ratio": 2.0,
                 "store.master_server_address": "127.0.0.1:50051"})], True),
    "e-srtslurm-agg-gb300-tp2-c24-mtp-hicache-jid2530012.yaml": (
        [(S, 1, {"tp_size": 2, "hicache_ratio": 0.9, "page_size": 64}), ("nats", 1, {}),
         ("etcd", 1, {}), ("sglang_router", 1, {})], False),
    "e-srtslurm-vllm-mooncake.yaml": (
        [(M, 1, {"metadata port": 8701}),
         ("vllm", 1, {"tensor_parallel_size": "8", "pipeline_parallel_size": "2"})], False),
}  # fmt: skip


def differences(found: list[Program], truth: list[Program]) -> list[str]:
    """Return what of a launch was understood otherwise: programs, how many, settings."""
    told = []
    left = [program for program in found if program[0] != "other"]
    for name, number, settings in truth:
        alike = [
            program
            for program in left
            if program[0] == name
            and all(program[2].get(key) == value for key, value in settings.items())
        ]
        taken = 0
        for program in alike:
            if taken < number:
                taken += program[1]
                left.remove(program)
        if taken != number:
            told.append(f"{name} {settings}: {taken} of {number}")
    return told + [f"{name}: {number} too many" for name, number, _ in left]
