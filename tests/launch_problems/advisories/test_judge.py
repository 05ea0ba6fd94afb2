"""Which launches a record is said of: conditions held by hand, on hosts that are written down."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Finding, Status
from checks.framework.unknown import Unknown
from preflight.cli.main import run
from preflight.command_inputs.host_source import Host, open_host
from preflight.command_inputs.launch_words import LaunchWords
from preflight.launch_problems.advisories.judge import advisory_findings, verdicts
from preflight.verdict.judge_host import JudgedHost, judge_host
from tests.builders.synthetic import build_host, gpu_host
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

Out = pytest.CaptureFixture[str]

TOPICS = ("system", "memory", "pci", "gpus", "rdma", "software")
SERVER = "python3 -m sglang.launch_server --model-path {model} --tp 8"
CACHE = " --enable-hierarchical-cache --hicache-size 4 --hicache-storage-backend mooncake"
STORE = "MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL={protocol} "
RDMA, TCP = STORE.format(protocol="rdma"), STORE.format(protocol="tcp")
MHA, DSA = SERVER.format(model="Qwen/Qwen3-14B"), SERVER.format(model="deepseek-ai/DeepSeek-V3.2")
V4 = SERVER.format(model="deepseek-ai/DeepSeek-V4-Pro")
SSD = "MOONCAKE_ENABLE_SSD_OFFLOAD=1 MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/data "
EAGLE = " --speculative-algorithm EAGLE"
MASTER = "mooncake_master --enable_ha=true --etcd_endpoints=10.0.0.1:2379"
PREFILL = " --disaggregation-mode prefill"
DECODE = " --disaggregation-mode decode --hicache-storage-backend mooncake"
BEST = " --hicache-storage-prefetch-policy best_effort"
NO_VMM = "WITH_NVIDIA_PEERMEM=0 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
NIXL = " --disaggregation-transfer-backend nixl"
POLICY = "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY="
OLD_POLICY = "MOONCAKE_BUCKET_EVICTION_POLICY="
URING = "MOONCAKE_OFFLOAD_USE_URING=1 "
OLD_URING = "MOONCAKE_USE_URING="
FILES = "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=file_per_key_storage_backend "
RADIX = " --disaggregation-decode-enable-radix-cache"
OFFLOAD = " --disaggregation-decode-enable-offload-kvcache"
FORCED, NAMED = "MC_FORCE_TCP=1 ", "MOONCAKE_DEVICE=mlx5_0 "
EFA, META = "MOONCAKE_PROTOCOL=efa ", "MOONCAKE_TE_META_DATA_SERVER={} "
EXTRA = " --hicache-storage-backend-extra-config '{{\"master_server_address\": {}}}'"
BACKEND = "mooncake_master --enable_ha --ha_backend_connstring=a:2379 --ha_backend_type="
VLLM = (
    'vllm serve m --kv-transfer-config \'{{"kv_connector": "MooncakeConnector", "kv_role": '
    '"kv_producer", "kv_connector_extra_config": {{"mooncake_protocol": "{}"}}}}\''
)
HOT, NO_SEGMENT = "MC_STORE_LOCAL_HOT_CACHE_SIZE=1000000000 ", "MOONCAKE_GLOBAL_SEGMENT_SIZE=0 "
HTTP = META.format("http://10.0.0.1:8080/metadata")
WHOLE = " --hicache-storage-prefetch-policy wait_complete"
BY_ETCD = TCP.replace("127.0.0.1:50051", "etcd://a:2379")
SEGMENTS = "PYTORCH_ALLOC_CONF=expandable_segments:True "
MEM_POOL = "SGLANG_MOONCAKE_CUSTOM_MEM_POOL="
STANDALONE = "MOONCAKE_STANDALONE_STORAGE=1 MOONCAKE_CLIENT=127.0.0.1:50052 "
WARN = Status.WARN


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_host(tmp_path_factory.mktemp("host") / "root", gpu_host()))


@pytest.fixture(scope="module")
def host(root: str) -> Host:
    """The host, open: each thing is asked once."""
    return open_host(root)


def seen(tmp_path: Path, host: Host, text: str, mooncake: str, sglang: str) -> JudgedHost:
    path = tmp_path / "launch.sh"
    path.write_text(text + "\n")
    words = LaunchWords((str(path),), mooncake_version=mooncake, sglang_version=sglang)
    return judge_host(words, host, 20, [], TOPICS)


def said(found: list[Finding]) -> dict[int, Status]:
    """The records that have a finding of their own, by number."""
    return {int(one.check[-4:]): one.status for one in found if one.check.startswith("advisory.")}


@pytest.mark.slow
@each_row(
    ("text", "mooncake", "sglang", "number", "status"),
    [
        # 1: several clients on one host, TCP, and the release's own default for the copy.
        (TCP + MHA + CACHE, "0.3.10", "0.5.12", 1, None),
        ("MC_STORE_MEMCPY=1 " + TCP + MHA + CACHE, "0.3.10", "0.5.12", 1, Status.WARN),
        ("MC_STORE_MEMCPY=0 " + TCP + MHA + CACHE, "0.3.10.post2", "0.5.12", 1, None),
        (RDMA + MHA + CACHE, "0.3.10.post2", "0.5.12", 1, None),
        # Whatever is not "no" in so many words switches the copy on, by any transport.
        ("MC_STORE_MEMCPY= " + TCP + MHA + CACHE, "0.3.10", "0.5.12", 1, Status.WARN),
        ("MC_STORE_MEMCPY=1 " + RDMA + MHA + CACHE, "0.3.10", "0.5.12", 1, Status.WARN),
        (FORCED + RDMA + MHA + CACHE, "0.3.10.post2", "0.5.12", 1, Status.WARN),
        # Devices that are named are opened all the same.
        (FORCED + NAMED + RDMA + MHA + CACHE, "0.3.10.post2", "0.5.12", 1, None),
        (TCP + MHA.replace("--tp 8", "--tp 1") + CACHE, "0.3.10.post2", "0.5.12", 1, None),
        # 6: io_uring, asked for in so many words, with offload.
        (SSD + "MOONCAKE_OFFLOAD_USE_URING=0 " + TCP + MHA + CACHE, "0.3.12", "0.5.23", 6, None),
        # 8: one release alone.
        (RDMA + MHA + CACHE + PREFILL, "0.3.11", "0.5.12", 8, Status.WARN),
        (RDMA + MHA + CACHE, "0.3.11", "0.5.12", 8, None),
        ("WITH_NVIDIA_PEERMEM=On " + RDMA + MHA + CACHE + PREFILL, "0.3.11", "0.5.12", 8, None),
        ("WITH_NVIDIA_PEERMEM=2 " + RDMA + MHA + CACHE + PREFILL, "0.3.11", "0.5.12", 8, WARN),
        (FORCED + RDMA + MHA + CACHE + PREFILL, "0.3.11", "0.5.12", 8, None),
        # 9: both settings together.
        (NO_VMM + RDMA + MHA + CACHE + PREFILL, "0.3.12.post1", "0.5.23", 9, Status.WARN),
        # NIXL registers what is sent, and Mooncake's engine none of the GPU's memory.
        (NO_VMM + RDMA + MHA + CACHE + PREFILL + NIXL, "0.3.12.post1", "0.5.23", 9, None),
        # Off is whatever is not on; 0.3.11 alone is off where nobody says so.
        (NO_VMM.replace("=0", "=false") + RDMA + MHA + PREFILL, "0.3.12", "0.5.23", 9, WARN),
        (NO_VMM.split()[1] + " " + RDMA + MHA + PREFILL, "0.3.11", "0.5.23", 9, WARN),
        (NO_VMM.split()[1] + " " + RDMA + MHA + PREFILL, "0.3.11.post1", "0.5.23", 9, None),
        # 10, 11: the eviction policy that is not set, and the one that was broken.
        # The older names are read where the newer are not given.
        (SSD + "MOONCAKE_USE_URING=true " + TCP + MHA + CACHE, "0.3.12", "0.5.23", 6, Status.FAIL),
        (SSD + "MOONCAKE_USE_URING=$U " + TCP + MHA + CACHE, "0.3.12", "0.5.23", 6, Status.UNKNOWN),
        (SSD + OLD_POLICY + "lru " + TCP + MHA + CACHE, "0.3.11", "0.5.23", 11, Status.WARN),
        (SSD + FILES + TCP + MHA + CACHE, "0.3.11", "0.5.23", 10, None),
        # Each name from the release on that reads it.
        (SSD + URING + TCP + MHA + CACHE, "0.3.10.post1", "0.5.12", 6, None),
        (SSD + URING + TCP + MHA + CACHE, "0.3.10.post2", "0.5.12", 6, Status.FAIL),
        (SSD + OLD_URING + "1 " + TCP + MHA + CACHE, "0.3.10", "0.5.12", 6, Status.FAIL),
        (SSD + OLD_POLICY + "fifo " + TCP + MHA + CACHE, "0.3.10.post1", "0.5.12", 10, None),
        (SSD + POLICY + "fifo " + TCP + MHA + CACHE, "0.3.10.post2", "0.5.12", 10, None),
        (SSD + OLD_POLICY + "lru " + TCP + MHA + CACHE, "0.3.10.post1", "0.5.12", 11, Status.WARN),
        # Port 0, and what is read as 0, until 0.3.13.
        ("MC_IB_PORT=0 " + RDMA + MHA + CACHE, "0.3.12", "0.5.23", 23, Status.FAIL),
        ("MC_IB_PORT=abc " + RDMA + MHA + CACHE, "0.3.12", "0.5.23", 23, Status.FAIL),
        ("MC_IB_PORT=0 " + TCP + MHA + CACHE, "0.3.12", "0.5.23", 23, None),
        # A client whose master is found through etcd pings it too.
        (BY_ETCD + MHA + CACHE, "0.3.12", "0.5.23", 17, WARN),
        ("mooncake_client --master_server_address=etcd://a:2379", "0.3.12", "0.5.23", 17, WARN),
        # Wherever the address is written, and whichever flag names etcd.
        (MHA + CACHE + EXTRA.format('"etcd://a:2379"'), "0.3.12", "0.5.23", 17, WARN),
        (MHA + CACHE + EXTRA.format('"a:50051"'), "0.3.12", "0.5.23", 17, None),
        (BACKEND + "etcd", "0.3.12", "0.5.23", 17, WARN),
        (BACKEND + "redis", "0.3.12", "0.5.23", 17, None),
        ("mooncake_master --etcd_endpoints=a:2379", "0.3.12", "0.5.23", 17, None),
        # 16 to 18: flags of the master.
        (MASTER + " --allocation_strategy=random", "0.3.12", "0.5.23", 16, None),
        (MASTER + " --allocation_strategy=free_ratio_first", "0.3.12", "0.5.23", 16, Status.WARN),
        (MASTER, "0.3.12", "0.5.23", 17, Status.WARN),
        ("mooncake_master --enable_snapshot_restore", "0.3.12", "0.5.23", 18, Status.WARN),
        # 27: etcd is used, by flag or in the metadata's address.
        (BACKEND + "etcd", "0.3.11.post1", "0.5.23", 27, WARN),
        (MHA + CACHE + EXTRA.format('"etcd://a:2379"'), "0.3.11", "0.5.23", 27, WARN),
        # An address without a scheme is etcd's, where it names the metadata server.
        (META.format("a:2379") + TCP + MHA + CACHE, "0.3.11", "0.5.23", 27, WARN),
        (META.format("http://a:8080/metadata") + TCP + MHA + CACHE, "0.3.11", "0.5.23", 27, None),
        (META.format("P2PHANDSHAKE") + TCP + MHA + CACHE, "0.3.11", "0.5.23", 27, None),
        # 26, 58: EFA between prefill and decode, from the release on that goes by the variable.
        (EFA + MHA + PREFILL, "0.3.12", "0.5.18", 26, WARN),
        (EFA + MHA + PREFILL, "0.3.12", "0.5.12.post1", 26, None),
        (EFA + MHA + PREFILL + NIXL, "0.3.12", "0.5.18", 26, None),
        (VLLM.format("efa"), "0.3.12", "0.5.18", 26, WARN),
        (SEGMENTS + EFA + MHA + PREFILL, "0.3.13", "0.5.18", 58, WARN),
        (MEM_POOL + "true " + EFA + MHA + PREFILL, "0.3.13", "0.5.18", 58, WARN),
        (MEM_POOL + "0 " + EFA + MHA + PREFILL, "0.3.13", "0.5.18", 58, None),
        (EFA + MHA + PREFILL, "0.3.13", "0.5.18", 58, None),
        # 30, 31: standalone storage.
        (STANDALONE + TCP + DSA + CACHE + EAGLE, "0.3.13", "0.5.14", 30, Status.FAIL),
        # 33: two flags that each have their place, and not together.
        (TCP + MHA + DECODE + OFFLOAD, "0.3.13", "0.5.23", 33, None),
        # 35: pipeline stages with L3.
        (TCP + MHA + " --pp-size 2" + CACHE, "0.3.13", "0.5.18", 35, Status.WARN),
        # 36 to 38: sparse attention alone.
        (TCP + DSA + CACHE, "0.3.13", "0.5.10.post1", 36, Status.FAIL),
        (TCP + MHA + CACHE, "0.3.13", "0.5.10", 36, None),
        (TCP + DSA + CACHE + BEST, "0.3.13", "0.5.12.post1", 37, Status.FAIL),
        # 69: an object is K or V of a page on one rank: 10 KiB a token here.
        (SSD + TCP + MHA + CACHE + " --page-size 2048", "0.3.11", "0.5.17", 69, WARN),
        (SSD + TCP + MHA + CACHE + " --page-size 64", "0.3.11", "0.5.17", 69, None),
        # 70: no segment of its own, RDMA and a hot cache.
        (HOT + NO_SEGMENT + RDMA + MHA + CACHE, "0.3.11", "0.5.17", 70, WARN),
        (HOT + RDMA + MHA + CACHE, "0.3.11", "0.5.17", 70, None),
        (HOT + NO_SEGMENT + TCP + MHA + CACHE, "0.3.11", "0.5.17", 70, None),
        (HOT.replace("=1", "=0") + NO_SEGMENT + RDMA + MHA + CACHE, "0.3.11", "0.5.17", 70, None),
        # 71: P2PHANDSHAKE, SGLang's default, has the address itself.
        (HTTP + SSD + RDMA + MHA + CACHE, "0.3.10", "0.5.17", 71, WARN),
        (SSD + RDMA + MHA + CACHE, "0.3.10", "0.5.17", 71, None),
        (HTTP + SSD + NAMED + RDMA + MHA + CACHE, "0.3.10", "0.5.17", 71, None),
        # 73: HiCache at all.
        (TCP + MHA, "0.3.11", "0.5.9", 73, None),
        # 75: a client of the store; the engine reads the variable only where TENT is built in.
        ("MC_USE_TENT=1 " + TCP + MHA + CACHE, "0.3.11.post1", "0.5.17", 75, Status.FAIL),
        ("MC_USE_TENT=0 " + TCP + MHA + CACHE, "0.3.9", "0.5.9", 75, Status.FAIL),
        ("MC_USE_TENT=1 " + MHA + PREFILL, "0.3.11", "0.5.17", 75, None),
        # 76: adapters with L3.
        (TCP + MHA + CACHE + " --enable-lora", "0.3.13", "0.5.19", 76, Status.FAIL),
        (TCP + MHA + CACHE + " --lora-paths a=/lora", "0.3.13", "0.5.19", 76, Status.FAIL),
        (TCP + MHA + CACHE, "0.3.13", "0.5.19", 76, None),
        (MHA + " --enable-lora --enable-hierarchical-cache", "0.3.13", "0.5.19", 76, None),
    ],
)
def test_a_condition_by_hand(
    tmp_path: Path,
    host: Host,
    text: str,
    mooncake: str,
    sglang: str,
    number: int,
    status: Status | None,
) -> None:
    found = advisory_findings(seen(tmp_path, host, text, mooncake, sglang))
    assert said(found).get(number) is status


SERVICE = "python3 -m mooncake.mooncake_store_service"
LMCACHE = (
    "pip install lmcache==0.3.5\n{}MOONCAKE_CONFIG_PATH=/x.json vllm serve m --kv-transfer-config "
    '\'{{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}\''
)
IN_DOCKER = "docker run {} -e MOONCAKE_MASTER=a:1 -e MOONCAKE_PROTOCOL=tcp img " + SERVICE
DEVICE = " --disaggregation-ib-device mlx5_0"
SSD_CLIENT = "mooncake_client --enable_offload"
LAYOUT, DIRECT = " --hicache-mem-layout ", " --hicache-io-backend direct"


@pytest.mark.slow
@each_row(
    ("text", "mooncake", "sglang", "holds", "holds_not"),
    [
        # 34: ranks of one data-parallel group wait for each other, and not those of others.
        (TCP + MHA + CACHE, "0.3.12", "0.5.23", {34}, {35}),
        (TCP + MHA + " --dp 8 --enable-dp-attention" + CACHE, "0.3.12", "0.5.23", set(), {34}),
        (TCP + MHA + " --dp 4 --enable-dp-attention" + CACHE, "0.3.12", "0.5.23", {34}, set()),
        # 72, 77 to 79: what only arises while it runs.
        (SERVER.format(model="/m/GLM-5.3-Flash") + CACHE, "0.3.13", "0.5.21", {78}, {79}),
        (SERVER.format(model="/m/GLM-5.3") + CACHE, "0.3.13", "0.5.21", set(), {78, 79}),
        (V4 + DECODE, "0.3.13", "0.5.23", {79}, {78}),
        (TCP + MHA + CACHE, "0.3.12", "0.5.13", {72, 80}, {77}),
        (TCP + MHA + " --dp 8 --enable-dp-attention" + CACHE, "0.3.12", "0.5.13", set(), {72}),
        (TCP + DSA + CACHE, "0.3.12", "0.5.16", {77}, {72}),
        (TCP + DSA + CACHE + WHOLE, "0.3.12", "0.5.16", set(), {77}),
        # A client that MC_FORCE_TCP keeps on TCP registers with no NIC, unless devices are named.
        (FORCED + RDMA + MHA + CACHE, "0.3.12", "0.5.23", {53}, {7, 24, 52, 65, 66, 67}),
        (FORCED + NAMED + RDMA + MHA + CACHE, "0.3.12", "0.5.23", {7, 65}, {53}),
        (FORCED + "MC_MS_AUTO_DISC=1 " + NAMED + RDMA + MHA + CACHE, "0.3.12", "0.5.23", {53}, {7}),
        (FORCED + RDMA + SERVICE, "0.3.12", "0.5.23", {53}, {7}),
        # The engine between prefill and decode keeps to it with named devices too.
        (TCP + MHA + PREFILL, "0.3.12", "0.5.23", {7}, set()),
        (FORCED + TCP + MHA + PREFILL, "0.3.12", "0.5.23", set(), {7}),
        (FORCED + MHA + PREFILL + DEVICE, "0.3.12", "0.5.23", set(), {7}),
        # EFA is no RDMA of Mooncake's.
        (EFA + MHA + PREFILL, "0.3.12", "0.5.18", {57}, {7, 65}),
        (EFA + MHA + PREFILL, "0.3.12", "0.5.12", {7, 65}, {57}),
        (EFA + "MOONCAKE_MASTER=a:1 " + SERVICE, "0.3.12", "0.5.18", {57}, {7, 65}),
        (VLLM.format("efa"), "0.3.12", "0.5.18", {19, 22, 57}, {7}),
        # What a variable mends is not said where it is set.
        ("MC_IB_PCI_RELAXED_ORDERING=1 " + RDMA + MHA + CACHE, "0.3.12", "0.5.23", {7}, {52}),
        ("MC_TCP_ENABLE_CONNECTION_POOL=1 " + TCP + MHA + CACHE, "0.3.10", "0.5.23", set(), {53}),
        ("mooncake_master --client_ttl=60", "0.3.12", "0.5.23", set(), {20}),
        # 1: the containers of one pod have one address, and pods have one each.
        (f"{IN_DOCKER.format('')}\n{IN_DOCKER.format('')}", "0.3.10.post2", "0.5.23", {53}, {1}),
        (
            f"{IN_DOCKER.format('--net=host')} &\n{TCP}{SERVICE}",
            "0.3.10.post2",
            "0.5.23",
            {1},
            set(),
        ),
        # 32, 39: by the layout that SGLang makes of what is written.
        (TCP + MHA + CACHE + LAYOUT + "page_first_direct", "0.3.12", "0.5.23", set(), {39}),
        (TCP + MHA + CACHE + LAYOUT + "page_first", "0.3.12", "0.5.23", {39}, set()),
        (TCP + MHA + CACHE + PREFILL + EAGLE + DIRECT, "0.3.12", "0.5.15.post1", {32}, set()),
        (TCP + MHA + CACHE + PREFILL + EAGLE, "0.3.12", "0.5.15.post1", set(), {32}),
        # 40: LMCache reads by what Mooncake lacks where its cache is in Mooncake.
        (LMCACHE.format("LMCACHE_REMOTE_URL=mooncakestore://a:1 "), "0.3.5", "0.5.9", {40}, set()),
        (LMCACHE.format("LMCACHE_REMOTE_URL=mooncakestore://a:1 "), "0.3.6", "0.5.9", set(), {40}),
        (LMCACHE.format("LMCACHE_REMOTE_URL=redis://a:1 "), "0.3.5", "0.5.9", set(), {40}),
        # 68: io_uring by the name that the release reads.
        ("MOONCAKE_OFFLOAD_USE_URING=1 " + SSD_CLIENT, "0.3.10", "0.5.23", {10}, {68}),
        ("MOONCAKE_USE_URING=1 " + SSD_CLIENT, "0.3.10", "0.5.23", {68}, set()),
        ("MOONCAKE_OFFLOAD_USE_URING=1 " + SSD_CLIENT, "0.3.10.post2", "0.5.23", {68}, set()),
        # 50: the NICs of one node alone do not split a segment.
        ("MC_STORE_USE_HUGEPAGE=1 " + RDMA + MHA + CACHE, "0.3.11", "0.5.23", {50}, set()),
        ("MC_STORE_USE_HUGEPAGE=1 " + NAMED + RDMA + MHA + CACHE, "0.3.11", "0.5.23", set(), {50}),
    ],
)
def test_what_holds_of_a_process(
    tmp_path: Path,
    host: Host,
    text: str,
    mooncake: str,
    sglang: str,
    holds: set[int],
    holds_not: set[int],
) -> None:
    """Also of records of which a check tells, or which only arise later."""
    found = verdicts(seen(tmp_path, host, text, mooncake, sglang))
    held = {int(one.advisory.id[-4:]) for one in found if one.holds is True}
    assert holds <= held
    assert not holds_not & held


@pytest.mark.parametrize(
    ("text", "hangs", "decided"),
    [
        ("mooncake_master --config_path=/nosuch.yaml", {16, 17, 18, 20}, set()),
        ("mooncake_master $ARGS", {16, 17, 18, 20}, set()),
        ("mooncake_master $ARGS --enable_ha=false", {18, 20}, {16, 17}),
        (TCP + MHA + CACHE + " $MORE", {33, 34, 35}, {36}),
        # What moves KV may be another's.
        (MHA + PREFILL + " $MORE", {22, 65}, set()),
        (MHA + PREFILL + " --disaggregation-transfer-backend mooncake $MORE", set(), {22, 65}),
        (TCP + MHA + CACHE + " $MORE --pp-size 1", {33, 34}, {35, 36}),
    ],
)
def test_what_words_that_are_not_known_decide_is_one_skip_and_no_pass(
    tmp_path: Path, host: Host, text: str, hangs: set[int], decided: set[int]
) -> None:
    at = seen(tmp_path, host, "MC_IB_PORT=0 " + text, "0.3.12", "0.5.12.post1")
    unknown = {int(one.advisory.id[-4:]) for one in verdicts(at) if one.depends_on_unseen_settings}
    assert hangs <= unknown
    assert not decided & unknown
    found = advisory_findings(at)
    assert not said(found).keys() & hangs
    assert any(one.status is Status.SKIP and "what decides" in one.text for one in found)


@pytest.mark.parametrize(
    ("config", "unknown"),
    [
        ("$CONFIG", True),
        ('\'{"kv_connector": "MyConnector", "kv_role": "kv_both"}\'', True),
        ('\'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}\'', True),
        ('\'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\'', False),
        ("'{}'", False),
    ],
)
def test_a_connector_that_is_not_known_may_be_mooncakes(
    tmp_path: Path, host: Host, config: str, unknown: bool
) -> None:
    """It counted as none, and the records of Mooncake as not affecting it."""
    text = f"LMCACHE_CONFIG_FILE=/nosuch.yaml vllm serve m --kv-transfer-config {config}"
    held = {
        isinstance(one.holds, Unknown)
        for one in verdicts(seen(tmp_path, host, text, "0.3.12", "0.5.23"))
        if any(each.product == "mooncake" for each in one.advisory.affected)
    }
    assert (True in held) is unknown


def test_a_fact_that_was_not_read_never_passes(tmp_path: Path, host: Host) -> None:
    """The same launch, and the host's model of the GPU's own not read: affected where ..."""
    found = advisory_findings(
        seen(
            tmp_path,
            host,
            (TCP + DSA + CACHE).replace("deepseek-ai/DeepSeek-V3.2", "/models/own"),
            "0.3.13",
            "0.5.10",
        )
    )
    one = next(one for one in found if one.check == "advisory.mp-2026-0036")
    assert one.status is Status.UNKNOWN
    assert "It is where uses.store" in one.text or "It is where flag." in one.text
    assert one.cause


LAUNCHES = sorted((ROOT / "tests/data/launches").glob("*.sh"))
# An old pair, one in use, and the newest. Read by hand: of these launches one alone offloads to SSD
# (no eviction policy is set; io_uring is on by its older name; its model is not known here, nor the
# size of an object), none has a TCP client beside another, pipeline stages, a draft or huge pages
# with named NICs. Those with HiCache hear of SGLang before 0.5.10 that its memory grows.
PAIRS = [("0.3.8.post1", "0.5.9"), ("0.3.10.post2", "0.5.12.post1"), ("0.3.14", "0.5.23")]
WITH_HICACHE = (
    "a10-l1-l2-mooncake a10-l1-l2 best-practices-dynamic best-practices-hf3fs "
    "best-practices-mooncake best-practices-prefill complete-guide-environment "
    "complete-guide-extra-config dgx-l1-l2-mooncake dgx-l1-l2 h800-l1-l2-mooncake h800-l1-l2 "
    "quick-start-prefill-decode quick-start"
)
AFFECTED = {
    **{(name, PAIRS[0]): {73} for name in WITH_HICACHE.split()},
    ("dgx-l1-l2-mooncake-ssd", PAIRS[0]): {10, 69, 73},
    ("dgx-l1-l2-mooncake-ssd", PAIRS[1]): {6, 10, 69},
}


@pytest.mark.slow
@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
@pytest.mark.parametrize("pair", PAIRS)
def test_no_record_is_said_outside_its_range(path: Path, host: Host, pair: tuple[str, str]) -> None:
    words = LaunchWords((str(path),), mooncake_version=pair[0], sglang_version=pair[1])
    found = said(advisory_findings(judge_host(words, host, 20, [], TOPICS)))
    certain = {number for number, status in found.items() if status is not Status.UNKNOWN}
    assert certain == AFFECTED.get((path.stem, pair), set())
    # What hangs on a model that nobody has here.
    assert set(found) - certain <= {36}


# The command ------------------------------------------------------------------------------------


def answer(capsys: Out, *words: str) -> tuple[int, Any]:
    code = run(["explain", "--advisories", *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_command_lists_all_and_those_of_a_launch(
    tmp_path: Path, root: str, capsys: Out
) -> None:
    schema = json.loads((ROOT / "preflight/report/schemas/advisories-v1.schema.json").read_text())
    code, every = answer(capsys, "--json")
    valid(every, schema)
    known = every["answer"]["advisories"]
    assert (code, every["launch"], len(known) >= 60) == (0, None, True)
    path = tmp_path / "launch.sh"
    path.write_text(SSD + "MOONCAKE_OFFLOAD_USE_URING=1 " + TCP + MHA + CACHE + "\n")
    of = ("--root", root, "--sglang-version", "0.5.23", "--json", str(path))
    code, found = answer(capsys, "--mooncake-version", "0.3.12", *of)
    valid(found, schema)
    rows = {row["advisory"]: row for row in found["answer"]["advisories"]}
    assert (code, rows["MP-2026-0006"]["affected"]) == (1, True)
    assert rows["MP-2026-0013"]["text"].startswith("may arise: ")
    code, found = answer(capsys, "--all", "--mooncake-version", "0.3.14", *of)
    valid(found, schema)
    assert (code, len(found["answer"]["advisories"])) == (0, len(known))
    launched = ("--launch", of[-1])
    code = run(["explain", "--advisories", "--mooncake-version", "0.3.12", *of[:-2], *launched])
    assert (code, "MP-2026-0006  wrong output" in capsys.readouterr().out) == (1, True)
    assert run(["explain", "--advisories", "--here"]) == 64
    assert "there is no launch" in capsys.readouterr().err
    assert run(["explain", "--advisories", str(path), *launched]) == 64
    assert run(["explain", "--all"]) == 64


def test_a_record_has_a_page_by_its_id_and_its_findings_id(capsys: Out) -> None:
    assert run(["explain", "MP-2026-0006"]) == 0
    page = capsys.readouterr().out
    assert "affected: mooncake 0.3.10 to before 0.3.13" in page
    assert run(["explain", "advisory.mp-2026-0006"]) == 0
    assert capsys.readouterr().out == page


def test_the_zip_holds_what_is_true_of_a_wheel_alone(tmp_path: Path, capsys: Any) -> None:
    import zipfile

    assert run(["explain", "--advisories", "--osv-zip", str(tmp_path / "all.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "all.zip") as made:
        rows = [json.loads(made.read(name)) for name in made.namelist()]
    # The wheel without CUDA that needs it, and the Go in old wheels.
    assert {row["id"] for row in rows} == {"x_MP-2026-0002", "x_MP-2026-0027"}
    for row in rows:
        assert {each["package"]["ecosystem"] for each in row["affected"]} == {"PyPI"}
        events = [event for each in row["affected"] for event in each["ranges"][0]["events"]]
        assert any("last_affected" in event or "fixed" in event for event in events)
    assert run(["explain", "--advisories", "--osv-zip", str(tmp_path / "none" / "all.zip")]) == 64
    capsys.readouterr()
    assert run(["explain", "--advisories", "--osv"]) == 0
    assert len(json.loads(capsys.readouterr().out)) >= 60
