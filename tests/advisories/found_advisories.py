"""What each launch of others has to hear of the records, by reading the launches and the records.

The files themselves are not kept here. A launch is written as its traits, in letters; a trait is
what the records of ``HEARS`` are about. What hangs on something that is not known is not here.
"""

from __future__ import annotations

Pair = tuple[set[int], set[int], set[int]]

# Trait -> what it hears with Mooncake 0.3.8.post1 and SGLang 0.5.9, 0.3.10.post2 and 0.5.12.post1,
# 0.3.14 and 0.5.23; see each record's range.
HEARS: dict[str, Pair] = {
    # Mooncake is used: its master, the store or its transfer engine.
    "U": ({19, 22}, {19, 22}, {19, 22}),
    # A master whose clients have 10 s.
    "M": ({20}, {20}, {20}),
    # etcd: of the metadata server, or of masters.
    "E": ({27}, {27}, set()),
    # A client of the store by TCP.
    "T": ({53}, {53}, {53}),
    # The protocol is SGLang's default: tcp, from 0.5.13 on rdma.
    "t": ({53}, {53}, {65, 66, 67}),
    # Two clients or more have one address: by TCP, and by the variable.
    "2": (set(), {1}, set()),
    # It registers with NICs.
    "R": ({7, 24, 52, 65, 66, 67}, {7, 24, 52, 65, 66, 67}, {65, 66, 67}),
    # The same until SGLang 0.5.13, which goes by MOONCAKE_PROTOCOL=efa.
    "F": ({7, 24, 52, 65, 66, 67}, {7, 24, 52, 65, 66, 67}, {57}),
    # SSD offload by a mooncake_client; and by SGLang, from 0.5.12 on; and by io_uring.
    "D": ({10, 13, 15}, {10, 13, 15}, {14}),
    "d": (set(), {10, 12, 13, 15, 60}, {14}),
    "V": (set(), {6, 68}, {68}),
    # An SGLang server, with HiCache, which copies by the kernel backend.
    "S": (set(), {63}, set()),
    "H": ({61, 64}, {61, 64}, {64}),
    "K": (set(), set(), {39}),
    # Ranks that prefetch together: by timeout, the default; until all is there.
    "P": (set(), {34}, {34}),
    "W": (set(), {34}, set()),
}

FOUND = {
    "a01-issue7211-wqlxx.sh": "USHRE",  # DP attention: each rank is a group of its own
    "a03-pr21259-mamba.sh": "USHRW",
    "a05-issue854-pd-no-master.sh": "USHKPRt2",
    "a07-issue1382-store80g.sh": "UM",  # the service's file is not found
    "a09-pr16808-extra.sh": "USHKR",
    "a11-issue4655-docker.sh": "",
    "a13-gb200-dsv31-nixl.sh": "USHKPR",
    "a15-ascend-exp0.sh": "USH",  # the store's file is not here
    "a17-plan1-tcp.sh": "UMSHKT",
    "a19-docker-l3-test.sh": "UT",
    "b01-rbg-agg.yaml": "UMSHKT",  # one client in each pod
    "b03-rbg-standalone.yaml": "UMT",
    "b05-rbg-v1alpha1-pd.yaml": "UMSHKPR",
    "b07-aibrix-stormservice.yaml": "USR",
    "b09-ome-runtime.yaml": "USR",
    "b11-sglang-compose.yaml": "S",
    "b13-kthena-helm.yaml": "",
    "b15-mooncake-k8s.yaml": "UMR",
    "b17-mooncake-monitoring-compose.yml": "",
    "b19-dynamo-dgd-v1beta1-kimik3.yaml": "S",
    "c-infx-amd-server_sglang.sh": "S",  # what moves KV stands in a file that is not here
    "c-infx-dsv4_fp4_b200_vllm_mtp.sh": "",
    "c-infx-glm5.2_fp4_b300_sglang_mtp.sh": "SH",
    "c-infx-minimaxm3_fp8_h200_mtp.sh": "UM",
    "c-infx-qwen3.5_fp8_h200_mtp.sh": "SHK",
    "c-mc-tone-1p1d-erdma.sh": "",
    "c-sgl-bench_mix.sh": "SHK",
    "c-sgl-hf3fs-bench.sh": "SHKP",
    "d-mc-efa-L609.sh": "USF",
    "d-mc-guide-L140.sh": "UME",
    "d-mc-guide-L34.sh": "UM",
    "d-mc-guide-L542.sh": "UM",  # --client_ttl=10 is the default
    "d-mc-guide-L896.sh": "U",  # the master's file is not here
    "d-mc-iso-L32.sh": "USHKt",
    "d-mc-iso-L62.sh": "U",
    "d-mc-lmcache.sh": "UM",
    "d-mc-skill-L293.sh": "",
    "d-mc-ssd-L28.sh": "UM",
    "d-mc-ssd-L58.sh": "URD",
    "d-mc-ssdbench-L131.sh": "UMRDV",
    "d-mc-ssdbench-L90.sh": "UMR",
    "d-mc-vllmstore-L50.sh": "UM",
    "d-sgl-benchhicache.sh": "SHK",
    "d-sgl-epd-L166.sh": "USR",
    "d-sgl-mcreadme-L213.sh": "USHKR",
    "d-sgl-mcreadme-L272.sh": "USHKtd",
    "d-sgl-mcreadme-L310.sh": "USHKt",
    "d-sgl-nixl-L105.sh": "SHK",
    "d-sgl-nixl-L220.sh": "SHW",
    "d-sgl-pd-L426.sh": "S",
    "d-sgl-simm.sh": "SHK",
    "d-vllmascend-colocated.sh": "UM",
    "e-py-test-disagg-hicache.py": "SH",  # what moves KV stands in a class that is not here
    "e-sglang-config-launch.sh": "S",  # SGLang's file is not here
    "e-slime-prefix.sh": "USHKPt2",
    # page_first_direct goes by direct
    "e-srtslurm-agg-gb300-tp2-c24-mtp-hicache-jid2530012.yaml": "SH",
    "e-srtslurm-vllm-mooncake.yaml": "UMR2",  # MC_STORE_MEMCPY=1
}

# Users of Mooncake whose image has a glibc of its own, which nobody knows here.
IN_CONTAINERS = frozenset(
    "a19-docker-l3-test.sh b01-rbg-agg.yaml b03-rbg-standalone.yaml b05-rbg-v1alpha1-pd.yaml "
    "b07-aibrix-stormservice.yaml b09-ome-runtime.yaml b15-mooncake-k8s.yaml "
    "e-srtslurm-vllm-mooncake.yaml".split()
)


def heard(name: str) -> Pair:
    """Return what a launch has to hear of each pair of releases, whatever the host."""
    traits = [HEARS[trait] for trait in FOUND[name]]
    first, second, third = (set().union(*(one[at] for one in traits)) for at in range(3))
    return first, second, third
